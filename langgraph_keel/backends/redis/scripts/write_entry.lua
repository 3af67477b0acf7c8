-- Store.write_entry. With: fields, expiry, life, order
-- Grows with: the rows of the request, and the small rows a repack replaces; for an existing id, with the entries
-- written since; for the first entry of a thread, with the writes that tasks have stored before it.
-- ARGV: epoch (for a new thread), ns, id, parent, run, time, token, refs, header, epoch, sequence number and token of
-- the base, the check to make, time and id for the index, ttl, for the root namespace '=' and the search terms of the
-- thread; then per channel of appends: name, count of rows, and each row's count and body; after an empty name the
-- repacks: name, count of rows, and each row's number, count and body.
-- All refusals come before the first write, because Redis does not roll a script back. When out of memory (OOM), Redis
-- refuses the first ZADD or HSET, and lets a script continue that has written.
local epoch, ns, id, parent, run, at, token, refs, header, base_epoch, base, base_token,
  check, member, ttl, marks = unpack(ARGV, 1, 16)
local found = redis.call('HMGET', KEYS[1], 'thread', field('head', ns), field('id', ns, id), field('id', ns, parent),
  'entry:' .. base)
local thread = life(KEYS[1], found[1]) or { epoch = epoch, seq = 0, visible = 0, member = '' }

-- The same request again, because its reply was lost: reply as the first time.
local same = found[3] and tonumber(found[3]:match('^%d+'))
local old = same and parse(get('entry:' .. same))
if old and token_of(old) == token then
  local reply = { 'stored', thread.epoch, same }
  for first in old.token:gmatch(',(%d+)') do
    table.insert(reply, tonumber(first))
  end
  return reply
end

-- Also by its token: a server that lost the last write has reused its number.
local of = base_epoch == thread.epoch and found[5] and parse(found[5])
if base ~= '' and (not of or of.state == 'ghost' or token_of(of) ~= base_token) then
  return { 'gone' }
end
local head_state, head_id
if found[2] then
  head_state, head_id = head_of(field('head', ns), found[2])
  if tonumber(found[2]:match('^%d+')) > thread.seq then
    damaged('the field "thread"') -- otherwise a number would be reused, and its entry lost
  end
end
ttl = ttl_of(ttl)
local follows = check == '' or check ~= 'beside' and ((head_id or '') == parent or head_id == id)
if not follows and check == 'raise' then
  return { 'moved', head_id or '' }
end

local set, gone, reply = {}, {}, { 'stored', thread.epoch, thread.seq + 1 }
local function put(name, value)
  table.insert(set, name)
  table.insert(set, value)
end

-- Append, numbered from the highest number ever used in the log.
local first, p = {}, 17
while ARGV[p] ~= '' do
  local channel, rows = ARGV[p], tonumber(ARGV[p + 1])
  local number = tonumber(get(field('end', ns, channel)) or 0)
  first[channel] = number
  token = string.format('%s,%d', token, number)
  table.insert(reply, number)
  for row = p + 2, p + 2 * rows, 2 do
    put(string.format('item:%s:%s:%d', ns, channel, number), ARGV[row] .. ' ' .. ARGV[row + 1])
    number = number + tonumber(ARGV[row])
  end
  put(field('end', ns, channel), string.format('%d', number))
  p = p + 2 + 2 * rows
end

-- Replace small rows by the one packed from them; skip it if they have changed.
local function repack(channel, lo, count, body)
  local log, inside, number = field('item', ns, channel), {}, lo
  while number < lo + count do
    local value = get(string.format('%s:%d', log, number))
    local held = value and tonumber(value:match('^%d+')) or 0
    if held == 0 then
      return
    end
    if number > lo then
      table.insert(inside, string.format('%s:%d', log, number))
    end
    number = number + held
  end
  if number == lo + count then
    put(string.format('%s:%d', log, lo), count .. ' ' .. body)
    for _, name in ipairs(inside) do
      table.insert(gone, name)
    end
  end
end
p = p + 1
while ARGV[p] do
  local rows = tonumber(ARGV[p + 1])
  for row = p + 2, p + 1 + 3 * rows, 3 do
    repack(ARGV[p], tonumber(ARGV[row]), tonumber(ARGV[row + 1]), ARGV[row + 2])
  end
  p = p + 2 + 3 * rows
end

-- Give new items (+lo-hi) their numbers, and join adjacent runs.
local function settled(channel, kind, runs)
  if not runs:find('+', 1, true) then
    return
  end
  local joined = {}
  for new, lo, hi in runs:gmatch('(%+?)(%d+)-(%d+)') do
    local by = new == '+' and first[channel] or 0
    lo, hi = lo + by, hi + by
    if #joined > 0 and joined[#joined][2] == lo then
      lo = table.remove(joined)[1]
    end
    table.insert(joined, { lo, hi })
  end
  for n, run in ipairs(joined) do
    joined[n] = string.format('%d-%d', run[1], run[2])
  end
  return field(channel, kind, table.concat(joined, ','))
end
refs = refs:gsub('([^ :]+):(%d+):([^ ]+)', settled)

-- A host with a slow clock does not move the thread back. In the index NUL separates, and \1 escapes both.
if member < thread.member then
  member = thread.member
  at = member:match('^[^%z]*'):gsub('\1(.)', function(code) return code == '\1' and '\0' or '\1' end)
  at = at:gsub('[%z\1-\32\127%%]', function(byte) return string.format('%%%02X', byte:byte()) end)
end

thread.seq = thread.seq + 1
local seq = string.format('%d', thread.seq)
local state = (follows or not head_id and check ~= 'beside') and 'trunk' or 'branch'
local parent_name = found[4] and parent ~= id and '#' .. found[4]:match('^%d+') or parent
put('entry:' .. seq, line_of({
  state = state, ns = ns, id = id, parent = parent_name, run = run, at = at, token = token, refs = refs,
}) .. header)
put(field('id', ns, id), seq)
if state == 'trunk' or head_state ~= 'trunk' then
  put(field('head', ns), table.concat({ seq, state, id }, ' '))
end
if not old or old.state == 'ghost' then
  thread.visible = thread.visible + 1
end

-- Children of an entry that is written again refer to the new one.
if same then
  each_entry(KEYS[1], thread.seq, function(number, child)
    local e = number > same and parse(child)
    if e and e.parent == '#' .. same then
      e.parent = '#' .. seq
      put(string.format('entry:%d', number), line_of(e) .. child:match('\n(.*)$'))
    end
    return number <= same
  end)
end

local held = marks_of(thread)
if marks ~= '' and state == 'trunk' then
  held.seq, held.marks = seq, marks:sub(2)
  if held.late_of < id then
    held.late_of, held.late = '', ''
  end
end
if thread.member == '' then
  -- Marks of writes before the first entry were not stored: they are unknown up to the latest checkpoint with writes.
  for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
    local of = name:match('^write::([^:]*):')
    if of and held.late_of < of then
      held.late_of, held.late = of, '?'
    end
  end
end
index(thread, member, held)
put('thread', life_line(thread))
in_parts('HSET', KEYS[1], set)
if same then
  table.insert(gone, 'entry:' .. same)
end
in_parts('HDEL', KEYS[1], gone)
if old and old.run ~= '' then
  count_run(old.run, -1)
end
if run ~= '' then
  count_run(run, 1)
end
arm(thread, ttl)
return reply
