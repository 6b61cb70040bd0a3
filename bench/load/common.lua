-- What every script needs: the key and the number of pets, from wrk's own arguments (wrk … -- KEY PETS).
function setup_from(args)
  wrk.headers["Authorization"] = "Bearer " .. args[1]
  pets = tonumber(args[2])
  -- Threads draw different numbers: the address of a new table differs between them.
  math.randomseed(os.time() + tonumber(tostring({}):match("0x(%x+)"), 16) % 1000000)
end

local alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

-- The cursor of the page that begins after this id: base64url of a version byte and eight bytes of id.
function cursor(id)
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

-- Requests are made before the measurement, so that what is measured is not this script.
function prepared(make)
  local requests, count, place = {}, 20000, 0
  return function()
    place = place % count + 1
    local request = requests[place]
    if not request then
      request = make()
      requests[place] = request
    end
    return request
  end
end

-- Requests that differ in one place each time: where the path says VALUE.
function filled(method, path, value)
  local before, after = wrk.format(method, path):match("^(.*)VALUE(.*)$")
  return function() return before .. value() .. after end
end

function get() return wrk.format("GET", "/v1/pets/" .. math.random(pets)) end

function list() return wrk.format("GET", "/v1/pets?status=available") end

function list_at_cursor() return wrk.format("GET", "/v1/pets?cursor=" .. cursor(math.random(pets))) end

function create()
  return wrk.format("POST", "/v1/pets", { ["Authorization"] = wrk.headers["Authorization"],
    ["Content-Type"] = "application/json" }, '{"name":"Rex","categoryId":3,"status":"available"}')
end


-- Creates with a header whose value is another one in every request.
function create_with(header)
  local template = wrk.format("POST", "/v1/pets", { ["Authorization"] = wrk.headers["Authorization"],
    ["Content-Type"] = "application/json", [header] = "VALUE" },
    '{"name":"Rex","categoryId":3,"status":"available"}')
  local before, after = template:match("^(.*)VALUE(.*)$")
  local run, place = string.format("%x-%x-", os.time(), math.random(2 ^ 30)), 0
  return function()
    place = place + 1
    return before .. run .. place .. after
  end
end
