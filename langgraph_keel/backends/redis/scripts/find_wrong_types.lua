-- Which keys of a bucket hold something else than Keel puts there: the position of each, and what it holds.
-- Grows with: the keys. ARGV: for each what it should hold.
local wrong = {}
for number, key in ipairs(KEYS) do
  local held = redis.call('TYPE', key).ok
  if held ~= 'none' and held ~= ARGV[number] then
    table.insert(wrong, { number - 1, held })
  end
end
return wrong
