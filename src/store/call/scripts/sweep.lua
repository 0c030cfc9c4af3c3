-- sweep: claims whose deadline has passed are due again. A deadline further ahead than the longest lease of a replica (the
-- clock stepped back, or a master with another clock took over) is shortened to that from now.
--
-- KEYS  the fixed ones; then D due sets
-- ARGV  the longest lease (ms), "1" if nothing may expire now, D, bundles (from a read-only peek); D times: due set;
--       per bundle: id, place of its due set
-- returns {s, us, 0, answer}: one letter a bundle: e expired, c clamped, n neither
-- atomic: all of it. costs: two commands a bundle and some a due set; bounded by the peek.
local wrong = wrong_kind(1, FIXED) or wrong_kind(FIXED + 1, #KEYS, 'zset')
if wrong then
  return wrong
end
local lease, paused, due_sets, ids, places = num(), arg() == '1', {}, {}, {}
local D, B = num(), num()
for i = 1, D do
  due_sets[i] = arg()
end
for i = 1, B do
  ids[i], places[i] = arg(), num()
end
local tokens, expiries = fields(TOKENS, ids), fields(EXPIRIES, ids)
local results, expired, counts, back = {}, {}, {}, {}
for i, id in ipairs(ids) do
  local deadline = tonumber(redis.call('ZSCORE', CLAIMS, id) or nil)
  results[i] = 'n'
  if deadline and deadline > now + lease then
    redis.call('ZADD', CLAIMS, int(now + lease), id)
    results[i] = 'c'
  elseif deadline and deadline <= now and not paused then
    local score = tonumber(tokens[i] and string.match(tokens[i], ' (%S+)$') or nil) or now
    local members = back[places[i]] or {}
    members[#members + 1], members[#members + 2] = int(score), id
    back[places[i]] = members
    expired[#expired + 1] = id
    counts[#counts + 1], counts[#counts + 2] = id, int(times(expiries[i]) + 1)
    results[i] = 'e'
  end
end
if #expired > 0 then
  redis.call('HSET', EXPIRIES, unpack(counts))
  redis.call('ZREM', CLAIMS, unpack(expired))
  redis.call('HDEL', TOKENS, unpack(expired))
  for due, members in pairs(back) do
    redis.call('ZADD', KEYS[FIXED + due], unpack(members))
    reindex(KEYS[FIXED + due], due_sets[due])
  end
end
moved(#expired)
return { time[1], time[2], 0, table.concat(results) }
