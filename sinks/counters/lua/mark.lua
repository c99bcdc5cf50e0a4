-- mark: from now on these series are counted, too. Other instances of the sink may learn of it a little later, hence the margin.
-- KEYS: state. ARGV: generation, margin in ms, then the series' names.
if redis.call('HGET', KEYS[1], 'gen') ~= ARGV[1] then return 'moved' end
local from = string.format('%.0f', now_ms() + tonumber(ARGV[2]))
for i = 3, #ARGV do redis.call('HSETNX', KEYS[1], 's:' .. ARGV[i], from) end
return 'ok'
