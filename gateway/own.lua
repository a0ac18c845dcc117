-- What only the owner of a claim may do: extend its lease, and write down what it knows; or let the key go.
--
-- KEYS the key's row.   ARGV owner, lease in ms (0: let go), then field and value pairs.
-- Answers 1, or 0 when somebody else owns the key by now.
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then
  return 0
end
if ARGV[2] == '0' then
  return redis.call('DEL', KEYS[1])
end
local clock = redis.call('TIME')
local now_ms = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
redis.call('HSET', KEYS[1], 'until_ms', string.format('%.0f', now_ms + tonumber(ARGV[2])), unpack(ARGV, 3))
return 1
