-- reschedule: a named message moves to another moment, as a bundle of one.
--
-- Its content comes along: the moved message if the caller saw it pending (which takes no more memory than it
-- frees, so that it works at maxmemory), the command's own if the name was free.
-- KEYS  1-10; 11 the new blob, 12 its due zset; and if the name has an entry: 13 the old blob, 14 its due zset
-- ARGV  lane number answered; name, the entry the caller saw or "", "m" (moved) or "n" (new);
--       new id, its first due ms, its blob
-- returns {s, us, went_back, answer}: r rescheduled, s stored as new, l too late, or "CHANGED": look again
-- atomic: all of it. costs: a dozen commands, and one body through here: the rare path.
local wrong = wrong_kind(1, FIXED) or wrong_kind(11, 11, 'string') or wrong_kind(12, 12, 'zset')
if not wrong and #KEYS > 12 then
  wrong = wrong_kind(13, 13, 'string') or wrong_kind(14, 14, 'zset')
end
if wrong then
  return wrong
end
local before = repeated()
if before then
  return before
end
local name, saw, mode, new, first, blob = arg(), arg(), arg(), arg(), arg(), arg()
if (redis.call('HGET', NAMES, name) or '') ~= saw then
  return { time[1], time[2], 0, 'CHANGED' }
end
local was, id, index = 'free', nil, nil
if saw ~= '' then
  local text
  id, text = string.match(saw, '^(%S+) (%d+)$')
  index = tonumber(text)
  local away = is_set(redis.call('HGET', GONE, id), index) or is_set(redis.call('HGET', DONE, id), index)
  if not away then
    was = (redis.call('ZSCORE', KEYS[14], id) and 'pending') or (redis.call('ZSCORE', CLAIMS, id) and 'claimed') or 'free'
  end
end
if was == 'claimed' then
  return answer('l')
end
if (was == 'pending') ~= (mode == 'm') then
  return { time[1], time[2], 0, 'CHANGED' }
end
redis.call('SET', KEYS[11], blob)
redis.call('ZADD', KEYS[12], first, new)
redis.call('HSET', NAMES, name, new .. ' 0')
add_counts(route_of(new), 1, #blob)
if was == 'pending' then
  local had, count = redis.call('HGET', GONE, id), count_of(id)
  local gone = with_set(had, index, count)
  if ones(union(gone, redis.call('HGET', DONE, id))) == count then
    redis.call('ZREM', KEYS[14], id)
    forget(id, KEYS[13], count - ones(had))
    reindex(KEYS[14], shelf_of(id))
  else
    redis.call('HSET', GONE, id, gone)
    add_counts(route_of(id), -1, 0)
  end
end
reindex(KEYS[12], shelf_of(new))
return answer(was == 'pending' and 'r' or 's')
