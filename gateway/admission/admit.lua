-- Takes a request's limits, its budgets and its hold on the balance, all or none, and mints its id from the server's clock.
--
-- KEYS balance, holds, leases, then those of the limits, then those of the budgets.
-- ARGV hold_hi, hold_lo, 20 random hex digits, lease in ms (-1: take nothing, say whether all would be taken),
--      input tokens, output tokens at most, how many limits; then for
--      each limit its letter (bucket.lua; c: requests at a time) and amount; then for each budget hi, lo, 'hard' or 'soft'.
-- Answers one of
--   {'allowed'} where nothing is to be taken
--   {'admitted', request id (UUIDv7), TIME, tightest limits…, and for each soft budget that is passed its number, 1 if that is new}
--   {'unknown', TIME, numbers of what is not projected: 0 the balance, else the place of a limit or budget after the first 3 KEYS}
--   {'insufficient_balance'}, {'balance_held'}, {'budget', its number, 1 if only holds stand in the way}
--   {'limit', its number, ms until it admits (-1: when another request ends), tightest limits…}
-- where tightest limits are: number, remaining, ms until it is whole again; of requests, then of tokens; number 0 for none.
local FIXED_KEYS, FIXED_ARGS, LIMIT_ARGS, BUDGET_ARGS = 3, 7, 2, 3

local time_us = now_us()
local hold = {
  hi = tonumber(ARGV[1]), lo = tonumber(ARGV[2]), at = time_us,
  input = tonumber(ARGV[5]), output = tonumber(ARGV[6]), given = 0, parts = '',
}
local lease_ms, limits = tonumber(ARGV[4]), tonumber(ARGV[7])
local budgets = #KEYS - FIXED_KEYS - limits
local lease_end_ms = digits(math.floor(time_us / 1000) + lease_ms)
local tag = tag_of(KEYS[1])

local function cost_of(letter)
  if letter == 'r' or letter == 'c' then
    return 1
  elseif letter == 'i' or letter == 'f' then
    return hold.input
  elseif letter == 'o' then
    return hold.output
  end
  return hold.input + hold.output
end

-- The limits as they stand. `wait_us` is set where the request does not fit: how long until it would.
local function read_limits()
  local read = {}
  local texts = limits > 0 and redis.call('MGET', unpack(KEYS, FIXED_KEYS + 1, FIXED_KEYS + limits))
  for number = 1, limits do
    local letter, amount = ARGV[FIXED_ARGS + LIMIT_ARGS * number - 1], tonumber(ARGV[FIXED_ARGS + LIMIT_ARGS * number])
    local limit = {key = KEYS[FIXED_KEYS + number], letter = letter, amount = amount, cost = cost_of(letter), text = texts[number]}
    if letter == 'c' then
      limit.left = amount - redis.call('ZCOUNT', limit.key, '(' .. digits(math.floor(time_us / 1000)), '+inf')
      limit.wait_us = limit.left < 1 and -1000
    else
      local window = WINDOW_US[letter]
      limit.whole, limit.rest, limit.at, limit.since = bucket_at(limit.text, amount, window, time_us)
      limit.left = amount - limit.whole - (limit.rest > 0 and 1 or 0)
      if amount == 0 or limit.cost > amount then
        limit.wait_us = window
      elseif limit.cost > limit.left then
        limit.wait_us = ((limit.whole + limit.cost - amount) * window + limit.rest) / amount
      end
    end
    read[number] = limit
  end
  return read
end

local function read_budgets()
  local read = {}
  for number = 1, budgets do
    local key, arg = KEYS[FIXED_KEYS + limits + number], FIXED_ARGS + LIMIT_ARGS * limits + BUDGET_ARGS * (number - 1)
    local row = redis.call('HMGET', key, 'base', 'until', 'spent_hi', 'spent_lo', 'held_hi', 'held_lo')
    read[number] = {
      key = key, hi = tonumber(ARGV[arg + 1]), lo = tonumber(ARGV[arg + 2]), hard = ARGV[arg + 3] == 'hard',
      known = row[1] and time_us < tonumber(row[2]),
      spent_hi = tonumber(row[3] or '0'), spent_lo = tonumber(row[4] or '0'),
      held_hi = tonumber(row[5] or '0'), held_lo = tonumber(row[6] or '0'),
    }
  end
  return read
end

-- What has to be read from Postgres first. A day's bucket of an owner is kept for a day: without it nobody knows.
local function missing(version, limit, budget)
  local numbers = {}
  if not version then
    numbers[1] = 0
  end
  for number = 1, limits do
    if limit[number].letter == 'd' and not limit[number].text then
      numbers[#numbers + 1] = number
    end
  end
  for number = 1, budgets do
    if not budget[number].known then
      numbers[#numbers + 1] = limits + number
    end
  end
  return numbers
end

-- Whether a budget bears the hold: nil if so, else 'held' where it would without those that stand, else 'passed'.
local function strain(budget)
  local hi, lo = plus(budget.spent_hi, budget.spent_lo, hold.hi, hold.lo)
  if not covers(budget.hi, budget.lo, hi, lo) then
    return 'passed'
  end
  hi, lo = plus(hi, lo, budget.held_hi, budget.held_lo)
  return not covers(budget.hi, budget.lo, hi, lo) and 'held' or nil
end

-- Of the limits whose letters are named the one that refused, else the one with the least left: its number, what is left,
-- ms until it is whole again. Where none refused, the request is counted in.
local function tightest(limit, letters, refused)
  local number, left = 0, 0
  for index = 1, limits do
    local one = limit[index]
    if string.find(letters, one.letter, 1, true) then
      local after = one.left - (refused and 0 or one.cost)
      if number == 0 or index == refused or (number ~= refused and after < left) then
        number, left = index, after
      end
    end
  end
  if number == 0 or limit[number].amount == 0 then
    return number, 0, 0
  end
  local one = limit[number]
  return number, left, math.ceil((one.amount - left) / one.amount * WINDOW_US[one.letter] / 1000)
end

local function with_tightest(answer, limit, refused)
  for _, letters in ipairs({'r', 'ifodD'}) do
    for _, value in ipairs({tightest(limit, letters, refused)}) do
      answer[#answer + 1] = value
    end
  end
  return answer
end

-- The limit that refuses for the longest, so that whoever waits for it does not come for nothing.
local function refusing(limit)
  local number
  for index = 1, limits do
    local wait_us = limit[index].wait_us
    if wait_us and (not number or wait_us > limit[number].wait_us) then
      number = index
    end
  end
  return number
end

-- Every key of a limit goes by itself: a bucket when it is empty, slots when no lease is left, a day's when a day has passed.
local function take_limit(limit, request_id)
  if limit.letter == 'c' then
    redis.call('ZREMRANGEBYSCORE', limit.key, '-inf', digits(math.floor(time_us / 1000)))
    redis.call('ZADD', limit.key, lease_end_ms, request_id)
    redis.call('PEXPIRE', limit.key, math.max(1, lease_ms))
  else
    local window, whole = WINDOW_US[limit.letter], limit.whole + limit.cost
    local life_us = limit.letter == 'd' and window or (whole + 1) / limit.amount * window
    local bucket = struct.pack(BUCKET, whole, limit.rest, limit.at, limit.since)
    redis.call('SET', limit.key, bucket, 'PX', digits(math.ceil(life_us / 1000)))
  end
  if limit.letter ~= 'r' then
    hold.parts = hold.parts .. '|' .. limit.letter .. string.sub(limit.key, #tag + 1)
  end
end

-- Returns whether this passes a soft budget for the first time in its period.
local function take_budget(budget)
  local hi, lo = plus(budget.held_hi, budget.held_lo, hold.hi, hold.lo)
  redis.call('HSET', budget.key, 'held_hi', digits(hi), 'held_lo', digits(lo))
  redis.call('PEXPIRE', budget.key, DAY_US / 1000)
  hold.parts = hold.parts .. '|b' .. string.sub(budget.key, #tag + 1)
  return budget.strain and redis.call('HSETNX', budget.key, 'alerted', 1)
end

-- A UUIDv7: version and variant are set over the random digits, as billing.request_id.mint does.
local function mint(random)
  local stamp = string.format('%012x', math.floor(time_us / 1000))
  local variant = string.format('%x', 8 + tonumber(string.sub(random, 5, 5), 16) % 4)
  return string.sub(stamp, 1, 8) .. '-' .. string.sub(stamp, 9, 12)
    .. '-7' .. string.sub(random, 2, 4)
    .. '-' .. variant .. string.sub(random, 6, 8)
    .. '-' .. string.sub(random, 9, 20)
end

local row = redis.call('HMGET', KEYS[1], 'hi', 'lo', 'version', 'held_hi', 'held_lo')
local limit, budget = read_limits(), read_budgets()
local numbers = missing(row[3], limit, budget)
if #numbers > 0 then
  return {'unknown', digits(time_us), unpack(numbers)}
end

local hi, lo = tonumber(row[1]), tonumber(row[2])
local held_hi, held_lo = plus(tonumber(row[4] or '0'), tonumber(row[5] or '0'), hold.hi, hold.lo)
if not covers(hi, lo, hold.hi, hold.lo) then
  return {'insufficient_balance'}
end
for number = 1, budgets do
  budget[number].strain = strain(budget[number])
  if budget[number].hard and budget[number].strain then
    return {'budget', number, budget[number].strain == 'held' and 1 or 0}
  end
end
local refused = refusing(limit)
if refused then
  return with_tightest({'limit', refused, math.ceil(limit[refused].wait_us / 1000)}, limit, refused)
end
if not covers(hi, lo, held_hi, held_lo) then
  return {'balance_held'}
end
if lease_ms < 0 then
  return {'allowed'}
end

local request_id = mint(ARGV[3])
local answer = with_tightest({'admitted', request_id, digits(time_us)}, limit, nil)
for number = 1, limits do
  take_limit(limit[number], request_id)
end
for number = 1, budgets do
  local first = take_budget(budget[number])
  if first then
    answer[#answer + 1], answer[#answer + 2] = number, first
  end
end
redis.call('HSET', KEYS[1], 'held_hi', digits(held_hi), 'held_lo', digits(held_lo))
redis.call('HSET', KEYS[2], request_id, hold_text(hold))
redis.call('ZADD', KEYS[3], lease_end_ms, request_id)
return answer
