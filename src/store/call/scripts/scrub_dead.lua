-- scrub_dead: mends one dead-letter queue in which a scrub found something suspicious. Judges each find again.
--
-- KEYS  the fixed ones; the queue; then one blob per dead letter
-- ARGV  queue, dead letters, others; per dead letter: id; per other: the member that is no dead letter
-- returns {s, us, 0, answer}: a letter a dead letter: l lost (its blob is missing): removed; r restored (a blob
--       without a place in the queue): kept from now on; n nothing
-- atomic: all of it; run twice it does the same. costs: a few commands each; bounded by the caller.
local wrong = wrong_kind(1, FIXED) or wrong_kind(FIXED + 1, FIXED + 1, 'zset')
  or wrong_kind(FIXED + 2, #KEYS, 'string')
if wrong then
  return wrong
end
local queue, letters, changed = arg(), {}, 0
local dead, others = num(), num()
for i = 1, dead do
  local id, blob = arg(), KEYS[FIXED + 1 + i]
  local kept, there = redis.call('ZSCORE', KEYS[FIXED + 1], id), redis.call('EXISTS', blob) == 1
  letters[i] = 'n'
  if kept and not there then
    redis.call('ZREM', KEYS[FIXED + 1], id)
    add_count('d:' .. queue, -1)
    letters[i], changed = 'l', changed + 1
  elseif there and not kept and redis.call('PTTL', blob) == -1 then
    add_dead_letters(KEYS[FIXED + 1], queue, { id }, redis.call('STRLEN', blob))
    letters[i], changed = 'r', changed + 1
  end
end
for _ = 1, others do
  changed = changed + redis.call('ZREM', KEYS[FIXED + 1], arg())
end
-- Recounts must know.
moved(changed)
return { time[1], time[2], 0, table.concat(letters) }
