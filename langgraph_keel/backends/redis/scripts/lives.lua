-- Shared. KEYS are the hashes of many threads, then the index of their bucket; the last ARGV are the epochs of these
-- threads in the index. With: fields
local THREADS = #KEYS - 1

-- The life that the index names; nil if it ended: expired, deleted by hand, or followed by another. The following life
-- is in the index too, unless it has only writes; otherwise this epoch is damaged.
local function indexed(number)
  local thread = life(KEYS[number], redis.call('HGET', KEYS[number], 'thread'))
  if not thread or thread.epoch == ARGV[#ARGV - THREADS + number] then
    return thread
  end
  if thread.member ~= '' and not redis.call('ZSCORE', KEYS[#KEYS], thread.member .. '\0' .. thread.epoch) then
    error('KEELDAMAGED the index has another epoch of ' .. KEYS[number])
  end
end
