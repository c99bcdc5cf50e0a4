-- look: what the bucket and its server say. KEYS: state.
-- Answer: now in ms, run, evicted_keys, eviction policy, then the state's fields and values.
local run, evicted, policy = server()
local out = redis.call('HGETALL', KEYS[1])
table.insert(out, 1, policy)
table.insert(out, 1, string.format('%.0f', evicted))
table.insert(out, 1, run)
table.insert(out, 1, string.format('%.0f', now_ms()))
return out
