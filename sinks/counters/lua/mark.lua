-- mark: the bucket must not be trusted any more. KEYS: state. ARGV: generation, why.
if redis.call('HGET', KEYS[1], 'gen') ~= ARGV[1] then return 'moved' end
redis.call('HSET', KEYS[1], 'lost', ARGV[2])
return 'ok'
