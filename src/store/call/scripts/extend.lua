-- extend: extends claims and notes what of them is confirmed so far.
--
-- KEYS  the fixed ones; then one blob per bundle
-- ARGV  lease ms, bundles; per bundle: id, token, bitmap of the confirmed or "";
--       then names to remember, see `remember`
-- returns {s, us, 0, answer}: one letter a bundle: o extended, s stale
-- atomic: all of it; run twice it does the same. costs: three commands a bundle.
local wrong = wrong_kind(1, FIXED) or wrong_kind(FIXED + 1, #KEYS, 'string')
if wrong then
  return wrong
end
local lease, results = num(), {}
for i = 1, num() do
  local id, token, confirmed = arg(), arg(), arg()
  local ours = owned_by(id, token)
  if ours then
    redis.call('ZADD', CLAIMS, 'XX', int(now + lease), id)
    if ORDERED then
      prolong(route_of(id), now + lease)
    end
  end
  if confirmed ~= '' and (ours or redis.call('EXISTS', KEYS[FIXED + i]) == 1) then
    redis.call('HSET', DONE, id, union(redis.call('HGET', DONE, id), confirmed))
  end
  results[i] = ours and 'o' or 's'
end
if REMEMBERS then
  remember()
end
return { time[1], time[2], 0, table.concat(results) }
