-- Amounts of money, as two limbs, base 10^9: hi in micro-units (any sign), 0 <= lo < 10^9. Lua's doubles are exact to
-- 2^53, which is nine dollars in femto-units; each limb alone stays far below it.
local BASE = 1000000000

local function plus(hi, lo, more_hi, more_lo)
  hi, lo = hi + more_hi, lo + more_lo
  if lo >= BASE then
    return hi + 1, lo - BASE
  end
  return hi, lo
end

local function minus(hi, lo, less_hi, less_lo)
  hi, lo = hi - less_hi, lo - less_lo
  if lo < 0 then
    return hi - 1, lo + BASE
  end
  return hi, lo
end

local function covers(hi, lo, than_hi, than_lo)
  return hi > than_hi or (hi == than_hi and lo >= than_lo)
end

local function digits(number)
  return string.format('%.0f', number)
end
