-- graves: mends one grave where a look from outside found something suspicious; each is judged again here.
--
-- KEYS  the fixed ones; the grave; then one blob per dead letter
-- ARGV  grave, dead letters, others; per dead letter: id; per other: what lies there and is none
-- returns {s, us, 0, answer}: a letter a dead letter: l lost (its blob is not there): removed, r restored (a blob
--       without a place in the grave): kept from now on, n nothing
-- atomic: all of it; run twice it does the same. costs: a few commands each; bounded by the caller.
local wrong = wrong_kind(1, FIXED) or wrong_kind(FIXED + 1, FIXED + 1, 'zset')
  or wrong_kind(FIXED + 2, #KEYS, 'string')
if wrong then
  return wrong
end
local grave, letters, changed = arg(), {}, 0
local dead, others = num(), num()
for i = 1, dead do
  local id, blob = arg(), KEYS[FIXED + 1 + i]
  local kept, there = redis.call('ZSCORE', KEYS[FIXED + 1], id), redis.call('EXISTS', blob) == 1
  letters[i] = 'n'
  if kept and not there then
    redis.call('ZREM', KEYS[FIXED + 1], id)
    add_count('d:' .. grave, -1)
    letters[i], changed = 'l', changed + 1
  elseif there and not kept and redis.call('PTTL', blob) == -1 then
    bury(KEYS[FIXED + 1], grave, { id }, redis.call('STRLEN', blob))
    letters[i], changed = 'r', changed + 1
  end
end
for _ = 1, others do
  changed = changed + redis.call('ZREM', KEYS[FIXED + 1], arg())
end
-- Whoever counts must know.
moved(changed)
return { time[1], time[2], 0, table.concat(letters) }
