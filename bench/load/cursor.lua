require("bench/load/common")
function init(args)
  setup_from(args)
  request = prepared(list_at_cursor)
end
