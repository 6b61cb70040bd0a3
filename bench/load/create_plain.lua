require("bench/load/common")
function init(args)
  setup_from(args)
  -- As much work for the client as with a key.
  request = create_with("X-Request-Id")
end
