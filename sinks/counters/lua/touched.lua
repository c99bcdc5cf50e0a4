-- touched: counters whose numbers may have grown, the longest untouched first, with what they hold. KEYS: state, touched. ARGV: how many at most.
-- Answer: reason ('' = whole), now in ms, then per counter: key, ms at which it was touched last, used, pending.
local gen, run, evicted, lost = unpack(redis.call('HMGET', KEYS[1], 'gen', 'run', 'evicted', 'lost'))
local out = {'', string.format('%.0f', now_ms())}
local list = redis.call('ZRANGE', KEYS[2], 0, tonumber(ARGV[1]) - 1, 'WITHSCORES')
if #list == 0 then return out end
out[1] = why(gen, run, evicted, lost)
if out[1] ~= '' then return out end
for i = 1, #list, 2 do
  local c = redis.call('HMGET', list[i], 'u:' .. gen, 'pending')
  out[#out + 1] = list[i]
  out[#out + 1] = list[i + 1]
  out[#out + 1] = c[1] or '0'
  out[#out + 1] = c[2] or '0'
end
return out
