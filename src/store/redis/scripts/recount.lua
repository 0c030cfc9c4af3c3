-- recount: says how far the partition has moved, forgets lanes long unused, and sets the counts to what was
-- counted if nothing has moved since.
--
-- Every change of what counts is a numbered call or raises `moves`, so their sum only grows: the stamp.
-- KEYS  1-10
-- ARGV  "look", or "set", stamp, fields; per field: name, number
-- returns {s, us, 0, answer}: look: {stamp, lanes forgotten}; set: counts that were wrong, or "MOVED"
-- atomic: all of it. costs: the lanes (some dozens) and the routes.
local DAY, LANES = 86400, 32
local wrong = wrong_kind(1, FIXED)
if wrong then
  return wrong
end
local mode, forgotten = arg(), 0
local lanes = redis.call('HGETALL', CALLS)
local function parts(i)
  local n, seconds = string.match(lanes[i], '^(%d+) (%d+) ')
  return tonumber(n) or 0, tonumber(seconds) or 0
end
if mode == 'look' and #lanes > 2 * LANES then
  for i = 1, #lanes, 2 do
    local _, seconds = parts(i + 1)
    if seconds < time[1] - DAY then
      forgotten = forgotten + redis.call('HDEL', CALLS, lanes[i])
    end
  end
  lanes = redis.call('HGETALL', CALLS)
end
local moves = redis.call('HGET', COUNTS, 'moves')
local stamp = tonumber(moves or 0)
if not stamp then
  -- No number any more: nobody can add to it.
  redis.call('HDEL', COUNTS, 'moves')
  stamp = 0
end
for i = 1, #lanes, 2 do
  stamp = stamp + parts(i + 1)
end
if mode == 'look' then
  return { time[1], time[2], 0, { int(stamp), int(forgotten) } }
end
if int(stamp) ~= arg() then
  return { time[1], time[2], 0, 'MOVED' }
end
local counted, mended = {}, 0
for _ = 1, num() do
  local field = arg()
  counted[field] = num()
end
local kept = redis.call('HGETALL', COUNTS)
for i = 1, #kept, 2 do
  local field = kept[i]
  if string.find(field, ':', 1, true) and not counted[field] then
    counted[field] = 0
  end
end
for field, n in pairs(counted) do
  local had = tonumber(redis.call('HGET', COUNTS, field) or 0)
  if had ~= n then
    mended = mended + 1
  end
  if n == 0 then
    redis.call('HDEL', COUNTS, field)
  elseif had ~= n then
    redis.call('HSET', COUNTS, field, int(n))
  end
end
return { time[1], time[2], 0, int(mended) }
