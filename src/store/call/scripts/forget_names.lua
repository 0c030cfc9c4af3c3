-- forget_names: forgets delivered names whose time is over.
--
-- KEYS  1 delivered  zset: route/name -> until when it stays taken, ms
--       2 counts     hash: r:route names; moves: how many bundles, dead letters and names changed their place
-- ARGV  names at most
-- returns {s, us, 0, names forgotten}
-- atomic: all of it; run twice it does the same. costs: a microsecond a name; bounded by the caller.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local due = redis.call('ZCOUNT', KEYS[1], '-inf', string.format('%.0f', now))
local gone = math.min(due, tonumber(ARGV[1]))
if gone > 0 then
  local of_route = {}
  for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, gone - 1)) do
    local route = string.match(name, '^([^/]*)')
    of_route[route] = (of_route[route] or 0) + 1
  end
  redis.call('ZREMRANGEBYRANK', KEYS[1], 0, gone - 1)
  -- A malformed count must not stop this in the middle: a scrub corrects it.
  for route, n in pairs(of_route) do
    redis.pcall('HINCRBY', KEYS[2], 'r:' .. route, string.format('%.0f', -n))
  end
  redis.pcall('HINCRBY', KEYS[2], 'moves', string.format('%.0f', gone))
end
return { time[1], time[2], 0, gone }
