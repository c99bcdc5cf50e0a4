-- settle turns a hold into what was really used. It is pending until the event comes, and nothing when the event has come
-- already. It never refuses for a maximum: the usage is a fact.
-- KEYS: state, holds, record, then two per leg as for reserve. The legs are used for metrics that were not reserved.
-- ARGV: fingerprint, how long the record stays in ms, amounts m, m pairs metric and amount, legs n, then per leg: metric, amount,
-- start of the window, its end, end of the next, expiry of the one's counter, of the other's, and of a sliding window the length of a part in ms
-- ('' = none). A reserved metric without an amount is settled as
-- it was reserved: absent is not zero.
-- Answer: word, state before, writes, 1 when more was used than reserved. Or {'cannot', reason}, {'unknown'}, {'conflict', state}.
local print, keep, m = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local holds, record = KEYS[2], KEYS[3]
local gen, run, evicted, lost = unpack(redis.call('HMGET', KEYS[1], 'gen', 'run', 'evicted', 'lost'))
local now = now_ms()
local was, known, legs, exp = unpack(redis.call('HMGET', record, 'state', 'settled_print', 'n', 'exp'))
if not was then
  local reason = why(gen, run, evicted, lost)
  if reason ~= '' then return {'cannot', reason} end
  return {'unknown'}
end
if known then
  if known ~= print then return {'conflict', was} end
  return {'replay', was, 0, '0'}
end
if was == 'settled' then return {'conflict', was} end

local actual, a = {}, 4
for _ = 1, m do
  actual[ARGV[a]] = ARGV[a + 1]
  a = a + 2
end
-- Everything is read before anything is written: in a slot that is being moved a key may be gone, which ends the script there.
redis.call('EXISTS', queue(KEYS[1]))
local keys, before, after, fields, lengths, reserved, beyond = {}, {}, {}, {}, {}, {}, '0'
legs = tonumber(legs)
for i = 1, legs do
  local key, amount, metric, length = unpack(redis.call('HMGET', record, 'k' .. i, 'a' .. i, 'm' .. i, 'w' .. i))
  keys[i], before[i], reserved[metric], lengths[i] = key, amount, true, tonumber(length)
  after[i] = metric == '' and '0' or actual[metric] or amount
  if metric ~= '' and tonumber(after[i]) > tonumber(amount) then beyond = '1' end
  fields[i] = lengths[i] and 'p:' .. text(math.floor(now / lengths[i])) or 'pending'
  local c = redis.call('HMGET', key, fields[i], 'held')
  if not (whole(c[1]) and whole(c[2])) then return {'cannot', 'state_lost'} end
end
local new = {}
for i = 1, tonumber(ARGV[a]) do
  local at = a + 1 + 8 * (i - 1)
  local start, finish, last = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  local second = now >= finish and 1 or 0
  local key = KEYS[2 + 2 * i + second]
  -- Out of the windows: the event will count it.
  if not reserved[ARGV[at]] and tonumber(ARGV[at + 1]) > 0 and now >= start and now < last then
    local length = tonumber(ARGV[at + 7])
    local field = length and 'p:' .. text(math.floor(now / length)) or 'pending'
    if not whole(redis.call('HGET', key, field)) then return {'cannot', 'state_lost'} end
    new[#new + 1] = {key = key, amount = ARGV[at + 1], metric = ARGV[at], expiry = tonumber(ARGV[at + 5 + second]), field = field, length = length}
  end
end

if was ~= 'taken' then
  local set, grown = {'state', 'settled', 'n', text(legs + #new)}, {}
  for i = 1, legs do
    if was == 'held' then less(keys[i], 'held', before[i]) end
    -- A counter that has expired is not made again.
    if tonumber(after[i]) > 0 and redis.call('EXISTS', keys[i]) == 1 then
      if lengths[i] then part(keys[i], lengths[i], now) end
      more(keys[i], fields[i], after[i])
      if not lengths[i] then grown[#grown + 1] = keys[i] end
    end
    for name, value in pairs({a = after[i], f = lengths[i] and fields[i]}) do
      set[#set + 1] = name .. i
      set[#set + 1] = value
    end
  end
  for i, leg in ipairs(new) do
    if leg.length then part(leg.key, leg.length, now) end
    more(leg.key, leg.field, leg.amount)
    if not leg.length then grown[#grown + 1] = leg.key end
    live(leg.key, leg.expiry)
    for field, value in pairs({k = leg.key, a = leg.amount, m = leg.metric, f = leg.length and leg.field}) do
      set[#set + 1] = field .. (legs + i)
      set[#set + 1] = value
    end
  end
  call('HSET', record, unpack(set))
  call('ZREM', holds, record)
  call('PEXPIREAT', record, text(now + keep))
  touch(KEYS[1], grown, now)
end
call('HSET', record, 'settled_print', print)
if was == 'held' and tonumber(exp) <= now then was = 'expired' end
return {'ok', was, writes, beyond}
