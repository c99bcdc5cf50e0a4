-- lease: one of several holds it, until it no longer asks. KEYS: the lease. ARGV: who asks, for how long in ms. Answer: 1 when it is his.
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
