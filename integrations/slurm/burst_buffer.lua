-- Forebay's plugin for Slurm's burst_buffer/lua (22.05 and newer). It lies beside slurm.conf,
-- with forebay-bb, forebay_directives.lua, forebay_records.lua and forebay_bb.conf; README.md says
-- how to install it and what a job writes.
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
local records = assert(loadfile(FOLDER .. "/forebay_records.lua"))(bb)
local save, load_record, write = records.save, records.load_record, records.write
local NAMED_FILES_MAX = 3
local LOGGED_FILES_MAX = 200
-- After this the last status says nothing any more.
local STATUS_S_MAX = 180
-- slurmctld may be at its start, or busy.
local ASKED_TIMES = 6
-- What forebay-bb says of a stage-out of paths that go with the job.
local LEADS_TO_JOBS = 9
-- How often, and for how long, directories are looked for that a job of before has left.
local SWEEP_EVERY_S, SWEEP_S_MAX = 600, 30

local function settings()
    return bb.settings(FOLDER)
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

-- Asks Slurm for jobs: lines of the number, how often it was queued again, and the state. They have
-- no word that a user has written. Never called with slurmctld's locks held.
local function squeue(conf, ...)
    local list = { conf.squeue, "-h", "-a", "-t", "all", "-O", "JobID:20,RestartCnt:20,State:40", ... }
    local file = not os.getenv("SLURM_CONF") and io.open(FOLDER .. "/slurm.conf", "rb")
    if file then
        -- Where slurmctld was started with -f.
        file:close()
        table.insert(list, 1, "SLURM_CONF=" .. FOLDER .. "/slurm.conf")
        table.insert(list, 1, "/usr/bin/env")
    end
    return run(list)
end

-- The job's state and how often it was queued again; nothing where Slurm knows it no more.
local function ask_slurm(conf, job)
    local text, code
    for attempt = 1, ASKED_TIMES do
        text, code = squeue(conf, "-j", job)
        for line in text:gmatch("[^\n]+") do
            local number, restarts, state = line:match("^%s*(%d+)%s+(%d+)%s+(%S+)%s*$")
            if number == job then
                return state, tonumber(restarts)
            end
        end
        if text:find("Invalid job id", 1, true) then
            return nil
        end
        run({ "sleep", attempt < ASKED_TIMES and "2" or "0" })
    end
    fail("slurmctld does not tell the state of the job: %s (exit code %d)", first_lines(text), code)
end

-- Waits until no process of the job runs, and its nodes have done their epilogs: until then the job
-- is COMPLETING. Whether that was in time, and how often the job was queued again.
local function wait_for_end(conf, job, until_s)
    local pause = 0.5
    while true do
        local state, restarts = ask_slurm(conf, job)
        if state ~= "COMPLETING" then
            return true, restarts
        elseif os.time() >= until_s then
            return false, restarts
        end
        run({ "sleep", ("%.1f"):format(pause) })
        pause = math.min(pause * 1.5, 5)
    end
end

-- One movement of the job's user. Returns what it moved, a problem, and the exit code.
local function move(conf, uid, verb, seconds, item)
    local text, code = as_user(conf, uid, verb, ("%d"):format(math.max(seconds, 1)), item.kind, item.path)
    local said = json(text:match("^({\n.*\n})") or text:match("\n({\n.*\n})") or "")
    local moved = said and said.bytes_total or 0
    if code == 0 then
        return moved, nil, code
    elseif not said then
        return 0, ("%s: %s"):format(item.path, text ~= "" and first_lines(text) or "exit code " .. code), code
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
    return moved, table.concat(named, "; "), code
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
        bb.check_symbols(script, conf)
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

-- The name of a job's directory. It cannot be foreseen, so that nobody has taken it.
local function new_name(job)
    local random = io.open("/dev/urandom", "rb") or fail("/dev/urandom cannot be read")
    local name = job .. "-" .. random:read(8):gsub(".", function(letter)
        return ("%02x"):format(letter:byte())
    end)
    random:close()
    return name
end

-- Removes what was the job's alone, also of its runs of before that could not be cleaned up.
local function remove_dirs(conf, job, record)
    local own, problems = record[1], {}
    if own.kept then
        slurm.log_info("forebay: job %s: results are left in %s/%s", job, conf.jobs, own.dir)
    elseif own.dir then
        local text, code = as_user(conf, own.uid, "remove-dir", "jobs", own.dir)
        problems[1] = code ~= 0 and first_lines(text) or nil
    end
    for _, item in ipairs(record) do
        if item.what == "old_dir" then
            local text, code = as_user(conf, item.uid, "remove-dir", "jobs", item.name)
            problems[#problems + 1] = code ~= 0 and first_lines(text) or nil
        end
    end
    if #problems > 0 then
        fail("%s", table.concat(problems, "; "))
    end
end

-- Directories of runs of before, which a teardown could not remove: they stay on record.
local function left_before(conf, job)
    local old, found = load_record(conf, job), {}
    if not old then
        return found
    elseif not pcall(remove_dirs, conf, job, old) then
        if old[1].dir and not old[1].kept then
            found[1] = { what = "old_dir", name = old[1].dir, uid = old[1].uid }
        end
        for _, item in ipairs(old) do
            found[#found + 1] = item.what == "old_dir" and item or nil
        end
    end
    return found
end

-- Jobs on record that Slurm knows no more, or that were cancelled and wait for nothing: their
-- teardown did not succeed in the times that Slurm tries it, or was ended by Slurm itself.
local function sweep(conf)
    local stamp = conf.records .. "/swept"
    local now, begun = os.time(), tonumber(read_file(stamp) or "")
    if begun and now >= begun and now - begun < SWEEP_EVERY_S then
        return
    end
    write(stamp, ("%d"):format(now))
    -- Before the question, so that each of these jobs was there when it was asked.
    local names = run({ "find", conf.records, "-maxdepth", "1", "-name", "job-*" })
    local text, code = squeue(conf)
    if code ~= 0 then
        fail("squeue: %s", first_lines(text))
    end
    local known = {}
    for number, state in text:gmatch("(%d+)%s+%d+%s+(%S+)%s*\n") do
        known[number] = state ~= "CANCELLED"
    end
    for job in names:gmatch("/job%-(%d+)\n") do
        if not known[job] and os.time() - now < SWEEP_S_MAX then
            local fine, problem = pcall(function()
                remove_dirs(conf, job, load_record(conf, job) or fail("gone"))
                os.remove(records.path_of(conf, job))
            end)
            slurm.log_info("forebay: job %s is over, and its directory %s", job, fine and "was removed now"
                or "cannot be removed: " .. printable(type(problem) == "table" and problem.problem or tostring(problem)))
        end
    end
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
            local text, code = as_user(conf, uid, "usable-dir", item.name, item.owner or "-")
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
        local _, restarts = ask_slurm(conf, job)
        local own = { uid = uid, capacity = capacity or 0, restarts = restarts or 0 }
        local record = { own, (unpack or table.unpack)(items) }
        for _, item in ipairs(left_before(conf, job)) do
            record[#record + 1] = item
        end
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
                -- On record first, so that teardown finds the directory wherever this call ends.
                own.dir = new_name(job)
                save(conf, job, record)
                local text, code = as_user(conf, uid, "make-dir", "jobs", own.dir, item.mode)
                if code ~= 0 then
                    fail(first_lines(text))
                end
            end
        end
        save(conf, job, record)
    end)
end

local function known(conf, job)
    return load_record(conf, job) or fail("nothing is known of this job; `scontrol requeue` begins anew")
end

-- Moves a result out of the job's directory. What was moved is on record, so that a stage-out that
-- is begun again takes no old file at the destination for it; the inode number tells a move that
-- was done and not noted.
local function move_result(conf, job, record, item, until_s)
    local own = record[1]
    local text, code = as_user(conf, own.uid, "result", own.dir, item.own)
    if code == 0 then
        item.inode = text:match("^%d+")
        save(conf, job, record)
    elseif code ~= 2 or not item.inode then
        return first_lines(text)
    end
    local seconds = ("%d"):format(math.max(until_s - os.time(), 1))
    text, code = as_user(conf, own.uid, "move", own.dir, item.own, item.path, item.inode, seconds)
    if code ~= 0 then
        return first_lines(text)
    end
    item.moved = "yes"
    save(conf, job, record)
end

-- Moves all of a kind within the time, goes on after failures, and fails with all of them. Returns
-- what it moved, the problems, and whether results are left in the job's directory.
local function move_all(conf, job, record, what, verb, until_s)
    local bytes, problems, left = 0, {}, false
    for _, item in ipairs(record) do
        local problem, moved, code
        if item.what == what and item.own and not item.moved then
            problem = move_result(conf, job, record, item, until_s)
            left = left or problem ~= nil
        end
        if item.what == what and not problem then
            moved, problem, code = move(conf, record[1].uid, verb, until_s - os.time(), item)
            bytes = bytes + moved
            left = left or code == LEADS_TO_JOBS
        end
        problems[#problems + 1] = problem
    end
    return bytes, problems, left
end

-- The stage-in. The job starts when it has ended, and is held where it fails.
function slurm_bb_data_in(job)
    return guarded("stage-in", job, function()
        local conf = settings()
        local record = known(conf, job)
        local until_s = os.time() + tonumber(conf.stage_in_timeout)
        local bytes, problems = move_all(conf, job, record, "stage_in", "stage-in", until_s)
        if #problems > 0 then
            fail("%s", table.concat(problems, "; "))
        end
        for _, item in ipairs(record) do
            if item.what == "persistent" then
                local path = { kind = "path", path = conf.persistent .. "/" .. item.name }
                -- Files of others there are theirs to move: they are read from where they are.
                local _, problem = move(conf, record[1].uid, "stage-in", until_s - os.time(), path)
                if problem then
                    slurm.log_info("forebay: persistent buffer %s of job %s: %s", item.name, job, printable(problem))
                end
            end
        end
        record[1].staged = ("%.0f"):format(bytes)
        -- The teardown of a job that was cancelled meanwhile was here before.
        if load_record(conf, job) then
            save(conf, job, record)
        end
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

local function stages_out(record)
    for _, item in ipairs(record) do
        if item.what == "stage_out" then
            return true
        end
    end
    return false
end

-- The stage-out. Where it fails, Slurm keeps the job, its part of the pool and this reason.
function slurm_bb_data_out(job)
    return guarded("stage-out", job, function()
        local conf = settings()
        local record = known(conf, job)
        local own, until_s = record[1], os.time() + tonumber(conf.stage_out_timeout)
        local before = own.kept
        -- Whenever this call ends, results that were not moved are not removed.
        own.kept = own.dir and stages_out(record) and "yes" or nil
        save(conf, job, record)
        local ended, restarts = wait_for_end(conf, job, until_s)
        if restarts and restarts > tonumber(own.restarts or restarts) then
            own.kept = before
            save(conf, job, record)
            slurm.log_info("forebay: job %s runs again: its stage-out is left to its last run", job)
            return
        elseif not ended then
            fail("processes of the job, or an epilog of its nodes, have not ended in time; nothing was staged out")
        end
        local _, problems, left = move_all(conf, job, record, "stage_out", "stage-out", until_s)
        own.kept = left and own.dir and "yes" or nil
        save(conf, job, record)
        if #problems > 0 then
            fail("%s", table.concat(problems, "; "))
        end
        for _, item in ipairs(record) do
            if item.what == "destroy_persistent" then
                local text, code = as_user(conf, own.uid, "remove-dir", "persistent", item.name)
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
        if record then
            if record[1].dir and not record[1].kept then
                -- `scancel --hurry` of a job that runs. What is written later would be left.
                local fine, ended = pcall(wait_for_end, conf, job, os.time() + tonumber(conf.other_timeout) / 2)
                if not fine or not ended then
                    slurm.log_error("forebay: job %s: its directory is removed before all its processes are known to have ended", job)
                end
            end
            for _, item in ipairs(record) do
                if item.release == "yes" then
                    -- What is undrained stays, and is no failure here.
                    move(conf, record[1].uid, "release", 60, item)
                end
            end
            remove_dirs(conf, job, record)
            os.remove(records.path_of(conf, job))
        end
        local fine, problem = pcall(sweep, conf)
        if not fine then
            slurm.log_error("forebay: sweep: %s", printable(type(problem) == "table" and problem.problem or tostring(problem)))
        end
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
