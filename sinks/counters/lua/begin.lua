-- begin: starts a generation with given watermarks, by compare-and-set on the generation that the caller saw.
-- KEYS: state. ARGV: generation seen ('' = none), new generation ('' = choose, 'first' = choose, and nothing was ever
-- counted or held here), since in ms, max hold in ms,
-- partition count, one offset per partition, then the names of the series that are counted for limits' sake.
local gen, next_gen, run, evicted, lost, shut = unpack(redis.call('HMGET', KEYS[1], 'gen', 'next', 'run', 'evicted', 'lost', 'shut'))
if (gen or '') ~= ARGV[1] then return {'moved', gen or ''} end
local now = now_ms()
local new = tonumber(ARGV[2])
if not new then
  -- Milliseconds since the epoch, so that it differs from any generation of a state that is gone together with its numbers, also when it was begun in
  -- this very second: counters that survived the loss must not be taken for new ones.
  new = math.max(now, (tonumber(next_gen) or 0) + 1)
end
local name = string.format('%.0f', new)
local set = {'gen', name, 'next', string.format('%.0f', math.max(new, tonumber(next_gen) or 0)), 'since', ARGV[3],
  'parts', ARGV[5], 'hold', ARGV[4], 'shut', string.format('%.0f', now + tonumber(ARGV[4]))}
-- A bucket that was whole until now has lost no hold: only its used is made anew.
if why(gen, run, evicted, lost) == '' then
  set[#set] = shut
  set[#set + 1] = 'holds'
  set[#set + 1] = run
end
-- Where nothing was ever held nothing can have been lost, as long as this run of the server lasts.
if not gen and ARGV[2] == 'first' then
  set[#set] = '0'
  set[#set + 1] = 'holds'
  set[#set + 1] = (server())
end
for p = 0, tonumber(ARGV[5]) - 1 do
  set[#set + 1] = 'w:' .. p
  set[#set + 1] = ARGV[6 + p]
end
-- Their history is that of the log: they are counted from its beginning on.
for i = 6 + tonumber(ARGV[5]), #ARGV do
  set[#set + 1] = 's:' .. ARGV[i]
  set[#set + 1] = ARGV[3]
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], unpack(set))
return {'ok', name}
