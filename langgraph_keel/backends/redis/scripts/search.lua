-- Store.scan of the threads of KEYS. With: fields, order, parents, select, lives
-- Grows with: all entries of these threads.
-- ARGV: as in select; then id, epoch and sequence number of the entry to continue after ('' for none), the limit; then
-- as in lives
local after_id, after_epoch, after_seq, limit = ARGV[5], ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])

-- By id, then by age of the thread (epochs begin with the time), then by sequence number: the greatest first.
local function before(a, b)
  if a.id ~= b.id then
    return less(b.id, a.id)
  end
  if a.epoch ~= b.epoch then
    return less(b.epoch, a.epoch)
  end
  return a.seq > b.seq
end

local best = {}
local function keep(candidate)
  if #best == limit and not before(candidate, best[limit]) then
    return
  end
  local place = #best + 1
  while place > 1 and before(candidate, best[place - 1]) do
    place = place - 1
  end
  table.insert(best, place, candidate)
  best[limit + 1] = nil
end

local last = { id = raw(after_id), epoch = after_epoch, seq = after_seq }
for number = 1, THREADS do
  local key, thread = KEYS[number], indexed(number)
  local is_selected = selected(key)
  each_entry(key, thread and thread.seq + 1 or 0, function(seq, entry)
    local e = parse(entry)
    if is_selected(seq, e) then
      local candidate = { id = raw(e.id), epoch = thread.epoch, seq = seq, number = number, ns = e.ns }
      if after_id == '' or before(last, candidate) then
        keep(candidate)
      end
    end
  end)
end
local reply = {}
for _, each in ipairs(best) do
  local key = KEYS[each.number]
  local entry = redis.call('HGET', key, string.format('entry:%d', each.seq))
  local parent = shown(key, each.ns, parse(entry).parent)
  table.insert(reply, { each.number - 1, each.epoch, each.seq, entry, parent })
end
return reply
