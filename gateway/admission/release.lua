-- Drops a hold and its lease if they are there, then takes over a newer balance. Idempotent, right in any order, heals a wipe.
--
-- KEYS balance, holds, leases.   ARGV request id ('' for none), then hi, lo, version of a balance (all '' for none).
-- Answers 1 if the hold was there, else 0.
local BASE = 1000000000
local dropped = 0

local hold = ARGV[1] ~= '' and redis.call('HGET', KEYS[2], ARGV[1])
if hold then
  local separator = string.find(hold, ':', 1, true)
  local held = redis.call('HMGET', KEYS[1], 'held_hi', 'held_lo')
  local held_hi = tonumber(held[1] or '0') - tonumber(string.sub(hold, 1, separator - 1))
  local held_lo = tonumber(held[2] or '0') - tonumber(string.sub(hold, separator + 1))
  if held_lo < 0 then
    held_hi, held_lo = held_hi - 1, held_lo + BASE
  end
  redis.call('HDEL', KEYS[2], ARGV[1])
  redis.call('HSET', KEYS[1], 'held_hi', string.format('%.0f', held_hi), 'held_lo', string.format('%.0f', held_lo))
  dropped = 1
end
if ARGV[1] ~= '' then
  redis.call('ZREM', KEYS[3], ARGV[1])
end

if ARGV[4] ~= '' then
  local version = redis.call('HGET', KEYS[1], 'version')
  if not version or tonumber(ARGV[4]) > tonumber(version) then
    redis.call('HSET', KEYS[1], 'hi', ARGV[2], 'lo', ARGV[3], 'version', ARGV[4])
  end
end
return dropped
