-- reserve takes of several counters, all or nothing. count does the same without a hold: the amounts are pending at once. check
-- answers what reserve would and takes nothing; look is a check that lost holds do not shut: it shows what is counted.
-- KEYS: state, holds, record, then two per leg: the counters of the window that holds the caller's time and of the next one. A sliding
-- window has twice what admission knows of it, a throttle twice its time.
-- ARGV: verb, fingerprint, life of the hold in ms, how long the record outlives it in ms, legs n, the instants in ms between which every leg is in
-- its first window, names m, the names of series that only limits ask for; then per leg: metric ('' = held only), amount, maximum ('' = none),
-- kind, flags (1 = the leg may go uncounted, 2 = two of the names are of its series, 3 = both), the start of its window in ms, and in one
-- text, since it is seldom read: its end, the end of the next, expiry of the one's counter, of the other's, and what the kind needs beside.
-- Kinds: '' has windows or is a total; n is what is held, and needs no history. w is sliding: its parts' length in ms, and two arguments more, what
-- stands before and after the start in their keys. t is a throttle: its burst; its amount, maximum and burst are microseconds.
-- Answer: word, now, writes, 1 when a leg went uncounted, expiry, then per leg: 0 or 1 (which window), used, pending, held as they were before. Of a
-- sliding window the first is the ms at which the ask may fit, of a throttle used is by how many microseconds it is ahead.
-- Or {'cannot', reason, ms until it ends where that is known}, {'moved', now}, {'conflict', state}, {'ended', state}.
local verb, print, keep, n, m = ARGV[1], ARGV[2], tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[8])
local holds, record = KEYS[2], KEYS[3]
local takes = verb == 'reserve' or verb == 'count'
local bucket = redis.call('HMGET', KEYS[1], 'gen', 'run', 'lost', 'since', 'shut', 'hold', 'checked', 'due', 'evicted', unpack(ARGV, 9, 8 + m))
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local reason = still(KEYS[1], bucket[1], bucket[2], bucket[9], bucket[3], bucket[7], now, takes)
if reason ~= '' then return {'cannot', reason} end
local since, shut, due = tonumber(bucket[4]), tonumber(bucket[5]), tonumber(bucket[8] or 0)

local replay, exp = false, 0
if takes then
  local known = redis.call('HGET', record, 'print')
  if known then
    local was, till = unpack(redis.call('HMGET', record, 'state', 'exp'))
    if known ~= print then return {'conflict', was} end
    exp = tonumber(till)
    if was == 'held' and exp <= now then
      expire(holds, record)
      was = 'expired'
    end
    replay = verb == 'reserve' and was == 'held' or verb == 'count' and (was == 'settled' or was == 'taken')
    if not replay then return {'ended', was} end
  end
end
if now >= due then due = reap(KEYS[1], holds, now) end

local first = now >= tonumber(ARGV[6]) and now < tonumber(ARGV[7])
local field = 'u:' .. bucket[1]
local over, uncounted, cannot = false, '0', nil
local a, name = 9 + m, 10
-- Room for four legs from the start: a table that grows costs as much as a look-up.
local at, keys, new, slides, times = {0, 0, 0, 0}, {'', '', '', ''}, {false, false, false, false}, {}, {}
local out = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
for i = 1, n do
  local amount, maximum, kind, flags = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), ARGV[a + 3], ARGV[a + 4]
  local key, begun, second = KEYS[2 + 2 * i], tonumber(ARGV[a + 5]), 0
  if not first then
    local finish, last = words(ARGV[a + 6])
    if now < begun or now >= tonumber(last) then return {'moved', text(now)} end
    if now >= tonumber(finish) then key, begun, second = KEYS[3 + 2 * i], tonumber(finish), 1 end
  end
  local used, pending, held
  if kind == '' or kind == 'n' then
    local c = redis.call('HMGET', key, field, 'pending', 'held')
    used, pending, held = c[1], c[2], c[3]
    new[i] = not (used or pending or held)
    used, pending, held = tonumber(used or 0), tonumber(pending or 0), tonumber(held or 0)
    -- What is no whole number something else has written.
    if not (used and pending and held) or used % 1 + pending % 1 + held % 1 ~= 0 then return {'cannot', 'state_lost'} end
  elseif kind == 'w' then
    local _, _, _, _, length = words(ARGV[a + 6])
    local s = slide(key, field, ARGV[a + 7], ARGV[a + 8], tonumber(length), now)
    if not s then return {'cannot', 'state_lost'} end
    used, pending, held, begun, slides[i] = s.used, s.pending, s.held, s.begins, s
    if maximum then second = fits(s, maximum - amount) end
  else
    local _, _, _, _, burst = words(ARGV[a + 6])
    local micros = clock[1] * 1000000 + clock[2]
    local time = math.max(micros, tonumber(redis.call('GET', key) or 0))
    used, pending, held = time - micros, 0, 0
    -- What does not conform takes nothing, even where it is let through: a soft throttle shows what a hard one would do.
    if used + amount <= tonumber(burst) then times[i] = time + amount end
  end
  if maximum then
    local unknown
    if now < shut and verb ~= 'look' and kind ~= 't' then
      unknown = 'holds_lost'
    elseif kind == '' or kind == 'w' then
      local from = since
      if flags >= '2' then
        from = math.max(since, math.min(tonumber(bucket[name]) or math.huge, tonumber(bucket[name + 1]) or math.huge))
      end
      if begun < from then unknown = 'incomplete' end
    end
    if unknown and (flags == '1' or flags == '3') then
      uncounted = '1'
    elseif unknown then
      cannot = cannot or unknown
    elseif used + pending + held + amount > maximum then
      over = true
    end
  end
  local o = 4 * (i - 1)
  out[o + 1], out[o + 2], out[o + 3], out[o + 4] = second, used, pending, held
  at[i], keys[i] = a, key
  if flags >= '2' then name = name + 2 end
  a = a + (kind == 'w' and 9 or 7)
end

local word = 'ok'
if replay then
  word = 'replay'
elseif over then
  -- Known to be full, even where another counter is not known: no rebuild would let the ask pass.
  word = 'over'
elseif cannot then
  return {'cannot', cannot, cannot == 'holds_lost' and text(shut - now) or nil}
elseif takes then
  local into, state = 'held', 'held'
  exp = now + math.min(tonumber(ARGV[3]), tonumber(bucket[6]))
  if verb == 'count' then into, state, exp = 'pending', 'settled', now end
  local till = text(exp) -- made once: a number costs a conversion wherever it is passed
  local set, s, legs = {'state', state, 'print', print, 'at', text(now), 'exp', till, 'n', '0', 'k1', '', 'a1', '', 'm1', '', 'k2', '', 'a2', '', 'm2', '',
    'k3', '', 'a3', '', 'm3', '', 'k4', '', 'a4', '', 'm4', ''}, 10, 0
  local rest = {}
  for i = 1, n do
    local from, key = at[i], keys[i]
    local kind, amount = ARGV[from + 3], ARGV[from + 1]
    if kind == 't' then
      if times[i] then call('SET', key, text(times[i]), 'PXAT', text(math.ceil(times[i] / 1000) + 1000)) end
    elseif kind ~= 'n' or verb ~= 'count' then -- what is counted at once does not run
      legs = legs + 1
      if legs > 4 then set[s + 1], set[s + 3], set[s + 5] = 'k' .. legs, 'a' .. legs, 'm' .. legs end
      set[s + 2], set[s + 4], set[s + 6] = key, amount, ARGV[from]
      s = s + 6
      local where = into
      if kind == 'w' then
        rest[#rest + 1], rest[#rest + 2] = 'w' .. legs, text(slides[i].length)
        if verb == 'count' then
          where = part(key, slides[i].length, now)
          rest[#rest + 1], rest[#rest + 2] = 'f' .. legs, where
        end
      end
      writes = writes + 1
      if redis.call('HINCRBY', key, where, amount) > MOST then call('HSET', key, where, text(MOST)) end
      -- A counter that is there has its expiry; what has no window lives on.
      if new[i] or kind ~= '' then
        local _, _, one, other = words(ARGV[from + 6])
        live(key, tonumber(out[4 * i - 3] == 1 and other or one))
      end
    end
  end
  set[10] = tostring(legs)
  if verb == 'count' then -- what is counted cannot be settled with something else
    rest[#rest + 1], rest[#rest + 2] = 'settled_print', print
  end
  for i = 1, #rest do set[s + i] = rest[i] end
  redis.call('HSET', record, unpack(set, 1, s + #rest))
  redis.call('PEXPIREAT', record, text(exp + keep))
  writes = writes + 2
  if verb == 'count' then
    local grown = {}
    for i = 1, n do
      if ARGV[at[i] + 3] == '' then grown[#grown + 1] = keys[i] end
    end
    touch(KEYS[1], grown, now)
  else
    call('ZADD', holds, till, record)
    -- An hour more, so that not every ask moves it.
    if redis.call('PEXPIRETIME', holds) < exp + keep then call('PEXPIREAT', holds, exp + keep + 3600000) end
    if exp < due then call('HSET', KEYS[1], 'due', till) end
  end
end
-- Numbers up to 2^53 come out of Lua as they are.
return {word, now, writes, uncounted, exp, unpack(out, 1, 4 * n)}
