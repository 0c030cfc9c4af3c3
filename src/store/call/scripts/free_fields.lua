-- free_fields: removes fields of a hash that are as the caller read them: held keys with nothing waiting any more, and
-- names whose entry is no place.
--
-- KEYS  1 the hash: order or names
-- ARGV  per field: its name, its value as it was read. A key that was held since has another value: sequence numbers
--       only grow
-- returns {s, us, 0, removed fields}
-- atomic: all of it; run twice it does the same. costs: two commands a field; bounded by the caller.
local time = redis.call('TIME')
local freed = 0
for i = 1, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then
    freed = freed + redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
return { time[1], time[2], 0, freed }
