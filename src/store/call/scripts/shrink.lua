-- shrink: gives back the bytes of the messages that are gone from a bundle. The new blob is the old one with these emptied.
--
-- KEYS  the fixed ones; then the blob
-- ARGV  id, length of the blob that the new one was made of, the new blob
-- returns {s, us, 0, answer}: "o" done; "n" nothing: the blob has gone, or somebody else shrank it
-- What is gone never comes back, so nobody reads what is emptied here, whoever has claimed the bundle.
-- atomic: all of it. costs: the blob passes through here: rare. Runs at maxmemory.
local wrong = wrong_kind(1, FIXED) or wrong_kind(FIXED + 1, #KEYS, 'string')
if wrong then
  return wrong
end
local id, length, blob = arg(), num(), arg()
local key = KEYS[FIXED + 1]
if redis.call('STRLEN', key) ~= length then
  return { time[1], time[2], 0, 'n' }
end
redis.call('SET', key, blob, 'KEEPTTL')
add_counts(route_of(id), 0, #blob - length, 1)
return { time[1], time[2], 0, 'o' }
