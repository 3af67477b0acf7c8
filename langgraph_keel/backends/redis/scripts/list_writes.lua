-- Store.list_writes. With: fields
-- Grows with: all fields of the thread.
-- ARGV: the field to continue after, and the limit. Returns fields and values in turn.
local function split(name)
  local place, n = name:match('^(.*):(%d+)$')
  return place or '', tonumber(n) or 0
end

-- In order of arrival per checkpoint: as text, the tenth would come before the second.
local function precedes(a, b)
  local place, n = split(a)
  local other, m = split(b)
  if place == other then
    return n < m
  end
  return place < other
end

local names = {}
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  if name:sub(1, 6) == 'write:' and precedes(ARGV[1], name) then
    table.insert(names, name)
  end
end
table.sort(names, precedes)
local page = {}
for n = 1, math.min(#names, tonumber(ARGV[2])) do
  table.insert(page, names[n])
  table.insert(page, get(names[n]))
end
return page
