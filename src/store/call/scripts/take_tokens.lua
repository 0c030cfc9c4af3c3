-- take_tokens: takes rate tokens from a route's bucket.
--
-- The bucket is one number: the moment at which it will be full again. A taken token puts that moment off by one
-- interval. A moment in the past means that the bucket is full. The moment lies at most a whole bucket ahead, so a clock
-- that stepped back costs no more than that.
-- KEYS  1 rates  hash: route -> that moment, Unix microseconds
-- ARGV  route, tokens a second, capacity of the bucket, tokens wanted
-- returns {s, us, 0, {granted, wait}}: wait = microseconds until the next token, 0 or below if there is one (then so
--       many microseconds' worth of further ones)
-- atomic: all of it. costs: two commands.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local route, interval, capacity, wanted = ARGV[1], 1000000 / ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local whole = capacity * interval
local full_at = tonumber(redis.call('HGET', KEYS[1], route) or '0') or 0
full_at = math.min(math.max(full_at, now), now + whole)
-- Half a microsecond makes up for rounding: a whole token must not be missed by it.
local granted = math.min(wanted, math.floor((now + whole - full_at + 0.5) / interval))
if granted > 0 then
  full_at = full_at + granted * interval
  redis.call('HSET', KEYS[1], route, string.format('%.2f', full_at))
end
local wait = math.ceil(full_at + interval - now - whole)
return { time[1], time[2], 0, { granted, wait } }
