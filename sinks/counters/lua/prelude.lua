#!lua
-- The header makes Redis 7 refuse the whole script up front when memory is full or the server is a replica, instead of at
-- its first write; it also refuses keys of several slots.
--
-- The hash KEYS[1] is the bucket's state, its sentinel:
--   gen      generation of the counters: the field u:<gen> of a counter is its used
--   next     highest generation ever handed out in this bucket
--   since    ms; windows that begin earlier are not whole (the log no longer held all their events); 0 = all whole
--   parts    partition count of usage.unique
--   w:<p>    watermark: every event of partition p below this offset is in the counters
--   ok:<p>   the run of the server for which partition p has been read to its end
--   run      the run for which all partitions have been read to their ends: the bucket is whole in that run
--   evicted  evicted_keys of the server when run was set
--   hold     ms; the longest life of a hold
--   holds    the run in which no hold has been lost, when the bucket was whole as its generation began or was the first ever
--   s:<name> ms; since when a series is counted that only limits ask for; missing = not yet
--   checked  ms; when reserve last found that the server may drop no keys
--   due      ms; no hold ends by itself before that
--   shut     ms; holds may have been lost, so hard limits stay shut until then
--   lost     set when the bucket must not be trusted any more: why
local MOST = 9007199254740991

-- The run of the server: a restart changes the first part, a fail-over the second. Both are in INFO, which is
-- generated inside the server and costs a few microseconds.
local function after(info, name, pattern)
  -- A plain search first: a pattern that is tried at every place of the text costs more than the rest of a script.
  local _, at = string.find(info, name, 1, true)
  return string.match(info, pattern, at + 1)
end

local function server()
  local info = redis.call('INFO', 'server', 'replication', 'stats', 'memory')
  return after(info, '\nrun_id:', '^%x+') .. ':' .. after(info, '\nmaster_replid:', '^%x+'),
    tonumber(after(info, '\nevicted_keys:', '^%d+')),
    after(info, '\nmaxmemory_policy:', '^[%w-]+')
end

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- why returns '' when the bucket is whole in this run of the server, else the reason why it cannot count.
local function why(gen, run, evicted, lost)
  if not gen then return 'state_lost' end
  if lost then return 'state_lost' end
  local now_run, now_evicted, policy = server()
  if policy ~= 'noeviction' then return 'eviction_policy' end
  if not run then return 'rebuilding' end
  if run ~= now_run then return 'restarted' end
  if now_evicted > tonumber(evicted) then return 'evicted' end
  return ''
end
