-- Gives back the input tokens that prefill found in the cache, once, to the limits that do not count them.
--
-- KEYS balance, holds.   ARGV request id, tokens.   Answers 1 if the hold was there, else 0.
local text = redis.call('HGET', KEYS[2], ARGV[1])
if not text then
  return 0
end
local hold = hold_of(text)
if hold.given == 0 then
  hold.given = math.min(tonumber(ARGV[2]), hold.input)
  for letter, key in parts_of(hold.parts, tag_of(KEYS[1])) do
    if letter == 'f' then
      give_back(key, hold.given, hold.at)
    end
  end
  redis.call('HSET', KEYS[2], ARGV[1], hold_text(hold))
end
return 1
