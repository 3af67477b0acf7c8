-- Store.read_history. With: fields, rows, parents
-- Grows with: the ancestors read until all channels are found, with their rows and batches; at most the whole thread.
-- ARGV: ns, id ('' for the head), and the channels
local ns, id = ARGV[1], ARGV[2]
local thread = life(KEYS[1], get('thread'))
local at = get(id == '' and field('head', ns) or field('id', ns, id))
if not at or (id ~= '' and at:find(' ghost', 1, true)) then
  return {}
end
local missing, wanted, count = {}, {}, 0
for n = 3, #ARGV do
  missing[ARGV[n]], wanted[ARGV[n]], count = true, true, count + 1
end

local function parent_of(seq)
  local parent = parse(get('entry:' .. seq)).parent
  if parent:sub(1, 1) == '#' then
    return parent:sub(2)
  end
  local found = parent ~= '' and get(field('id', ns, parent))
  return found and found:match('^%d+')
end

local start = at:match('^%d+') or damaged('the field of a head or id')
local ancestors, seen = {}, { [start] = true }
local seq = parent_of(start)
while seq and count > 0 and not seen[seq] do
  seen[seq] = true
  local entry = get('entry:' .. seq)
  if not entry then
    break
  end
  local e = parse(entry)
  take(ns, e.refs, wanted)
  table.insert(ancestors, { tonumber(seq), entry, shown(KEYS[1], ns, e.parent), batches(ns, e.id) })
  for channel in e.refs:gmatch('([^ :]+):%d+') do
    if missing[channel] then
      missing[channel], count = nil, count - 1
    end
  end
  seq = parent_of(seq)
end
return { thread.epoch, ancestors, all_rows() }
