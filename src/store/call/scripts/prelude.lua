-- Shared by every script: it stands before each of them. Reads nothing but TIME by itself.
--
-- KEYS[1..12] are the same in every script:
--   1 idx      zset: shelf (route/slice) -> its earliest due ms
--   2 claims   zset: bundle id -> deadline ms
--   3 tokens   hash: bundle id -> "token score": who may settle it, and where it lay in its due zset
--   4 gone     hash: bundle id -> bitmap of what was cancelled, moved or suppressed
--   5 done     hash: bundle id -> bitmap of what is confirmed
--   6 expiries hash: bundle id -> how often a claim on it expired
--   7 opened   hash: bundle id -> how often it was opened after that
--   8 names    hash: route/name -> "bundle index"
--   9 counts   hash: n:route messages, b:route bytes, d:grave dead letters, x:grave their bytes; moves: see
--              `moved`. A grave is a route's failed (`route`) or invalid (`route/invalid`) dead letters
--  10 calls    hash: lane -> "number seconds answer": the last answer of each caller
--  11 heads    zset: of each route the shelf that is due first -> its score in `idx`: what a look reads
--  12 shelves  zset, all scores 0: "route/due/slice" for each entry of `idx`, due with 16 digits: in this order
--              the shelves of a route lie side by side, the earliest first
-- and where the call concerns a route that remembers what it delivered (`REMEMBERS`):
--  13 delivered zset: route/name -> until when the name stays taken, ms
-- and where it concerns a route whose keys leave in order (`ORDERED`), as the last of the fixed ones:
--     order    hash: h:route -> "holder deadline": who alone may claim of it, see claim.lua;
--              k:route/key -> "due from to": behind which messages of a held key go, see divide.lua;
--              stamp -> the highest stamp given so far, see write.lua
-- Bitmaps are texts of 0 and 1, one per message: short, and readable by whoever has to look.
local IDX, CLAIMS, TOKENS, GONE, DONE, EXPIRIES = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local OPENED, NAMES, COUNTS, CALLS = KEYS[7], KEYS[8], KEYS[9], KEYS[10]
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
local KINDS = { 'zset', 'zset', 'hash', 'hash', 'hash', 'hash', 'hash', 'hash', 'hash', 'hash',
  'zset', 'zset' }
if REMEMBERS then
  KINDS[#KINDS + 1] = 'zset'
end
if ORDERED then
  KINDS[#KINDS + 1] = 'hash'
end
-- Keys that were not there when they were looked at: nothing need be read or removed of them.
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

-- How long blobs are, checked as well: 0 where there is none. One command a blob, where two would do the same.
local function lengths(from, to)
  local found = {}
  for i = from, to do
    local length = redis.pcall('STRLEN', KEYS[i])
    if type(length) ~= 'number' then
      return nil, wrong_kind(i, i, 'string') or length
    end
    found[i - from + 1] = length
  end
  return found
end

-- Never fails, whatever stands there: an error in the middle would keep half of a transition.
local function count_of(id)
  return tonumber(string.match(id, '%.(%w+)$') or '1', 36) or 1
end
local function route_of(id)
  return string.match(id, '^[^/]+')
end
local function shelf_of(id)
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
-- Whether each of so many messages is in one of two bitmaps. One of the first that are not in the one mostly answers.
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

-- A shelf's member of `SHELVES`, and the shelf of a member; nil for what is none.
local function place_of(shelf, due)
  local route = route_of(shelf) or ''
  return route .. '/' .. string.format('%016.0f', due) .. string.sub(shelf, #route + 1)
end
local function shelf_at(place)
  local route, slice = string.match(place, '^([^/]*)/%-?%d+(.*)$')
  return route and route .. slice
end

-- The two shelves of a route that are due first, each with its score. What `IDX` says otherwise about is removed from
-- `SHELVES` on the way.
local function earliest(route)
  repeat
    local found, stale = {}, false
    for _, place in ipairs(
      redis.call('ZRANGEBYLEX', SHELVES, '[' .. route .. '/', '(' .. route .. '0', 'LIMIT', 0, 2)) do
      local shelf = shelf_at(place)
      local score = shelf and redis.call('ZSCORE', IDX, shelf)
      if score and place == place_of(shelf, score) then
        found[#found + 1], found[#found + 2] = shelf, score
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

-- Makes `HEADS` tell the truth about a route of which this shelf has changed: the head before was this one or is the
-- second now.
local function lead(shelf)
  local first, score, second = earliest(route_of(shelf) or '')
  if first then
    redis.call('ZADD', HEADS, score, first)
  end
  if first ~= shelf then
    redis.call('ZREM', HEADS, shelf)
  end
  if second then
    redis.call('ZREM', HEADS, second)
  end
end

-- Makes the index tell the truth about one shelf.
local function reindex(due, shelf)
  local head, was = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES'), redis.call('ZSCORE', IDX, shelf)
  if (head[2] or false) == was then
    return
  end
  if head[1] then
    redis.call('ZADD', IDX, head[2], shelf)
    redis.call('ZADD', SHELVES, 0, place_of(shelf, head[2]))
  else
    redis.call('ZREM', IDX, shelf)
  end
  if was then
    redis.call('ZREM', SHELVES, place_of(shelf, was))
  end
  lead(shelf)
end

-- These fields of a hash; nothing of one that was not there.
local function fields(key, ids)
  return absent[key] and {} or redis.call('HMGET', key, unpack(ids))
end

-- Whose claim it is, by what `TOKENS` holds of it: the score it came from, if the token is the one that holds it.
local function is_held(held, token)
  if not held then
    return nil
  end
  local mark = string.find(held, ' ', 1, true)
  if mark and string.sub(held, 1, mark - 1) == token then
    return string.sub(held, mark + 1)
  end
end
local function held_by(id, token)
  return is_held(redis.call('HGET', TOKENS, id), token)
end

-- A count that is no number any more must not stop a transition in the middle: the audit sets it right.
local function add_count(field, n)
  redis.pcall('HINCRBY', COUNTS, field, int(n))
end
local function add_counts(route, messages, bytes)
  if messages ~= 0 then
    add_count('n:' .. route, messages)
  end
  if bytes ~= 0 then
    add_count('b:' .. route, bytes)
  end
end

-- One more of a bundle's expiries or openings; from one where what stands there is no number.
local function count_up(key, id)
  local n = (tonumber(redis.call('HGET', key, id) or 0) or 0) + 1
  redis.call('HSET', key, id, int(n))
  return n
end

-- Enters dead letters, whose blobs are there and have so many bytes together, into their grave.
local function bury(key, grave, ids, bytes)
  if #ids == 0 then
    return
  end
  local members = {}
  for i, id in ipairs(ids) do
    members[2 * i - 1], members[2 * i] = int(now), id
  end
  redis.call('ZADD', key, unpack(members))
  add_count('d:' .. grave, #ids)
  add_count('x:' .. grave, bytes)
end

-- Removes a dead letter; whether it was there.
local function unbury(key, grave, id, blob)
  if redis.call('ZREM', key, id) == 0 then
    return false
  end
  add_count('d:' .. grave, -1)
  add_count('x:' .. grave, -redis.call('STRLEN', blob))
  redis.call('UNLINK', blob)
  return true
end

-- Bundles that an unnumbered call moved: whoever counts must know (numbered calls say so by their number).
local function moved(bundles)
  if bundles > 0 then
    add_count('moves', bundles)
  end
end

-- Counts of several bundles, by route: one command a route, however many they are.
local function tally()
  local messages, bytes = {}, {}
  local function add(route, more, longer)
    messages[route] = (messages[route] or 0) + more
    bytes[route] = (bytes[route] or 0) + longer
  end
  local function enter()
    for route, n in pairs(messages) do
      add_counts(route, n, bytes[route])
    end
  end
  return add, enter
end

-- Removes every trace of bundles but their places in a due zset: per bundle its id, its blob, how long that is, and
-- how many messages of it still count. A command for all of them wherever there is one; none for a key that is
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
  for _, key in ipairs({ TOKENS, GONE, DONE, EXPIRIES, OPENED }) do
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
  -- Whether the name's message was delivered not too long ago.
  remembered = function(name)
    local ends = redis.call('ZSCORE', DELIVERED, name)
    return ends and tonumber(ends) > now
  end
  -- What was delivered stays known, whoever's claim it was: the broker has it. Reads the rest of ARGV: per route
  -- how many ms, names, and per name: name.
  remember = function()
    while at < #ARGV do
      local ends, members = int(now + num()), {}
      for _ = 1, num() do
        members[#members + 1], members[#members + 2] = ends, arg()
        if #members == 1000 then
          redis.call('ZADD', DELIVERED, unpack(members))
          members = {}
        end
      end
      if #members > 0 then
        redis.call('ZADD', DELIVERED, unpack(members))
      end
    end
  end
end

local prolong, raise_stamp
if ORDERED then
  -- A route's holder has it for at least as long as any claim of its: its successor must see all of them.
  prolong = function(route, deadline)
    local entry = redis.call('HGET', ORDER, 'h:' .. route)
    local holder, ends = string.match(entry or '', '^(%S+) (%d+)$')
    if holder and tonumber(ends) < deadline then
      redis.call('HSET', ORDER, 'h:' .. route, holder .. ' ' .. int(deadline))
    end
  end
  raise_stamp = function(stamp)
    if stamp > (tonumber(redis.call('HGET', ORDER, 'stamp') or nil) or 0) then
      redis.call('HSET', ORDER, 'stamp', int(stamp))
    end
  end
end

-- A caller's lane numbers its calls: a call that is run twice answers what it answered first, one that was
-- overtaken changes nothing, and a number below what the caller was already answered means that the store
-- went back. Every answer is kept, a refusal too: a copy that comes late, when what refused it is gone, would be
-- applied beside the next try. Only where `calls` itself is damaged is there no place to keep it.
-- ARGV: lane, number, highest number answered.
local lane, number, answered
local went_back, new_lane = 0, false
local function repeated()
  lane, number, answered = arg(), num(), num()
  local last = redis.pcall('HGET', CALLS, lane)
  if type(last) == 'table' then
    return last
  end
  local last_number = 0
  if last then
    local n, _, answer = string.match(last, '^(%d+) (%d+) (.*)$')
    last_number = tonumber(n) or 0
    if last_number == number then
      -- Whoever repeats a call may be waiting for replicas, and a wait after a call that wrote nothing says yes.
      redis.call('HSET', CALLS, lane, last)
      local reply = cmsgpack.unpack(answer)
      if type(reply) == 'table' and reply.err then
        return reply
      end
      return { time[1], time[2], 0, reply }
    end
    if last_number > number then
      return { time[1], time[2], 0, 'OVERTAKEN' }
    end
  end
  new_lane = not last
  if last_number < answered then
    went_back = 1
  end
end
local function answer(reply)
  redis.call('HSET', CALLS, lane, int(number) .. ' ' .. time[1] .. ' ' .. cmsgpack.pack(reply))
  return { time[1], time[2], went_back, reply }
end
-- The answer to a call whose keys are damaged.
local function refuse(wrong)
  answer(wrong)
  return wrong
end
