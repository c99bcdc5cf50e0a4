-- read: counters and whether they can be trusted. KEYS: state, then one key per counter.
-- Answer: now in ms, reason ('' = whole), generation, since in ms, shut in ms, then used, pending, held and expiry per counter.
local gen, since, shut, run, evicted, lost = unpack(redis.call('HMGET', KEYS[1], 'gen', 'since', 'shut', 'run', 'evicted', 'lost'))
local now = now_ms()
local out = {string.format('%.0f', now), why(gen, run, evicted, lost), gen or '', since or '0', shut or '0'}
for i = 2, #KEYS do
  local c = redis.call('HMGET', KEYS[i], 'u:' .. (gen or ''), 'pending', 'held')
  out[#out + 1] = c[1] or '0'
  out[#out + 1] = c[2] or '0'
  out[#out + 1] = c[3] or '0'
end
return out
