-- Store.remove_rows. With: fields
-- Grows with: all fields of the thread, and the bodies of the removed rows.
-- ARGV: epoch; then per item log: namespace and channel, its end, and the live runs in ascending order
if (life(KEYS[1], get('thread')) or {}).epoch ~= ARGV[1] then
  return 0
end
local logs = {}
for n = 2, #ARGV, 3 do
  local runs = {}
  for lo, hi in ARGV[n + 2]:gmatch('(%d+)-(%d+)') do
    table.insert(runs, { tonumber(lo), tonumber(hi) })
  end
  logs[ARGV[n]] = { below = tonumber(ARGV[n + 1]), runs = runs }
end

-- The first run that ends after an item, by binary search.
local function run_after(runs, number)
  local low, high = 1, #runs + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if runs[middle][2] > number then
      high = middle
    else
      low = middle + 1
    end
  end
  return runs[low]
end

local gone = {}
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  local log, lo = name:match('^item:([^:]*:[^:]*):(%d+)$')
  lo = tonumber(lo)
  if log and logs[log] and lo < logs[log].below then
    local run = run_after(logs[log].runs, lo)
    local is_live = run and (run[1] <= lo or run[1] < lo + tonumber(get(name):match('^%d+')))
    if not is_live then
      table.insert(gone, name)
    end
  end
end
in_parts('HDEL', KEYS[1], gone)
return #gone
