require("bench/load/common")
function init(args)
  setup_from(args)
  request = prepared(function()
    local draw = math.random(100)
    if draw <= 80 then return list() elseif draw <= 95 then return get() else return create() end
  end)
end
