-- extend: extends claims and notes what of them is confirmed so far.
--
-- KEYS  the fixed ones; then the blob of each bundle that has a bitmap
-- ARGV  lease ms, bundles; per bundle: id, token, bitmap of the confirmed or "";
--       then names to remember, see `remember`
-- returns {s, us, 0, answer}: one letter a bundle: o extended, s stale
-- atomic: all of it; run twice it does the same. costs: two commands, and some for each bitmap, ordered route and name.
local wrong = wrong_kind(1, FIXED) or wrong_kind(FIXED + 1, #KEYS, 'string')
if wrong then
  return wrong
end
local lease, ids, tokens_said, bitmaps = num(), {}, {}, {}
for i = 1, num() do
  ids[i], tokens_said[i], bitmaps[i] = arg(), arg(), arg()
end
local tokens = #ids > 0 and fields(TOKENS, ids) or {}
local deadline, deadlines, results, blob = int(now + lease), {}, {}, FIXED
for i, id in ipairs(ids) do
  local ours, confirmed = is_owned(tokens[i], tokens_said[i]), bitmaps[i]
  if ours then
    local n = #deadlines
    deadlines[n + 1], deadlines[n + 2] = deadline, id
    if ORDERED then
      prolong(route_of(id), now + lease)
    end
  end
  if confirmed ~= '' then
    blob = blob + 1
    note_confirmed(id, KEYS[blob], ours, confirmed)
  end
  results[i] = ours and 'o' or 's'
end
if #deadlines > 0 then
  redis.call('ZADD', CLAIMS, 'XX', unpack(deadlines))
end
if REMEMBERS then
  remember()
end
return { time[1], time[2], 0, table.concat(results) }
