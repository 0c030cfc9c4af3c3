-- write: stores bundles, cancels names and keeps dead letters, judged in order of delivery.
--
-- The caller SET its blobs (NX, with a time to live) in the same MULTI. On every path this script PERSISTs the blobs that
-- stay and unlinks the others.
-- KEYS  the fixed ones; then D due sets; B blobs of new bundles; O blobs of bundles behind its names; X dead letters;
--       G dead-letter queues
-- ARGV  caller number answered; D B O X G; ordered: the lowest and the highest sequence number of those bundles;
--       D times: due set
--       B times: id, place of its due set, first due ms, bytes; of a growing bundle, which has no blob yet, instead of
--       bytes how many messages it gets, then its example or ""
--       O times: id, place of its due set, "" or, of a growing bundle that gets messages, how many places are taken, and
--       how many messages it gets
--       X times: dead id, place of its queue
--       G times: queue
--       then ops: "B" how many (that many nameless messages, or whole bundles of them) | "N" bundle index name policy(k|r)
--       | "A" bundle index name policy message: the same for a growing bundle; those that stand come after the B new ones
--       | "C" name | "P" name, id, index: the same for a `~` id, with the place that it names
--       | "D" name: the same as "C" on a route that remembers delivered names, whose policies are (K|R)
--       Behind the letter of a policy stands how often consumers have given the message back, if they have, and then " id
--       index" of the message of its name that was given back as often: the others are no duplicates of it
-- returns {s, us, rolled_back, answer}: one letter an op: s stored, d duplicate, r replaced, c cancelled,
--       f in flight, u unknown, p published (remembered); or "CHANGED": a name means another bundle than the caller
--       thought, nothing was changed, read again; or "BEHIND number": this or a higher sequence number was given
--       already, nothing was changed.
-- atomic: all of it. costs: a few commands a bundle, a few more a name.
local before = repeated()
local D, B, O, X, G = num(), num(), num(), num(), num()
local wrong, long = wrong_kind(1, FIXED) or wrong_kind(FIXED + 1, FIXED + D, 'zset')
  or wrong_kind(#KEYS - G + 1, #KEYS, 'zset'), nil
if not wrong then
  -- Of the blobs that stand, then of the dead letters.
  long, wrong = lengths(FIXED + D + B + 1, #KEYS - G)
end
local lowest, highest
if ORDERED then
  lowest, highest = num(), num()
end
local due_sets, bundles, old, known = {}, {}, {}, {}
for i = 1, D do
  due_sets[i] = arg()
end
for i = 1, B do
  local id = arg()
  local b = { id = id, due = num(), first = arg(), length = num(), fresh = true, blob = KEYS[FIXED + D + i] }
  b.count, b.grows = count_of(id), is_growing(id)
  if b.grows then
    b.example, b.filled, b.length = arg(), b.length, 0
    b.base = b.example == '' and 0 or 1
    wrong = wrong or wrong_kind(FIXED + D + i, FIXED + D + i, 'list')
  end
  bundles[i], known[id] = b, b
end
for i = 1, O do
  local id = arg()
  local b = { id = id, due = num(), base = tonumber(arg()), count = count_of(id), grows = is_growing(id) }
  b.filled = b.base and num()
  b.blob, b.length = KEYS[FIXED + D + B + i], long and long[i]
  old[i], known[id] = b, b
end
local dead, queues = {}, {}
for i = 1, X do
  dead[i] = { id = arg(), queue = num(), blob = KEYS[FIXED + D + B + O + i] }
end
for i = 1, G do
  queues[i] = { name = arg(), key = KEYS[#KEYS - G + i] }
end

-- Keeps or unlinks the blobs of a call that is not to be applied (again): blobs of existing bundles stay.
local function tidy()
  for i = 1, B do
    local b = bundles[i]
    if redis.call('ZSCORE', KEYS[FIXED + b.due], b.id) or redis.call('ZSCORE', CLAIMS, b.id) then
      redis.call('PERSIST', b.blob)
    else
      redis.call('UNLINK', b.blob)
    end
  end
  for i = 1, X do
    if redis.call('ZSCORE', queues[dead[i].queue].key, dead[i].id) then
      redis.call('PERSIST', dead[i].blob)
    else
      redis.call('UNLINK', dead[i].blob)
    end
  end
end
if before and not wrong then
  tidy()
end
if before or wrong then
  return before or refuse(wrong)
end

-- Sequence numbers only grow, whoever gives them: they are the order in which messages came.
if ORDERED then
  local given = sequence_of(redis.call('HGET', ORDER, 'stamp'))
  if lowest <= given then
    tidy()
    return answer('BEHIND ' .. int(given))
  end
end

-- The present meaning of each name, all read at once. Nothing is written before all of them are known to the caller.
local names, asked, ops_at = {}, {}, at
while at < #ARGV do
  local op, name, said = arg(), nil, true
  if op == 'B' then
    at = at + 1
  elseif op == 'N' or op == 'A' then
    name = ARGV[at + 3]
    at = at + (op == 'A' and 5 or 4)
  else
    name = arg()
    if op == 'P' then
      said = { bundle = known[arg()], index = num() }
    end
  end
  if name and names[name] == nil then
    names[name], asked[#asked + 1] = said, name
  end
end
local changed = false
for i, place in ipairs(#asked > 0 and redis.call('HMGET', NAMES, unpack(asked)) or {}) do
  local entry = names[asked[i]]
  if place then
    local id, index = string.match(place, '^(%S+) (%d+)$')
    entry = { bundle = id and known[id], index = tonumber(index) }
  elseif entry == true then
    entry = false
  end
  -- The caller frees an entry that is no place.
  changed = changed or entry and not (entry.bundle and entry.index < entry.bundle.count)
  names[asked[i]] = entry
end
if changed then
  tidy()
  return answer('CHANGED')
end
-- A blob that has gone since it was SET, or was something else before, would make an entry without content. One
-- command checks and keeps it. A scrub finds those kept before an error.
for i = 1, B do
  local blob = bundles[i].blob
  if not bundles[i].grows and redis.call('PERSIST', blob) == 0 then
    wrong = wrong_kind(FIXED + D + i, FIXED + D + i, 'string')
    if wrong or absent[blob] then
      return refuse(wrong or redis.error_reply('ERR the blob of ' .. bundles[i].id .. ' is not there'))
    end
  end
end

-- What is known of bundles that stand: their bitmaps, and whether they are pending or claimed. All read at once.
local function look(bundles)
  local ids, of_due = {}, {}
  for i, b in ipairs(bundles) do
    ids[i] = b.id
    of_due[b.due] = of_due[b.due] or {}
    table.insert(of_due[b.due], b)
  end
  local gone, done, claims = fields(GONE, ids), fields(DONE, ids), redis.call('ZMSCORE', CLAIMS, unpack(ids))
  for i, b in ipairs(bundles) do
    b.gone = gone[i] or (b.grows and gone_of_list(b.blob, b.count)) or nil
    b.done, b.claimed, b.seen = done[i] or nil, claims[i], true
  end
  for due, these in pairs(of_due) do
    local members = {}
    for i, b in ipairs(these) do
      members[i] = b.id
    end
    for i, score in ipairs(redis.call('ZMSCORE', KEYS[FIXED + due], unpack(members))) do
      these[i].pending = score
    end
  end
end
local function state(name)
  local entry = names[name]
  if not entry then
    return 'free'
  end
  local b = entry.bundle
  -- A bundle of this very call that stands already.
  if not b.seen then
    look({ b })
  end
  if is_set(b.gone, entry.index) or is_set(b.done, entry.index) then
    return 'free'
  end
  return (b.pending and 'pending') or (b.claimed and 'claimed') or 'free'
end
if O > 0 then
  look(old)
end
for i = 1, O do
  local b = old[i]
  if b.base and not (b.pending and redis.call('LLEN', b.blob) == b.base) then
    tidy()
    return answer('CHANGED')
  end
end
-- An unknown caller may be new, or one whose calls were forgotten. Then this may be a repeat, and existing
-- bundles must neither be stored again nor count as duplicates of themselves.
if new_caller then
  for i = 1, B do
    local b = bundles[i]
    b.stands = redis.call('ZSCORE', KEYS[FIXED + b.due], b.id) or redis.call('ZSCORE', CLAIMS, b.id)
  end
end
-- The places of a growing bundle that messages of this call take are gone no more.
for _, b in pairs(known) do
  if b.filled and not b.stands then
    -- Nobody takes the place of an example.
    local gone = b.gone or string.rep('1', b.count)
    b.gone = string.sub(gone, 1, b.base) .. string.rep('0', b.filled) .. string.sub(gone, b.base + b.filled + 1)
    b.messages_new = {}
  end
end
local function suppress(b, index)
  b.gone = with_set(b.gone, index, b.count)
  b.taken = (b.taken or 0) + 1
  if b.grows and index < (b.base or b.count) then
    b.emptied = b.emptied or {}
    table.insert(b.emptied, index)
  end
end

local results, freed = {}, {}
local function result(letter)
  results[#results + 1] = letter
end
at = ops_at
while at < #ARGV do
  local op = arg()
  if op == 'B' then
    result(string.rep('s', num()))
  elseif op == 'N' or op == 'A' then
    local place, index, name, policy = num(), num(), arg(), arg()
    local b = bundles[place] or old[place - B]
    if op == 'A' then
      local message = arg()
      if b.messages_new then
        table.insert(b.messages_new, message)
      end
    end
    local was = not b.stands and state(name)
    local letter, count, same = policy, '', nil
    if #policy > 1 then
      letter, count, same = string.match(policy, '^(%a)(%d+) ?(.*)$')
    end
    local entry, replaces = names[name], letter == 'r' or letter == 'R'
    -- What waits or is in flight may be what its consumer has given back: it was delivered, and is not settled yet.
    local alike = count == '' or (entry and (entry.count == count or same == entry.bundle.id .. ' ' .. int(entry.index)))
    local taken = was == 'pending' and alike and not replaces
    if REMEMBERS and was and not taken and (letter == 'K' or letter == 'R') then
      taken = (was == 'claimed' and alike) or (was == 'free' and count == '' and remembered(name))
    end
    if b.stands then
      result('s')
    elseif taken then
      suppress(b, index)
      result('d')
    else
      local replaced = was == 'pending' and replaces
      if replaced then
        suppress(entry.bundle, entry.index)
      end
      names[name] = { bundle = b, index = index, set = true, count = count }
      b.seen, b.pending = true, true
      result(replaced and 'r' or 's')
    end
  else
    local name = arg()
    if op == 'P' then
      at = at + 2
    end
    local was = state(name)
    if was == 'pending' then
      suppress(names[name].bundle, names[name].index)
      names[name], freed[#freed + 1] = false, name
      result('c')
    elseif op == 'D' and was == 'free' and remembered(name) then
      result('p')
    else
      result(was == 'claimed' and 'f' or 'u')
    end
  end
end

if ORDERED then
  raise_sequence(highest)
end
-- Adds a pair to arguments that one command takes at the end.
local function pair(list, a, b)
  local n = #list
  list[n + 1], list[n + 2] = a, b
end
local places, bitmaps = {}, {}
for name, entry in pairs(names) do
  if entry and entry.set then
    pair(places, name, entry.bundle.id .. ' ' .. int(entry.index))
  end
end
if #freed > 0 then
  redis.call('HDEL', NAMES, unpack(freed))
end
if #places > 0 then
  redis.call('HSET', NAMES, unpack(places))
end
local dirty, fresh, spent = {}, {}, {}
local add, enter = tally()
-- Adds the messages of this call to a growing bundle, and empties the places of those that it takes. Returns how many
-- bytes that adds.
local function grow(b)
  local bytes = 0
  for i, message in ipairs(b.messages_new or {}) do
    local gone = is_set(b.gone, b.base + i - 1)
    b.messages_new[i] = gone and '' or message
    bytes = bytes + (gone and 0 or #message)
  end
  if b.messages_new then
    if b.fresh and b.base > 0 then
      redis.call('RPUSH', b.blob, b.example)
      bytes = bytes + #b.example
    end
    redis.call('RPUSH', b.blob, unpack(b.messages_new))
  end
  for _, index in ipairs(b.emptied or {}) do
    bytes = bytes - empty_place(b.blob, index)
  end
  return bytes
end
for _, b in pairs(known) do
  if b.fresh and not b.stands then
    local live = (b.filled or b.count) - (b.taken or 0)
    if live == 0 then
      redis.call('UNLINK', b.blob)
    else
      b.length = b.length + (b.grows and grow(b) or 0)
      fresh[b.due] = fresh[b.due] or {}
      pair(fresh[b.due], b.first, b.id)
      if b.gone then
        pair(bitmaps, b.id, b.gone)
      end
      add(route_of(b.id), live, b.length)
      dirty[b.due] = true
    end
  elseif b.taken or (b.filled and not b.stands) then
    local came, bytes = (b.messages_new and b.filled or 0) - (b.taken or 0), b.grows and grow(b) or 0
    if is_covered(b.gone, b.done, b.count) then
      spent[b.due] = spent[b.due] or {}
      table.insert(spent[b.due], b)
      dirty[b.due] = true
      b.messages = b.count - ones(b.gone) - came
      b.length = (b.grows and grown_bytes(b.blob) or b.length) - bytes
    else
      pair(bitmaps, b.id, b.gone)
      add(route_of(b.id), came, bytes)
    end
  end
end
if #bitmaps > 0 then
  redis.call('HSET', GONE, unpack(bitmaps))
end
local ended = {}
for due, bundles in pairs(spent) do
  local members = {}
  for i, b in ipairs(bundles) do
    members[i], ended[#ended + 1] = b.id, b
  end
  redis.call('ZREM', KEYS[FIXED + due], unpack(members))
end
for due, members in pairs(fresh) do
  redis.call('ZADD', KEYS[FIXED + due], unpack(members))
end
forget(ended)
enter()
for due in pairs(dirty) do
  reindex(KEYS[FIXED + due], due_sets[due])
end
for i = 1, X do
  local d = dead[i]
  local queue = queues[d.queue]
  redis.call('PERSIST', d.blob)
  -- An existing one is a repeat whose first answer was forgotten.
  if not redis.call('ZSCORE', queue.key, d.id) then
    add_dead_letters(queue.key, queue.name, { d.id }, long[O + i])
  end
end
return answer(table.concat(results))
