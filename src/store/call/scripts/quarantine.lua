-- quarantine: a key of the wrong type gets out of the way, as it is, for a person to look at.
--
-- Nothing of ours makes one, and every script refuses to touch one: what it held is lost already.
-- KEYS  1 the key, 2 where it goes
-- ARGV  the type it should have
-- returns 1 if it was moved; 0 if it is as it should be, or not there
-- atomic: all of it. costs: two commands.
local found = redis.call('TYPE', KEYS[1]).ok
if found == 'none' or found == ARGV[1] then
  return 0
end
redis.call('RENAME', KEYS[1], KEYS[2])
return 1
