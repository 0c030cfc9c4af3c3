-- give_back: claims that their holder will not use are due again at once, not when they expire.
--
-- KEYS  the fixed ones; then one due zset per bundle
-- ARGV  bundles; per bundle: id, token, bitmap of what is confirmed or "";
--       then what to remember, see `remember`
-- returns {s, us, 0, answer}: one letter a bundle: o back, s stale
-- atomic: all of it. costs: a few commands a bundle.
local wrong = wrong_kind(1, FIXED) or wrong_kind(FIXED + 1, #KEYS, 'zset')
if wrong then
  return wrong
end
local results, back = {}, 0
for i = 1, num() do
  local id, token, confirmed = arg(), arg(), arg()
  local score = held_by(id, token)
  if score then
    redis.call('ZADD', KEYS[FIXED + i], int(tonumber(score) or now), id)
    reindex(KEYS[FIXED + i], shelf_of(id))
    if confirmed ~= '' then
      redis.call('HSET', DONE, id, union(redis.call('HGET', DONE, id), confirmed))
    end
    redis.call('ZREM', CLAIMS, id)
    redis.call('HDEL', TOKENS, id)
    back = back + 1
  end
  results[i] = score and 'o' or 's'
end
if REMEMBERS then
  remember()
end
moved(back)
return { time[1], time[2], 0, table.concat(results) }
