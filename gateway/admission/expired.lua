-- Lists request ids whose lease has run out, and the ms since then. The holds keep counting until they are released.
--
-- KEYS leases.   ARGV how many at most.   Answers {id, ms, id, ms, …}.
local clock = redis.call('TIME')
local now_ms = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local found = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now_ms), 'WITHSCORES', 'LIMIT', 0, ARGV[1])
for index = 2, #found, 2 do
  found[index] = string.format('%.0f', now_ms - tonumber(found[index]))
end
return found
