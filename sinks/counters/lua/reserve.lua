-- reserve takes of several counters, all or nothing. count does the same without a hold: the amounts are pending at once. check
-- answers what reserve would and takes nothing; look is a check that lost holds do not shut: it shows what is counted.
-- KEYS: state, holds, record, then two per leg: the counters of the window that holds the caller's time and of the next one.
-- ARGV: verb, fingerprint, life of the hold in ms, how long the record outlives it in ms, legs n, then per leg: metric ('' = held only),
-- amount, maximum ('' = none), 1 when the leg may go uncounted, then in ms: start of the window, its end, end of the
-- next, expiry of the one's counter, of the other's; then two names of its series ('' = counted always). A start of -1 has no
-- window and needs no history.
-- Answer: word, now, writes, 1 when a leg went uncounted, expiry, then per leg: 0 or 1 (which window), used, pending, held as
-- they were before. Or {'cannot', reason, ms until it ends where that is known}, {'moved', now}, {'conflict', state}, {'ended', state}.
local verb, print, ttl, keep, n = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local holds, record = KEYS[2], KEYS[3]
local takes = verb == 'reserve' or verb == 'count'
local gen, since, shut, run, evicted, lost, hold = unpack(redis.call('HMGET', KEYS[1], 'gen', 'since', 'shut', 'run', 'evicted', 'lost', 'hold'))
local reason = why(gen, run, evicted, lost)
if reason ~= '' then return {'cannot', reason} end
local now = now_ms()
since, shut = tonumber(since), tonumber(shut)

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

local over, uncounted, cannot = false, '0', nil
local keys, expiries, out = {}, {}, {}
for i = 1, n do
  local a = 6 + 11 * (i - 1)
  local amount, maximum, may = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), ARGV[a + 3] == '1'
  local start, finish, last = tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5]), tonumber(ARGV[a + 6])
  if now < start or now >= last then return {'moved', text(now)} end
  local second = now >= finish and 1 or 0
  local key = KEYS[2 + 2 * i + second]
  keys[i], expiries[i] = key, tonumber(ARGV[a + 7 + second])
  local begins = second == 1 and finish or start
  local c = redis.call('HMGET', key, 'u:' .. gen, 'pending', 'held')
  local used, pending, held = whole(c[1]), whole(c[2]), whole(c[3])
  if not (used and pending and held) then return {'cannot', 'state_lost'} end
  if maximum then
    local from = since
    if ARGV[a + 9] ~= '' then
      local marks = redis.call('HMGET', KEYS[1], 's:' .. ARGV[a + 9], 's:' .. ARGV[a + 10])
      from = math.max(since, math.min(tonumber(marks[1]) or math.huge, tonumber(marks[2]) or math.huge))
    end
    local unknown = now < shut and verb ~= 'look' and 'holds_lost' or (begins >= 0 and begins < from and 'incomplete')
    if unknown and may then
      uncounted = '1'
    elseif unknown then
      cannot = cannot or unknown
    elseif used + pending + held + amount > maximum then
      over = true
    end
  end
  local o = 4 * (i - 1)
  out[o + 1], out[o + 2], out[o + 3], out[o + 4] = second, used, pending, held
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
  local field, state = 'held', 'held'
  exp = now + math.min(ttl, tonumber(hold))
  if verb == 'count' then field, state, exp = 'pending', 'settled', now end
  local set = {'state', state, 'print', print, 'at', text(now), 'exp', text(exp), 'n', text(n)}
  if verb == 'count' then -- what is counted cannot be settled with something else
    set[#set + 1] = 'settled_print'
    set[#set + 1] = print
  end
  for i = 1, n do
    local a = 6 + 11 * (i - 1)
    set[#set + 1] = 'k' .. i
    set[#set + 1] = keys[i]
    set[#set + 1] = 'a' .. i
    set[#set + 1] = ARGV[a + 1]
    set[#set + 1] = 'm' .. i
    set[#set + 1] = ARGV[a]
    more(keys[i], field, ARGV[a + 1])
    live(keys[i], expiries[i])
  end
  call('HSET', record, unpack(set))
  call('PEXPIREAT', record, text(exp + keep))
  if verb == 'reserve' then
    call('ZADD', holds, text(exp), record)
    live(holds, exp + keep)
  end
end
-- Numbers up to 2^53 come out of Lua as they are.
return {word, now, writes, uncounted, exp, unpack(out)}
