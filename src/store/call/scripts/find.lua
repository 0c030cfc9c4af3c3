-- find: reads the state of a name's message, all of it at one moment. Reads only.
--
-- A script and not MULTI, which Redis refuses at maxmemory whatever is in it.
-- KEYS  1 names, 2 claims, 3 gone, 4 done, 5 the due set of the bundle that the caller expects
-- ARGV  name, bundle id
-- returns the name's entry or "", "1" if the bundle is in its due set, "1" if it is claimed, its bitmap of gone
--       messages or "", of confirmed messages or ""
-- atomic: all of it. costs: five commands.
local name, id = ARGV[1], ARGV[2]
return {
  redis.call('HGET', KEYS[1], name) or '',
  redis.call('ZSCORE', KEYS[5], id) and '1' or '',
  redis.call('ZSCORE', KEYS[2], id) and '1' or '',
  redis.call('HGET', KEYS[3], id) or '',
  redis.call('HGET', KEYS[4], id) or '',
}
