-- drop: dead letters leave for good.
--
-- KEYS  the fixed ones; then G graves; one blob per dead letter
-- ARGV  lane number answered; G; G times: grave; then per dead letter: id, place of its grave
-- returns {s, us, went_back, answer}: one letter each: o dropped, u unknown: not there (any more)
-- atomic: all of it. costs: a few commands a dead letter.
local before = repeated()
if before then
  return before
end
local G, graves, results = num(), {}, {}
local wrong = wrong_kind(1, FIXED) or wrong_kind(FIXED + 1, FIXED + G, 'zset')
  or wrong_kind(FIXED + G + 1, #KEYS, 'string')
if wrong then
  return refuse(wrong)
end
for i = 1, G do
  graves[i] = arg()
end
for i = 1, #KEYS - FIXED - G do
  local id, grave = arg(), num()
  local dropped = unbury(KEYS[FIXED + grave], graves[grave], id, KEYS[FIXED + G + i])
  results[i] = dropped and 'o' or 'u'
end
return answer(table.concat(results))
