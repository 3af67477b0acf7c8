-- Members of a bucket's index that differ from their threads; KEYS[1] is the index, KEYS[2] the search terms of the
-- bucket's threads (life.lua), and the others their hashes. With: fields, order
-- Grows with: the threads. ARGV: the members. Ended lives and moved members are skipped.
local function mislisted(number, member)
  local key, epoch = KEYS[number + 2], member:match('[^%z]*$')
  local thread = life(key, redis.call('HGET', key, 'thread'))
  if not thread or thread.epoch ~= epoch or not redis.call('ZSCORE', KEYS[1], member) then
    return
  end
  if thread.member .. '\0' .. epoch ~= member then
    return { number - 1, 'place', thread.member == '' and '' or thread.member .. '\0' .. epoch }
  end
  local held = redis.call('HGET', KEYS[2], epoch)
  if held and held:match('^%d*|[^|]*|[^|]*|[^|]*|(.*)$') ~= member then
    return { number - 1, 'marks', '' }
  end
  local at
  each_entry(key, thread.seq + 1, function(_, entry)
    local e = parse(entry)
    at = e.state ~= 'ghost' and e.at
    return at
  end)
  at = at and at:gsub('%%(%x%x)', function(code) return string.char(tonumber(code, 16)) end)
  at = at and at:gsub('[%z\1]', function(byte) return byte == '\1' and '\1\2' or '\1\1' end)
  if at and at ~= member:match('^[^%z]*') then
    return { number - 1, 'time', at }
  end
end

local reply = {}
for number, member in ipairs(ARGV) do
  local is_sound, found = pcall(mislisted, number, member)
  if is_sound and found then
    table.insert(reply, found)
  end
end
return reply
