-- sweep: claims whose deadline has passed are due again. A deadline further ahead than a lease (the clock stepped back,
-- or a master with another clock took over) is shortened to one lease from now.
--
-- KEYS  the fixed ones; then one due set per bundle
-- ARGV  lease ms, "1" if nothing may expire now, bundles (from a read-only peek); per bundle: id
-- returns {s, us, 0, answer}: one letter a bundle: e expired, c clamped, n neither
-- atomic: all of it. costs: a few commands a bundle; bounded by the peek.
local wrong = wrong_kind(1, FIXED) or wrong_kind(FIXED + 1, #KEYS, 'zset')
if wrong then
  return wrong
end
local lease, paused, results, expired = num(), arg() == '1', {}, 0
for i = 1, num() do
  local id = arg()
  local deadline = tonumber(redis.call('ZSCORE', CLAIMS, id) or nil)
  results[i] = 'n'
  if deadline and deadline > now + lease then
    redis.call('ZADD', CLAIMS, int(now + lease), id)
    results[i] = 'c'
  elseif deadline and deadline <= now and not paused then
    local entry = redis.call('HGET', TOKENS, id)
    local score = tonumber(entry and string.match(entry, ' (%S+)$') or nil) or now
    redis.call('ZADD', KEYS[FIXED + i], int(score), id)
    reindex(KEYS[FIXED + i], due_set_of(id))
    count_up(EXPIRIES, id)
    redis.call('ZREM', CLAIMS, id)
    redis.call('HDEL', TOKENS, id)
    results[i], expired = 'e', expired + 1
  end
end
moved(expired)
return { time[1], time[2], 0, table.concat(results) }
