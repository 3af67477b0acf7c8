-- Store.copy_thread up to an entry, first of two calls: the fields of the copy. With: fields, order
-- Grows with: the copied fields, which are the reply; not with later entries, unless many of them were removed.
-- ARGV: epoch, place of the entry, its header in the copy, the time of the copy
-- Returns nothing if the entry does not exist. The thread's sequence number is copied, so that no number is reused: the
-- parent of an entry may have been written again, with a higher number than the copy.
local thread = life(KEYS[1], get('thread'))
local seq, _, last = named(ARGV[2])
if not thread or thread.epoch ~= ARGV[1] or not last or last.state == 'ghost' then
  return {}
end
last.at = last.at < ARGV[4] and ARGV[4] or last.at
local reply, heads, runs, logs = {}, {}, {}, {}
local function put(name, value)
  table.insert(reply, name)
  table.insert(reply, value)
end

local function put_writes(e)
  local n = 0
  local value = get(field('write', e.ns, e.id, n))
  while value do
    put(field('write', e.ns, e.id, n), value)
    n = n + 1
    value = get(field('write', e.ns, e.id, n))
  end
end

-- Of each log, the items from the first to the last that an entry refers to.
local function note(e)
  for channel, shown in e.refs:gmatch('([^ :]+):%d+:([^ ]+)') do
    local log = field(e.ns, channel)
    local range = logs[log] or { math.huge, 0 }
    logs[log] = range
    for lo, hi in runs_in(shown) do
      range[1], range[2] = math.min(range[1], lo), math.max(range[2], hi)
    end
  end
end

thread.visible = 0
each_entry(KEYS[1], tonumber(seq) + 1, function(number, entry)
  local e = parse(entry)
  local name = string.format('%d', number)
  if name == seq then
    e.state, e.at = 'trunk', last.at
    entry = line_of(e) .. ARGV[3]
  else
    put_writes(e)
  end
  put('entry:' .. name, entry)
  put(field('id', e.ns, e.id), e.state == 'ghost' and name .. ' ghost' or name)
  note(e)
  if e.run ~= '' then
    runs[e.run] = (runs[e.run] or 0) + 1
  end
  if e.state ~= 'ghost' then
    thread.visible = thread.visible + 1
    local head = heads[e.ns]
    if not head or (head.state ~= 'trunk' and e.state == 'trunk') then
      heads[e.ns] = { state = e.state, line = table.concat({ name, e.state, e.id }, ' ') }
    end
  end
end)

local MOST_ITEMS = 1024 -- core.rows.MOST_ITEMS: no row contains more

-- After many missing numbers in a row (pruned, or large by damage), the names of the remaining fields are read once.
local names
local function put_left(log, first, last)
  names = names or redis.call('HKEYS', KEYS[1])
  for _, name in ipairs(names) do
    local of, number = name:match('^item:(.*):(%d+)$')
    if of == log and tonumber(number) >= first and tonumber(number) < last then
      put(name, get(name))
    end
  end
end

for log, range in pairs(logs) do
  put('end:' .. log, get('end:' .. log) or damaged('the field "end:' .. log .. '"'))
  local number, missing = math.max(0, range[1] - MOST_ITEMS + 1), 0
  while number < range[2] and missing < 2 * MOST_ITEMS do
    local name = string.format('item:%s:%d', log, number)
    local value = get(name)
    if value then
      put(name, value)
    end
    missing = value and 0 or missing + 1
    number = number + math.max(1, value and tonumber(value:match('^%d+')) or 1)
  end
  if number < range[2] then
    put_left(log, number, range[2])
  end
end
for ns, head in pairs(heads) do
  put(field('head', ns), head.line)
end
for run, entries in pairs(runs) do
  put('run:' .. run, string.format('%d', entries))
end
local ttl = get('ttl')
if ttl then
  put('ttl', ttl)
end
-- The index sorts by the time before percent-encoding; NUL separates, and \1 escapes both.
local at = last.at:gsub('%%(%x%x)', function(code) return string.char(tonumber(code, 16)) end)
at = at:gsub('[%z\1]', function(byte) return byte == '\1' and '\1\2' or '\1\1' end)
thread.member = at .. (thread.member:match('%z.*$') or '\0')
put('thread', life_line(thread))
return reply
