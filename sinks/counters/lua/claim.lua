-- claim: hands out a generation that nobody else in this bucket has or had. KEYS: state.
local next_gen = tonumber(redis.call('HGET', KEYS[1], 'next')) or 0
local new = string.format('%.0f', math.max(now_ms(), next_gen + 1))
redis.call('HSET', KEYS[1], 'next', new)
return new
