-- The directives of Forebay's Slurm plugin: what a job's script asks for, checked without a look
-- at any path, and what that takes. burst_buffer.lua loads this file; nothing in it starts a
-- process or opens a path of a user.

local LINE_BYTES_MAX = 64 * 1024
local MESSAGE_BYTES_MAX = 800
local SETTINGS = {
    mount = true, pfs = true, burst_buffer = true, forebay = true, become = true, records = true,
    jobs = false, persistent = false, pool = true, granularity = true,
    stage_in_timeout = true, stage_out_timeout = true, other_timeout = true, squeue = true,
}
local DEFAULTS = {
    forebay = "/usr/local/bin/forebay", become = "setpriv", pool = "forebay", granularity = "1MiB",
    stage_in_timeout = "3500", stage_out_timeout = "7100", other_timeout = "240", squeue = "squeue",
}
-- As Slurm reads them: it counts the pool by its own reading of the same words.
local UNITS = {
    [""] = 1, k = 2 ^ 10, kib = 2 ^ 10, kb = 1e3, m = 2 ^ 20, mib = 2 ^ 20, mb = 1e6, g = 2 ^ 30, gib = 2 ^ 30, gb = 1e9,
    t = 2 ^ 40, tib = 2 ^ 40, tb = 1e12, p = 2 ^ 50, pib = 2 ^ 50, pb = 1e15,
}
local MOVEMENT = { path = true, source = true, list = true, destination = true, type = true, release = true }
local KINDS = {
    job = { pool = true, capacity = true, access = true, access_mode = true, type = true },
    stage_in = MOVEMENT,
    stage_out = MOVEMENT,
    create_persistent = { name = true, access = true, access_mode = true, type = true },
    persistent = { name = true, owner = true },
    destroy_persistent = { name = true },
}
-- DataWarp's words for the same.
local SAME_KIND = { jobdw = "job", persistentdw = "persistent" }
local MODES = { user = "0700", group = "2770" }

-- ------------------------------------------------------------------------------------ small things

-- Ends the call that runs; its job sees the message.
local function fail(format, ...)
    error({ problem = select("#", ...) == 0 and format or format:format(...) }, 0)
end

-- Names of files may hold anything; a reason is one line.
local function printable(text)
    text = text:gsub("[%c\127]", "?")
    if #text > MESSAGE_BYTES_MAX then
        text = text:sub(1, MESSAGE_BYTES_MAX) .. "..."
    end
    return text
end

local function read_file(path)
    local file = io.open(path, "rb")
    if not file then
        return nil
    end
    local text = file:read("*a")
    file:close()
    return text
end

-- The word that Slurm looks for, which is in its own file beside this one.
local function keyword(folder)
    local text = read_file(folder .. "/burst_buffer.conf") or read_file(folder .. "/burst_buffer_lua.conf") or ""
    local found = "BB_LUA"
    for line in text:gmatch("[^\n]+") do
        local key, value = line:match('^%s*(%a+)%s*=%s*"?([^%s"#]+)')
        if key and key:lower() == "directive" then
            found = value
        end
    end
    return found
end

local function settings(folder)
    local path = folder .. "/forebay_bb.conf"
    local text = read_file(path) or fail("%s cannot be read", path)
    local found = {}
    for key, value in pairs(DEFAULTS) do
        found[key] = value
    end
    for line in text:gmatch("[^\n]+") do
        local key, value = line:match("^%s*([%w_]+)%s*=%s*(.-)%s*$")
        if key then
            if SETTINGS[key] == nil then
                fail("%s: unknown key %s", path, key)
            end
            found[key] = value
        elseif not line:match("^%s*#") and line:match("%S") then
            fail("%s: not `key = value`: %s", path, line)
        end
    end
    for key, needed in pairs(SETTINGS) do
        if needed and not found[key] then
            fail("%s: %s is missing", path, key)
        end
    end
    if found.become ~= "setpriv" and found.become ~= "sudo" then
        fail("%s: become is setpriv or sudo", path)
    end
    found.keyword = keyword(folder)
    return found
end

local function bytes_of(text)
    local digits, unit = text:match("^(%d+)(%a*)$")
    local factor = digits and UNITS[unit:lower()]
    local bytes = factor and tonumber(digits) * factor
    if not bytes or bytes < 1 or bytes > 2 ^ 53 then
        fail("capacity=%s is no size: a whole number above 0 with MiB, GiB, TiB, PiB, MB, GB, TB or PB, "
            .. "such as 1536MiB", text)
    end
    return bytes
end

-- One value of JSON at `at`, and where the text goes on. For what `forebay --json` writes.
local function json_at(text, at)
    at = text:find("%S", at)
    local first = at and text:sub(at, at)
    if first == "{" or first == "[" then
        local found, close = {}, first == "{" and "}" or "]"
        at = text:find("%S", at + 1)
        while text:sub(at, at) ~= close do
            local key = #found + 1
            if close == "}" then
                key, at = json_at(text, at)
                at = text:find(":", at, true) + 1
            end
            found[key], at = json_at(text, at)
            at = text:find("%S", at)
            if text:sub(at, at) == "," then
                at = text:find("%S", at + 1)
            end
        end
        return found, at + 1
    elseif first == '"' then
        local stop = at
        repeat
            stop = text:find('["\\]', stop + 1)
            local escape = text:sub(stop, stop) == "\\"
            stop = escape and stop + 1 or stop
        until not escape
        local controls = { n = "\n", t = "\t", r = "\r", b = "\b", f = "\f" }
        local word = text:sub(at + 1, stop - 1):gsub("\\u%x%x%x%x", "?"):gsub("\\(.)", function(letter)
            return controls[letter] or letter
        end)
        return word, stop + 1
    end
    local word = text:match("^[%w%+%-%.]+", at)
    local value = tonumber(word)
    if word == "true" or word == "false" then
        value = word == "true"
    end
    return value, at + #word
end

-- What the text says, or nil where it is no JSON.
local function json(text)
    local fine, value = pcall(json_at, text, 1)
    return fine and type(value) == "table" and value or nil
end

-- ------------------------------------------------------------------------------- what a job writes

-- The words of a line; "..." keeps blanks together, with \" and \\ in it.
local function words(line)
    local found, at = {}, line:find("%S")
    while at do
        local word, quoted = {}, false
        while at <= #line do
            local letter = line:sub(at, at)
            if letter == '"' then
                quoted = not quoted
            elseif quoted and letter == "\\" and line:find('^["\\]', at + 1) then
                at = at + 1
                word[#word + 1] = line:sub(at, at)
            elseif not quoted and letter:find("%s") then
                break
            else
                word[#word + 1] = letter
            end
            at = at + 1
        end
        if quoted then
            fail('a " is not closed')
        end
        found[#found + 1] = table.concat(word)
        at = line:find("%S", at)
    end
    return found
end

-- The path below the mount, whether it was written as one of the mount or of the PFS.
local function below_mount(path, conf, name)
    if path:sub(1, 1) ~= "/" then
        fail("%s=%s: write the whole path, from / on", name, path)
    elseif path:find("[%c\127]") or #path > 4096 then
        fail("%s=%s: no path", name, path)
    elseif (path .. "/"):find("/%.%.?/") then
        fail("%s=%s: no . and .. in paths", name, path)
    end
    path = path:gsub("//+", "/"):gsub("(.)/$", "%1")
    for _, top in ipairs({ conf.mount, conf.pfs }) do
        if path:sub(1, #top + 1) == top .. "/" then
            return path:sub(#top + 2)
        end
    end
    fail("%s=%s: not below %s or %s", name, path, conf.mount, conf.pfs)
end

local function checked_access(options)
    if options.access_mode and options.access_mode ~= "striped" then
        fail("access_mode=%s: all nodes of a job see one tree, which is `striped`", options.access_mode)
    elseif options.type and options.type ~= "scratch" then
        fail("type=%s: only `scratch` is there", options.type)
    end
    local mode = MODES[options.access or "user"]
    return mode or fail("access=%s: it is `user` or `group`", options.access)
end

local function checked_name(options, conf)
    local name = options.name or fail("name= is missing")
    if not conf.persistent then
        fail("this site has no persistent buffers (`persistent` in forebay_bb.conf)")
    elseif not name:find("^%a[%w_]*$") or #name > 64 then
        fail("name=%s: a letter, then letters, digits and _, at most 64", name)
    end
    return name
end

local function checked_movement(what, options, conf)
    local source = options.path or options.source
    if (options.path and options.source) or (source and options.list) or not (source or options.list) then
        fail("one of path= (or source=) and list= is needed")
    end
    local item = { what = what, release = options.release or "no" }
    if item.release ~= "yes" and item.release ~= "no" then
        fail("release=%s: it is `yes` or `no`", item.release)
    elseif options.type and options.type ~= "file" and options.type ~= "directory" then
        fail("type=%s: `file` or `directory`; lists are given with list=", options.type)
    elseif options.list then
        if options.destination then
            fail("list= has no destination: files keep their names")
        elseif options.list:sub(1, 1) ~= "/" or options.list:find("[%c\127]") then
            fail("list=%s: write the whole path, from / on", options.list)
        end
        item.kind, item.path = "list", options.list
        return item
    end
    item.kind = "path"
    local own = source:match("^%$FOREBAY_JOB_DIR/(.+)$") or source:match("^%$DW_JOB_STRIPED/(.+)$")
    if own and what == "stage_out" then
        if ("/" .. own .. "/"):find("/%.%.?/") or own:find("[%c\127]") then
            fail("source=%s: no . and .. in paths", source)
        end
        item.own = own
        source = options.destination or fail("source=%s needs destination=: the job's directory goes with the job", source)
    elseif options.destination and below_mount(options.destination, conf, "destination")
        ~= below_mount(source, conf, "source") then
        fail("destination=%s: files keep their names in a burst buffer that shows the PFS itself; leave it out",
            options.destination)
    end
    item.path = conf.mount .. "/" .. below_mount(source, conf, own and "destination" or options.path and "path" or "source")
    if conf.jobs and item.path:sub(1, #conf.jobs + 1) == conf.jobs .. "/" then
        fail("%s: the job's directory goes with the job; write $FOREBAY_JOB_DIR/..., and a destination=", item.path)
    end
    return item
end

local function checked_job(options, conf)
    if not options.capacity then
        fail("capacity= is missing")
    elseif options.pool ~= conf.pool then
        fail("pool=%s is needed beside capacity=", conf.pool)
    elseif not conf.jobs then
        fail("this site gives jobs no directory (`jobs` in forebay_bb.conf)")
    end
    return { what = "job", bytes = bytes_of(options.capacity), mode = checked_access(options) }
end

-- What one line asks for.
local function directive(line, conf)
    local found = words(line)
    local kind = found[1] or fail("nothing is asked for")
    local first = 2
    if kind:find("=", 1, true) then
        kind, first = "job", 1
    end
    kind = SAME_KIND[kind] or kind
    local allowed = KINDS[kind]
        or fail("unknown directive %s: stage_in, stage_out, create_persistent, persistent, destroy_persistent, "
            .. "or pool= and capacity=", kind)
    local options = {}
    for at = first, #found do
        local key, value = found[at]:match("^([%w_]+)=(.+)$")
        if not key then
            fail("%s: not KEY=VALUE", found[at])
        elseif kind == "create_persistent" and key == "capacity" then
            fail("capacity=: Slurm counts a pool for jobs only, so a persistent buffer has none")
        elseif not allowed[key] then
            fail("unknown option %s of %s", key, kind)
        elseif options[key] then
            fail("%s= is there twice", key)
        end
        options[key] = value
    end
    if kind == "job" then
        return checked_job(options, conf)
    elseif kind == "stage_in" or kind == "stage_out" then
        return checked_movement(kind, options, conf)
    elseif kind == "create_persistent" then
        return { what = kind, name = checked_name(options, conf), mode = checked_access(options) }
    end
    if options.owner and not options.owner:find("^[%w_][%w._-]*$") then
        fail("owner=%s: no user's name", options.owner)
    end
    return { what = kind, name = checked_name(options, conf), owner = options.owner }
end

-- What stands after `#WORD` in a line, or nil.
local function after_word(line, word)
    return line:sub(2, #word + 1) == word and line:sub(#word + 2) or nil
end

-- The lines for the burst buffer in a script's head, continued ones joined: what Slurm takes for
-- it, too. Slurm knows one word; the other one's lines would count for no pool.
local function lines_of(script, conf)
    local word, found, bytes, continued = conf.keyword, {}, 0, false
    local other = word == "DW" and "BB_LUA" or "DW"
    for line in script:gmatch("[^\n]+") do
        if line:sub(1, 1) ~= "#" then
            break
        end
        local text, strange = after_word(line, word), after_word(line, other)
        if text then
            if not continued and text:find("^%S") then
                fail("%s: a blank is missing after #%s", line:sub(1, MESSAGE_BYTES_MAX), word)
            end
            bytes = bytes + #text
            if bytes > LINE_BYTES_MAX then
                fail("more than %d bytes of directives: put paths into a file, and name it with list=", LINE_BYTES_MAX)
            end
            local more = text:sub(-1) == "\\"
            text = more and text:sub(1, -2) or text
            if continued then
                table.insert(found[#found], text)
            else
                found[#found + 1] = { text }
            end
            continued = more
        elseif strange and strange:find("^%s") then
            fail("%s: Slurm looks for #%s here (Directive= in burst_buffer.conf), not for #%s", line:sub(1, MESSAGE_BYTES_MAX),
                word, other)
        else
            continued = false
        end
    end
    for at, parts in ipairs(found) do
        found[at] = table.concat(parts)
    end
    return found
end

-- Of a script that Slurm has not put its symbols into yet: from a % on it takes \\\\ for their
-- end, and loses lines.
local function check_symbols(script, conf)
    local all = table.concat(lines_of(script, conf), "\n")
    if all:find("%", 1, true) and all:find("\\\\", 1, true) then
        fail("% and \\\\ cannot both be in a job's directives: Slurm's symbols end at \\\\; use list=")
    end
end

-- All that a script asks for.
local function wishes(script, conf)
    local found, capacity = {}, nil
    for _, line in ipairs(lines_of(script, conf)) do
        local fine, item = pcall(directive, line, conf)
        if not fine then
            if type(item) ~= "table" then
                error(item, 0)
            end
            fail("%s (in: %s)", item.problem, line:match("^%s*(.-)%s*$"))
        end
        if item.what == "job" then
            if capacity then
                fail("capacity= is there twice")
            end
            capacity = item.bytes
        end
        found[#found + 1] = item
    end
    for _, item in ipairs(found) do
        if item.own and not capacity then
            fail("$FOREBAY_JOB_DIR is there with `pool=%s capacity=...` only", conf.pool)
        end
    end
    return found, capacity
end

return {
    fail = fail, printable = printable, read_file = read_file, settings = settings, bytes_of = bytes_of, json = json,
    wishes = wishes, check_symbols = check_symbols,
}
