-- extend lets a hold live longer, up to the longest life of a hold, counted from when it was made. KEYS: state, holds, record.
-- ARGV: life from now in ms, how long the record outlives it in ms.
-- Answer: 'ok', expiry, writes, 1 when it expires earlier than was asked for. Or {'cannot', reason}, {'unknown'}, {'ended', state}.
local gen, run, evicted, lost, hold = unpack(redis.call('HMGET', KEYS[1], 'gen', 'run', 'evicted', 'lost', 'hold'))
local was, at, exp = unpack(redis.call('HMGET', KEYS[3], 'state', 'at', 'exp'))
local reason = why(gen, run, evicted, lost)
if reason ~= '' then return {'cannot', reason} end
if not was then return {'unknown'} end
local now = now_ms()
exp = tonumber(exp)
if was == 'held' and exp <= now then
  expire(KEYS[2], KEYS[3])
  was = 'expired'
end
if was ~= 'held' then return {'ended', was} end
local till = math.min(now + tonumber(ARGV[1]), tonumber(at) + tonumber(hold))
if till > exp then
  exp = till
  call('HSET', KEYS[3], 'exp', text(exp))
  call('ZADD', KEYS[2], text(exp), KEYS[3])
  live(KEYS[3], exp + tonumber(ARGV[2]))
  live(KEYS[2], exp + tonumber(ARGV[2]))
end
return {'ok', text(exp), writes, exp < now + tonumber(ARGV[1]) and 1 or 0}
