-- Store.read_graph. With: fields
-- Grows with: all fields of the thread. Returns its entries with their headers.
local thread = life(KEYS[1], get('thread'))
if not thread then
  return {}
end
local heads, entries, ends = {}, {}, {}
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  local kind, rest = name:match('^(%l+):(.*)$')
  if kind == 'entry' then
    local entry = get(name)
    parse(entry)
    table.insert(entries, { tonumber(rest), entry })
  elseif kind == 'end' then
    local ns, channel = rest:match('^([^:]*):(.*)$')
    table.insert(ends, { ns, channel, tonumber(get(name)) })
  elseif kind == 'head' then
    local value = get(name)
    local _, id = head_of(name, value)
    table.insert(heads, tonumber((entry_at(name, value, rest, id))))
  end
end
return { thread.epoch, entries, ends, heads }
