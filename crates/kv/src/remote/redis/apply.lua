-- One group of commits. KEYS: mark, keys, values, undo.
-- ARGV: mark expected, mark to set, numbers of keys that must be absent, of pairs that must be there, of puts and of deletes; then
-- the absent keys, the keys of the pairs, the values of the pairs, of each put key and value, the keys of the deletes.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'mark' end
local absent, there = tonumber(ARGV[3]), tonumber(ARGV[4])
local puts, deletes = tonumber(ARGV[5]), tonumber(ARGV[6])
-- So many keys at a time: more do not fit on the stack.
local step = 2000
local at = 7
for from = at, at + absent - 1, step do
    local to = math.min(from + step, at + absent) - 1
    local held = redis.call('HMGET', KEYS[3], unpack(ARGV, from, to))
    for i = 1, to - from + 1 do
        if held[i] then return 'conflict' end
    end
end
at = at + absent
for from = at, at + there - 1, step do
    local to = math.min(from + step, at + there) - 1
    local held = redis.call('HMGET', KEYS[3], unpack(ARGV, from, to))
    for i = 1, to - from + 1 do
        if held[i] ~= ARGV[from + i - 1 + there] then return 'conflict' end
    end
end
at = at + 2 * there
-- What the group replaces, so that it can be taken back.
local changed, first = {}, at
for i = 0, puts - 1 do changed[i + 1] = ARGV[first + 2 * i] end
local gone = first + 2 * puts
for i = 0, deletes - 1 do changed[puts + i + 1] = ARGV[gone + i] end
local undo = {}
for from = 1, #changed, step do
    local to = math.min(from + step - 1, #changed)
    local held = redis.call('HMGET', KEYS[3], unpack(changed, from, to))
    for i = from, to do
        local value = held[i - from + 1]
        if value then
            undo[#undo + 1] = changed[i]
            undo[#undo + 1] = value
        end
    end
end
-- The first command that changes something is one that a server without memory refuses.
redis.call('SET', KEYS[1], ARGV[2])
redis.call('DEL', KEYS[4])
for from = 1, #undo, 2 * step do
    redis.call('HSET', KEYS[4], unpack(undo, from, math.min(from + 2 * step - 1, #undo)))
end
for from = 1, puts, step do
    local to = math.min(from + step - 1, puts)
    redis.call('HSET', KEYS[3], unpack(ARGV, first + 2 * (from - 1), first + 2 * to - 1))
    local scored = {}
    for i = from, to do
        scored[2 * (i - from) + 1] = 0
        scored[2 * (i - from) + 2] = changed[i]
    end
    redis.call('ZADD', KEYS[2], unpack(scored))
end
for from = puts + 1, #changed, step do
    local to = math.min(from + step - 1, #changed)
    redis.call('HDEL', KEYS[3], unpack(changed, from, to))
    redis.call('ZREM', KEYS[2], unpack(changed, from, to))
end
return 'done'
