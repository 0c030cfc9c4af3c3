-- settle: bundles of which every message is confirmed or gone leave the store.
--
-- A stale token takes nothing away, but what it confirms is noted while the bundle stands, so that its
-- next holder does not publish it again.
-- KEYS  the fixed ones; then one blob per bundle
-- ARGV  lane number answered; bundles; per bundle: id, token, names, and per name: name, index;
--       then what to remember, see `remember`
-- returns {s, us, went_back, answer}: one letter a bundle: o done, s stale
-- atomic: all of it. costs: a few commands a bundle, whatever it holds; one more for each name it remembers.
local wrong = wrong_kind(1, FIXED) or wrong_kind(FIXED + 1, #KEYS, 'string')
if wrong then
  return wrong
end
local before = repeated()
if before then
  return before
end
local results = {}
for i = 1, num() do
  local id, token, names = arg(), arg(), num()
  local blob, count = KEYS[FIXED + i], count_of(id)
  local ours = held_by(id, token)
  for _ = 1, names do
    local name, index = arg(), arg()
    if ours then
      free_name(name, id .. ' ' .. index)
    end
  end
  if ours then
    forget(id, blob, count - ones(redis.call('HGET', GONE, id)))
    results[i] = 'o'
  else
    if redis.call('EXISTS', blob) == 1 then
      redis.call('HSET', DONE, id, string.rep('1', count))
    end
    results[i] = 's'
  end
end
if REMEMBERS then
  remember()
end
return answer(table.concat(results))
