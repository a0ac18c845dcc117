-- Extends the leases of holds that still stand. A hold that is gone (released, swept, wiped) is not placed again.
--
-- KEYS holds, leases.   ARGV lease in ms, then request ids.   Answers how many were extended.
local clock = redis.call('TIME')
local until_ms = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000) + tonumber(ARGV[1])
local extended = 0
for index = 2, #ARGV do
  if redis.call('HEXISTS', KEYS[1], ARGV[index]) == 1 then
    redis.call('ZADD', KEYS[2], string.format('%.0f', until_ms), ARGV[index])
    extended = extended + 1
  end
end
return extended
