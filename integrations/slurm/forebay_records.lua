-- What Forebay's Slurm plugin knows of jobs: a file for each in the folder `records`, which
-- burst_buffer.lua writes before it makes, moves or removes anything, so that nothing is forgotten
-- where Slurm ends a call. Nothing in this file starts a process or opens a path of a user.

local bb = ...
local fail, read_file = bb.fail, bb.read_file

local function path_of(conf, job)
    if not job:find("^%d+$") then
        fail("%s is no job", job)
    end
    return conf.records .. "/job-" .. job
end

local function encoded(text)
    return (tostring(text):gsub("[^%w/._%-]", function(letter)
        return ("%%%02x"):format(letter:byte())
    end))
end

local function decoded(text)
    return (text:gsub("%%(%x%x)", function(digits)
        return string.char(tonumber(digits, 16))
    end))
end

-- Writes a small file as a whole.
local function write(path, text)
    local file, problem = io.open(path .. ".new", "wb")
    if not file then
        fail("records: %s", problem)
    end
    local fine = file:write(text)
    fine = file:close() and fine
    if not fine or not os.rename(path .. ".new", path) then
        fail("%s cannot be written", path)
    end
end

-- A line for each thing: KEY=VALUE KEY=VALUE.
local function save(conf, job, record)
    local lines = {}
    for _, item in ipairs(record) do
        local pairs_of = {}
        for key, value in pairs(item) do
            pairs_of[#pairs_of + 1] = key .. "=" .. encoded(value)
        end
        lines[#lines + 1] = table.concat(pairs_of, " ") .. "\n"
    end
    write(path_of(conf, job), table.concat(lines))
end

-- The record, whose first item is of the job itself; nil where there is none.
local function load_record(conf, job)
    local text = read_file(path_of(conf, job))
    if not text then
        return nil
    end
    local record = {}
    for line in text:gmatch("[^\n]+") do
        local item = {}
        for key, value in line:gmatch("(%S-)=(%S*)") do
            item[key] = decoded(value)
        end
        record[#record + 1] = item
    end
    return record[1] and record[1].uid and record or fail("%s is damaged", path_of(conf, job))
end

return { path_of = path_of, write = write, save = save, load_record = load_record }
