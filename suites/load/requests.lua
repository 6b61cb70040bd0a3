-- The requests that wrk sends: wrk … -- KEY PETS WORKLOAD [ARGUMENT …]

local alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

-- The cursor of the page after this id: base64url of a version byte and eight bytes of id.
local function cursor(id)
  local bytes = { 1 }
  for place = 9, 2, -1 do
    bytes[place] = id % 256
    id = math.floor(id / 256)
  end
  local text = {}
  for start = 1, 9, 3 do
    local group = bytes[start] * 65536 + bytes[start + 1] * 256 + bytes[start + 2]
    for shift = 18, 0, -6 do
      local digit = math.floor(group / 2 ^ shift) % 64
      text[#text + 1] = alphabet:sub(digit + 1, digit + 1)
    end
  end
  return table.concat(text)
end

-- Cycles through 20,000 requests that are built once, so that building them is not measured.
local function prebuilt(build)
  local requests, count, place = {}, 20000, 0
  return function()
    place = place % count + 1
    requests[place] = requests[place] or build()
    return requests[place]
  end
end

-- Replaces VALUE in a request with a new value each time.
local function filled(request, value)
  local before, after = request:match("^(.*)VALUE(.*)$")
  return function() return before .. value() .. after end
end

local function get() return wrk.format("GET", "/v1/pets/" .. math.random(pets)) end

local function list() return wrk.format("GET", "/v1/pets?status=available") end

local function create(header)
  local headers = { ["Authorization"] = wrk.headers["Authorization"], ["Content-Type"] = "application/json" }
  if header then headers[header] = "VALUE" end
  return wrk.format("POST", "/v1/pets", headers, '{"name":"Rex","categoryId":3,"status":"available"}')
end

-- Creates with a header whose value is unique.
local function create_with(header)
  local run, number = string.format("%x-%x-", os.time(), math.random(2 ^ 30)), 0
  return filled(create(header), function()
    number = number + 1
    return run .. number
  end)
end

local workloads = {
  get = function() return prebuilt(get) end,
  -- A new id each time, so that a pet is rarely read twice in a short time.
  get_any = function()
    return filled(wrk.format("GET", "/v1/pets/VALUE"), function() return math.random(pets) end)
  end,
  list = function() return prebuilt(list) end,
  cursor = function()
    return prebuilt(function() return wrk.format("GET", "/v1/pets?cursor=" .. cursor(math.random(pets))) end)
  end,
  status_cursor = function()
    return prebuilt(function()
      return wrk.format("GET", "/v1/pets?status=available&cursor=" .. cursor(math.random(pets)))
    end)
  end,
  -- The peers accept an id where the service accepts an opaque cursor.
  peer_status_cursor = function()
    return prebuilt(function()
      return wrk.format("GET", "/v1/pets?status=available&after=" .. math.random(pets))
    end)
  end,
  -- Pages of a status, or of `any`: at a fraction of the table, the `last` one, or `random` ones.
  page = function(status, place)
    local path = "/v1/pets?limit=20" .. (status == "any" and "" or "&status=" .. status)
    if place == "random" then
      return filled(wrk.format("GET", path .. "&cursor=VALUE"), function() return cursor(math.random(pets)) end)
    end
    local after = place == "last" and pets - 20 or math.floor(pets * tonumber(place))
    local only = wrk.format("GET", after == 0 and path or path .. "&cursor=" .. cursor(after))
    return function() return only end
  end,
  create = function() return prebuilt(create) end,
  create_with_key = function() return create_with("Idempotency-Key") end,
  -- As much work for the client as with a key.
  create_without_key = function() return create_with("X-Request-Id") end,
  -- A new name for any pet.
  update = function()
    local number = 0
    return function()
      number = number + 1
      local headers = { ["Authorization"] = wrk.headers["Authorization"], ["Content-Type"] = "application/json" }
      return wrk.format("PATCH", "/v1/pets/" .. math.random(pets), headers, '{"name":"Rex ' .. number .. '"}')
    end
  end,
  -- Orders available pets (of each hundred, from the 10th), and cancels each order as soon as it is placed. Continues after
  -- the pet `last`; the threads of all nodes take turns.
  orders = function(last, node, nodes)
    local total, step = math.floor(pets / 100) * 90, 2 * tonumber(nodes)
    local turn = (math.floor(tonumber(last) / 100) + 1) * 90 + 2 * tonumber(node) + number
    local placed = {}
    local headers = { ["Authorization"] = wrk.headers["Authorization"], ["Content-Type"] = "application/json" }
    response = function(_, _, body)
      local order = body:match('"status":"placed"') and body:match('"id":(%d+)')
      if order then placed[#placed + 1] = order end
    end
    return function()
      local order = table.remove(placed)
      if order then return wrk.format("POST", "/v1/store/orders/" .. order .. "/cancel") end
      local place = turn % total
      turn = turn + step
      local pet = math.floor(place / 90) * 100 + 10 + place % 90
      return wrk.format("POST", "/v1/store/orders", headers, '{"petId":' .. pet .. "}")
    end
  end,
  -- The page of the event feed after a position.
  events = function(position)
    local page = wrk.format("GET", "/v1/events?limit=100&after=" .. position)
    return function() return page end
  end,
  mix = function()
    return prebuilt(function()
      local draw = math.random(100)
      if draw <= 80 then return list() elseif draw <= 95 then return get() else return create() end
    end)
  end,
}

-- Numbers the threads.
local threads = 0
function setup(thread)
  thread:set("number", threads)
  threads = threads + 1
end

function init(args)
  wrk.headers["Authorization"] = "Bearer " .. args[1]
  pets = tonumber(args[2])
  -- Each thread needs its own seed: the address of a new table differs between threads.
  math.randomseed(os.time() + tonumber(tostring({}):match("0x(%x+)"), 16) % 1000000)
  request = workloads[args[3]](args[4], args[5], args[6])
end
