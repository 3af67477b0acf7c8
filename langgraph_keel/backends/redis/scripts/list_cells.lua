-- Store.list_cells.
-- Grows with: the page, without its bodies. ARGV: first and last name (as for ZRANGEBYLEX), limit
local from, to, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
local page, names = {}, {}
repeat
  names = redis.call('ZRANGEBYLEX', KEYS[2], from, to, 'LIMIT', 0, limit - #page)
  for _, name in ipairs(names) do
    local value = redis.call('HGET', KEYS[1], name)
    if value then
      table.insert(page, { name, value })
    end
    from = '(' .. name
  end
until #page == limit or #names == 0
return page
