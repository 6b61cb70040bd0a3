require("bench/load/common")
function init(args)
  setup_from(args)
  -- The peers take an id where the service takes an opaque cursor.
  request = prepared(function() return wrk.format("GET", "/v1/pets?after=" .. math.random(pets)) end)
end
