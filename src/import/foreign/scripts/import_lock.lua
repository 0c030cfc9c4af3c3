-- import_lock: extends or ends the lock of an import.
--
-- KEYS  1 lock
-- ARGV  token, ms (0: end it)
-- returns 1, or 0 if the lock is another's
-- atomic: all of it. costs: two commands.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then redis.call('DEL', KEYS[1]) else redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1
