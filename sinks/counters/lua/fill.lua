-- fill: sets used of a generation that is being built aside. It sets and never adds, so it may be repeated.
-- KEYS: state, then one key per counter (two for a distinct one). ARGV: generation, then per counter the arguments of apply.
local used, order = 'u:' .. ARGV[1], 'a:' .. ARGV[1]
local now, a, k = now_ms(), 2, 2
while k <= #KEYS do
  local key, op, amount, expiry = KEYS[k], string.lower(ARGV[a]), ARGV[a + 1], ARGV[a + 2]
  local live = tonumber(expiry) > now
  k, a = k + 1, a + 3
  if op == 'l' then
    if live then redis.call('HSET', key, used, amount, order, ARGV[a]) end
    a = a + 1
  elseif op == 'u' then
    local set, values = KEYS[k], tonumber(amount)
    k = k + 1
    if live then
      for i = 1, values do redis.call('SADD', set, ARGV[a + i - 1]) end
      redis.call('HSET', key, used, string.format('%.0f', redis.call('SCARD', set)))
      redis.call('PEXPIREAT', set, expiry)
    end
    a = a + values
  elseif live then
    redis.call('HSET', key, used, amount)
  end
  if live then redis.call('PEXPIREAT', key, expiry) end
end
return 'ok'
