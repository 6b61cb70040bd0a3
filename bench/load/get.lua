require("bench/load/common")
function init(args)
  setup_from(args)
  request = prepared(get)
end
