-- Keys of a bucket with the wrong type: the position and type of each.
-- Grows with: the keys. ARGV: the expected type of each.
local wrong = {}
for number, key in ipairs(KEYS) do
  local held = redis.call('TYPE', key).ok
  if held ~= 'none' and held ~= ARGV[number] then
    table.insert(wrong, { number - 1, held })
  end
end
return wrong
