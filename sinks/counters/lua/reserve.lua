-- reserve takes of several counters, all or nothing. count does the same without a hold: the amounts are pending at once. check
-- answers what reserve would and takes nothing; look is a check that lost holds do not shut: it shows what is counted.
-- KEYS: state, holds, record, then two per leg: the counters of the window that holds the caller's time and of the next one. A sliding
-- window has twice what admission knows of it, a throttle twice its time.
-- ARGV: verb, fingerprint, life of the hold in ms, how long the record outlives it in ms, legs n, the instants in ms between which every leg is in
-- its first window, names m, the names of series that only limits ask for; then per leg: metric ('' = held only), amount, maximum ('' = none),
-- kind, 1 when the leg may go uncounted, 1 when two of the names are of its series, then in ms: start of the window, its end, end of the
-- next, expiry of the one's counter, of the other's.
-- Kinds: '' has windows or is a total; n is what is held, and needs no history. w is sliding, with three arguments more: what stands before and
-- after the start in its parts' keys, and their length in ms. t is a throttle, with one more: its burst; its amount, maximum and burst are
-- microseconds.
-- Answer: word, now, writes, 1 when a leg went uncounted, expiry, then per leg: 0 or 1 (which window), used, pending, held as they were before. Of a
-- sliding window the first is the ms at which the ask may fit, of a throttle used is by how many microseconds it is ahead.
-- Or {'cannot', reason, ms until it ends where that is known}, {'moved', now}, {'conflict', state}, {'ended', state}.
local verb, print, keep, n, m = ARGV[1], ARGV[2], tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[8])
local holds, record = KEYS[2], KEYS[3]
local takes = verb == 'reserve' or verb == 'count'
local bucket = redis.call('HMGET', KEYS[1], 'gen', 'run', 'evicted', 'lost', 'since', 'shut', 'hold', unpack(ARGV, 9, 8 + m))
local reason = why(bucket[1], bucket[2], bucket[3], bucket[4])
if reason ~= '' then return {'cannot', reason} end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local since, shut = tonumber(bucket[5]), tonumber(bucket[6])

local replay, exp = false, 0
if takes then
  local was, known, till = unpack(redis.call('HMGET', record, 'state', 'print', 'exp'))
  if was then
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
reap(holds, now)

local first = now >= tonumber(ARGV[6]) and now < tonumber(ARGV[7])
local field = 'u:' .. bucket[1]
local over, uncounted, cannot = false, '0', nil
local a, name = 9 + m, 8
local at, keys, new, slides, times, out = {}, {}, {}, {}, {}, {}
for i = 1, n do
  local amount, maximum, kind = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), ARGV[a + 3]
  local key, begins, second = KEYS[2 + 2 * i], a + 6, 0
  if not first then
    local start, finish, last = tonumber(ARGV[a + 6]), tonumber(ARGV[a + 7]), tonumber(ARGV[a + 8])
    if now < start or now >= last then return {'moved', text(now)} end
    if now >= finish then key, begins, second = KEYS[3 + 2 * i], a + 7, 1 end
  end
  local used, pending, held
  if kind == '' or kind == 'n' then
    local c = redis.call('HMGET', key, field, 'pending', 'held')
    used, pending, held = c[1], c[2], c[3]
    new[i] = not (used or pending or held)
    used, pending, held = used or '0', pending or '0', held or '0'
    -- A number is its digits; anything else here something else has written.
    if string.find(used .. pending .. held, '%D') then return {'cannot', 'state_lost'} end
    used, pending, held = tonumber(used), tonumber(pending), tonumber(held)
  elseif kind == 'w' then
    local s = slide(key, field, ARGV[a + 11], ARGV[a + 12], tonumber(ARGV[a + 13]), now)
    if not s then return {'cannot', 'state_lost'} end
    used, pending, held, slides[i] = s.used, s.pending, s.held, s
    if maximum then second = fits(s, maximum - amount) end
  else
    local micros = clock[1] * 1000000 + clock[2]
    local time = math.max(micros, tonumber(redis.call('GET', key) or 0))
    used, pending, held = time - micros, 0, 0
    -- What does not conform takes nothing, even where it is let through: a soft throttle shows what a hard one would do.
    if used + amount <= tonumber(ARGV[a + 11]) then times[i] = time + amount end
  end
  if maximum then
    local unknown
    if now < shut and verb ~= 'look' and kind ~= 't' then
      unknown = 'holds_lost'
    elseif kind == '' or kind == 'w' then
      local from = since
      if ARGV[a + 5] == '1' then
        from = math.max(since, math.min(tonumber(bucket[name]) or math.huge, tonumber(bucket[name + 1]) or math.huge))
      end
      if from > 0 and (kind == 'w' and slides[i].begins or tonumber(ARGV[begins])) < from then unknown = 'incomplete' end
    end
    if unknown and ARGV[a + 4] == '1' then
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
  if ARGV[a + 5] == '1' then name = name + 2 end
  a = a + (kind == 'w' and 14 or kind == 't' and 12 or 11)
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
  exp = now + math.min(tonumber(ARGV[3]), tonumber(bucket[7]))
  if verb == 'count' then into, state, exp = 'pending', 'settled', now end
  local set, legs = {'state', state, 'print', print, 'at', now, 'exp', exp, 'n', 0}, 0
  local s = 10
  if verb == 'count' then -- what is counted cannot be settled with something else
    set[11], set[12], s = 'settled_print', print, 12
  end
  for i = 1, n do
    local from, key = at[i], keys[i]
    local kind, amount = ARGV[from + 3], ARGV[from + 1]
    if kind == 't' then
      if times[i] then call('SET', key, text(times[i]), 'PXAT', text(math.ceil(times[i] / 1000) + 1000)) end
    else
      legs = legs + 1
      set[s + 1], set[s + 2], set[s + 3], set[s + 4], set[s + 5], set[s + 6] = 'k' .. legs, key, 'a' .. legs, amount, 'm' .. legs, ARGV[from]
      s = s + 6
      local where = into
      if kind == 'w' then
        set[s + 1], set[s + 2] = 'w' .. legs, ARGV[from + 13]
        s = s + 2
        if verb == 'count' then
          where = part(key, slides[i].length, now)
          set[s + 1], set[s + 2] = 'f' .. legs, where
          s = s + 2
        end
      end
      more(key, where, amount)
      -- A counter that is there has its expiry. What has no window lives on.
      if kind == '' then
        if new[i] then call('PEXPIREAT', key, ARGV[from + 9 + out[4 * i - 3]]) end
      else
        live(key, tonumber(ARGV[from + 9]))
      end
    end
  end
  set[10] = legs
  call('HSET', record, unpack(set))
  call('PEXPIREAT', record, exp + keep)
  if verb == 'reserve' then
    call('ZADD', holds, exp, record)
    live(holds, exp + keep)
  end
end
-- Numbers up to 2^53 come out of Lua as they are.
return {word, now, writes, uncounted, exp, unpack(out)}
