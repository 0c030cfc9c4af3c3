-- trail: appends packed events to a route's trail, and drops the oldest that its bounds do not allow.
--
-- An element of the list reads `EVENTS BYTES AT COUNT BLOB`: how many events and bytes were appended before it, when it
-- came (ms), and how many events it has. So the newest and the oldest element together say how much the list holds, and
-- nothing else has to be counted.
-- KEYS  1 the trail  list, the oldest first
-- ARGV  now ms, for how long events are kept ms, most events, most bytes; then of each blob: events, blob
-- returns how many elements were dropped
-- atomic: all of it; run twice it appends twice. costs: some microseconds a blob; drops at most MOST_DROPS at a time.
local MOST_DROPS = 64
local now, keep, most, most_bytes = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
-- The numbers before a blob, or nothing if it is not one of ours.
local function numbers(element)
  local events, bytes, at, count = string.match(element or '', '^(%d+) (%d+) (%d+) (%d+) ')
  return tonumber(events or nil), tonumber(bytes or nil), tonumber(at or nil), tonumber(count or nil)
end
local newest = redis.call('LINDEX', KEYS[1], -1)
local events, bytes, _, count = numbers(newest)
events, bytes = (events or 0) + (count or 0), (bytes or 0) + #(newest or '')
for i = 5, #ARGV, 2 do
  local element = string.format('%.0f %.0f %.0f %d ', events, bytes, now, ARGV[i]) .. ARGV[i + 1]
  redis.call('RPUSH', KEYS[1], element)
  events, bytes = events + ARGV[i], bytes + #element
end
local dropped = 0
while dropped < MOST_DROPS do
  local first, first_bytes, at = numbers(redis.call('LINDEX', KEYS[1], 0))
  -- What was before the oldest one is gone. An element that is not ours, or is ahead of the newest, has to go.
  local fits = first and first <= events and events - first <= most and bytes - first_bytes <= most_bytes
  if fits and at >= now - keep then
    break
  end
  if not redis.call('LPOP', KEYS[1]) then
    break
  end
  dropped = dropped + 1
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return dropped
