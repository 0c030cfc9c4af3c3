-- recount: says how far callers have come and forgets what they need no more; corrects counts.
--
-- KEYS  the fixed ones; then G dead-letter queues
-- ARGV  "look", callers; per caller: name, "1" if its process is alive
--       or "set", corrections so far, G, fields; G times: queue; per field: name, what is to be added to it
-- returns {s, us, 0, answer}: look: {callers whose answers were forgotten, corrections so far, moves, then a number a
--       caller}
--       set: counts that were wrong; -1 - that if others were corrected meanwhile: then those of the queues alone
-- Every change of what is counted is a numbered call or raises `moves`. While none of these numbers changes, nothing
-- has changed. Redis knows the number of dead letters of a queue at any time. The caller has counted all else.
-- atomic: all of it. costs: the answers of these callers are read: bounded by the caller in bytes.
local MINUTES, DAY = 600, 86400
local wrong = wrong_kind(1, FIXED) or wrong_kind(FIXED + 1, #KEYS, 'zset')
if wrong then
  return wrong
end
local function number_in(field)
  local had = redis.call('HGET', COUNTS, field)
  local n = tonumber(had or 0)
  if not n then
    -- Malformed: nobody can add to it.
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
    -- A number that no caller can have come to says nothing.
    answer[i + 3] = n and tonumber(n) < 2 ^ 53 and n or '0'
    if had and not lives and quiet > DAY then
      forgotten = forgotten + redis.call('HDEL', CALLS, name)
    elseif had and not lives and quiet > MINUTES and #had > 64 and not string.find(name, '%.[aw]$') then
      -- A caller that comes back so late with an unanswered call is told that it was overtaken. Not of a write or a
      -- command: its nameless messages would be stored again, under new ids.
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
  local had, malformed = number_in(field)
  local n = redis.call('ZCARD', KEYS[FIXED + i])
  if had ~= n or malformed then
    correct(field, n)
  end
end
if corrections ~= expected then
  return { time[1], time[2], 0, int(-1 - mended) }
end
for _ = 1, fields do
  local field, by = arg(), num()
  local had, malformed = number_in(field)
  if by ~= 0 or malformed then
    correct(field, had + by)
  end
end
if mended > 0 then
  redis.call('HSET', COUNTS, 'recounts', int(corrections + 1))
end
return { time[1], time[2], 0, int(mended) }
