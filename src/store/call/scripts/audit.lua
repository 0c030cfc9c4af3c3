-- audit: mends what a look from outside found suspicious; each is judged again here, where nothing moves.
--
-- KEYS  the fixed ones; then D due zsets; B blobs
-- ARGV  D B J N;
--       D times: shelf
--       B times: id, place of its due zset, its first due ms (needed only to bring it back)
--       J times: what does not belong there, place of the due zset it lies in (0: in claims, in `shelves` or beside)
--       N times: name, place (the text), which of the B bundles it means (0: none that can be read)
-- returns {s, us, 0, answer}: a letter a shelf: i index mended, n nothing
--       a letter a bundle: l lost (its blob is not there): removed, r restored (a blob without an entry): due
--       again, d due and claimed: claimed, s something beside it removed, n nothing
--       a letter a name: f freed, n nothing
-- Counts are lowered with what is lost (its messages: how many bytes it had nobody can tell any more).
-- atomic: all of it; run twice it does the same. costs: a dozen commands a bundle; bounded by the caller.
local D, B, J, N = num(), num(), num(), num()
local wrong = wrong_kind(1, FIXED) or wrong_kind(FIXED + 1, FIXED + D, 'zset')
  or wrong_kind(FIXED + D + 1, #KEYS, 'string')
if wrong then
  return wrong
end
local shelves, letters, stands, removed = {}, {}, {}, 0
for i = 1, D do
  shelves[i] = arg()
end
local function drop_beside(id)
  local dropped = redis.call('HDEL', TOKENS, id) + redis.call('HDEL', GONE, id) + redis.call('HDEL', DONE, id)
  return dropped + redis.call('HDEL', EXPIRIES, id) + redis.call('HDEL', OPENED, id)
end
-- What stands beside a bundle that stands must be what we write: bitmaps as long as it, whole numbers.
local function straighten(id)
  local count, straightened = count_of(id), 0
  for _, key in ipairs({ GONE, DONE }) do
    local map = redis.call('HGET', key, id)
    if map and (#map ~= count or string.find(map, '[^01]')) then
      local bits = {}
      for i = 1, count do
        bits[i] = string.byte(map, i) == 49 and '1' or '0'
      end
      redis.call('HSET', key, id, table.concat(bits))
      straightened = 1
    end
  end
  for _, key in ipairs({ EXPIRIES, OPENED }) do
    local n = redis.call('HGET', key, id)
    if n and not string.find(n, '^%d+$') then
      redis.call('HDEL', key, id)
      straightened = 1
    end
  end
  return straightened
end
local function judge(id, due, blob, first)
  local deadline = tonumber(redis.call('ZSCORE', CLAIMS, id) or nil)
  local pending = redis.call('ZSCORE', due, id)
  local there = redis.call('EXISTS', blob) == 1
  if not there and (pending or (deadline and deadline <= now)) then
    add_counts(route_of(id), -math.max(0, count_of(id) - ones(redis.call('HGET', GONE, id))), 0)
    removed = removed + 1
    redis.call('ZREM', due, id)
    redis.call('ZREM', CLAIMS, id)
    drop_beside(id)
    return 'l', false
  end
  if pending and deadline then
    redis.call('ZREM', due, id)
    return 'd', true
  end
  if pending then
    -- A token without a claim.
    return straighten(id) + redis.call('HDEL', TOKENS, id) > 0 and 's' or 'n', true
  end
  if deadline then
    return straighten(id) > 0 and 's' or 'n', true
  end
  if there and redis.call('PTTL', blob) == -1 then
    if first == '' then
      -- To be brought back once its due time was read, with all that stands beside it.
      return 'n', true
    end
    -- It may have been in flight when its entry was lost: it counts as an expired claim.
    redis.call('ZADD', due, first, id)
    count_up(EXPIRIES, id)
    redis.call('HDEL', TOKENS, id)
    return 'r', true
  end
  return drop_beside(id) > 0 and 's' or 'n', false
end
-- What the three indexes say of a shelf.
local function indexed(shelf)
  local score = redis.call('ZSCORE', IDX, shelf)
  local placed = score and redis.call('ZSCORE', SHELVES, place_of(shelf, score)) and 'placed'
  return (score or '') .. ' ' .. (placed or '') .. ' ' .. (redis.call('ZSCORE', HEADS, shelf) or '')
end
local function mend_indexes(tell)
  local before = {}
  for i = 1, D do
    before[i] = tell and indexed(shelves[i])
    reindex(KEYS[FIXED + i], shelves[i])
    local score = redis.call('ZSCORE', IDX, shelves[i])
    if score then
      redis.call('ZADD', SHELVES, 0, place_of(shelves[i], score))
    end
  end
  for i = 1, D do
    lead(shelves[i])
  end
  for i = 1, tell and D or 0 do
    letters[i] = before[i] == indexed(shelves[i]) and 'n' or 'i'
  end
end
mend_indexes(true)
for i = 1, B do
  local id, due, first = arg(), num(), arg()
  letters[D + i], stands[i] = judge(id, KEYS[FIXED + due], KEYS[FIXED + D + i], first)
end
for _ = 1, J do
  local junk, due = arg(), num()
  if due == 0 then
    redis.call('ZREM', CLAIMS, junk)
    redis.call('ZREM', SHELVES, junk)
    drop_beside(junk)
  else
    -- A bundle on a shelf that is not its own may stand in the right place too: only this entry goes.
    redis.call('ZREM', KEYS[FIXED + due], junk)
  end
end
for i = 1, N do
  local name, place, means = arg(), arg(), num()
  letters[D + B + i] = 'n'
  if not stands[means] and redis.call('HGET', NAMES, name) == place then
    redis.call('HDEL', NAMES, name)
    letters[D + B + i] = 'f'
  end
end
-- What was removed or brought back may have been a head.
mend_indexes(false)
moved(removed)
return { time[1], time[2], 0, table.concat(letters) }
