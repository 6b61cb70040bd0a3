-- wrk … -- KEY PETS STATUS PLACE: pages of a status, or of `any`, that begin at a share of the table, at its `last` page,
-- or at `random`.
require("bench/load/common")
function init(args)
  setup_from(args)
  local status, place = args[3], args[4]
  local path = "/v1/pets?limit=20" .. (status == "any" and "" or "&status=" .. status)
  if place == "random" then
    request = filled("GET", path .. "&cursor=VALUE", function() return cursor(math.random(pets)) end)
  else
    local after = place == "last" and pets - 20 or math.floor(pets * tonumber(place))
    local only = wrk.format("GET", after == 0 and path or path .. "&cursor=" .. cursor(after))
    request = function() return only end
  end
end
