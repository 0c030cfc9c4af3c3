-- drop_dead: dead letters leave for good.
--
-- KEYS  the fixed ones; then G dead-letter queues; one blob per dead letter
-- ARGV  caller number answered; G; G times: queue; then per dead letter: id, place of its queue
-- returns {s, us, rolled_back, answer}: one letter each: o dropped, u unknown: not there (any more)
-- atomic: all of it. costs: a few commands a dead letter.
local before = repeated()
if before then
  return before
end
local G, queues, results = num(), {}, {}
local wrong = wrong_kind(1, FIXED) or wrong_kind(FIXED + 1, FIXED + G, 'zset')
  or wrong_kind(FIXED + G + 1, #KEYS, 'string')
if wrong then
  return refuse(wrong)
end
for i = 1, G do
  queues[i] = arg()
end
for i = 1, #KEYS - FIXED - G do
  local id, queue = arg(), num()
  local dropped = remove_dead_letter(KEYS[FIXED + queue], queues[queue], id, KEYS[FIXED + G + i])
  results[i] = dropped and 'o' or 'u'
end
return answer(table.concat(results))
