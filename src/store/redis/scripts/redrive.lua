-- redrive: a dead letter becomes a bundle of one, due as its caller says.
--
-- Its content comes along, as the caller read it and made it fit: a dead letter never changes, so while it
-- stands, this is it.
-- KEYS  1-10; 11 its grave, 12 its blob, 13 the new blob, 14 its due zset
-- ARGV  lane number answered; dead id, grave, name or "", new id, its first due ms, its blob
-- returns {s, us, went_back, answer}: o redriven, u unknown: not there (any more), nothing was changed
-- atomic: all of it. costs: a dozen commands, and one body through here: the rare path. Runs at maxmemory.
local before = repeated()
if before then
  return before
end
local wrong = wrong_kind(1, FIXED) or wrong_kind(11, 11, 'zset') or wrong_kind(12, 13, 'string')
  or wrong_kind(14, 14, 'zset')
if wrong then
  return refuse(wrong)
end
local id, grave, name, new, first, blob = arg(), arg(), arg(), arg(), arg(), arg()
if not redis.call('ZSCORE', KEYS[11], id) then
  return answer('u')
end
redis.call('SET', KEYS[13], blob)
redis.call('ZADD', KEYS[14], first, new)
reindex(KEYS[14], shelf_of(new))
add_counts(route_of(new), 1, #blob)
if name ~= '' then
  -- A name that was taken meanwhile stays with its new owner: this message goes on nameless.
  redis.call('HSETNX', NAMES, name, new .. ' 0')
end
unbury(KEYS[11], grave, id, KEYS[12])
return answer('o')
