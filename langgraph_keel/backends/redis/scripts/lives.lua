-- Shared. KEYS are the hashes of many threads, and after them the index of their bucket; the last of ARGV are the epochs
-- of these threads as the index has them. With: fields
local THREADS = #KEYS - 1

-- The life that the index means; nil if it is no more: expired, deleted by hand, or followed by another. One that
-- followed is in the index, too, unless it has writes only; else the epoch of this one is damaged.
local function indexed(number)
  local thread = life(KEYS[number], redis.call('HGET', KEYS[number], 'thread'))
  if not thread or thread.epoch == ARGV[#ARGV - THREADS + number] then
    return thread
  end
  if thread.member ~= '' and not redis.call('ZSCORE', KEYS[#KEYS], thread.member .. '\0' .. thread.epoch) then
    error('KEELDAMAGED the index has another epoch of ' .. KEYS[number])
  end
end
