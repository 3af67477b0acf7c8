-- Shared. KEYS are the hashes of many threads; the last of ARGV, as many, their epochs as the index has them.
-- With: fields

-- The life that the index means; nil if it is no more: expired, deleted by hand, or followed by another.
local function indexed(number)
  local thread = life(KEYS[number], redis.call('HGET', KEYS[number], 'thread'))
  if thread and thread.epoch == ARGV[#ARGV - #KEYS + number] then
    return thread
  end
end
