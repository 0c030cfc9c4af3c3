-- heartbeat: a replica reports that it is alive, reads the registry, and learns whether this is the store that it knew.
--
-- KEYS  1 replicas  hash: nonce -> "heartbeat ms status": the number of its last heartbeat, its time, and its status
--       2 store     hash: generation: the store's identity, made once; beats: the number of all heartbeats; changed:
--                   when the store was last found to have rolled back, Unix ms; master: the run id of the server that
--                   answered the last heartbeat; new_master: when that was last another one than before, Unix ms
-- ARGV  nonce, the identity that it knows or "", a new identity if there is none, the highest heartbeat that it was
--       answered, the last rollback that it knows (ms), its status, ms of silence for which each entry is kept
-- returns {s, us, 0, answer}: "strange", the identity of this store or "" (nothing was written); or "here", identity,
--       heartbeat, rollback, new master, ms since the caller's last heartbeat or -1; then per replica: nonce, entry
-- atomic: all of it. costs: some commands and the entries of all replicas.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, key in ipairs(KEYS) do
  local found = redis.call('TYPE', key).ok
  if found ~= 'none' and found ~= 'hash' then
    return redis.error_reply('WRONGTYPE ' .. key .. ' is a ' .. found)
  end
end
local function int(n)
  return string.format('%.0f', n)
end
local nonce, known, first, seen = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local noticed, presence, keep = tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7])
-- Silence (ms) for which an entry is kept: until its replica is dead by three heartbeats and its claims have ended.
local function kept(status)
  local beat = string.match(status, '"heartbeat_ms":(%d+)')
  local claim = string.match(status, '"claim_ms":(%d+)')
  return math.max(keep, 3 * tonumber(beat or '0') + tonumber(claim or '0'))
end
local generation = redis.call('HGET', KEYS[2], 'generation')
if known ~= '' and known ~= generation then
  return { time[1], time[2], 0, { 'strange', generation or '' } }
end
if not generation then
  generation = first
  redis.call('HSET', KEYS[2], 'generation', generation)
end
local beats = tonumber(redis.call('HGET', KEYS[2], 'beats') or '0')
local changed = tonumber(redis.call('HGET', KEYS[2], 'changed') or '0')
local own = redis.call('HGET', KEYS[1], nonce)
local last, at = string.match(own or '', '^(%d+) (%d+) ')
-- An older copy of this store has a lower number than the caller was answered: that of the caller's own entry,
-- or without an entry that of all heartbeats.
if tonumber(last or beats) < seen then
  changed = now
end
-- Another server than at the last heartbeat is a restart or a failover. It may lack the last writes, and whoever was
-- answered them may be gone. A server that does not tell its run id is not compared.
local info = redis.pcall('INFO', 'server')
local server = type(info) == 'string' and string.match(info, 'run_id:(%x+)')
local was = redis.call('HGET', KEYS[2], 'master')
if server and was ~= server then
  redis.call('HSET', KEYS[2], 'master', server)
  if was then
    redis.call('HSET', KEYS[2], 'new_master', int(now))
  end
end
local new_master = math.min(tonumber(redis.call('HGET', KEYS[2], 'new_master') or '0'), now)
-- A clock that stepped back must not leave the rollback in the future.
changed = math.min(math.max(changed, noticed), now)
redis.call('HSET', KEYS[2], 'changed', int(changed))
local beat = int(redis.call('HINCRBY', KEYS[2], 'beats', 1))
redis.call('HSET', KEYS[1], nonce, beat .. ' ' .. int(now) .. ' ' .. presence)
local reply = { 'here', generation, beat, int(changed), int(new_master), at and int(now - at) or '-1' }
local entries = redis.call('HGETALL', KEYS[1])
for i = 1, #entries, 2 do
  local number, ms, rest = string.match(entries[i + 1], '^(%d+) (%d+) (.*)$')
  if not number or now - ms > kept(rest) then
    redis.call('HDEL', KEYS[1], entries[i])
  else
    if tonumber(ms) > now then
      -- Written before the clock stepped back: its silence counts from here.
      entries[i + 1] = number .. ' ' .. int(now) .. ' ' .. rest
      redis.call('HSET', KEYS[1], entries[i], entries[i + 1])
    end
    reply[#reply + 1] = entries[i]
    reply[#reply + 1] = entries[i + 1]
  end
end
return { time[1], time[2], 0, reply }
