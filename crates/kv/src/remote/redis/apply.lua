-- One group of commits. KEYS: mark, keys, values, undo.
-- ARGV: mark expected, mark to set, number of checks, puts and deletes; then of each check key and value ('=' before a value,
-- '' for an absent key), of each put key and value, of each delete its key.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'mark' end
local checks, puts, deletes = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local at = 6
for _ = 1, checks do
    local held = redis.call('HGET', KEYS[3], ARGV[at])
    local wanted = ARGV[at + 1]
    if held then held = '=' .. held else held = '' end
    if held ~= wanted then return 'conflict' end
    at = at + 2
end
-- What the group replaces, so that it can be taken back. Few enough at a time for the stack.
local changed, first = {}, at
for i = 0, puts - 1 do changed[i + 1] = ARGV[first + 2 * i] end
local gone = first + 2 * puts
for i = 0, deletes - 1 do changed[puts + i + 1] = ARGV[gone + i] end
local undo, step = {}, 2000
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
