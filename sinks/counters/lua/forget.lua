-- forget: drops counters that nobody has touched since they were read. KEYS: touched. ARGV: pairs of key and ms as touched answered them.
for i = 1, #ARGV, 2 do
  if redis.call('ZSCORE', KEYS[1], ARGV[i]) == ARGV[i + 1] then redis.call('ZREM', KEYS[1], ARGV[i]) end
end
return 'ok'
