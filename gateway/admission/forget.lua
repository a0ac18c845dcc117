-- Forgets what was read from Postgres: balance, spent budgets, tokens of the day. What is held is summed from the holds again.
--
-- KEYS balance, holds, what is projected (a set).   Answers how many budgets and buckets were forgotten.
local forgotten = 0
for _, member in ipairs(redis.call('SMEMBERS', KEYS[3])) do
  local letter, key = string.sub(member, 1, 1), string.sub(member, 2)
  if letter == 'b' then
    redis.call('HDEL', key, 'base', 'seen', 'held_hi', 'held_lo')
  else
    redis.call('DEL', key)
  end
  forgotten = forgotten + 1
end
redis.call('DEL', KEYS[3])
redis.call('HDEL', KEYS[1], 'hi', 'lo', 'version', 'held_hi', 'held_lo')

local function hold_again(key, hold)
  local held = redis.call('HMGET', key, 'held_hi', 'held_lo')
  local hi, lo = plus(tonumber(held[1] or '0'), tonumber(held[2] or '0'), hold.hi, hold.lo)
  redis.call('HSET', key, 'held_hi', digits(hi), 'held_lo', digits(lo))
end

for _, text in ipairs(redis.call('HVALS', KEYS[2])) do
  local hold = hold_of(text)
  hold_again(KEYS[1], hold)
  for letter, key in parts_of(hold.parts, tag_of(KEYS[1])) do
    if letter == 'b' then
      hold_again(key, hold)
      redis.call('PEXPIRE', key, DAY_US / 1000)
    end
  end
end
return forgotten
