require("bench/load/common")
function init(args) setup_from(args) end
function request() return list_at_cursor() end
