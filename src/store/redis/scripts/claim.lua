-- claim: due -> in flight, under a token and a deadline.
--
-- KEYS  1-10; then the due zsets of the shelves to be served (from a read-only peek), in their order
-- ARGV  lane number answered; token, look-ahead ms, lease ms, bundles at most, shelves;
--       then per shelf: shelf, messages at most (the first bundle of a shelf is always taken)
-- returns {s, us, went_back, answer}: per bundle six values: id, first due, expiries, opened, gone, done
-- atomic: all of it. costs: a few commands a shelf, whatever it holds; bodies stay outside.
local wrong = wrong_kind(1, FIXED) or wrong_kind(FIXED + 1, #KEYS, 'zset')
if wrong then
  return wrong
end
local before = repeated()
if before then
  return before
end
local token, horizon, lease, room, shelves = arg(), now + num(), num(), num(), num()
-- Lua cannot unpack more than some thousands.
room = math.min(room, 1000)
local deadline = int(now + lease)
local ids, scores = {}, {}
for s = 1, shelves do
  local due, shelf, messages = KEYS[FIXED + s], arg(), num()
  if room > 0 then
    local found = redis.call('ZRANGEBYSCORE', due, '-inf', int(horizon), 'WITHSCORES', 'LIMIT', 0, room)
    local taken = 0
    for i = 1, #found, 2 do
      local count = count_of(found[i])
      if taken > 0 and count > messages then
        break
      end
      messages = messages - count
      taken = taken + 1
      ids[#ids + 1], scores[#scores + 1] = found[i], found[i + 1]
      redis.call('ZADD', CLAIMS, deadline, found[i])
      redis.call('HSET', TOKENS, found[i], token .. ' ' .. found[i + 1])
    end
    room = room - taken
    if taken > 0 then
      redis.call('ZREMRANGEBYRANK', due, 0, taken - 1)
    end
    -- Also where nothing was taken: an index entry without a due zset would be peeked at for ever.
    reindex(due, shelf)
  end
end
local reply = {}
if #ids > 0 then
  local expiries = redis.call('HMGET', EXPIRIES, unpack(ids))
  local gone = redis.call('HMGET', GONE, unpack(ids))
  local done = redis.call('HMGET', DONE, unpack(ids))
  for i, id in ipairs(ids) do
    local expired, opened = tonumber(expiries[i] or 0), 0
    -- The mark is raised before anyone decodes it: what kills its reader is known by it. A single message
    -- judges only itself; its expiries are enough.
    if expired >= 2 and (count_of(id) or 1) > 1 then
      opened = redis.call('HINCRBY', OPENED, id, 1)
    end
    local n = #reply
    reply[n + 1], reply[n + 2], reply[n + 3] = id, scores[i], int(expired)
    reply[n + 4], reply[n + 5], reply[n + 6] = int(opened), gone[i] or '', done[i] or ''
  end
end
return answer(reply)
