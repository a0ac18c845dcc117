-- Takes over what was read from Postgres of a budget, or of a day's bucket of which nothing is known.
--
-- KEYS what is projected (a set), the budget or bucket.
-- ARGV 'b', version of the balance that the reading saw, hi, lo of what is spent, and the period's start and end, us
--   or 'd', tokens used in the last day.
-- Answers 1, or 0 if the reading is older than another one, or than a charge that came meanwhile: read again.
local key = KEYS[2]

local function project_budget(version)
  local row = redis.call('HMGET', key, 'seen', 'until')
  if version < tonumber(row[1] or '0') then
    return 0
  end
  redis.call('HSET', key, 'base', ARGV[2], 'seen', ARGV[2], 'spent_hi', ARGV[3], 'spent_lo', ARGV[4])
  redis.call('HSET', key, 'start', ARGV[5], 'until', ARGV[6])
  if row[2] ~= ARGV[6] then
    redis.call('HDEL', key, 'alerted')
  end
  redis.call('PEXPIRE', key, DAY_US / 1000)
  return 1
end

redis.call('SADD', KEYS[1], ARGV[1] .. key)
if ARGV[1] == 'b' then
  return project_budget(tonumber(ARGV[2]))
end
local now = now_us()
redis.call('SET', key, struct.pack(BUCKET, tonumber(ARGV[2]), 0, now, now), 'PX', DAY_US / 1000, 'NX')
return 1
