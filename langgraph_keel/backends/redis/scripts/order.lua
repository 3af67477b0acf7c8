-- Shared. Entries in the order of their writes, newest first. With: fields
local GAP = 128

local function left(key, below)
  local seqs = {}
  for _, name in ipairs(redis.call('HKEYS', key)) do
    local seq = tonumber(name:match('^entry:(%d+)$'))
    if seq and seq < below then
      table.insert(seqs, seq)
    end
  end
  table.sort(seqs, function(a, b) return a > b end)
  return seqs
end

-- Calls see(seq, entry) for each entry below a sequence number, until it returns true.
-- Counts down; after many missing numbers in a row (pruned), the names of the remaining fields are read once.
local function each_entry(key, below, see)
  local missing = 0
  local seq = below - 1
  while seq > 0 and missing < GAP do
    local entry = redis.call('HGET', key, string.format('entry:%d', seq))
    missing = entry and 0 or missing + 1
    if entry and see(seq, entry) then
      return
    end
    seq = seq - 1
  end
  for _, number in ipairs(seq > 0 and left(key, seq + 1) or {}) do
    if see(number, redis.call('HGET', key, string.format('entry:%d', number))) then
      return
    end
  end
end
