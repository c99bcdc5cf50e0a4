-- told: records on a counter what was told of it. One that has expired is not made again. KEYS: the counter. ARGV: field, value.
if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
return 'ok'
