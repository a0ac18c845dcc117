-- Claims an idempotency key for one owner, or says what stands in its way. Without an owner it only looks.
--
-- KEYS the key's row.   ARGV digest of the body, owner ('' to look), lease in ms, how long the row is kept in ms.
-- Answers {'conflict'}: another body. {'kept', request id, answer}. {'lost', reason}. {'running', request id or ''}.
-- {'claimed', request id of an owner whose lease ran out, or ''}. Looking: {'absent'}.
local row = redis.call('HMGET', KEYS[1], 'body', 'until_ms', 'request_id', 'answer', 'lost')
if row[1] and row[1] ~= ARGV[1] then
  return {'conflict'}
end
if row[4] then
  return {'kept', row[3], row[4]}
end
if row[5] then
  return {'lost', row[5]}
end
local clock = redis.call('TIME')
local now_ms = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
if row[1] and tonumber(row[2]) > now_ms then
  return {'running', row[3] or ''}
end
if ARGV[2] == '' then
  return {'absent'}
end
-- The request id of a dead owner stays until the new one has been admitted.
local until_ms = string.format('%.0f', now_ms + tonumber(ARGV[3]))
redis.call('HSET', KEYS[1], 'body', ARGV[1], 'owner', ARGV[2], 'until_ms', until_ms)
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return {'claimed', row[3] or ''}
