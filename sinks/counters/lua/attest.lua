-- attest: partitions have been read to the ends that they had when the caller saw this run of the server. When all have,
-- the bucket is whole. KEYS: state. ARGV: generation, run seen, max hold in ms, then pairs: partition, end.
local gen, parts, run, lost = unpack(redis.call('HMGET', KEYS[1], 'gen', 'parts', 'run', 'lost'))
if gen ~= ARGV[1] or lost then return 'moved' end
local now_run, evicted = server()
if now_run ~= ARGV[2] then return 'moved' end
for i = 4, #ARGV, 2 do
  local at = redis.call('HGET', KEYS[1], 'w:' .. ARGV[i])
  if not at or tonumber(at) < tonumber(ARGV[i + 1]) then return 'behind' end
end
for i = 4, #ARGV, 2 do
  redis.call('HSET', KEYS[1], 'ok:' .. ARGV[i], now_run)
end
if run == now_run then return 'whole' end
for p = 0, tonumber(parts) - 1 do
  if redis.call('HGET', KEYS[1], 'ok:' .. p) ~= now_run then return 'waiting' end
end
redis.call('HSET', KEYS[1], 'run', now_run, 'evicted', string.format('%.0f', evicted), 'hold', ARGV[3])
if redis.call('HGET', KEYS[1], 'holds') ~= now_run then
  redis.call('HSET', KEYS[1], 'shut', string.format('%.0f', now_ms() + tonumber(ARGV[3])))
end
return 'whole'
