require("bench/load/common")
function init(args)
  setup_from(args)
  local request_under = create_under("KEY")
  local before, after = request_under:match("^(.*)KEY(.*)$")
  local run, place = string.format("%x-%x-", os.time(), math.random(2 ^ 30)), 0
  -- Every request has a key of its own.
  request = function()
    place = place + 1
    return before .. run .. place .. after
  end
end
