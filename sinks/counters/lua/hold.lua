-- What the verbs of admission share. A counter holds used (apply's), pending (settled, not seen in the log) and held.
-- A reservation's record is a hash:
--   state    held, settled, released, expired, or taken (its event has come: apply does that)
--   print    fingerprint of the ask; settled_print that of the settlement
--   at, exp  ms; when it was made, when the hold expires by itself
--   n        how many counters it takes of: k<i> the counter's key, a<i> the amount held or pending, m<i> the metric, empty
--            where the amount ends with the hold (concurrency); of a sliding window w<i> the length of a part in ms, and f<i> the
--            field in which the amount is pending
-- Of a sliding window used stands in the counters of its parts, which apply keeps like any others. The hash beside them has held, which counts as
-- long as it is held, and p:<number of the part> for what is pending: it leaves the window with its part, if its event never comes.
-- Whole amounts are compared as numbers and written as the strings that came in, so nothing is rounded.
local PARTS = 60 -- of a sliding window
local writes = 0

local function call(...)
  writes = writes + 1
  return redis.call(...)
end

local function text(number) return string.format('%.0f', number) end

-- whole reads an integer; nil for anything else, so that the caller can refuse before it has written.
local function whole(value)
  if not value then return 0 end
  return string.match(value, '^%-?%d+$') and tonumber(value)
end

-- less takes an amount back. A counter that has expired is not made again, and no number falls below zero.
local function less(key, field, amount)
  local back = math.min(whole(redis.call('HGET', key, field)) or 0, tonumber(amount))
  if back > 0 then call('HINCRBY', key, field, text(-back)) end
end

local function more(key, field, amount)
  local sum = call('HINCRBY', key, field, amount)
  if sum > MOST then call('HSET', key, field, text(MOST)) end
end

-- live makes sure that a key lives until then at least: none may live for ever.
local function live(key, till)
  if redis.call('PEXPIRETIME', key) < till then call('PEXPIREAT', key, text(till)) end
end

-- queue names the bucket's counters whose pending has grown, for whoever tells of thresholds.
local function queue(state) return string.sub(state, 1, -6) .. 'touched' end

-- touch queues counters whose pending has grown.
local function touch(state, keys, now)
  if #keys == 0 then return end
  local list = {}
  for i = 1, #keys do
    list[2 * i - 1], list[2 * i] = text(now), keys[i]
  end
  call('ZADD', queue(state), unpack(list))
  call('PEXPIRE', queue(state), 604800000)
end

-- slide reads a sliding window: the parts that it touches, and two ahead, since a source's clock may be. nil when something else has
-- written there.
local function slide(key, field, head, tail, length, now)
  local newest = math.floor(now / length)
  local s = {used = 0, pending = 0, held = 0, begins = (newest - PARTS) * length, length = length, counts = {}}
  local first = newest - PARTS
  for j = first, newest + 2 do
    local number = whole(redis.call('HGET', head .. text(j * length / 1000) .. tail, field))
    if not number then return nil end
    s.used, s.counts[j - first] = s.used + number, number
  end
  local all = redis.call('HGETALL', key)
  for k = 1, #all, 2 do
    local number = whole(all[k + 1])
    if not number then return nil end
    local j = tonumber(string.sub(all[k], 3)) or -1
    if all[k] == 'held' then
      s.held = number
    elseif j >= first then
      s.pending = s.pending + number
      s.counts[math.min(j - first, PARTS + 2)] = s.counts[math.min(j - first, PARTS + 2)] + number
    end
  end
  return s
end

-- fits returns the ms at which no more than most is counted, if nothing comes and nothing is given back; 0 when it is not known.
local function fits(s, most)
  local left = s.used + s.pending + s.held
  if left <= most then return 0 end
  for j = 0, PARTS + 2 do
    left = left - s.counts[j]
    if left <= most then return s.begins + (j + PARTS + 1) * s.length end
  end
  return 0
end

-- part names the field of what is pending in the part that is now, and drops what was pending in parts that have left the window.
local function part(key, length, now)
  local newest = math.floor(now / length)
  for _, name in ipairs(redis.call('HKEYS', key)) do
    if (tonumber(string.sub(name, 3)) or newest) < newest - PARTS then call('HDEL', key, name) end
  end
  return 'p:' .. text(newest)
end

-- expire ends a hold whose time is over. Its record stays, for usage may still come. All counters are read before one is written: in a
-- slot that is being moved a key may be gone, which ends the script there, and what had been given back would be given back again.
local function expire(holds, record)
  local was, n = unpack(redis.call('HMGET', record, 'state', 'n'))
  if was == 'held' then
    local keys, amounts = {}, {}
    for i = 1, tonumber(n) do
      keys[i], amounts[i] = unpack(redis.call('HMGET', record, 'k' .. i, 'a' .. i))
      redis.call('EXISTS', keys[i])
    end
    for i = 1, #keys do less(keys[i], 'held', amounts[i]) end
    call('HSET', record, 'state', 'expired')
  end
  call('ZREM', holds, record)
end

-- reap ends up to 32 holds that are due, and remembers when the next is: no hold ends before that. What is left over counts as held, so a
-- backlog refuses and never admits.
local function reap(state, holds, now)
  for _, record in ipairs(redis.call('ZRANGEBYSCORE', holds, '-inf', text(now), 'LIMIT', 0, 32)) do expire(holds, record) end
  local due = redis.call('ZRANGE', holds, 0, 0, 'WITHSCORES')[2] or text(MOST)
  call('HSET', state, 'due', due)
  return tonumber(due)
end

-- words takes a text of numbers apart.
local function words(s)
  return string.match(s, '^(%S+) (%S+) (%S+) (%S+) ?(%S*)$')
end

-- still is why for less: the replication id, which is another one after a restart and after a fail-over, and whether the server has dropped
-- keys are asked for each time, since counters may be gone. Whether it may drop keys is asked for once in CHECKED ms, as it is the dearest
-- to ask and nothing is lost by it alone.
local CHECKED = 1000
local function still(state, gen, run, evicted, lost, checked, now, takes)
  local ago = now - tonumber(checked or 0)
  if not gen or lost or not run or ago < 0 or ago > CHECKED then
    local reason = why(gen, run, evicted, lost)
    if reason == '' and takes then call('HSET', state, 'checked', text(now)) end
    return reason
  end
  local info = redis.call('INFO', 'replication', 'stats')
  local _, at = string.find(info, '\nmaster_replid:', 1, true)
  if string.sub(info, at + 1, at + 40) ~= string.sub(run, -40) then return 'restarted' end
  _, at = string.find(info, '\nevicted_keys:', 1, true)
  -- As text first: the number seldom differs.
  if string.sub(info, at + 1, at + #evicted + 1) ~= evicted .. '\r' and tonumber(string.match(info, '^%d+', at + 1)) > tonumber(evicted) then return 'evicted' end
  return ''
end
