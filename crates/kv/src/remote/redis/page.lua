-- A page of a scan. KEYS: keys, values. ARGV: first and last of the range, most entries.
local keys = redis.call('ZRANGEBYLEX', KEYS[1], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])
if #keys == 0 then return { keys, {} } end
return { keys, redis.call('HMGET', KEYS[2], unpack(keys)) }
