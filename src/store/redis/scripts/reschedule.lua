-- reschedule: a named message moves to another moment, as a bundle of one.
--
-- Its new blob was SET (NX, with a time to live) in the same MULTI: the moved message if the caller saw it
-- pending, the command's own content if the name was free.
-- KEYS  1-11; 12 the new blob, 13 its due zset; and if the name has an entry: 14 the old blob, 15 its due zset
-- ARGV  lane number answered; name, the entry the caller saw or "", "m" (moved) or "n" (new);
--       new id, its first due ms, its bytes
-- returns {s, us, went_back, answer}: r rescheduled, s stored as new, l too late, or "CHANGED": look again
-- atomic: all of it. costs: a dozen commands.
local wrong = wrong_kind(1, FIXED) or wrong_kind(12, 12, 'string') or wrong_kind(13, 13, 'zset')
if not wrong and #KEYS > 13 then
  wrong = wrong_kind(14, 14, 'string') or wrong_kind(15, 15, 'zset')
end
if wrong then
  return wrong
end
local before = repeated()
local name, saw, mode, new, first, bytes = arg(), arg(), arg(), arg(), arg(), num()
local blob, due = KEYS[12], KEYS[13]
local function tidy()
  if redis.call('ZSCORE', due, new) or redis.call('ZSCORE', CLAIMS, new) then
    redis.call('PERSIST', blob)
  else
    redis.call('UNLINK', blob)
  end
end
if before then
  tidy()
  return before
end
if (redis.call('HGET', NAMES, name) or '') ~= saw then
  tidy()
  return { time[1], time[2], 0, 'CHANGED' }
end
if redis.call('EXISTS', blob) == 0 then
  return redis.error_reply('ERR the blob of ' .. new .. ' is not there')
end
local was, id, index = 'free', nil, nil
if saw ~= '' then
  local text
  id, text = string.match(saw, '^(%S+) (%d+)$')
  index = tonumber(text)
  local away = is_set(redis.call('HGET', GONE, id), index) or is_set(redis.call('HGET', DONE, id), index)
  if not away then
    was = (redis.call('ZSCORE', KEYS[15], id) and 'pending') or (redis.call('ZSCORE', CLAIMS, id) and 'claimed') or 'free'
  end
end
if was == 'claimed' then
  tidy()
  return answer('l')
end
if (was == 'pending') ~= (mode == 'm') then
  tidy()
  return { time[1], time[2], 0, 'CHANGED' }
end
redis.call('ZADD', due, first, new)
redis.call('PERSIST', blob)
redis.call('HSET', NAMES, name, new .. ' 0')
add_counts(route_of(new), 1, bytes)
if was == 'pending' then
  local had, count = redis.call('HGET', GONE, id), count_of(id)
  local gone = with_set(had or nil, index, count)
  if ones(union(gone, redis.call('HGET', DONE, id) or nil)) == count then
    redis.call('ZREM', KEYS[15], id)
    forget(id, KEYS[14], count - ones(had))
    reindex(KEYS[15], shelf_of(id))
  else
    redis.call('HSET', GONE, id, gone)
    add_counts(route_of(id), -1, 0)
  end
end
reindex(due, shelf_of(new))
return answer(was == 'pending' and 'r' or 's')
