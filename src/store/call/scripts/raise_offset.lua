-- raise_offset: raises the highest offset ever read of a source; never lowers it.
--
-- KEYS  1 sources   hash: source -> offset
-- ARGV  source, offset
-- returns the offset as it was before; nil if there was none
-- atomic: all of it. costs: two commands.
local had = redis.call('HGET', KEYS[1], ARGV[1])
local raised = not had or (tonumber(had) or -1) < tonumber(ARGV[2])
-- Write in any case: a wait for replicas after a call that wrote nothing says yes.
redis.call('HSET', KEYS[1], ARGV[1], raised and ARGV[2] or had)
return had
