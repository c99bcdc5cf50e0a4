-- sweep: removes what older generations than the one in force left in counters. A generation below it can never be in force again: begin
-- moves on by compare-and-set, and claim hands out higher numbers only. KEYS: state, then counters. ARGV: generation in force.
-- Answer: fields removed, or 'moved'.
if redis.call('HGET', KEYS[1], 'gen') ~= ARGV[1] then return 'moved' end
local now, removed = tonumber(ARGV[1]), 0
for i = 2, #KEYS do
  local old = {}
  for _, field in ipairs(redis.call('HKEYS', KEYS[i])) do
    local gen = tonumber(string.match(field, '^[ua]:(%d+)$'))
    if gen and gen < now then
      old[#old + 1] = field
      -- The values of a distinct counter, in the same slot. It is not among KEYS because only the counter knows its generations.
      if string.sub(field, 1, 1) == 'u' then redis.call('UNLINK', KEYS[i] .. ':' .. field) end
    end
  end
  if #old > 0 then removed = removed + redis.call('HDEL', KEYS[i], unpack(old)) end
end
return removed
