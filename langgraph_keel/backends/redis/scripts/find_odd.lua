-- Defects of a thread's keys: each time the position of the key and the defect. KEYS are the thread, its cells and
-- their names. With: fields, cells
-- Grows with: all fields of these keys. ARGV: the maximum of defects
local most, odd = tonumber(ARGV[1]), {}

-- Not string.format: its %s ends at a NUL.
local function see(key, what, name, is_wrong)
  if #odd < most then
    table.insert(odd, { key - 1, 'the ' .. what .. ' "' .. name .. '" ' .. is_wrong })
  end
end

local function is_number(text)
  return text and #text <= MOST_DIGITS and not text:find('%D')
end

-- For each kind of field, a function that returns whether a field is valid.
local is_ours, thread = pcall(life, KEYS[1], get('thread'))
local is_sound = {
  thread = function() return is_ours end,
  ttl = function(_, value) return is_number(value) end,
  run = function(_, value) return is_number(value) end,
  head = function(rest, value)
    local _, id = head_of('head', value)
    return entry_at('head', value, rest, id)
  end,
  id = function(rest, value)
    local ns, id = rest:match('^([^:]*):([^:]*)$')
    local _, _, e = entry_at('id', value, ns, id)
    return (e.state == 'ghost') == (value:find(' ghost', 1, true) ~= nil)
  end,
  entry = function(rest, value)
    local e = parse(value)
    return is_number(rest) and tonumber(rest) <= thread.seq and (get(field('id', e.ns, e.id)) or ''):match('^%d+') == rest
  end,
  ['end'] = function(rest, value) return rest:find('^[^:]*:[^:]*$') and is_number(value) end,
  item = function(rest, value)
    local log, lo = rest:match('^([^:]*:[^:]*):(%d+)$')
    local count, last = value:match('^(%d+) '), log and get('end:' .. log)
    return is_number(lo) and is_number(count) and tonumber(count) > 0 and is_number(last)
      and lo + count <= tonumber(last)
  end,
  write = function(rest, value)
    local place, n = rest:match('^([^:]*:[^:]*):(%d+)$')
    return place and value:find('^[^ ]* [^ ]* ') and (n == '0' or get(string.format('write:%s:%d', place, n - 1)))
  end,
}
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  local kind, rest = name:match('^(%l+):?(.*)$')
  local check = is_sound[kind]
  local ran, sound = pcall(check or error, rest, get(name))
  if not ran or not sound then
    see(1, 'field', name, 'is damaged')
  end
end

local listed = {}
for _, name in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
  local origin, cell = name:match('^@([^:]*):(.*)$')
  local head, rest = name:match('^%^(.*):%d+:(.*)$')
  cell = cell or head and head .. rest
  local value = redis.call('HGET', KEYS[2], cell or name)
  listed[name] = true
  -- A script that was refused halfway leaves a name without a cell; readers skip it.
  if not (cell or name):find('^%l+:[%w_][%w._-]*$') or value and origin
    and value:match('^[^ ]* [^ ]* ([^ \n]*)') ~= origin or value and head and ranked(cell, value) ~= name then
    see(3, 'member', name, 'is damaged')
  end
end
for _, name in ipairs(redis.call('HKEYS', KEYS[2])) do
  local cell = name:match('^(%l+:[%w_][%w._-]*)$')
  local value = redis.call('HGET', KEYS[2], name)
  local origin, by_rank = cell and value:match('^%w+ %d* ([^ \n]*)[^\n]*\n'), cell and ranked(cell, value)
  if cell and not origin or not cell and not redis.call('HGET', KEYS[2], name:match('^(.*):body$') or '') then
    see(2, 'field', name, 'is damaged')
  elseif cell and (not listed[name] or origin ~= '' and not listed['@' .. origin .. ':' .. name]
    or by_rank and not listed[by_rank]) then
    see(3, 'member of', name, 'is missing')
  end
end
return odd
