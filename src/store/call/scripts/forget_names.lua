-- forget_names: forgets delivered names whose time is over.
--
-- KEYS  1 delivered  zset: route/name -> until when it stays taken, ms
-- ARGV  names at most
-- returns {s, us, 0, names forgotten}
-- atomic: all of it; run twice it does the same. costs: half a microsecond a name; bounded by the caller.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local due = redis.call('ZCOUNT', KEYS[1], '-inf', string.format('%.0f', now))
local gone = math.min(due, tonumber(ARGV[1]))
if gone > 0 then
  redis.call('ZREMRANGEBYRANK', KEYS[1], 0, gone - 1)
end
return { time[1], time[2], 0, gone }
