require("bench/load/common")
function init(args) setup_from(args) end
-- The page at 99 % of the table, always the same.
function request() return wrk.format("GET", "/v1/pets?cursor=" .. cursor(math.floor(pets * 0.99))) end
