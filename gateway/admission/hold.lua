-- A hold is the text "hi:lo:taken at:input:output:given back", then "|" and a letter with the rest of a key for each thing it
-- took beside the balance: a bucket's letter (see bucket.lua), c for a slot, b for a budget. So whoever releases it, a sweeper
-- that knows no more than its id, knows what to give back. These keys are not among KEYS; they share their hash tag.
local function hold_of(text)
  local hi, lo, more = string.match(text, '^(%d+):(%d+)(.*)$')
  -- A gateway of before there were limits wrote hi and lo alone.
  local at, input, output, given, parts = string.match(more, '^:(%d+):(%d+):(%d+):(%d+)(.*)$')
  return {
    hi = tonumber(hi), lo = tonumber(lo), at = tonumber(at or '0'),
    input = tonumber(input or '0'), output = tonumber(output or '0'), given = tonumber(given or '0'), parts = parts or '',
  }
end

local function hold_text(hold)
  return string.format('%.0f:%.0f:%.0f:%.0f:%.0f:%.0f', hold.hi, hold.lo, hold.at, hold.input, hold.output, hold.given)
    .. hold.parts
end

local function parts_of(parts, tag)
  local each = string.gmatch(parts, '|(%a)([^|]+)')
  return function()
    local letter, rest = each()
    if letter then
      return letter, tag .. rest
    end
  end
end

local function tag_of(balance_key)
  return string.sub(balance_key, 1, -1 - string.len('balance'))
end
