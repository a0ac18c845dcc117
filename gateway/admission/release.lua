-- Drops a hold with all it took, if it is there, then takes over a newer balance. Idempotent, right in any order, heals a wipe.
--
-- KEYS balance, holds, leases.
-- ARGV request id ('' for none); hi, lo, version of a balance (all '': nothing was charged); hi, lo of the charge and the
--      instant that rated it, us ('': not known here); input tokens used, those of them from cache, output tokens used ('':
--      not known here); then what the hold took, as hold.lua writes it: of use where a wipe took the hold.
-- Answers 1 if the hold was there, else 0.
local request_id, version = ARGV[1], tonumber(ARGV[4])
local charge_hi, charge_lo, rated_us = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local input, cached, output = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local tag = tag_of(KEYS[1])

local function unused(hold, letter)
  if letter == 'i' then
    return hold.input - input
  elseif letter == 'f' then
    return hold.input - hold.given - (input - cached)
  elseif letter == 'o' then
    return hold.output - output
  end
  return hold.input + hold.output - input - output
end

-- Adds the charge to what is spent, unless a reading of Postgres has counted it: `base` is the balance's version it saw.
-- `seen` keeps a reading from before this charge from coming late. Where the charge is not known, or nobody can tell whether
-- it was added before, what is spent is forgotten, and the next admission reads it again.
local function spend(key, surely)
  if not version then
    return
  end
  local row = redis.call('HMGET', key, 'seen', 'base', 'start', 'until', 'spent_hi', 'spent_lo')
  if version > tonumber(row[1] or '-1') then
    redis.call('HSET', key, 'seen', ARGV[4])
    redis.call('PEXPIRE', key, DAY_US / 1000)
  end
  if not row[2] or version <= tonumber(row[2]) then
    return
  end
  if not surely or not charge_hi then
    redis.call('HDEL', key, 'base')
  elseif tonumber(row[3]) <= rated_us and rated_us < tonumber(row[4]) then
    local hi, lo = plus(tonumber(row[5]), tonumber(row[6]), charge_hi, charge_lo)
    redis.call('HSET', key, 'spent_hi', digits(hi), 'spent_lo', digits(lo))
  end
end

local function unhold(key, hold)
  local held = redis.call('HMGET', key, 'held_hi', 'held_lo')
  if held[1] then
    local hi, lo = minus(tonumber(held[1]), tonumber(held[2]), hold.hi, hold.lo)
    redis.call('HSET', key, 'held_hi', digits(hi), 'held_lo', digits(lo))
  end
end

local function drop(hold)
  unhold(KEYS[1], hold)
  redis.call('HDEL', KEYS[2], request_id)
  for letter, key in parts_of(hold.parts, tag) do
    if letter == 'c' then
      redis.call('ZREM', key, request_id)
    elseif letter == 'b' then
      unhold(key, hold)
      spend(key, true)
    elseif input then
      give_back(key, unused(hold, letter), hold.at)
    end
  end
end

local function drop_unknown(parts)
  for letter, key in parts_of(parts, tag) do
    if letter == 'b' then
      spend(key, false)
    elseif letter == 'd' and version then
      redis.call('DEL', key)
    end
  end
end

local text = request_id ~= '' and redis.call('HGET', KEYS[2], request_id)
if text then
  drop(hold_of(text))
else
  drop_unknown(ARGV[11] or '')
end
if request_id ~= '' then
  redis.call('ZREM', KEYS[3], request_id)
end
if version then
  local known = redis.call('HGET', KEYS[1], 'version')
  if not known or version > tonumber(known) then
    redis.call('HSET', KEYS[1], 'hi', ARGV[2], 'lo', ARGV[3], 'version', ARGV[4])
  end
end
return text and 1 or 0
