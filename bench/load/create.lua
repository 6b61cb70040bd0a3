require("bench/load/common")
function init(args) setup_from(args) end
function request() return create() end
