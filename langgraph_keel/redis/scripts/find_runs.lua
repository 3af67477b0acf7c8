-- Store.find_runs among the threads of KEYS. Grows with: threads times runs. ARGV: the runs
-- Replies with the positions of those that have one.
local found = {}
for number, key in ipairs(KEYS) do
  for _, run in ipairs(ARGV) do
    if redis.call('HEXISTS', key, 'run:' .. run) == 1 then
      table.insert(found, number - 1)
      break
    end
  end
end
return found
