-- apply: adds folded amounts and moves watermarks, all or nothing. It alone changes used.
-- KEYS: state, holds, then one key per counter (two for a distinct one), then one per reservation.
-- ARGV: generation, partitions n, n triples (partition, watermark expected, watermark next), counters c, their arguments,
-- reservations r. A counter's arguments begin with operation, amount, expiry in ms; an upper-case operation
-- also repairs the expiry.
--   s sum   m max   l latest: one more argument, the order of the value   u distinct: amount more arguments, the values
local state, gen = KEYS[1], ARGV[1]
local head = redis.call('HMGET', state, 'gen', 'lost')
if head[1] ~= gen then return {'gen', head[1] or ''} end
if head[2] then return {'lost', head[2]} end
local n = tonumber(ARGV[2])
local a, fields = 3, {}
for i = 1, n do fields[i] = 'w:' .. ARGV[a + 3 * i - 3] end
local have = redis.call('HMGET', state, unpack(fields))
for i = 1, n do
  if have[i] ~= ARGV[a + 3 * i - 2] then
    local out = {'moved'}
    for j = 1, n do out[j + 1] = have[j] or '' end
    return out
  end
end

-- From here on everything is written. Amounts are checked before they are sent; a sum cannot overflow, for it is cut to
-- 2^53-1 each time. What can still fail is a key that something else has overwritten: then the bucket is marked as
-- lost, so that the half that was written counts for nothing.
local now, writes, skipped = now_ms(), 0, 0
local used, order = 'u:' .. gen, 'a:' .. gen
local watermarks = {}
for i = 1, n do
  watermarks[2 * i - 1] = fields[i]
  watermarks[2 * i] = ARGV[a + 3 * i - 1]
end
a = a + 3 * n

local function counters()
  local k = 3
  local c = tonumber(ARGV[a])
  a = a + 1
  for _ = 1, c do
    local key, op, amount, expiry = KEYS[k], ARGV[a], ARGV[a + 1], ARGV[a + 2]
    local kind = string.lower(op)
    local live = tonumber(expiry) > now
    local expire = live and op ~= kind
    k, a = k + 1, a + 3
    if kind == 's' then
      if live then
        local sum = redis.call('HINCRBY', key, used, amount)
        writes = writes + 1
        if sum > MOST then
          redis.call('HSET', key, used, '9007199254740991')
          writes = writes + 1
        end
        expire = expire or sum == tonumber(amount)
      end
    elseif kind == 'm' then
      if live then
        local old = redis.call('HGET', key, used)
        if not old or tonumber(old) < tonumber(amount) then
          redis.call('HSET', key, used, amount)
          writes = writes + 1
          expire = expire or not old
        end
      end
    elseif kind == 'l' then
      if live then
        local old = redis.call('HGET', key, order)
        if not old or old < ARGV[a] then
          redis.call('HSET', key, used, amount, order, ARGV[a])
          writes = writes + 1
          expire = expire or not old
        end
      end
      a = a + 1
    else
      local set, values = KEYS[k], tonumber(amount)
      k = k + 1
      if live then
        local size = redis.call('SCARD', set)
        for i = 1, values do
          if size >= 65536 then break end
          size = size + redis.call('SADD', set, ARGV[a + i - 1])
        end
        redis.call('HSET', key, used, string.format('%.0f', size))
        redis.call('PEXPIREAT', set, expiry)
        writes = writes + values + 2
        expire = true
      end
      a = a + values
    end
    if expire then
      redis.call('PEXPIREAT', key, expiry)
      writes = writes + 1
    end
    if not live then skipped = skipped + 1 end
  end
  -- A reservation's record lists what it holds: state, n, and k1 a1 .. kn an (counter, amount), with f1 .. fn where an amount is
  -- pending in another field than pending. The event takes it over, whatever comes first and however often: the state changes once.
  local r = tonumber(ARGV[a])
  for _ = 1, r do
    local record = KEYS[k]
    k = k + 1
    local was, legs = unpack(redis.call('HMGET', record, 'state', 'n'))
    if was and was ~= 'taken' then
      if was == 'held' or was == 'settled' then
        for i = 1, tonumber(legs) do
          local key, amount, part = unpack(redis.call('HMGET', record, 'k' .. i, 'a' .. i, 'f' .. i))
          local field = was == 'held' and 'held' or part or 'pending'
          -- A counter that has expired is not made again, and no number falls below zero.
          local less = math.min(tonumber(redis.call('HGET', key, field) or 0), tonumber(amount))
          if less > 0 then -- a settlement with nothing has nothing to take back
            redis.call('HINCRBY', key, field, string.format('%.0f', -less))
            writes = writes + 1
          end
        end
      end
      redis.call('HSET', record, 'state', 'taken')
      redis.call('ZREM', KEYS[2], record)
      -- It is kept for those who settle or ask again, not for the window: there is a record per reservation.
      redis.call('PEXPIRE', record, 7200000, 'LT')
      writes = writes + 3
    end
  end
end

local ok, err = pcall(counters)
if not ok then
  if type(err) == 'table' then err = err.err end
  redis.call('HSET', state, 'lost', 'apply: ' .. tostring(err))
  return {'lost', tostring(err)}
end
redis.call('HSET', state, unpack(watermarks))
return {'ok', writes + 1, skipped}
