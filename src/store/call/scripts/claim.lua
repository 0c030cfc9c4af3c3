-- claim: due -> in flight, under a token and a deadline.
--
-- On an ordered route one owner at a time may claim, its bundles in the order of their due times and sequence numbers.
-- Another one may take over once the owner's time is over and no claim with a passed deadline is left. The owner's
-- bundles are due again by then, so its successor sees all of them. While a deadline lies further ahead than the longest
-- lease of a replica (the clock stepped), nobody may claim.
-- KEYS  the fixed ones; then the due sets to be served (from a read-only peek), in their order
-- ARGV  caller number answered; ordered: route, claimant, "1" if it may become the owner (again), the moment up to
--       which to claim at least, the longest lease of a replica (ms), keys to be freed, and per key: it, its hold;
--       token, lookahead ms, lease ms, bundles at most, due sets;
--       then per due set: due set, messages at most (the first bundle of a due set is always taken)
-- returns {s, us, rolled_back, answer}: per bundle a text: "due id", or if there is more to say
--       "* due expiries gone done id", gone and done "-" without a bitmap;
--       ordered: before them "n" if the claimant has become the owner or "o" if it was, then due and id of the first
--       due bundle that is left or "". If nothing was done, instead of all that: "h" and for how many ms another
--       may still own the route; or "l": the claimant was the owner, and is not any more
-- atomic: all of it. costs: a few commands a due set, whatever it holds; bodies stay outside.
local before = repeated()
if before then
  return before
end
local wrong = wrong_kind(1, FIXED) or wrong_kind(FIXED + 1, #KEYS, 'zset')
if wrong then
  return refuse(wrong)
end
local route, claimant, may_take, least, longest, freed
if ORDERED then
  route, claimant, may_take, least, longest, freed = arg(), arg(), arg() == '1', num(), num(), {}
  for i = 1, num() do
    freed[i] = { field = 'k:' .. route .. '/' .. arg(), hold = arg() }
  end
end
local token, horizon, lease, room, due_sets = arg(), now + num(), num(), num(), num()
-- Lua cannot unpack more than some thousands.
room = math.min(room, 1000)
local deadline = int(now + lease)
if ORDERED then
  horizon = math.max(horizon, least)
end
local until_ms = int(horizon)

-- Takes or keeps the ownership of the route for the claimant. Returns the letter of the answer, and if it is
-- not the owner, how long to wait.
local function take_ownership()
  local field = 'h:' .. route
  local owner, ends = string.match(redis.call('HGET', ORDER, field) or '', '^(%S+) (%d+)$')
  ends = tonumber(ends) or 0
  if owner == claimant and ends > now and ends <= now + lease then
    redis.call('HSET', ORDER, field, claimant .. ' ' .. deadline)
    return 'o'
  end
  if owner == claimant and not may_take then
    return 'l', 0
  end
  if redis.call('ZCOUNT', CLAIMS, '(' .. int(now + longest), '+inf') > 0 then
    return 'h', longest
  end
  if ends > now + longest then
    redis.call('HSET', ORDER, field, owner .. ' ' .. int(now + longest))
    return 'h', longest
  end
  if ends > now then
    return 'h', ends - now
  end
  if redis.call('ZCOUNT', CLAIMS, '-inf', int(now)) > 0 then
    return 'h', 1000
  end
  redis.call('HSET', ORDER, field, claimant .. ' ' .. deadline)
  return 'n'
end

local reply, front = {}, nil
if ORDERED then
  local wait
  reply[1], wait = take_ownership()
  if wait then
    return answer({ reply[1], int(wait) })
  end
  for _, key in ipairs(freed) do
    -- A division that held the key again may have come before this call.
    if redis.call('HGET', ORDER, key.field) == key.hold then
      redis.call('HDEL', ORDER, key.field)
    end
  end
end
-- A bitmap as the answer says it: as long as a bundle can be, and of zeros and ones alone.
local function bits(map)
  return map and map ~= '' and (string.gsub(string.sub(map, 1, BUNDLE_MESSAGES), '[^1]', '0')) or '-'
end

local ids, scores = {}, {}
for s = 1, due_sets do
  local due, due_set, messages = KEYS[FIXED + s], arg(), num()
  if room > 0 then
    -- A few at a time, ever more: an entry that is read and then left costs as much as one that is taken.
    local taken, claims, tokens, step, full = 0, {}, {}, 8, false
    repeat
      step = math.min(2 * step, room - taken)
      -- Nobody claims a growing bundle, whatever an index says.
      local found = is_growing(due_set) and {}
        or redis.call('ZRANGEBYSCORE', due, '-inf', until_ms, 'WITHSCORES', 'LIMIT', taken, step)
      for i = 1, #found, 2 do
        local count = count_of(found[i])
        full = taken > 0 and count > messages
        if full then
          break
        end
        messages = messages - count
        taken = taken + 1
        ids[#ids + 1], scores[#scores + 1] = found[i], found[i + 1]
        claims[2 * taken - 1], claims[2 * taken] = deadline, found[i]
        tokens[2 * taken - 1], tokens[2 * taken] = found[i], token .. ' ' .. found[i + 1]
      end
    until full or messages <= 0 or taken == room or #found < 2 * step
    room = room - taken
    if taken > 0 then
      redis.call('ZADD', CLAIMS, unpack(claims))
      redis.call('HSET', TOKENS, unpack(tokens))
      redis.call('ZREMRANGEBYRANK', due, 0, taken - 1)
    end
    reindex(due, due_set)
    if taken == 0 then
      -- A head without its due set, or with another score, would be peeked at for ever.
      update_head(due_set)
    end
  end
  if ORDERED and not front then
    front = redis.call('ZRANGEBYSCORE', due, '-inf', until_ms, 'WITHSCORES', 'LIMIT', 0, 1)
    if front[1] then
      room = 0
    else
      front = nil
    end
  end
end
if ORDERED then
  reply[2], reply[3] = front and front[2] or '', front and front[1] or ''
end
moved(#ids)
if #ids > 0 then
  local expiries, done = fields(EXPIRIES, ids), fields(DONE, ids)
  local gone = fields(GONE, ids)
  local n = #reply
  for i, id in ipairs(ids) do
    local expired = times(expiries[i])
    if expired > 0 or gone[i] or done[i] then
      reply[n + i] = table.concat({ '*', scores[i], int(expired), bits(gone[i]), bits(done[i]), id }, ' ')
    else
      reply[n + i] = scores[i] .. ' ' .. id
    end
  end
end
return answer(reply)
