-- Store.find_runs among the threads of KEYS. With: fields, lives
-- Grows with: threads times runs. ARGV: the runs; then as in lives
-- Returns the positions of threads that have one.
local found = {}
for number = 1, THREADS do
  for n = 1, indexed(number) and #ARGV - THREADS or 0 do
    if redis.call('HEXISTS', KEYS[number], 'run:' .. ARGV[n]) == 1 then
      table.insert(found, number - 1)
      break
    end
  end
end
return found
