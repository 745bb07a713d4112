-- Takes hold of a store. KEYS: mark, hold. ARGV: the holder's word, how long it is valid (ms), the mark expected ('' for none), the
-- mark to set, from whom the store may be taken: '' nobody, '*' anybody, else how the holder's word begins.
local held = redis.call('GET', KEYS[2])
local from = ARGV[5]
if held and from ~= '*' and (from == '' or string.sub(held, 1, #from) ~= from) then return 'held' end
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[3] then return 'mark' end
redis.call('SET', KEYS[1], ARGV[4])
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return 'done'
