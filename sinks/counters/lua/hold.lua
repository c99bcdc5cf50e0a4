-- What the verbs of admission share. A counter holds used (apply's), pending (settled, not seen in the log) and held.
-- A reservation's record is a hash:
--   state    held, settled, released, expired, or taken (its event has come: apply does that)
--   print    fingerprint of the ask; settled_print that of the settlement
--   at, exp  ms; when it was made, when the hold expires by itself
--   n        how many counters it takes of: k<i> the counter's key, a<i> the amount held or pending, m<i> the metric, empty
--            where the amount ends with the hold (concurrency)
-- Whole amounts are compared as numbers and written as the strings that came in, so nothing is rounded.
local writes = 0

local function call(...)
  writes = writes + 1
  return redis.call(...)
end

local function text(number) return string.format('%.0f', number) end

-- whole reads an integer; nil for anything else, so that the caller can refuse before it has written.
local function whole(value)
  if not value then return 0 end
  return string.match(value, '^%-?%d+$') and tonumber(value)
end

-- less takes an amount back. A counter that has expired is not made again, and no number falls below zero.
local function less(key, field, amount)
  local back = math.min(whole(redis.call('HGET', key, field)) or 0, tonumber(amount))
  if back > 0 then call('HINCRBY', key, field, text(-back)) end
end

local function more(key, field, amount)
  local sum = call('HINCRBY', key, field, amount)
  if sum > MOST then call('HSET', key, field, text(MOST)) end
end

-- live makes sure that a key lives until then at least: none may live for ever.
local function live(key, till)
  if redis.call('PEXPIRETIME', key) < till then call('PEXPIREAT', key, text(till)) end
end

-- expire ends a hold whose time is over. Its record stays, for usage may still come.
local function expire(holds, record)
  local was, n = unpack(redis.call('HMGET', record, 'state', 'n'))
  if was == 'held' then
    for i = 1, tonumber(n) do
      local key, amount = unpack(redis.call('HMGET', record, 'k' .. i, 'a' .. i))
      less(key, 'held', amount)
    end
    call('HSET', record, 'state', 'expired')
  end
  call('ZREM', holds, record)
end

-- reap ends up to 32 holds that are due. What is left over counts as held, so a backlog refuses and never admits.
local function reap(holds, now)
  for _, record in ipairs(redis.call('ZRANGEBYSCORE', holds, '-inf', text(now), 'LIMIT', 0, 32)) do expire(holds, record) end
end
