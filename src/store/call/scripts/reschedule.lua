-- reschedule: a named message (or one by its `~` id) moves to another moment, or another one takes its place, as a bundle
-- of one.
--
-- The caller sends the content. If it saw the message pending, this is the moved message, which takes hardly
-- more memory than it frees, so that it works at maxmemory, or the one that takes its place. If the name was free, it is
-- the command's own message.
-- KEYS  the fixed ones; the new blob, its due set; and if the name means a place: the old blob, its due set
-- ARGV  caller number answered; name, the entry the caller saw or "", "m" (moved or replaced) or "n" (new);
--       new id, its first due ms, its blob, the place that a `~` id without an entry names or ""; ordered: the new
--       bundle's sequence number
-- returns {s, us, rolled_back, answer}: r moved or replaced, s stored as new, l too late; "CHANGED": read again; or
--       "BEHIND number": this or a higher sequence number was given
-- atomic: all of it. costs: a dozen commands, and one body through here: the rare path.
local NEW, NEW_DUE, OLD, OLD_DUE = KEYS[FIXED + 1], KEYS[FIXED + 2], KEYS[FIXED + 3], KEYS[FIXED + 4]
local before = repeated()
if before then
  return before
end
local wrong = wrong_kind(1, FIXED)
for i = FIXED + 1, #KEYS do
  wrong = wrong or wrong_kind(i, i, (i - FIXED) % 2 == 1 and blob_kind(KEYS[i]) or 'zset')
end
if wrong then
  return refuse(wrong)
end
local name, saw, mode, new, first, blob, said = arg(), arg(), arg(), arg(), arg(), arg(), arg()
local sequence = ORDERED and num()
if sequence then
  local given = sequence_of(redis.call('HGET', ORDER, 'stamp'))
  if sequence <= given then
    return answer('BEHIND ' .. int(given))
  end
end
if (redis.call('HGET', NAMES, name) or '') ~= saw then
  return answer('CHANGED')
end
local was, id, index, had = 'free', nil, nil, nil
local place = saw ~= '' and saw or said
if place ~= '' then
  local text
  id, text = string.match(place, '^(%S+) (%d+)$')
  index = tonumber(text)
  had = gone_from(id, OLD)
  local away = is_set(had, index) or is_set(redis.call('HGET', DONE, id), index)
  if not away then
    was = (redis.call('ZSCORE', OLD_DUE, id) and 'pending') or (redis.call('ZSCORE', CLAIMS, id) and 'claimed') or 'free'
  end
end
if was == 'claimed' or (REMEMBERS and was == 'free' and remembered(name)) then
  return answer('l')
end
if (was == 'pending') ~= (mode == 'm') then
  return answer('CHANGED')
end
redis.call('SET', NEW, blob)
redis.call('ZADD', NEW_DUE, first, new)
redis.call('HSET', NAMES, name, new .. ' 0')
add_counts(route_of(new), 1, #blob, 1)
if was == 'pending' then
  -- Former owners of a claim may have published it, so it stays a possible repeat wherever it moves.
  local expired = redis.call('HGET', EXPIRIES, id)
  if expired then
    redis.call('HSET', EXPIRIES, new, expired)
  end
  local count = count_of(id)
  local gone, emptied = with_set(had, index, count), is_growing(id) and empty_place(OLD, index) or 0
  if ones(union(gone, redis.call('HGET', DONE, id))) == count then
    local length = is_growing(id) and emptied + grown_bytes(OLD) or redis.call('STRLEN', OLD)
    redis.call('ZREM', OLD_DUE, id)
    forget({ { id = id, blob = OLD, length = length, messages = count - ones(had) } })
    reindex(OLD_DUE, due_set_of(id))
  else
    redis.call('HSET', GONE, id, gone)
    add_counts(route_of(id), -1, -emptied, 1)
  end
end
reindex(NEW_DUE, due_set_of(new))
if sequence then
  raise_sequence(sequence)
end
return answer(was == 'pending' and 'r' or 's')
