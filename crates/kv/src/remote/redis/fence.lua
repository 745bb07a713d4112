-- Raises the incarnation of the holder's mark. KEYS: mark. ARGV: the start of the mark that names the holder, the incarnation.
-- Returns the mark as it was.
local mark = redis.call('GET', KEYS[1])
if mark and string.sub(mark, 1, #ARGV[1]) == ARGV[1] then
    redis.call('SET', KEYS[1], ARGV[1] .. ARGV[2] .. string.sub(mark, #ARGV[1] + #ARGV[2] + 1))
end
return mark
