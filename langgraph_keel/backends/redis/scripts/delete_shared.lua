-- Store.delete_thread: the shared cells (KEYS as in cells, of the empty id) that this thread wrote.
-- With: cells
-- Grows with: these cells. ARGV: the origin
local first = '@' .. ARGV[1] .. ':'
for _, name in ipairs(redis.call('ZRANGEBYLEX', KEYS[2], '[' .. first, '(@' .. ARGV[1] .. ';')) do
  drop(name:sub(#first + 1), name)
end
return 1
