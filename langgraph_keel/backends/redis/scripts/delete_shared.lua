-- Store.delete_thread: the cells that all threads share (KEYS as in cells, of the empty id) and that this one wrote.
-- With: cells
-- Grows with: what it has shared; constant if nothing. ARGV: the origin
local first = '@' .. ARGV[1] .. ':'
for _, name in ipairs(redis.call('ZRANGEBYLEX', KEYS[2], '[' .. first, '(@' .. ARGV[1] .. ';')) do
  drop(name:sub(#first + 1), name)
end
return 1
