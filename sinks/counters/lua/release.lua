-- release gives a hold back: nothing was used. KEYS: state, holds, record. ARGV: how long the record stays in ms.
-- Answer: word, state before, writes. Or {'cannot', reason}, {'unknown'}, {'ended', state} after a settlement.
local was, n = unpack(redis.call('HMGET', KEYS[3], 'state', 'n'))
if not was then
  local gen, run, evicted, lost = unpack(redis.call('HMGET', KEYS[1], 'gen', 'run', 'evicted', 'lost'))
  local reason = why(gen, run, evicted, lost)
  if reason ~= '' then return {'cannot', reason} end
  return {'unknown'}
end
if was == 'settled' or was == 'taken' then return {'ended', was} end
if was ~= 'held' then return {'replay', was, 0} end
local keys, amounts = {}, {}
for i = 1, tonumber(n) do
  keys[i], amounts[i] = unpack(redis.call('HMGET', KEYS[3], 'k' .. i, 'a' .. i))
  if not whole(redis.call('HGET', keys[i], 'held')) then return {'cannot', 'state_lost'} end
end
for i = 1, #keys do less(keys[i], 'held', amounts[i]) end
call('HSET', KEYS[3], 'state', 'released')
call('ZREM', KEYS[2], KEYS[3])
call('PEXPIREAT', KEYS[3], text(now_ms() + tonumber(ARGV[1])))
return {'ok', was, writes}
