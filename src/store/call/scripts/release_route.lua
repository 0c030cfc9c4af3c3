-- release_route: an ordered route has no owner any more, so that the next one need not wait.
--
-- To be called only by an owner that has no claim on the route left.
-- KEYS  1 order  hash: h:route -> "owner deadline"
-- ARGV  route, owner
-- returns {s, us, 0, 1 if the caller was the owner}
-- atomic: all of it; run twice it does the same. costs: two commands.
local time = redis.call('TIME')
local field = 'h:' .. ARGV[1]
local owner = string.match(redis.call('HGET', KEYS[1], field) or '', '^(%S+) ')
if owner ~= ARGV[2] then
  return { time[1], time[2], 0, 0 }
end
redis.call('HDEL', KEYS[1], field)
return { time[1], time[2], 0, 1 }
