-- quarantine: moves a key of a wrong type out of the way, as it is, for a person to inspect.
--
-- Postdate never makes such a key, and every script refuses to touch one: its former content is lost already.
-- KEYS  1 the key, 2 where it goes
-- ARGV  the type it should have
-- returns 1 if it was moved; 0 if its type is right, or it does not exist
-- atomic: all of it. costs: two commands.
local found = redis.call('TYPE', KEYS[1]).ok
if found == 'none' or found == ARGV[1] then
  return 0
end
redis.call('RENAME', KEYS[1], KEYS[2])
return 1
