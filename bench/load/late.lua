require("bench/load/common")
function init(args)
  setup_from(args)
  -- The page at 99 % of the table, always the same.
  request = prepared(function() return wrk.format("GET", "/v1/pets?cursor=" .. cursor(math.floor(pets * 0.99))) end)
end
