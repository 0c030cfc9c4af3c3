-- raise_offset: raises the highest offset ever read of a source; never lowers it.
--
-- KEYS  1 sources   hash: source -> offset, or "offset time"
-- ARGV  source, offset, the time of the last record before which all were resolved, or ""
-- returns the offset as it was before; nil if there was none
-- atomic: all of it. costs: two commands.
local had = redis.call('HGET', KEYS[1], ARGV[1])
local offset, time = string.match(had or '', '^(%S+) ?(.*)$')
local raised = (tonumber(offset) or -1) < tonumber(ARGV[2])
if raised then
  had, time = ARGV[2], ARGV[3] ~= '' and ARGV[3] or time or ''
  had = time ~= '' and had .. ' ' .. time or had
end
-- Write in any case: a wait for replicas after a call that wrote nothing says yes.
redis.call('HSET', KEYS[1], ARGV[1], had)
return offset
