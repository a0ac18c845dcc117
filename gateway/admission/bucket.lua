-- Buckets: what has been taken of a limit and has not drained yet. One drains evenly, its amount in its window, so what is
-- taken within any time t, net of what is given back, is at most amount + amount / window * t.
--
-- A bucket is four doubles, packed: whole units, a rest in 1 / window units, the instant of both, and the instant since which
-- it has not been empty. Times are microseconds. Whole numbers throughout: nothing rounds, nothing creeps.
local BUCKET = '>dddd'
local MINUTE_US, DAY_US = 60000000, 86400000000
-- r requests, i input, f input of which cached tokens are free, o output, d tokens a day, D tokens a day of one user.
local WINDOW_US = {r = MINUTE_US, i = MINUTE_US, f = MINUTE_US, o = MINUTE_US, d = DAY_US, D = DAY_US}

local function now_us()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- amount * elapsed / window, as whole and rest. The product may pass 2^53, so it is divided digit by digit, 12 bits each:
-- with amount < 2^40 and elapsed < window < 2^37 no step does.
local function drained(amount, elapsed, window)
  local whole, rest, scale = 0, 0, 68719476736 -- 2^36
  while scale >= 1 do
    local digit = math.floor(elapsed / scale)
    elapsed = elapsed - digit * scale
    rest = rest * 4096 + amount * digit
    local part = math.floor(rest / window)
    whole, rest = whole * 4096 + part, rest - part * window
    scale = scale / 4096
  end
  return whole, rest
end

-- The bucket as it is now: whole, rest, at, since. A clock that was set back drains nothing; a limit that was lowered
-- counts a bucket that is over it as full.
local function bucket_at(text, amount, window, now)
  if not text then
    return 0, 0, now, now
  end
  local whole, rest, at, since = struct.unpack(BUCKET, text)
  if whole >= amount then
    whole, rest = amount, 0
  end
  if now <= at then
    return whole, rest, at, since
  end
  if now - at >= window then
    return 0, 0, now, now
  end
  local gone, gone_rest = drained(amount, now - at, window)
  whole, rest = whole - gone, rest - gone_rest
  if rest < 0 then
    whole, rest = whole - 1, rest + window
  end
  if whole < 0 or (whole == 0 and rest == 0) then
    return 0, 0, now, now
  end
  return whole, rest, now, since
end

-- Gives back what a request took at `taken_at` and did not use. If the bucket has been empty since, time has given it back
-- already: what is there now was taken by others. Subtracting before draining comes to the same as after.
local function give_back(key, amount, taken_at)
  local text = amount > 0 and redis.call('GET', key)
  if not text then
    return
  end
  local whole, rest, at, since = struct.unpack(BUCKET, text)
  if taken_at < since then
    return
  end
  whole = whole - amount
  if whole < 0 then
    whole, rest = 0, 0
  end
  redis.call('SET', key, struct.pack(BUCKET, whole, rest, at, since), 'KEEPTTL')
end
