-- Store.list_writes. With: fields
-- Grows with: all fields of the thread.
-- ARGV: the field after which the page begins, and most of them. Replies with fields and values in turn.
local names = {}
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  if name:sub(1, 6) == 'write:' and name > ARGV[1] then
    table.insert(names, name)
  end
end
table.sort(names)
local page = {}
for n = 1, math.min(#names, tonumber(ARGV[2])) do
  table.insert(page, names[n])
  table.insert(page, get(names[n]))
end
return page
