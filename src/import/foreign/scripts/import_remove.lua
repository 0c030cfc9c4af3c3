-- import_remove: removes entries from another program's delay queue, each only if it is there unchanged, and only
-- while this import holds the queue's lock.
--
-- KEYS  1 lock     the token of the import that may write
--       2 zset     what waits: member -> due time
--       3 second   mode `list`: the list that holds the members; mode `hash`: the hash that holds the bodies
--       4 mark     a hash: `batch`, the batch that is being moved, and once it is removed `removed` = 1 and a field
--                  `n:NAME` for each entry that was removed
-- ARGV  mode ('zset', 'list' or 'hash'), token, lock's ms, LREM's count, mark's ms, batch, then for each entry: name,
--       member, score, body
-- returns for each entry 1: removed, 0: gone or changed; false if the lock is another's
-- atomic: all of it. costs: three or four commands an entry; LREM as many elements as stand before the member's.
if redis.call('GET', KEYS[1]) ~= ARGV[2] then return false end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
local mode, count = ARGV[1], tonumber(ARGV[4])
redis.call('DEL', KEYS[4])
redis.call('HSET', KEYS[4], 'batch', ARGV[6], 'removed', 1)
redis.call('PEXPIRE', KEYS[4], ARGV[5])
local done = {}
for at = 7, #ARGV, 4 do
    local name, member, score, body = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
    local same = redis.call('ZSCORE', KEYS[2], member) == score
    if same and mode == 'hash' then
        same = redis.call('HGET', KEYS[3], member) == body
    end
    if same then
        redis.call('HSET', KEYS[4], 'n:' .. name, 1)
        redis.call('ZREM', KEYS[2], member)
        if mode == 'list' then redis.call('LREM', KEYS[3], count, member) end
        if mode == 'hash' then redis.call('HDEL', KEYS[3], member) end
    end
    done[#done + 1] = same and 1 or 0
end
return done
