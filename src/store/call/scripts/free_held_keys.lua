-- free_held_keys: frees held keys with nothing waiting any more.
--
-- KEYS  1 order  hash: k:route/key -> "due from to"
-- ARGV  per key: its field, its value when nothing of its route was in the partition. Sequence numbers only grow, so a
--       key that was held since has another value
-- returns {s, us, 0, freed keys}
-- atomic: all of it; run twice it does the same. costs: two commands a key; bounded by the caller.
local time = redis.call('TIME')
local freed = 0
for i = 1, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then
    freed = freed + redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
return { time[1], time[2], 0, freed }
