-- mark: raises the highest offset ever read of a source; never lowers it.
--
-- KEYS  1 sources   hash: source -> offset
-- ARGV  source, offset
-- returns nothing of use
-- atomic: all of it. costs: two commands.
local had = redis.call('HGET', KEYS[1], ARGV[1])
if not had or tonumber(had) < tonumber(ARGV[2]) then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
end
return 1
