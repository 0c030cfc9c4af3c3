-- Shared by every script: it stands before each of them. Reads nothing but TIME by itself.
--
-- KEYS[1..12] are the same in every script. A due set reads route/slice:
--   1 idx      zset: due set -> its earliest due ms
--   2 claims   zset: bundle id -> deadline ms
--   3 tokens   hash: bundle id -> "token score": who may settle it, and its score in its due set
--   4 gone     hash: bundle id -> bitmap of the messages that were cancelled, moved or suppressed; of a growing bundle
--              also of the places that nobody has taken yet
--   5 done     hash: bundle id -> bitmap of the confirmed messages
--   6 expiries hash: bundle id -> how often a claim on it expired
--   7 put_back zset: id of a bundle that was put back after it was due -> when its oldest message was to be delivered, ms
--   8 names    hash: route/name -> "bundle index"
--   9 counts   hash: n:route messages, b:route bytes, d:queue dead letters, x:queue their bytes, r:route delivered
--              names; moves: see `moved`. A dead-letter queue has a route's failed (`route`) or invalid (`route/invalid`) dead letters
--  10 calls    hash: caller -> "number seconds answer": the last answer to each caller
--  11 heads    zset: of each route the due set that is due first -> its score in `idx`: what claimers read
--  12 shelves  zset, all scores 0: "route/due/slice" for each entry of `idx`, due with 16 digits: in this order
--              the due sets of a route lie side by side, the earliest first
-- A due set `route/+` has the growing bundles of a route. It is in `idx` alone: nobody publishes from it. A growing bundle
-- is a list, an element for each message, empty for one that is gone. The first one may be an example, see the bundle format.
-- and if the call concerns a route that remembers delivered names (`REMEMBERS`):
--  13 delivered zset: route/name -> until when the name stays taken, ms
-- and if it concerns an ordered route (`ORDERED`), as the last of the fixed ones:
--     order    hash: h:route -> "owner deadline": who alone may claim of it, see claim.lua;
--              k:route/key -> "due from to": behind which messages of a held key go, see divide.lua;
--              stamp -> the highest sequence number given so far, see write.lua
-- Bitmaps are texts of 0 and 1, one per message: short, and readable by whoever has to look.
local IDX, CLAIMS, TOKENS, GONE, DONE, EXPIRIES = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local PUT_BACK, NAMES, COUNTS, CALLS = KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local HEADS, SHELVES = KEYS[11], KEYS[12]
local DELIVERED = REMEMBERS and KEYS[13]
local FIXED = 12 + (REMEMBERS and 1 or 0) + (ORDERED and 1 or 0)
local ORDER = ORDERED and KEYS[FIXED]

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- The next argument.
local at = 0
local function arg()
  at = at + 1
  return ARGV[at]
end
local function num()
  return tonumber(arg())
end

-- Numbers as texts: Lua would write 1.7e+12.
local function int(n)
  return string.format('%.0f', n)
end

-- Every key is checked before the first write: an error in the middle would keep half of a transition.
local KINDS = { 'zset', 'zset', 'hash', 'hash', 'hash', 'hash', 'zset', 'hash', 'hash', 'hash',
  'zset', 'zset' }
if REMEMBERS then
  KINDS[#KINDS + 1] = 'zset'
end
if ORDERED then
  KINDS[#KINDS + 1] = 'hash'
end
-- Keys that did not exist when they were checked: nothing need be read or removed of them.
local absent = {}
local function wrong_kind(from, to, kind)
  for i = from, to do
    local found = redis.call('TYPE', KEYS[i]).ok
    if found == 'none' then
      absent[KEYS[i]] = true
    elseif found ~= (kind or KINDS[i]) then
      return redis.error_reply('WRONGTYPE ' .. KEYS[i] .. ' is a ' .. found)
    end
  end
end

-- Tells whether a bundle, its key, or a due set is one of growing bundles.
local function is_growing(id)
  return string.find(id, '/+', 1, true) ~= nil
end
-- The type of a blob's key.
local function blob_kind(key)
  return is_growing(key) and 'list' or 'string'
end

-- The lengths of blobs, with a check of their types. 0 for a missing blob, and for growing bundles, whose bytes are counted
-- one by one. One command a blob instead of two.
local function lengths(from, to)
  local found = {}
  for i = from, to do
    local length
    if is_growing(KEYS[i]) then
      local wrong = wrong_kind(i, i, 'list')
      if wrong then
        return nil, wrong
      end
      length = 0
    else
      length = redis.pcall('STRLEN', KEYS[i])
      if type(length) ~= 'number' then
        return nil, wrong_kind(i, i, 'string') or length
      end
    end
    found[i - from + 1] = length
  end
  return found
end

-- The most messages that a bundle has, `limits::BUNDLE_MESSAGES`.
local BUNDLE_MESSAGES = 500
-- Never fails, whatever the id is: an error in the middle would keep half of a transition. A count that no bundle has
-- is taken for one: bitmaps are made of that length.
local function count_of(id)
  if string.sub(id, -2) == '.1' then
    return 1
  end
  local count = tonumber(string.match(id, '%.(%w+)$') or '1', 36) or 1
  return count >= 1 and count <= BUNDLE_MESSAGES and count or 1
end
-- How often something happened, as a field says it. None, where the field holds no number that a counter can have.
local function times(text)
  return tonumber(string.match(text or '', '^%d%d?%d?%d?%d?%d?%d?%d?%d?$') or nil) or 0
end
-- The highest sequence number given, as a field says it. None, where no clock can have come so far.
local function sequence_of(text)
  local sequence = tonumber(text or nil) or 0
  return sequence >= 0 and sequence < 2 ^ 53 and sequence or 0
end
local function route_of(id)
  local slash = string.find(id, '/', 1, true)
  return slash ~= 1 and string.sub(id, 1, (slash or 0) - 1) or nil
end
local function due_set_of(id)
  return string.match(id, '^(.*)/')
end

local function is_set(map, index)
  return map and string.byte(map, index + 1) == 49
end
local function with_set(map, index, count)
  map = map or string.rep('0', count)
  return string.sub(map, 1, index) .. '1' .. string.sub(map, index + 2)
end
local function ones(map)
  if not map then
    return 0
  end
  local _, n = string.gsub(map, '1', '')
  return n
end
local function union(a, b)
  if not a or a == '' then
    return b
  end
  if not b or b == '' then
    return a
  end
  -- Four digits at once: '0' and '1' differ in their lowest bit alone. A step is as many as Lua can unpack.
  local length, out = math.max(#a, #b), {}
  for from = 1, length, 512 do
    local left, right = string.sub(a, from, from + 511), string.sub(b, from, from + 511)
    local words = math.ceil(math.max(#left, #right) / 4)
    local format = string.rep('i4', words)
    local x = { struct.unpack(format, left .. string.rep('0', 4 * words - #left)) }
    local y = { struct.unpack(format, right .. string.rep('0', 4 * words - #right)) }
    for i = 1, words do
      x[i] = bit.bor(x[i], y[i])
    end
    out[#out + 1] = struct.pack(format, unpack(x, 1, words))
  end
  return string.sub(table.concat(out), 1, length)
end
-- Notes what is confirmed of a bundle, so that nobody publishes it again. Not of one that is gone.
local function note_confirmed(id, blob, is_there, confirmed)
  if is_there or redis.call('EXISTS', blob) == 1 then
    redis.call('HSET', DONE, id, union(redis.call('HGET', DONE, id), confirmed))
  end
end
-- Tells whether each of `count` messages is in one of two bitmaps. The first messages that are not in `a`
-- mostly decide.
local function is_covered(a, b, count)
  local open, looked = string.find(a, '0', 1, true), 0
  while open and looked < 32 and is_set(b, open - 1) do
    open, looked = string.find(a, '0', open + 1, true), looked + 1
  end
  if open and is_set(b, open - 1) then
    open = string.find(union(a, b), '0', 1, true)
  end
  return not open and #a >= count
end

-- The member of `SHELVES` for a due set, and the due set of a member: nil for a malformed one.
local function place_of(due_set, due)
  local route = route_of(due_set) or ''
  return route .. '/' .. string.format('%016.0f', due) .. string.sub(due_set, #route + 1)
end
local function due_set_at(place)
  local route, slice = string.match(place, '^([^/]*)/%-?%d+(.*)$')
  return route and route .. slice
end

-- The two due sets of a route that are due first, each with its score. A due set that `IDX` has lost comes back with
-- the score that `SHELVES` says: in no index nobody would find it. `indexed` was compared with `IDX` just now: if `IDX`
-- lacks it, it is gone. Removes members of `SHELVES` that disagree with `IDX` on the way.
local function earliest(route, indexed)
  repeat
    local found, stale = {}, false
    for _, place in ipairs(
      redis.call('ZRANGEBYLEX', SHELVES, '[' .. route .. '/', '(' .. route .. '0', 'LIMIT', 0, 2)) do
      local due_set = due_set_at(place)
      local score = due_set and redis.call('ZSCORE', IDX, due_set)
      local lost = due_set and not score and due_set ~= indexed
      if lost then
        score = string.match(place, '^[^/]*/(%-?%d+)')
      end
      if score and place == place_of(due_set, score) and not is_growing(due_set) then
        if lost then
          redis.call('ZADD', IDX, score, due_set)
        end
        found[#found + 1], found[#found + 2] = due_set, score
      else
        redis.call('ZREM', SHELVES, place)
        stale = true
      end
    end
    if not stale then
      return unpack(found)
    end
  until false
end

-- Updates `HEADS` for a route of which this due set has changed, and is indexed already: the head before was this one,
-- or is the second now.
local function update_head(due_set)
  if is_growing(due_set) then
    -- Nobody publishes from it.
    redis.call('ZREM', HEADS, due_set)
    return
  end
  local first, score, second = earliest(route_of(due_set) or '', due_set)
  if first then
    redis.call('ZADD', HEADS, score, first)
  end
  if first ~= due_set then
    redis.call('ZREM', HEADS, due_set)
  end
  if second then
    redis.call('ZREM', HEADS, second)
  end
end

-- Updates the indexes for one due set.
local function reindex(due, due_set)
  local head, was = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES'), redis.call('ZSCORE', IDX, due_set)
  if (head[2] or false) == was then
    return
  end
  if head[1] then
    redis.call('ZADD', IDX, head[2], due_set)
  else
    redis.call('ZREM', IDX, due_set)
  end
  if is_growing(due_set) then
    return
  end
  if head[1] then
    redis.call('ZADD', SHELVES, 0, place_of(due_set, head[2]))
  end
  if was then
    redis.call('ZREM', SHELVES, place_of(due_set, was))
  end
  update_head(due_set)
end

-- These fields of a hash. None if the hash did not exist.
local function fields(key, ids)
  return absent[key] and {} or redis.call('HMGET', key, unpack(ids))
end

-- Checks an entry of `TOKENS` against a token. Returns the score in the due set if the token owns the claim.
local function is_owned(entry, token)
  if not entry then
    return nil
  end
  local space = string.find(entry, ' ', 1, true)
  if space and string.sub(entry, 1, space - 1) == token then
    return string.sub(entry, space + 1)
  end
end
local function owned_by(id, token)
  return is_owned(redis.call('HGET', TOKENS, id), token)
end

-- A malformed count must not stop a transition in the middle: a scrub corrects it.
local function add_count(field, n)
  redis.pcall('HINCRBY', COUNTS, field, int(n))
end
-- Counts the bundles, dead letters and names that came, changed, left or changed their set: a recount may have seen each
-- of them twice or not at all.
local function moved(n)
  if n > 0 then
    add_count('moves', n)
  end
end
local function add_counts(route, messages, bytes, bundles)
  if messages ~= 0 then
    add_count('n:' .. route, messages)
  end
  if bytes ~= 0 then
    add_count('b:' .. route, bytes)
  end
  moved(bundles)
end

-- Adds dead letters to their queue. Their blobs exist and have `bytes` bytes together.
local function add_dead_letters(key, queue, ids, bytes)
  if #ids == 0 then
    return
  end
  local members = {}
  for i, id in ipairs(ids) do
    members[2 * i - 1], members[2 * i] = int(now), id
  end
  redis.call('ZADD', key, unpack(members))
  add_count('d:' .. queue, #ids)
  add_count('x:' .. queue, bytes)
  moved(#ids)
end

-- Removes a dead letter. Returns whether it was there.
local function remove_dead_letter(key, queue, id, blob)
  if redis.call('ZREM', key, id) == 0 then
    return false
  end
  add_count('d:' .. queue, -1)
  add_count('x:' .. queue, -redis.call('STRLEN', blob))
  moved(1)
  redis.call('UNLINK', blob)
  return true
end

-- Sums up counts of several bundles by route: one command a route, however many bundles.
local function tally()
  local messages, bytes, bundles = {}, {}, {}
  local function add(route, more, longer)
    messages[route] = (messages[route] or 0) + more
    bytes[route] = (bytes[route] or 0) + longer
    bundles[route] = (bundles[route] or 0) + 1
  end
  local function enter()
    for route, n in pairs(messages) do
      add_counts(route, n, bytes[route], bundles[route])
    end
  end
  return add, enter
end

-- Bytes that the messages of a growing bundle take.
local function grown_bytes(key)
  local bytes = 0
  for _, element in ipairs(redis.call('LRANGE', key, 0, -1)) do
    bytes = bytes + #element
  end
  return bytes
end
-- The bitmap of what is gone from a bundle. Where that of a growing bundle was lost, its list shows it: an element for each
-- message that is there. An example is none.
local function gone_of_list(key, count)
  local bits = {}
  for i = 1, count do
    bits[i] = '1'
  end
  for i, element in ipairs(redis.call('LRANGE', key, 0, count - 1)) do
    if element ~= '' and string.sub(element, 1, 2) ~= 'PE' then
      bits[i] = '0'
    end
  end
  return table.concat(bits)
end
local function gone_from(id, key)
  return redis.call('HGET', GONE, id) or (is_growing(id) and gone_of_list(key, count_of(id)))
end
-- Empties the place of a message that is gone from a growing bundle. Returns how many bytes it had.
local function empty_place(key, index)
  local element = redis.call('LINDEX', key, index)
  if element and element ~= '' then
    redis.call('LSET', key, index, '')
  end
  return #(element or '')
end

-- Removes every trace of bundles but their entries in due sets: per bundle its id, its blob, its length, and
-- how many of its messages still count. One command for all of them wherever possible. None for a key that is
-- `missing`.
local function forget(bundles, missing)
  if #bundles == 0 then
    return
  end
  local ids, blobs = {}, {}
  local add, enter = tally()
  for i, b in ipairs(bundles) do
    ids[i], blobs[i] = b.id, b.blob
    add(route_of(b.id), -b.messages, -b.length)
  end
  redis.call('ZREM', CLAIMS, unpack(ids))
  if not absent[PUT_BACK] then
    redis.call('ZREM', PUT_BACK, unpack(ids))
  end
  for _, key in ipairs({ TOKENS, GONE, DONE, EXPIRIES }) do
    if not (missing and missing[key]) then
      redis.call('HDEL', key, unpack(ids))
    end
  end
  enter()
  redis.call('UNLINK', unpack(blobs))
end

-- Frees a name, if it still means this message.
local function free_name(name, place)
  if redis.call('HGET', NAMES, name) == place then
    redis.call('HDEL', NAMES, name)
  end
end

local remembered, remember
if REMEMBERS then
  -- Tells whether the name's message was delivered recently enough.
  remembered = function(name)
    local ends = redis.call('ZSCORE', DELIVERED, name)
    return ends and tonumber(ends) > now
  end
  -- A delivered name stays known, whoever owned the claim: the broker has the message. Reads the rest of ARGV:
  -- per route how many ms, names, and per name: name.
  remember = function()
    while at < #ARGV do
      local ends, members, new = int(now + num()), {}, 0
      local count, route = num(), nil
      for i = 1, count do
        members[#members + 1], members[#members + 2] = ends, arg()
        if #members == 1000 or i == count then
          route = route_of(members[2])
          new = new + redis.call('ZADD', DELIVERED, unpack(members))
          members = {}
        end
      end
      if new > 0 then
        add_count('r:' .. route, new)
        moved(new)
      end
    end
  end
end

local prolong, raise_sequence
if ORDERED then
  -- A route's owner has it for at least as long as any of its claims: its successor must see all of them.
  prolong = function(route, deadline)
    local entry = redis.call('HGET', ORDER, 'h:' .. route)
    local owner, ends = string.match(entry or '', '^(%S+) (%d+)$')
    if owner and tonumber(ends) < deadline then
      redis.call('HSET', ORDER, 'h:' .. route, owner .. ' ' .. int(deadline))
    end
  end
  raise_sequence = function(sequence)
    if sequence > sequence_of(redis.call('HGET', ORDER, 'stamp')) then
      redis.call('HSET', ORDER, 'stamp', int(sequence))
    end
  end
end

-- A caller numbers its calls. A call that is run twice answers what it answered first. A call that was
-- overtaken changes nothing, and is told the number that overtook it. A number below what the caller was already
-- answered means that the store rolled back. Every answer is kept, a refusal too: a late copy of a refused call would
-- otherwise be applied beside the next try. Only if `calls` itself is damaged is there no place to keep it.
-- Whoever waits for an answer has made no later call: if its call was overtaken, `calls` was damaged. It goes on behind
-- that number.
-- ARGV: caller, number, highest number answered.
local caller, number, answered
local rolled_back, new_caller = 0, false
-- A number so far ahead of a call was not given by its caller, and counts as none.
local MAX_AHEAD = 2 ^ 40
local function repeated()
  caller, number, answered = arg(), num(), num()
  local last = redis.pcall('HGET', CALLS, caller)
  if type(last) == 'table' then
    return last
  end
  local n, _, answer = string.match(last or '', '^(%d+) (%d+) (.*)$')
  local last_number = tonumber(n) or 0
  if last_number > number + MAX_AHEAD then
    n, last_number = nil, 0
  end
  if n and last_number == number then
    -- A caller that repeats a call may wait for replicas, and a wait after a call that wrote nothing says
    -- yes.
    redis.call('HSET', CALLS, caller, last)
    local reply = cmsgpack.unpack(answer)
    if type(reply) == 'table' and reply.err then
      return reply
    end
    return { time[1], time[2], 0, reply }
  end
  if last_number > number then
    return { time[1], time[2], 1, 'OVERTAKEN ' .. int(last_number) }
  end
  new_caller = not n
  if last_number < answered then
    rolled_back = 1
  end
end
local function answer(reply)
  redis.call('HSET', CALLS, caller, int(number) .. ' ' .. time[1] .. ' ' .. cmsgpack.pack(reply))
  return { time[1], time[2], rolled_back, reply }
end
-- The answer to a call whose keys are damaged.
local function refuse(wrong)
  answer(wrong)
  return wrong
end
