-- Store.remove_entries. With: fields, expiry, life, order
-- Grows with: the removed fields and the remaining entries.
-- ARGV: epoch, count of entries to remove, their places; then per ghost its place and the channels it keeps, between
-- spaces.
-- Fields are deleted before others are set, so that entries can be removed when memory is full.
local thread = life(KEYS[1], get('thread'))
if not thread or thread.epoch ~= ARGV[1] then
  return 0
end
local count, ttl = tonumber(ARGV[2]), ttl_of('')
local gone, set, runs, touched = {}, {}, {}, {}

local function forget(seq, e)
  table.insert(gone, 'entry:' .. seq)
  table.insert(gone, field('id', e.ns, e.id))
  local n = 0
  while redis.call('HEXISTS', KEYS[1], field('write', e.ns, e.id, n)) == 1 do
    table.insert(gone, field('write', e.ns, e.id, n))
    n = n + 1
  end
  if e.run ~= '' then
    runs[e.run] = (runs[e.run] or 0) + 1
  end
end

local function make_ghost(seq, entry, e, channels)
  local refs = {}
  for ref in e.refs:gmatch('[^ ]+') do
    if channels:find(' ' .. ref:match('^[^:]+') .. ' ', 1, true) then
      table.insert(refs, ref)
    end
  end
  e.state, e.refs = 'ghost', table.concat(refs, ' ')
  for _, part in ipairs({ 'entry:' .. seq, line_of(e) .. entry:match('\n(.*)$'),
    field('id', e.ns, e.id), seq .. ' ghost' }) do
    table.insert(set, part)
  end
end

for n = 3, #ARGV, 1 do
  local is_ghost = n > count + 2
  local seq, entry, e
  if not is_ghost or (n - count) % 2 == 1 then
    seq, entry, e = named(ARGV[n])
  end
  if e then
    touched[e.ns] = {}
    if is_ghost then
      make_ghost(seq, entry, e, ARGV[n + 1])
    else
      forget(seq, e)
    end
  end
end
in_parts('HDEL', KEYS[1], gone)
for run, entries in pairs(runs) do
  count_run(run, -entries)
end
in_parts('HSET', KEYS[1], set)

-- Heads, last activity and the number of visible entries are computed from the remaining ones.
local newest
thread.visible = 0
each_entry(KEYS[1], thread.seq + 1, function(seq, entry)
  local e = parse(entry)
  if e.state ~= 'ghost' then
    thread.visible = thread.visible + 1
    newest = newest or e
    local head = touched[e.ns]
    if head and (not head.state or (head.state ~= 'trunk' and e.state == 'trunk')) then
      head.seq, head.state, head.id = string.format('%d', seq), e.state, e.id
    end
  end
end)
for ns, head in pairs(touched) do
  if head.seq then
    redis.call('HSET', KEYS[1], field('head', ns), table.concat({ head.seq, head.state, head.id }, ' '))
  else
    redis.call('HDEL', KEYS[1], field('head', ns))
  end
end

local held = marks_of(thread)
if touched[''] and touched[''].seq ~= held.seq then
  held.seq, held.marks = '', ''
end

-- The index sorts by the time before percent-encoding; NUL separates, and \1 escapes both.
local member = ''
if newest then
  local at = newest.at:gsub('%%(%x%x)', function(code) return string.char(tonumber(code, 16)) end)
  at = at:gsub('[%z\1]', function(byte) return byte == '\1' and '\1\2' or '\1\1' end)
  member = at .. thread.member:match('%z.*$')
end
index(thread, member, held)
redis.call('HSET', KEYS[1], 'thread', life_line(thread))
arm(thread, ttl)
return 1
