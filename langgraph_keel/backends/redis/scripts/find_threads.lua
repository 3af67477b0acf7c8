-- The threads of one bucket, latest activity first, and whether these are all; KEYS[1] is its index.
-- Grows with: the limit. ARGV: the member to continue after ('' for none), the limit (-1 for all),
-- 'down', or 'up' for the opposite order
local read, first, last = 'ZREVRANGEBYLEX', '+', '-'
if ARGV[3] == 'up' then
  read, first, last = 'ZRANGEBYLEX', '-', '+'
end
local from = ARGV[1] == '' and first or '(' .. ARGV[1]
local found = redis.call(read, KEYS[1], from, last, 'LIMIT', 0, ARGV[2])
return { #found ~= tonumber(ARGV[2]) and 1 or 0, found }
