-- Places a hold, all or nothing, and mints the request id from the server's clock.
--
-- KEYS balance, holds, leases.   ARGV hold_hi, hold_lo, 20 random hex digits, lease in ms.
-- Answers {'admitted', request id (UUIDv7), TIME in us} or one of
-- {'unknown_balance'}, {'insufficient_balance'}, {'balance_held'}.
--
-- Amounts are two limbs, base 10^9: hi in micro-units (any sign), 0 <= lo < 10^9. Femto-units in one double would lose digits.
local BASE = 1000000000

local function covers(hi, lo, than_hi, than_lo)
  return hi > than_hi or (hi == than_hi and lo >= than_lo)
end

local row = redis.call('HMGET', KEYS[1], 'hi', 'lo', 'version', 'held_hi', 'held_lo')
if not row[3] then
  return {'unknown_balance'}
end
local hi, lo = tonumber(row[1]), tonumber(row[2])
local hold_hi, hold_lo = tonumber(ARGV[1]), tonumber(ARGV[2])
local held_hi, held_lo = tonumber(row[4] or '0') + hold_hi, tonumber(row[5] or '0') + hold_lo
if held_lo >= BASE then
  held_hi, held_lo = held_hi + 1, held_lo - BASE
end
if not covers(hi, lo, hold_hi, hold_lo) then
  return {'insufficient_balance'}
end
if not covers(hi, lo, held_hi, held_lo) then
  return {'balance_held'}
end

local clock = redis.call('TIME')
local time_us = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local time_ms = math.floor(time_us / 1000)
local digits, random = string.format('%012x', time_ms), ARGV[3]
-- Version and variant are set over the random digits, as billing.request_id.mint does.
local variant = string.format('%x', 8 + tonumber(string.sub(random, 5, 5), 16) % 4)
local request_id = string.sub(digits, 1, 8) .. '-' .. string.sub(digits, 9, 12)
  .. '-7' .. string.sub(random, 2, 4)
  .. '-' .. variant .. string.sub(random, 6, 8)
  .. '-' .. string.sub(random, 9, 20)

redis.call('HSET', KEYS[1], 'held_hi', string.format('%.0f', held_hi), 'held_lo', string.format('%.0f', held_lo))
redis.call('HSET', KEYS[2], request_id, ARGV[1] .. ':' .. ARGV[2])
redis.call('ZADD', KEYS[3], string.format('%.0f', time_ms + tonumber(ARGV[4])), request_id)
return {'admitted', request_id, string.format('%.0f', time_us)}
