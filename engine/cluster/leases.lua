-- Places calls on workers over the loads of all gateways, and takes over what the calling gateway has.
--
-- KEYS gateways (a set of such keys as the next), the caller's hash: worker -> "running:kv tokens:queued ms".
-- ARGV the caller's lease in ms (0: it leaves), JSON {workers, asks}; every number is an integer:
--   workers  {name, own running, own kv tokens, own queued ms, and the same three that only the worker knows of}
--   asks     lists of candidates {worker from 1, own ns, ns a running, ns a kv token, ns a queued ms,
--            running below, queued ms at most, running added, kv tokens added, queued ms added}
-- Answers {for each ask its candidate from 1, or 0, ...}, {for each worker what the other gateways have: three numbers, ...}.
--
-- A gateway that does not come again within its lease has nothing any more: its hash expires.
local gateways, own = KEYS[1], KEYS[2]
local lease_ms = tonumber(ARGV[1])
local asked = cjson.decode(ARGV[2])

local names, load, others = {}, {}, {}
for index, worker in ipairs(asked.workers) do
  names[index] = worker[1]
  load[index] = {worker[2], worker[3], worker[4]}
  others[index] = {0, 0, 0}
end

for _, gateway in ipairs(redis.call('SMEMBERS', gateways)) do
  if gateway ~= own then
    if redis.call('EXISTS', gateway) == 0 then
      redis.call('SREM', gateways, gateway)
    else
      for index, text in ipairs(redis.call('HMGET', gateway, unpack(names))) do
        if text then
          local running, kv_tokens, queued_ms = string.match(text, '^(%d+):(%d+):(%d+)$')
          local sum = others[index]
          sum[1], sum[2], sum[3] = sum[1] + running, sum[2] + kv_tokens, sum[3] + queued_ms
        end
      end
    end
  end
end

local total = {}
for index, worker in ipairs(asked.workers) do
  total[index] = {}
  for number = 1, 3 do
    total[index][number] = load[index][number] + math.max(others[index][number], worker[4 + number])
  end
end

local choices = {}
for ask, candidates in ipairs(asked.asks) do
  local best, best_ns = 0, nil
  for index, candidate in ipairs(candidates) do
    local at = total[candidate[1]]
    if at[1] < candidate[6] and at[3] <= candidate[7] then
      local ns = candidate[2] + candidate[3] * at[1] + candidate[4] * at[2] + candidate[5] * at[3]
      if best == 0 or ns < best_ns then
        best, best_ns = index, ns
      end
    end
  end
  choices[ask] = best
  if best > 0 then
    local candidate = candidates[best]
    for number = 1, 3 do
      total[candidate[1]][number] = total[candidate[1]][number] + candidate[7 + number]
      load[candidate[1]][number] = load[candidate[1]][number] + candidate[7 + number]
    end
  end
end

redis.call('DEL', own)
if lease_ms > 0 then
  for index, name in ipairs(names) do
    redis.call('HSET', own, name, string.format('%.0f:%.0f:%.0f', unpack(load[index])))
  end
  redis.call('PEXPIRE', own, lease_ms)
  redis.call('SADD', gateways, own)
else
  redis.call('SREM', gateways, own)
end

local flat = {}
for _, sum in ipairs(others) do
  for number = 1, 3 do
    flat[#flat + 1] = sum[number]
  end
end
return {choices, flat}
