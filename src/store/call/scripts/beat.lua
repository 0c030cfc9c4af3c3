-- beat: a replica says that it lives, hears who else does, and learns whether this is the store that it knew.
--
-- KEYS  1 replicas  hash: nonce -> "beat ms presence": the number of its last beat, when that was, what it says
--                   of itself
--       2 store     hash: generation: made once; beats: how many there ever were; changed: when the store was last
--                   found to have gone back, Unix ms
-- ARGV  nonce, the generation that it knows or "", one to begin with where there is none, the highest beat that it
--       was answered, the last change that it knows of (ms), its presence, ms after which a silent entry goes
-- returns {s, us, 0, answer}: "strange", the generation there is or "" (nothing was written); or "here", generation,
--       beat, changed, ms since the caller's last beat or -1; then per replica: nonce, entry
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
-- Its own last beat, or where its entry ended by silence all beats together, are below what it was answered: an
-- older copy of this store.
if tonumber(last or beats) < seen then
  changed = now
end
-- A clock that stepped back must not leave the change in the future.
changed = math.min(math.max(changed, noticed), now)
redis.call('HSET', KEYS[2], 'changed', int(changed))
local beat = int(redis.call('HINCRBY', KEYS[2], 'beats', 1))
redis.call('HSET', KEYS[1], nonce, beat .. ' ' .. int(now) .. ' ' .. presence)
local reply = { 'here', generation, beat, int(changed), at and int(now - at) or '-1' }
local entries = redis.call('HGETALL', KEYS[1])
for i = 1, #entries, 2 do
  local number, ms, rest = string.match(entries[i + 1], '^(%d+) (%d+) (.*)$')
  if not number or now - ms > keep then
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
