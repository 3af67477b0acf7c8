-- Store.list_kinds. KEYS as in cells.lua.
-- Grows with: the kinds, and the names that are damaged.
local kinds, from = {}, '-'
while true do
  local name = redis.call('ZRANGEBYLEX', KEYS[2], from, '+', 'LIMIT', 0, 1)[1]
  if not name then
    return kinds
  end
  local kind = name:match('^(%l+):')
  if kind then
    table.insert(kinds, kind)
  end
  -- Skip all names with this prefix: ';' follows ':', and 'A' follows '@'. Damaged names are skipped.
  from = kind and '[' .. kind .. ';' or name:sub(1, 1) == '@' and '[A' or name:sub(1, 1) == '^' and '[_' or '(' .. name
end
