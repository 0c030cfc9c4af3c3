-- import_read: reads entries of another program's delay queue, by rank. Changes nothing.
--
-- KEYS  1 zset     what waits: member -> due time
--       2 second   mode `list`: the list that holds the members in the order they were added
--                  mode `hash`: the hash that holds the bodies
-- ARGV  mode ('zset', 'list' or 'hash'), first rank, most entries, most bytes, most bytes of one entry
-- returns for each entry: kind, member, score, body
--         kind 0: whole. 1: larger than one entry may be; the member is cut. 2: the hash has no body. 3: the list's
--         member has no score.
-- atomic: all of it. costs: up to three commands an entry. Reads one entry at a time: the answer is bounded in bytes.
local mode, first = ARGV[1], tonumber(ARGV[2])
local most, most_bytes, most_entry = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local found, bytes = {}, 0
for rank = first, first + most - 1 do
    local member, score
    if mode == 'list' then
        member = redis.call('LINDEX', KEYS[2], rank)
        score = member and redis.call('ZSCORE', KEYS[1], member)
    else
        local pair = redis.call('ZRANGE', KEYS[1], rank, rank, 'WITHSCORES')
        member, score = pair[1], pair[2]
    end
    if not member then break end
    local kind, body, size = 0, '', #member
    if not score then
        kind = 3
    elseif mode == 'hash' then
        local length = redis.call('HSTRLEN', KEYS[2], member)
        size = size + length
        if size <= most_entry then
            local kept = redis.call('HGET', KEYS[2], member)
            if kept then body = kept else kind = 2 end
        end
    end
    if size > most_entry then
        kind, member, body, size = 1, string.sub(member, 1, 64), '', 64
    end
    bytes = bytes + size
    found[#found + 1] = { kind, member, score or '', body }
    if bytes >= most_bytes then break end
end
return found
