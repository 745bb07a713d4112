-- Takes hold of a store. KEYS: mark, hold. ARGV: the holder's word, how long it is valid (ms), the mark expected ('' for none), the
-- mark to set, '1' to take the store from somebody who holds it.
local held = redis.call('GET', KEYS[2])
if held and ARGV[5] ~= '1' then return 'held' end
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[3] then return 'mark' end
redis.call('SET', KEYS[1], ARGV[4])
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return 'done'
