-- divide: settles a bundle of which something remains. Confirmed messages leave. Failed messages go back as new
-- bundles. Unresolved messages stay in flight in a bundle that is born claimed. Hopeless messages become dead letters.
--
-- Nobody claims a growing bundle: it stays in its due set, which is one of D, until all of its messages go back as new
-- bundles at once.
--
-- KEYS  the fixed ones; the old blob; then D due sets; B new blobs; X dead letters; G dead-letter queues
-- ARGV  caller number answered; id, token, bitmap of the confirmed, "1" if its blob was missing, of a growing bundle its
--       bitmap of gone messages as the caller saw it; D B X G;
--       D times: due set
--       B times: id, place of its due set, first due ms, blob, token or "", lease ms, expiries
--       X times: dead id, place of its queue, blob
--       G times: queue
--       names to free: count, then name, index
--       names to move: count, then name, old index, place of the new bundle, new index
--       ordered: keys that are held from here on: count, then key, "due from to" (a message of the key that would go
--       before (due, from) goes behind (due, to)); the highest sequence number given
--       bundles that go back after they were due: count, then id, when they were to be delivered
--       names to remember, see `remember`
-- returns {s, us, rolled_back, answer}: "o" done; "s" stale, or the missing blob is there: its claim stays;
--       "g" more of a growing bundle is gone than the caller saw: nothing was changed, read again
-- atomic: all of it. costs: the new blobs pass through here: the rare path. Runs at maxmemory.
local before = repeated()
if before then
  return before
end
local id, token, confirmed, missing, seen = arg(), arg(), arg(), arg() == '1', arg()
local D, B, X, G = num(), num(), num(), num()
local old, count, grows = KEYS[FIXED + 1], count_of(id), is_growing(id)
local wrong = wrong_kind(1, FIXED) or wrong_kind(FIXED + 1, FIXED + 1, blob_kind(id))
  or wrong_kind(FIXED + 2, FIXED + 1 + D, 'zset') or wrong_kind(FIXED + 2 + D, #KEYS - G, 'string')
  or wrong_kind(#KEYS - G + 1, #KEYS, 'zset')
if wrong then
  return refuse(wrong)
end
if not grows and (not owned_by(id, token) or (missing and redis.call('STRLEN', old) > 0)) then
  if ones(confirmed) > 0 then
    note_confirmed(id, old, false, confirmed)
  end
  if REMEMBERS then
    at = at + D + 7 * B + 3 * X + G
    at = at + 1 + 2 * ARGV[at + 1]
    at = at + 1 + 4 * ARGV[at + 1]
    if ORDERED then
      at = at + 2 + 2 * ARGV[at + 1]
    end
    at = at + 1 + 2 * ARGV[at + 1]
    remember()
  end
  return answer('s')
end
local due_sets, fresh, back, own = {}, {}, {}, nil
local add, enter = tally()
for i = 1, D do
  due_sets[i] = arg()
  own = due_sets[i] == due_set_of(id) and KEYS[FIXED + 1 + i] or own
end
if grows and not redis.call('ZSCORE', own, id) then
  return answer('s')
end
if grows and (redis.call('HGET', GONE, id) or '') ~= seen then
  return answer('g')
end
local route = route_of(id)
for i = 1, B do
  local new, due, first, blob = arg(), num(), arg(), arg()
  local born, lease, expiries = arg(), num(), num()
  redis.call('SET', KEYS[FIXED + 1 + D + i], blob)
  if born ~= '' then
    redis.call('ZADD', CLAIMS, int(now + lease), new)
    redis.call('HSET', TOKENS, new, born .. ' ' .. first)
    if ORDERED then
      prolong(route, now + lease)
    end
  else
    local members = back[due] or {}
    members[#members + 1], members[#members + 2] = first, new
    back[due] = members
  end
  if expiries > 0 then
    redis.call('HSET', EXPIRIES, new, int(expiries))
  end
  add(route, count_of(new), #blob)
  fresh[i] = new
end
for due, members in pairs(back) do
  redis.call('ZADD', KEYS[FIXED + 1 + due], unpack(members))
  reindex(KEYS[FIXED + 1 + due], due_sets[due])
end
enter()
local dead = {}
for i = 1, X do
  dead[i] = { id = arg(), queue = num(), bytes = 0 }
  local blob = arg()
  dead[i].bytes = #blob
  redis.call('SET', KEYS[FIXED + 1 + D + B + i], blob)
end
for i = 1, G do
  local queue, ids, bytes = arg(), {}, 0
  for _, d in ipairs(dead) do
    if d.queue == i then
      ids[#ids + 1], bytes = d.id, bytes + d.bytes
    end
  end
  add_dead_letters(KEYS[#KEYS - G + i], queue, ids, bytes)
end
for _ = 1, num() do
  local name, index = arg(), arg()
  free_name(name, id .. ' ' .. index)
end
local names, moves = {}, {}
for i = 1, num() do
  names[i] = arg()
  moves[i] = { from = id .. ' ' .. arg(), to = fresh[num()] .. ' ' .. arg() }
end
if #names > 0 then
  local entries = {}
  for i, meant in ipairs(redis.call('HMGET', NAMES, unpack(names))) do
    -- A name that was taken over meanwhile stays with its new owner: this message goes on nameless.
    if not meant or meant == moves[i].from then
      entries[#entries + 1], entries[#entries + 2] = names[i], moves[i].to
    end
  end
  if #entries > 0 then
    redis.call('HSET', NAMES, unpack(entries))
  end
end
if ORDERED then
  for _ = 1, num() do
    local key, value = arg(), arg()
    redis.call('HSET', ORDER, 'k:' .. route .. '/' .. key, value)
  end
  raise_sequence(num())
end
for _ = 1, num() do
  local new, asked = arg(), num()
  redis.call('ZADD', PUT_BACK, int(asked), new)
end
if REMEMBERS then
  remember()
end
if grows then
  redis.call('ZREM', own, id)
  reindex(own, due_set_of(id))
end
local length = grows and grown_bytes(old) or redis.call('STRLEN', old)
forget({
  { id = id, blob = old, length = length, messages = count - ones(gone_from(id, old)) },
})
return answer('o')
