-- redrive: a dead letter becomes a bundle, due as its caller says: of one message, or of those that were kept unopened.
--
-- The caller sends the content, as it read and adapted it. A dead letter never changes, so while it exists, this is it.
-- KEYS  the fixed ones; its queue, its blob, the new blob, its due set
-- ARGV  caller number answered; dead id, queue, new id, its first due ms, its blob; ordered: the lowest and the highest
--       sequence number of the new bundle; names: count, then name, index
-- returns {s, us, rolled_back, answer}: o redriven; u unknown: not there (any more), nothing was changed; or
--       "BEHIND number": this or a higher sequence number was given, nothing was changed
-- atomic: all of it. costs: a dozen commands, one a name, and the bodies through here: the rare path. Runs at maxmemory.
local before = repeated()
if before then
  return before
end
local wrong = wrong_kind(1, FIXED) or wrong_kind(FIXED + 1, FIXED + 1, 'zset')
  or wrong_kind(FIXED + 2, FIXED + 3, 'string') or wrong_kind(FIXED + 4, FIXED + 4, 'zset')
local QUEUE, OLD, NEW, DUE = KEYS[FIXED + 1], KEYS[FIXED + 2], KEYS[FIXED + 3], KEYS[FIXED + 4]
if wrong then
  return refuse(wrong)
end
local id, queue, new, first, blob = arg(), arg(), arg(), arg(), arg()
local highest
if ORDERED then
  local lowest, given = num(), sequence_of(redis.call('HGET', ORDER, 'stamp'))
  highest = num()
  if lowest <= given then
    return answer('BEHIND ' .. int(given))
  end
end
if not redis.call('ZSCORE', QUEUE, id) then
  return answer('u')
end
redis.call('SET', NEW, blob)
redis.call('ZADD', DUE, first, new)
reindex(DUE, due_set_of(new))
add_counts(route_of(new), count_of(new), #blob, 1)
for _ = 1, num() do
  -- A name that was taken meanwhile stays with its new owner: this message goes on nameless.
  redis.call('HSETNX', NAMES, arg(), new .. ' ' .. arg())
end
remove_dead_letter(QUEUE, queue, id, OLD)
if highest then
  raise_sequence(highest)
end
return answer('o')
