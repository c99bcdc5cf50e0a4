-- snapshot: used of many counters together with the watermarks that they stand at. KEYS: state, then the counters.
-- Answer: reason ('' = whole), generation, since in ms, partition count, the watermarks, then used per counter.
local gen, since, parts, run, evicted, lost = unpack(redis.call('HMGET', KEYS[1], 'gen', 'since', 'parts', 'run', 'evicted', 'lost'))
local out = {why(gen, run, evicted, lost), gen or '', since or '0', parts or '0'}
if out[1] ~= '' then return out end
for p = 0, tonumber(parts) - 1 do out[#out + 1] = redis.call('HGET', KEYS[1], 'w:' .. p) or '-1' end
for i = 2, #KEYS do out[#out + 1] = redis.call('HGET', KEYS[i], 'u:' .. gen) or '' end
return out
