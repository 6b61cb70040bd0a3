-- Pets at random, other ones each time: nothing that was asked for a moment ago is likely to be asked for again.
require("bench/load/common")
function init(args)
  setup_from(args)
  request = filled("GET", "/v1/pets/VALUE", function() return math.random(pets) end)
end
