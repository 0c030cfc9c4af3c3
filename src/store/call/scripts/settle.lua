-- settle: bundles of which every message is confirmed or gone leave the store.
--
-- A stale token removes nothing, but its confirmed messages are noted while the bundle exists, so that its next owner
-- does not publish them again.
-- KEYS  the fixed ones; then one blob per bundle
-- ARGV  caller number answered; bundles; per bundle: id, token, names, and per name: name, index;
--       then names to remember, see `remember`
-- returns {s, us, rolled_back, answer}: one letter a bundle: o done, s stale
-- atomic: all of it. costs: a command a bundle, whatever it holds, and some a call; one more for each name.
local before = repeated()
if before then
  return before
end
local wrong, long = wrong_kind(1, FIXED), nil
if not wrong then
  long, wrong = lengths(FIXED + 1, #KEYS)
end
if wrong then
  return refuse(wrong)
end
local ids, tokens_said, names = {}, {}, {}
for i = 1, num() do
  ids[i], tokens_said[i] = arg(), arg()
  for n = 1, num() do
    names[i] = names[i] or {}
    names[i][n] = { arg(), arg() }
  end
end
local results, ours, taken = {}, {}, {}
if #ids > 0 then
  local tokens, gone = fields(TOKENS, ids), fields(GONE, ids)
  for i, id in ipairs(ids) do
    local count = count_of(id)
    if not taken[id] and is_owned(tokens[i], tokens_said[i]) then
      for _, name in ipairs(names[i] or {}) do
        free_name(name[1], id .. ' ' .. name[2])
      end
      taken[id] = true
      ours[#ours + 1] =
        { id = id, blob = KEYS[FIXED + i], length = long[i], messages = count - ones(gone[i]) }
      results[i] = 'o'
    else
      if long[i] > 0 and not taken[id] then
        redis.call('HSET', DONE, id, string.rep('1', count))
        absent[DONE] = nil
      end
      results[i] = 's'
    end
  end
  forget(ours, absent)
end
if REMEMBERS then
  remember()
end
return answer(table.concat(results))
