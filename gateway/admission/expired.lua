-- Lists request ids whose lease has run out. The holds keep counting until they are released.
--
-- KEYS leases.   ARGV how many at most.
local clock = redis.call('TIME')
local now_ms = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now_ms), 'LIMIT', 0, ARGV[1])
