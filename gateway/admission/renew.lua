-- Extends the leases of holds that still stand, and of their slots. A hold that is gone (released, swept, wiped) is not
-- placed again. A slot whose lease had run out is taken again, for its request runs: meanwhile more may run than the limit.
--
-- KEYS balance, holds, leases.   ARGV lease in ms, then request ids.   Answers how many were extended.
local until_ms = digits(math.floor(now_us() / 1000) + tonumber(ARGV[1]))
local tag = tag_of(KEYS[1])
local extended = 0
for index = 2, #ARGV do
  local text = redis.call('HGET', KEYS[2], ARGV[index])
  if text then
    redis.call('ZADD', KEYS[3], until_ms, ARGV[index])
    for letter, key in parts_of(hold_of(text).parts, tag) do
      if letter == 'c' then
        redis.call('ZADD', key, until_ms, ARGV[index])
        redis.call('PEXPIRE', key, ARGV[1])
      end
    end
    extended = extended + 1
  end
end
return extended
