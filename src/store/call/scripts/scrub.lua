-- scrub: mends what a scrub found suspicious from outside. Judges each find again here, where nothing moves.
--
-- KEYS  the fixed ones; then D due sets; B blobs
-- ARGV  D B J N;
--       D times: due set
--       B times: id, place of its due set, its first due ms (needed only to bring it back)
--       J times: a member that does not belong there, place of the due set it lies in (0: in `claims`, in `shelves` or
--       in a key with a field or member per bundle)
--       N times: name, place (the text), which of the B bundles it means (0: none that can be read)
-- returns {s, us, 0, answer}: a letter a due set: i index mended, n nothing
--       a letter a bundle: l lost (its blob is missing): removed; r restored (a blob without an entry): due again;
--       d due and claimed: claimed; s a field removed; n nothing
--       a letter a name: f freed, n nothing
-- Counts are lowered by the lost messages. How many bytes they had nobody can tell any more.
-- atomic: all of it; run twice it does the same. costs: a dozen commands a bundle; bounded by the caller.
local D, B, J, N = num(), num(), num(), num()
local wrong = wrong_kind(1, FIXED) or wrong_kind(FIXED + 1, FIXED + D, 'zset')
for i = FIXED + D + 1, #KEYS do
  wrong = wrong or wrong_kind(i, i, blob_kind(KEYS[i]))
end
if wrong then
  return wrong
end
local due_sets, letters, stands, removed = {}, {}, {}, 0
for i = 1, D do
  due_sets[i] = arg()
end
local function drop_fields(id)
  local dropped = redis.call('HDEL', TOKENS, id) + redis.call('HDEL', GONE, id) + redis.call('HDEL', DONE, id)
  return dropped + redis.call('HDEL', EXPIRIES, id) + redis.call('ZREM', PUT_BACK, id)
end
-- Repairs the fields of a bundle: bitmaps are as long as it, its expiries a whole number. What is gone from a growing bundle
-- its list shows.
local function repair(id, blob)
  local count, repaired = count_of(id), 0
  if is_growing(id) then
    local bits = gone_of_list(blob, count)
    if redis.call('HGET', GONE, id) ~= bits then
      redis.call('HSET', GONE, id, bits)
      repaired = 1
    end
  end
  for _, key in ipairs({ GONE, DONE }) do
    local map = redis.call('HGET', key, id)
    if map and (#map ~= count or string.find(map, '[^01]')) then
      local bits = {}
      for i = 1, count do
        bits[i] = string.byte(map, i) == 49 and '1' or '0'
      end
      redis.call('HSET', key, id, table.concat(bits))
      repaired = 1
    end
  end
  local n = redis.call('HGET', EXPIRIES, id)
  if n and n ~= int(times(n)) then
    redis.call('HDEL', EXPIRIES, id)
    repaired = 1
  end
  return repaired
end
local function judge(id, due, blob, first)
  local deadline = tonumber(redis.call('ZSCORE', CLAIMS, id) or nil)
  local pending = redis.call('ZSCORE', due, id)
  local there = redis.call('EXISTS', blob) == 1
  if not there and (pending or (deadline and deadline <= now)) then
    add_counts(route_of(id), -math.max(0, count_of(id) - ones(redis.call('HGET', GONE, id))), 0, 1)
    removed = removed + 1
    redis.call('ZREM', due, id)
    redis.call('ZREM', CLAIMS, id)
    drop_fields(id)
    return 'l', false
  end
  if pending and deadline then
    redis.call('ZREM', due, id)
    return 'd', true
  end
  if pending then
    -- A token without a claim.
    return repair(id, blob) + redis.call('HDEL', TOKENS, id) > 0 and 's' or 'n', true
  end
  if deadline then
    return repair(id, blob) > 0 and 's' or 'n', true
  end
  if there and redis.call('PTTL', blob) == -1 then
    if first == '' then
      -- It is brought back once its due time was read, with all of its fields.
      return 'n', true
    end
    -- It may have been in flight when its entry was lost: it counts as an expired claim.
    redis.call('ZADD', due, first, id)
    redis.call('HSET', EXPIRIES, id, int(times(redis.call('HGET', EXPIRIES, id)) + 1))
    redis.call('HDEL', TOKENS, id)
    return 'r', true
  end
  return drop_fields(id) > 0 and 's' or 'n', false
end
-- What the three indexes say of a due set.
local function indexed(due_set)
  local score = redis.call('ZSCORE', IDX, due_set)
  local placed = score and redis.call('ZSCORE', SHELVES, place_of(due_set, score)) and 'placed'
  return (score or '') .. ' ' .. (placed or '') .. ' ' .. (redis.call('ZSCORE', HEADS, due_set) or '')
end
local function mend_indexes(tell)
  local before = {}
  for i = 1, D do
    before[i] = tell and indexed(due_sets[i])
    reindex(KEYS[FIXED + i], due_sets[i])
    local score = redis.call('ZSCORE', IDX, due_sets[i])
    if score and is_growing(due_sets[i]) then
      redis.call('ZREM', SHELVES, place_of(due_sets[i], score))
    elseif score then
      redis.call('ZADD', SHELVES, 0, place_of(due_sets[i], score))
    end
  end
  for i = 1, D do
    update_head(due_sets[i])
  end
  for i = 1, tell and D or 0 do
    letters[i] = before[i] == indexed(due_sets[i]) and 'n' or 'i'
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
    drop_fields(junk)
  else
    -- A bundle in a due set that is not its own may be in the right one too: only this entry goes.
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
-- A removed or restored bundle may have been a head.
mend_indexes(false)
moved(removed)
return { time[1], time[2], 0, table.concat(letters) }
