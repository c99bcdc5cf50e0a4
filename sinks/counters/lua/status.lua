-- status: a reservation's record. KEYS: state, record. Answer: 'ok', state, made at, expiry, fingerprint of its settlement
-- or '', then per counter its key and amount.
-- Or {'cannot', reason}, {'unknown'}.
local was, at, exp, n, settled = unpack(redis.call('HMGET', KEYS[2], 'state', 'at', 'exp', 'n', 'settled_print'))
if not was then
  local gen, run, evicted, lost = unpack(redis.call('HMGET', KEYS[1], 'gen', 'run', 'evicted', 'lost'))
  local reason = why(gen, run, evicted, lost)
  if reason ~= '' then return {'cannot', reason} end
  return {'unknown'}
end
if was == 'held' and tonumber(exp) <= now_ms() then was = 'expired' end
local out = {'ok', was, at, exp, settled or ''}
for i = 1, tonumber(n) do
  local leg = redis.call('HMGET', KEYS[2], 'k' .. i, 'a' .. i)
  out[#out + 1] = leg[1]
  out[#out + 1] = leg[2]
end
return out
