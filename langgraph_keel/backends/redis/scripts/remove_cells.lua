-- Store.remove_cells. With: cells
-- Grows with: the cells. ARGV: each cell, and its expected token. Returns the number of removed cells.
local gone = 0
for n = 1, #ARGV, 2 do
  local held = redis.call('HGET', KEYS[1], ARGV[n])
  if held and token_of(held) == ARGV[n + 1] then
    drop(ARGV[n], shared(ARGV[n], held))
    gone = gone + 1
  end
end
return gone
