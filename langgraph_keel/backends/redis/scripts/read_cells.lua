-- Store.read_cells.
-- Grows with: the cells, with their bodies. ARGV: the cells. A missing cell is nil in the reply.
local found = {}
for n, name in ipairs(ARGV) do
  local value = redis.call('HGET', KEYS[1], name)
  found[n] = value and { value, redis.call('HGET', KEYS[1], name .. ':body') }
end
return found
