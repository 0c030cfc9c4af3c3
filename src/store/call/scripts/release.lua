-- release: a route whose keys leave in order has no holder any more, so that the next need not wait.
--
-- To be called only by a holder that has no claim of it left.
-- KEYS  1 order  hash: h:route -> "holder deadline"
-- ARGV  route, holder
-- returns {s, us, 0, 1 if it was the holder}
-- atomic: all of it; run twice it does the same. costs: two commands.
local time = redis.call('TIME')
local field = 'h:' .. ARGV[1]
local owner = string.match(redis.call('HGET', KEYS[1], field) or '', '^(%S+) ')
if owner ~= ARGV[2] then
  return { time[1], time[2], 0, 0 }
end
redis.call('HDEL', KEYS[1], field)
return { time[1], time[2], 0, 1 }
