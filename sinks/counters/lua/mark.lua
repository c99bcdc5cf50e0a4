-- mark: from now on these series are counted, too. Other instances of the sink may learn of it a little later, hence the margin.
-- KEYS: state. ARGV: generation, margin in ms ('' = nothing was counted yet, so their history is the bucket's), then the series' names.
if redis.call('HGET', KEYS[1], 'gen') ~= ARGV[1] then return 'moved' end
local from = ARGV[2] == '' and redis.call('HGET', KEYS[1], 'since') or string.format('%.0f', now_ms() + (tonumber(ARGV[2]) or 0))
for i = 3, #ARGV do redis.call('HSETNX', KEYS[1], 's:' .. ARGV[i], from) end
return 'ok'
