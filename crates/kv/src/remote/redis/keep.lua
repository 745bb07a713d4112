-- Keeps the hold on a store. KEYS: mark, hold. ARGV: the holder's word, how long it is valid (ms), the start of the mark that names
-- the holder. A hold that has expired is taken again if nobody else has taken the store.
local mark = redis.call('GET', KEYS[1])
if not mark or string.sub(mark, 1, #ARGV[3]) ~= ARGV[3] then return 'lost' end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return 'done'
