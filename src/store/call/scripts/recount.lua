-- recount: says how far callers' lanes have come and forgets what they need no more; corrects counts.
--
-- KEYS  the fixed ones; then one grave per G
-- ARGV  "look", lanes; per lane: name, "1" if its process lives
--       or "set", corrections so far, G, fields; G times: grave; per field: name, what is to be added to it
-- returns {s, us, 0, answer}: look: {lanes whose answers were forgotten, corrections so far, moves, then a number a lane}
--       set: counts that were wrong; -1 - that if others were corrected meanwhile: then the graves' alone
-- Every change of what counts is a numbered call or raises `moves`: where none of these numbers has changed, nothing
-- has. How many dead letters a grave holds Redis knows at any time; all else the caller has counted.
-- atomic: all of it. costs: the answers of these lanes are read: bounded by the caller in bytes.
local MINUTES, DAY = 600, 86400
local wrong = wrong_kind(1, FIXED) or wrong_kind(FIXED + 1, #KEYS, 'zset')
if wrong then
  return wrong
end
local function number_in(field)
  local had = redis.call('HGET', COUNTS, field)
  local n = tonumber(had or 0)
  if not n then
    -- No number any more: nobody can add to it.
    redis.call('HDEL', COUNTS, field)
  end
  return n or 0, had and not n
end
local corrections = number_in('recounts')
if arg() == 'look' then
  local forgotten, answer = 0, { 0, int(corrections), int(number_in('moves')) }
  for i = 1, num() do
    local name, lives = arg(), arg() == '1'
    local had = redis.call('HGET', CALLS, name)
    local n, seconds = string.match(had or '', '^(%d+) (%d+) ')
    local quiet = time[1] - (tonumber(seconds) or 0)
    answer[i + 3] = n or '0'
    if had and not lives and quiet > DAY then
      forgotten = forgotten + redis.call('HDEL', CALLS, name)
    elseif had and not lives and quiet > MINUTES and #had > 64 then
      -- Who comes back so late with a call that it could not see answered is told that it is too late.
      redis.call('HSET', CALLS, name, n .. ' ' .. seconds .. ' ' .. cmsgpack.pack('OVERTAKEN'))
      forgotten = forgotten + 1
    end
  end
  answer[1] = forgotten
  return { time[1], time[2], 0, answer }
end
local expected, G, fields, mended = num(), num(), num(), 0
local function correct(field, n)
  if n == 0 then
    redis.call('HDEL', COUNTS, field)
  else
    redis.call('HSET', COUNTS, field, int(n))
  end
  mended = mended + 1
end
for i = 1, G do
  local field = 'd:' .. arg()
  local had, spoilt = number_in(field)
  local n = redis.call('ZCARD', KEYS[FIXED + i])
  if had ~= n or spoilt then
    correct(field, n)
  end
end
if corrections ~= expected then
  return { time[1], time[2], 0, int(-1 - mended) }
end
for _ = 1, fields do
  local field, by = arg(), num()
  local had, spoilt = number_in(field)
  if by ~= 0 or spoilt then
    correct(field, had + by)
  end
end
if mended > 0 then
  redis.call('HSET', COUNTS, 'recounts', int(corrections + 1))
end
return { time[1], time[2], 0, int(mended) }
