-- The threads of one bucket, last activity first, and whether these are all; KEYS[1] is its index.
-- Grows with: the limit. ARGV: the member that the page comes after ('' for none), the limit (-1 for all)
local from = ARGV[1] == '' and '+' or '(' .. ARGV[1]
local found = redis.call('ZREVRANGEBYLEX', KEYS[1], from, '-', 'LIMIT', 0, ARGV[2])
return { #found ~= tonumber(ARGV[2]) and 1 or 0, found }
