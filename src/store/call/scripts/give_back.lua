-- give_back: claims that their owner will not use are due again at once, not when they expire.
--
-- KEYS  the fixed ones; then one due set per bundle; then the blob of each bundle that has a bitmap
-- ARGV  "", or for bundles that their owner could not read: after how many ms they are due again, at least; bundles;
--       per bundle: id, token, bitmap of the confirmed or "";
--       then names to remember, see `remember`
-- returns {s, us, 0, answer}: one letter a bundle: o returned, s stale; what is confirmed is noted of both
-- atomic: all of it. costs: a few commands a bundle.
local wait, count = num(), num()
local wrong = wrong_kind(1, FIXED) or wrong_kind(FIXED + 1, FIXED + count, 'zset')
  or wrong_kind(FIXED + count + 1, #KEYS, 'string')
if wrong then
  return wrong
end
local results, back, blob = {}, 0, FIXED + count
for i = 1, count do
  local id, token, confirmed = arg(), arg(), arg()
  local score = owned_by(id, token)
  if score then
    local due = tonumber(score) or now
    if wait and wait > 0 then
      due = math.max(due, now + wait)
    end
    redis.call('ZADD', KEYS[FIXED + i], int(due), id)
    reindex(KEYS[FIXED + i], due_set_of(id))
    redis.call('ZREM', CLAIMS, id)
    redis.call('HDEL', TOKENS, id)
    back = back + 1
  end
  if confirmed ~= '' then
    blob = blob + 1
    note_confirmed(id, KEYS[blob], score, confirmed)
  end
  results[i] = score and 'o' or 's'
end
if REMEMBERS then
  remember()
end
moved(back)
return { time[1], time[2], 0, table.concat(results) }
