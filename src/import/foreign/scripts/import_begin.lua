-- import_begin: marks that an import moves a batch of a queue, and that nothing of the batch was removed yet.
--
-- KEYS  1 lock     the token of the import that may write
--       2 mark     a hash: see import_remove
-- ARGV  token, mark's ms, batch
-- returns 1, or 0 if the lock is another's
-- atomic: all of it. costs: four commands.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[2], 'batch', ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return 1
