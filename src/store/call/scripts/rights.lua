-- rights: tries every command that scripts and readers use, so that a missing right is known before the first message.
--
-- KEYS  1 hash, 2 zset, 3 string, 4 stream, 5 string, 6 list: none of them exists before or after
-- ARGV  per command: how many words it has, and the words; "@3" stands for KEYS[3]. The first command removes the keys
-- returns of each command that failed: its name and its error, with a space between
-- atomic: all of it. costs: some forty commands on small keys.
local refused = {}
local at = 1
while at <= #ARGV do
  local words = {}
  for i = 1, tonumber(ARGV[at]) do
    local word = ARGV[at + i]
    local key = string.match(word, '^@(%d)$')
    words[i] = key and KEYS[tonumber(key)] or word
  end
  local answer = redis.pcall(unpack(words))
  if type(answer) == 'table' and answer.err then
    refused[#refused + 1] = words[1] .. ' ' .. answer.err
    -- Nothing is written that cannot be removed.
    if at == 1 then
      return refused
    end
  end
  at = at + #words + 1
end
return refused
