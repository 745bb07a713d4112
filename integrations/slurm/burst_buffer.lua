-- Forebay's plugin for Slurm's burst_buffer/lua (22.05 and newer). It lies beside slurm.conf,
-- with forebay-bb, forebay_directives.lua and forebay_bb.conf; README.md says how to install it
-- and what a job writes.
--
-- Slurm loads this file anew for each call, so nothing is kept but in files below `records`.
--   In slurmctld, with its locks held and without a timeout: slurm_bb_job_process,
--   slurm_bb_paths. They read small local files, start no process, and touch no path of a user: a
--   PFS that hangs would stop slurmctld.
--   In a thread of slurmctld, without a timeout: slurm_bb_pools. It tells what the last `forebay
--   status` has said, and starts the next one in the background.
--   In a process of slurmscriptd, with a timeout: all others. They may wait.
-- Slurm 22.05 names the job's user first in slurm_bb_setup; paths are looked at from there on, by
-- forebay-bb, as that user.

local FOLDER = debug.getinfo(1, "S").source:match("^@(.*)/[^/]*$") or "."
local bb = dofile(FOLDER .. "/forebay_directives.lua")
local fail, printable, read_file, json = bb.fail, bb.printable, bb.read_file, bb.json
local NAMED_FILES_MAX = 3
local LOGGED_FILES_MAX = 200
-- After this the last status says nothing any more.
local STATUS_S_MAX = 180

local function settings()
    return bb.settings(FOLDER)
end

-- -------------------------------------------------------------------------- what is known of a job

local function record_path(conf, job)
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
    local path = record_path(conf, job)
    local file, problem = io.open(path .. ".new", "wb")
    if not file then
        fail("records: %s", problem)
    end
    local fine = file:write(table.concat(lines))
    fine = file:close() and fine
    if not fine or not os.rename(path .. ".new", path) then
        fail("%s cannot be written", path)
    end
end

-- The record, whose first item is of the job itself; nil where there is none.
local function load_record(conf, job)
    local text = read_file(record_path(conf, job))
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
    return record[1] and record[1].uid and record or fail("%s is damaged", record_path(conf, job))
end

-- --------------------------------------------------------------------------------- other processes

local function quoted(list)
    local found = {}
    for at, word in ipairs(list) do
        found[at] = "'" .. tostring(word):gsub("'", "'\\''") .. "'"
    end
    return table.concat(found, " ")
end

-- Runs a program: what it wrote, and its exit code.
local function run(list)
    local pipe = io.popen(quoted(list) .. " </dev/null 2>&1; printf '\\n%d' $?", "r")
        or fail("no process can be started")
    local output = pipe:read("*a")
    pipe:close()
    local text, code = output:match("^(.*)\n(%d+)$")
    return text or "", tonumber(code) or 1
end

-- Runs forebay-bb as the job's user.
local function as_user(conf, uid, ...)
    if not uid:find("^%d+$") or tonumber(uid) == 0 then
        fail("user %s may have no burst buffer", uid)
    end
    local helper = FOLDER .. "/forebay-bb"
    local list = { "/usr/bin/sudo", "-n", "-u", "#" .. uid, "--", helper }
    if conf.become == "setpriv" then
        local name, code = run({ "/usr/bin/id", "-g", "--", uid })
        if code ~= 0 then
            fail("user %s is not known on this node", uid)
        end
        list = { "/usr/bin/setpriv", "--reuid=" .. uid, "--regid=" .. name:match("%d+"), "--init-groups",
            "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--reset-env", "--", helper }
    end
    for _, word in ipairs({ ... }) do
        list[#list + 1] = word
    end
    return run(list)
end

local function first_lines(text)
    return (text:gsub("%s+$", ""):gsub("\n+", "; "))
end

-- One movement of the job's user. Returns what it moved, and a problem.
local function move(conf, uid, verb, seconds, item)
    local text, code = as_user(conf, uid, verb, ("%d"):format(math.max(seconds, 1)), item.kind, item.path)
    local said = json(text:match("^({\n.*\n})") or text:match("\n({\n.*\n})") or "")
    local moved = said and said.bytes_total or 0
    if code == 0 then
        return moved, nil
    elseif not said then
        return 0, ("%s: %s"):format(item.path, text ~= "" and first_lines(text) or "exit code " .. code)
    end
    local named, all = {}, {}
    for _, failure in ipairs(said.failures or {}) do
        all[#all + 1] = ("%s: %s"):format(failure.path or "?", failure.error or failure.errno or "?")
    end
    for _, left in ipairs(said.left or {}) do
        all[#all + 1] = ("%s: not in time"):format(type(left) == "table" and left.path or left)
    end
    for at = 1, math.min(#all, NAMED_FILES_MAX) do
        named[at] = all[at]
    end
    for at = 1, math.min(#all, LOGGED_FILES_MAX) do
        slurm.log_error("forebay: %s", printable(verb .. ": " .. all[at]))
    end
    if #all > #named then
        named[#named + 1] = ("and %d more"):format(#all - #named)
    elseif #all == 0 then
        named[1] = ("%s: exit code %d, %s"):format(item.path, code, tostring(said.outcome))
    end
    return moved, table.concat(named, "; ")
end

-- The last status, how old it is, and its numbers. Starts no process.
local function last_status(conf)
    local text = read_file(conf.records .. "/status")
    local time, rest = (text or ""):match("^(%d+)\n(.*)$")
    local said = time and json(rest)
    if not said then
        return nil
    end
    local capacity = 0
    for _, tier in ipairs(said.tiers or {}) do
        if tier.name ~= "pfs" and not tier.out_of_reach then
            capacity = capacity + tier.capacity_bytes
        end
    end
    return said, os.time() - tonumber(time), capacity
end

-- Asks for the status; the shell goes on by itself with `&` at the end.
local function ask_status(conf, seconds, ending)
    local new = conf.records .. "/status.new"
    local inner = ("umask 077; new=%s.$$; { date +%%s && timeout -k 1 %d %s; } >\"$new\" 2>/dev/null "
        .. "&& mv \"$new\" %s || rm -f \"$new\""):format(quoted({ new }), seconds,
        quoted({ conf.forebay, "status", "--json", "--state", conf.burst_buffer }), quoted({ conf.records .. "/status" }))
    os.execute("setsid sh -c " .. quoted({ inner }) .. " </dev/null >/dev/null 2>&1 " .. ending)
end

-- -------------------------------------------------------------------------------- what Slurm calls

-- Runs a step; a failure is a line for the user and the log.
local function guarded(name, job, step)
    local fine, result, message = pcall(step)
    if fine then
        return result or slurm.SUCCESS, message or ""
    end
    local problem = printable(type(result) == "table" and result.problem or "internal: " .. tostring(result))
    slurm.log_error("forebay: %s of job %s: %s", name, tostring(job), problem)
    return slurm.ERROR, problem
end

-- At submission, in slurmctld: what a script says, without a look at any path.
function slurm_bb_job_process(script_path)
    return guarded("submission", script_path, function()
        local conf = settings()
        local script = read_file(script_path) or fail("the script cannot be read")
        bb.check_symbols(script)
        local _, capacity = bb.wishes(script, conf)
        local said, _, there = last_status(conf)
        if capacity and said and capacity > there then
            fail("capacity= asks for %.0f MiB; the burst buffer has %.0f MiB", capacity / 2 ^ 20, there / 2 ^ 20)
        end
    end)
end

-- Every 30 s, in a thread of slurmctld: what there is, and what is neither undrained nor promised.
function slurm_bb_pools()
    local conf
    local code, message = guarded("pools", "-", function()
        conf = settings()
        -- Only where nothing was ever heard, so at a first start, somebody waits: two seconds at
        -- most.
        local said, age, capacity = last_status(conf)
        if said then
            ask_status(conf, 25, "&")
        else
            ask_status(conf, 2, "")
            said, age, capacity = last_status(conf)
        end
        local granularity = bb.bytes_of(conf.granularity)
        local quantity = math.floor((capacity or 0) / granularity)
        local free = 0
        if said and age <= STATUS_S_MAX then
            free = math.max(quantity - math.ceil(said.dirty_bytes / granularity), 0)
        else
            slurm.log_error("forebay: no burst buffer has answered for 3 minutes; no job gets a part of it")
        end
        return slurm.SUCCESS, ('{"pools":[{"id":"%s","granularity":%.0f,"quantity":%.0f,"free":%.0f}]}'):format(
            conf.pool, granularity, quantity, free)
    end)
    -- A failure here would have jobs taken without being looked at.
    if code ~= slurm.SUCCESS then
        return slurm.SUCCESS, '{"pools":[{"id":"forebay","granularity":1,"quantity":0,"free":0}]}'
    end
    return code, message
end

-- Gives the job its directory. Its name cannot be foreseen, so that nobody has taken it.
local function make_job_dir(conf, job, uid, mode)
    local random = io.open("/dev/urandom", "rb") or fail("/dev/urandom cannot be read")
    local name = job .. "-" .. random:read(8):gsub(".", function(letter)
        return ("%02x"):format(letter:byte())
    end)
    random:close()
    local text, code = as_user(conf, uid, "make-dir", "jobs", name, mode)
    return code == 0 and name or fail(first_lines(text))
end

-- Looks at all that can be looked at before anything is moved.
local function look(conf, uid, items)
    local paths, lists = { "check" }, { "check-list" }
    local problems = {}
    for _, item in ipairs(items) do
        if item.kind == "list" then
            lists[#lists + 1] = item.path
        elseif item.what == "stage_in" then
            paths[#paths + 1] = item.path
        elseif item.what == "persistent" or item.what == "destroy_persistent" then
            local text, code = as_user(conf, uid, "usable-dir", item.name)
            problems[#problems + 1] = code ~= 0 and first_lines(text) or nil
        end
    end
    for _, list in ipairs({ paths, lists }) do
        if #list > 1 then
            local text, code = as_user(conf, uid, (unpack or table.unpack)(list))
            problems[#problems + 1] = code ~= 0 and first_lines(text) or nil
        end
    end
    if #problems > 0 then
        fail(table.concat(problems, "; "))
    end
end

-- Before the stage-in, as soon as the pool has room: the first call that knows the user.
function slurm_bb_setup(job, uid, _, _, _, script_path)
    return guarded("setup", job, function()
        local conf = settings()
        local items, capacity = bb.wishes(read_file(script_path) or fail("the script cannot be read"), conf)
        local own = { uid = uid, capacity = capacity or 0 }
        local record = { own, (unpack or table.unpack)(items) }
        for _, item in ipairs(items) do
            if item.what == "create_persistent" then
                local text, code = as_user(conf, uid, "make-dir", "persistent", item.name, item.mode)
                if code ~= 0 then
                    fail(first_lines(text))
                end
            end
        end
        look(conf, uid, items)
        for _, item in ipairs(items) do
            if item.what == "job" then
                own.dir = make_job_dir(conf, job, uid, item.mode)
                -- On record at once, so that teardown finds the directory.
                save(conf, job, record)
            end
        end
        save(conf, job, record)
    end)
end

local function known(conf, job)
    return load_record(conf, job) or fail("nothing is known of this job; `scontrol requeue` begins anew")
end

-- Moves all of a kind within the time, goes on after failures, and fails with all of them. A
-- job's directory that still has results is kept for good.
local function move_all(conf, job, record, what, verb, seconds)
    local until_s, bytes, problems, left = os.time() + tonumber(seconds), 0, {}, nil
    for _, item in ipairs(record) do
        local problem, moved
        if item.what == what and item.own then
            local text, code = as_user(conf, record[1].uid, "move", record[1].dir, item.own, item.path)
            problem = code ~= 0 and first_lines(text) or nil
            left = left or problem and "yes"
        end
        if item.what == what and not problem then
            moved, problem = move(conf, record[1].uid, verb, until_s - os.time(), item)
            bytes = bytes + moved
        end
        problems[#problems + 1] = problem
    end
    if record[1].kept ~= left then
        record[1].kept = left
        save(conf, job, record)
    end
    if #problems > 0 then
        fail("%s", table.concat(problems, "; "))
    end
    return bytes
end

-- The stage-in. The job starts when it has ended, and is held where it fails.
function slurm_bb_data_in(job)
    return guarded("stage-in", job, function()
        local conf = settings()
        local record = known(conf, job)
        local bytes = move_all(conf, job, record, "stage_in", "stage-in", conf.stage_in_timeout)
        for _, item in ipairs(record) do
            if item.what == "persistent" then
                local path = { kind = "path", path = conf.persistent .. "/" .. item.name }
                -- Files of others there are theirs to move: they are read from where they are.
                local _, problem = move(conf, record[1].uid, "stage-in", tonumber(conf.stage_in_timeout), path)
                if problem then
                    slurm.log_info("forebay: persistent buffer %s of job %s: %s", item.name, job, printable(problem))
                end
            end
        end
        record[1].staged = ("%.0f"):format(bytes)
        save(conf, job, record)
    end)
end

-- What was staged in counts where it is more than what was asked for.
function slurm_bb_real_size(job)
    return guarded("size", job, function()
        local own = known(settings(), job)[1]
        return slurm.SUCCESS, ("%.0f"):format(math.max(tonumber(own.staged or 0), tonumber(own.capacity)))
    end)
end

-- The job's environment, in slurmctld: from the record alone.
function slurm_bb_paths(job, _, path_file)
    return guarded("environment", job, function()
        local conf = settings()
        local record = known(conf, job)
        local lines = { "FOREBAY_MOUNT=" .. conf.mount }
        if record[1].dir then
            lines[#lines + 1] = "FOREBAY_JOB_DIR=" .. conf.jobs .. "/" .. record[1].dir
            lines[#lines + 1] = "DW_JOB_STRIPED=" .. conf.jobs .. "/" .. record[1].dir
        end
        for _, item in ipairs(record) do
            if item.what == "persistent" or item.what == "create_persistent" then
                local path = conf.persistent .. "/" .. item.name
                lines[#lines + 1] = "FOREBAY_PERSISTENT_" .. item.name .. "=" .. path
                lines[#lines + 1] = "DW_PERSISTENT_STRIPED_" .. item.name .. "=" .. path
            end
        end
        local file = io.open(path_file, "wb") or fail("%s cannot be written", path_file)
        local fine = file:write(table.concat(lines, "\n"), "\n")
        fine = file:close() and fine
        return fine and slurm.SUCCESS or fail("%s cannot be written", path_file)
    end)
end

-- On its nodes already, but not begun: a burst buffer that does not answer has the job queued
-- again.
function slurm_bb_pre_run(job)
    return guarded("start", job, function()
        local conf = settings()
        local text, code = run({ "timeout", "-k", "1", "30", conf.forebay, "status", "--json", "--state", conf.burst_buffer })
        if code ~= 0 then
            fail("the burst buffer does not answer: %s", first_lines(text))
        end
    end)
end

function slurm_bb_post_run()
    return slurm.SUCCESS, ""
end

-- The stage-out. Where it fails, Slurm keeps the job, its part of the pool and this reason.
function slurm_bb_data_out(job)
    return guarded("stage-out", job, function()
        local conf = settings()
        local record = known(conf, job)
        move_all(conf, job, record, "stage_out", "stage-out", conf.stage_out_timeout)
        for _, item in ipairs(record) do
            if item.what == "destroy_persistent" then
                local text, code = as_user(conf, record[1].uid, "remove-dir", "persistent", item.name)
                if code ~= 0 then
                    fail(first_lines(text))
                end
            end
        end
    end)
end

-- After everything, also of cancelled jobs: what was the job's alone goes. Files of users
-- elsewhere stay.
function slurm_bb_job_teardown(job)
    return guarded("teardown", job, function()
        local conf = settings()
        local record = load_record(conf, job)
        if not record then
            return slurm.SUCCESS
        end
        local uid = record[1].uid
        for _, item in ipairs(record) do
            if item.release == "yes" then
                -- What is undrained stays, and is no failure here.
                move(conf, uid, "release", 60, item)
            end
        end
        if record[1].kept then
            slurm.log_info("forebay: job %s: results are left in %s/%s", job, conf.jobs, record[1].dir)
        elseif record[1].dir then
            local text, code = as_user(conf, uid, "remove-dir", "jobs", record[1].dir)
            if code ~= 0 then
                fail(first_lines(text))
            end
        end
        os.remove(record_path(conf, job))
    end)
end

-- `scontrol show bbstat`: numbers only, for anybody may ask.
function slurm_bb_get_status()
    return guarded("status", "-", function()
        local conf = settings()
        local said, age, capacity = last_status(conf)
        if not said then
            return slurm.SUCCESS, "No burst buffer has answered yet.\n"
        end
        local used = 0
        for _, tier in ipairs(said.tiers) do
            used = used + (tier.name == "pfs" and 0 or tier.used_bytes)
        end
        local function mib(bytes)
            return ("%.0f MiB"):format(bytes / 2 ^ 20)
        end
        return slurm.SUCCESS, ("%s, %d s ago: %s, in use %s, not on the PFS yet %s, drained at %s/s, "
            .. "all in %s, files that fail %.0f\n"):format(conf.mount, age, mib(capacity), mib(used), mib(said.dirty_bytes),
            mib(said.drain.rate_bytes_per_s), said.drain.eta_s and ("%.0f s"):format(said.drain.eta_s) or "an unknown time",
            said.drain.failing_files)
    end)
end
