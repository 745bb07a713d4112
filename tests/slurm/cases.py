"""Jobs as users write them: one function for each case, on a Slurm that runs."""

import os
import re
import signal
import time

from slurm_site import NODES, PLUGIN, USERS, until

from machine import MIB


def stage_in_then_run_then_stage_out(site):
    """The input is in the burst buffer when the job begins, the output on the PFS when it has ended, and the job is
    the output's application."""
    content = b"in" * 4_000_000
    site.put("alice/in/data", content)
    job = site.job(f"#BB_LUA stage_in path={site.mount}/alice/in/\n#BB_LUA stage_out path={site.pfs}/alice/results",
                   f"{site.forebay} where {site.mount}/alice/in; mkdir {site.mount}/alice/results\n"
                   f"cp {site.mount}/alice/in/data {site.mount}/alice/results/out; {site.forebay} where {site.mount}/alice/results")
    site.ends(job)
    first = site.output(job).splitlines()
    assert any("clean" in line and "data" in line for line in first), first
    assert f"slurm-{job}" in site.output(job), site.output(job)
    assert (site.pfs / "alice/results/out").read_bytes() == content
    assert "clean" in site.where(site.mount / "alice/results/out")


def lists_name_many(site):
    for number in range(30):
        site.put(f"alice/many/{number} %d.dat", f"{number}")
    wanted = site.home / "alice/list"
    wanted.write_text("".join(f"{site.mount}/alice/many/{number} %d.dat\n" for number in range(20)), encoding="utf-8")
    job = site.job(f"#BB_LUA stage_in list={wanted} release=yes", f"{site.forebay} where {site.mount}/alice/many")
    site.ends(job)
    assert site.output(job).count("clean") == 20, site.output(job)
    assert "clean" not in site.where(site.mount / "alice/many"), "release=yes left copies"


def symbols_name_each_task_of_an_array(site):
    for task in (1, 2):
        site.put(f"alice/array/{task}", "x")
    job = site.job("#BB_LUA \\\n#BB_LUA stage_in \\\n#BB_LUA path=" + f"{site.mount}/%u/array/%a",
                   f"{site.forebay} where {site.mount}/alice/array/$SLURM_ARRAY_TASK_ID", options=["--array=1-2"])

    def done():
        outputs = sorted((site.home / "alice").glob("job-*.out"))
        return [path for path in outputs if "array/" in (text := path.read_text(encoding="utf-8")) and "clean" in text][1:]
    until(f"both tasks of {job} have their input", done)
    site.waits_for(job, "COMPLETED")


def a_job_has_a_directory_that_goes_with_it(site):
    job = site.job("#BB_LUA pool=forebay capacity=16MiB\n"
                   f"#BB_LUA stage_out source=$FOREBAY_JOB_DIR/final destination={site.mount}/alice/final release=yes",
                   "set -e; env | grep -E 'FOREBAY|DW_'; stat -c '%U %a' $FOREBAY_JOB_DIR; echo scratch >$DW_JOB_STRIPED/scratch\n"
                   "mkdir $FOREBAY_JOB_DIR/final; echo result >$FOREBAY_JOB_DIR/final/x; sleep 2")
    site.waits_for(job, "RUNNING")
    folder = next((site.mount / ".jobs").iterdir())
    denied = site.ask("ls", folder, user="bob")
    site.ends(job)
    assert denied.returncode != 0 and "denied" in denied.stderr, denied
    assert "alice 700" in site.output(job), site.output(job)
    assert (site.pfs / "alice/final/x").read_text(encoding="utf-8") == "result\n"
    assert not list((site.mount / ".jobs").iterdir())


def persistent_buffers_outlive_jobs(site):
    create = site.job("#BB_LUA create_persistent name=set1 access=group", "echo kept >$FOREBAY_PERSISTENT_set1/x")
    site.ends(create)
    # What it is for: the next job finds it in the burst buffer, also where it had left that.
    site.ask(site.forebay, "stage-out", "--wait", site.mount / "persistent/set1", check=True)
    site.ask(site.forebay, "release", site.mount / "persistent/set1", check=True)
    use = site.job("#BB_LUA persistent name=set1", f"{site.forebay} where $DW_PERSISTENT_STRIPED_set1; cat $DW_PERSISTENT_STRIPED_set1/x")
    site.ends(use)
    assert "clean" in site.output(use) and "kept" in site.output(use), site.output(use)
    stranger = site.job("#BB_LUA persistent name=set1", user="bob")
    site.reason(stranger, "set1: no right to use this persistent buffer")
    thief = site.job("#BB_LUA create_persistent name=set1", user="bob")
    site.reason(thief, "set1: File exists")
    for job in (stranger, thief):
        site.ask("scancel", job, check=True)
    site.ends(site.job("#BB_LUA destroy_persistent name=set1"))
    assert not (site.mount / "persistent/set1").exists() and not (site.pfs / "persistent/set1").exists()


WRONG = [
    ("stage_inn path=MOUNT/alice/a", "unknown directive stage_inn"),
    ("stage_in pfad=MOUNT/alice/a", "unknown option pfad of stage_in"),
    ("stage_in", "one of path= .* is needed"),
    ("stage_in path=MOUNT/alice/a list=/x", "one of path= .* is needed"),
    ("stage_in path=MOUNT/alice/a path=MOUNT/alice/b", "path= is there twice"),
    ("stage_in path=alice/a", "write the whole path"),
    ("stage_in path=/etc/passwd", "not below MOUNT or PFS"),
    ("stage_in path=MOUNTED/a", "not below MOUNT or PFS"),
    ("stage_in path=MOUNT", "not below MOUNT or PFS"),
    ("stage_in path=MOUNT/../../etc/passwd", "no . and .. in paths"),
    ("stage_in path=MOUNT/alice/..", "no . and .. in paths"),
    ("stage_in path=MOUNT/alice/a release=perhaps", "`yes` or `no`"),
    ('stage_in path="MOUNT/alice/a', 'a " is not closed'),
    ("stage_in source=PFS/alice/a destination=MOUNT/alice/b", "files keep their names"),
    ("stage_in source=PFS/alice/a destination=$DW_JOB_STRIPED/a", "write the whole path"),
    ("stage_in type=list source=PFS/alice/a", "lists are given with list="),
    ("stage_out source=$FOREBAY_JOB_DIR/x destination=MOUNT/alice/x", "is there with `pool=forebay capacity=...` only"),
    ("stage_out path=MOUNT/.jobs/x", "the job's directory goes with the job"),
    ("stage_in list=list.txt", "write the whole path"),
    ("pool=forebay capacity=12XiB", "capacity=12XiB is no size"),
    ("pool=forebay capacity=1.5GiB", "capacity=1.5GiB is no size"),
    ("pool=forebay capacity=-5GiB", "capacity=-5GiB is no size"),
    ("pool=forebay capacity=2nodes", "capacity=2nodes is no size"),
    ("pool=forebay capacity=1 GiB", "GiB: not KEY=VALUE"),
    ("pool=forebay capacity=1TiB", "asks for 1048576 MiB; the burst buffer has 320 MiB"),
    ("pool=forebay capacity=1MiB access=all", "it is `user` or `group`"),
    ("jobdw pool=forebay capacity=1MiB access_mode=private", "one tree"),
    ("jobdw pool=forebay capacity=1MiB type=cache", "only `scratch`"),
    ("create_persistent name=../x", "a letter, then letters"),
    ("create_persistent name=x pool=forebay capacity=1MiB", "unknown option pool"),
    # These two Slurm refuses by itself, without a word of the plugin's.
    ("pool=forebay capacity=lots", "Burst Buffer request invalid"),
    ("capacity=1GiB", "Burst Buffer request invalid|pool="),
]


def wrong_directives_are_refused_at_submission(site):
    for text, message in WRONG:
        text, message = (one.replace("MOUNT", str(site.mount)).replace("PFS", str(site.pfs)) for one in (text, message))
        done = site.submit("#BB_LUA " + text)
        assert done.returncode != 0, f"{text}: was taken"
        assert re.search(message, done.stderr), f"{text}: {done.stderr}"
    done = site.submit("#BB_LUAstage_in path=/x")
    assert "a blank is missing" in done.stderr, done
    done = site.submit("#BB_LUA stage_in path=" + str(site.mount / "root/a"), user=None)
    assert "root" in done.stderr and done.returncode != 0, done
    queue = site.ask("squeue", "-h").stdout
    assert not queue, queue


def wrong_paths_hold_the_job_and_are_named(site):
    """What only the user may look at is looked at as that user, before anything is moved."""
    site.put("bob/secret/data", "secret", user="bob").parent.chmod(0o700)
    site.put("bob/open/data", "open", user="bob")
    site.put("alice/unreadable", "x").chmod(0)
    os.mkfifo(site.home / "alice/fifo")
    os.chown(site.home / "alice/fifo", USERS["alice"], USERS["alice"])
    (site.pfs / "alice/leads-out").symlink_to("/etc/passwd")
    (site.pfs / "alice/leads-to-bob").symlink_to(site.mount / "bob/secret/data")
    wrong = [
        (f"path={site.mount}/alice/nowhere", "alice/nowhere: not there, or no right to look"),
        (f"path={site.mount}/bob/secret/data", "bob/secret/data: not there, or no right to look"),
        (f"path={site.mount}/bob/secret", "bob/secret: no right to list"),
        (f"path={site.mount}/bob/open/data", "bob/open/data: not your file"),
        (f"path={site.mount}/alice/unreadable", "alice/unreadable: no right to read"),
        (f"path={site.mount}/alice/leads-out", "alice/leads-out: leads out of the burst buffer"),
        (f"path={site.mount}/alice/leads-to-bob", "leads-to-bob: not there, or no right to look"),
        (f"list={site.home}/alice/nolist", "alice/nolist: not a list that can be read"),
        (f"list={site.home}/alice/fifo", "alice/fifo: not a list that can be read"),
        ("list=/etc/shadow", "/etc/shadow: not a list that can be read"),
    ]
    jobs = [(site.job(f"#BB_LUA stage_in {text}"), reason) for text, reason in wrong]
    for job, reason in jobs:
        site.reason(job, re.escape(reason))
        assert site.in_state(job, "PENDING"), site.show(job)
        assert not site.record(job).exists(), "a job that never began is on record"
    lists = site.home / "alice/bad-list"
    lists.write_text(f"{site.mount}/alice/in/data\n{site.mount}/bob/secret/data\n/etc/passwd\n", encoding="utf-8")
    job = site.job(f"#BB_LUA stage_in list={lists}")
    site.reason(job, "bob/secret/data: Permission denied")
    site.reason(job, "/etc/passwd: not in a burst buffer")
    site.ask("scancel", job, *(job for job, _ in jobs), check=True)
    until("records are gone", lambda: not list((site.run / "records").glob("job-*")))
    assert "secret" not in site.where(site.mount / "bob/secret") or "clean" not in site.where(site.mount / "bob/secret/data")


def names_are_never_commands(site):
    """Each of these would leave a file `hacked` if a shell made more of it than a name."""
    bait = "touch hacked"
    names = [f"$({bait})", f"`{bait}`", f"';{bait};'", f"a;{bait}", f"&& {bait}", "-rf", "--json", "a b  c", "x'y", 'x"y', "a\\nb", "a\\",
             "*", "$HOME", "{", "ünïcode"]
    heads = []
    for name in names:
        site.put(f"alice/odd/{name}", name)
        quoted = name.replace("\\", "\\\\").replace('"', '\\"')
        heads.append(f'#BB_LUA stage_in path="{site.mount}/alice/odd/{quoted}"')
        heads.append(f'#BB_LUA stage_out path="{site.mount}/alice/done/{quoted}"')
    job = site.job("\n".join(heads), f"{site.forebay} where {site.mount}/alice/odd; mkdir -p {site.mount}/alice/done\n"
                   f"cp -- {site.mount}/alice/odd/* {site.mount}/alice/done/", options=[f"--job-name=$({bait})';{bait};'"])
    site.ends(job)
    assert site.output(job).count("clean") == len(names), site.output(job)
    assert sorted(os.listdir(site.pfs / "alice/done")) == sorted(names)
    # In what users see, too, and where nothing is there.
    absent = site.job(f'#BB_LUA stage_in path="{site.mount}/alice/$({bait})"')
    site.reason(absent, "touch hacked.: not there")
    folders = ["/", "/tmp", site.base, site.etc, site.run, site.run / "records", site.home / "alice", site.pfs, site.pfs / "alice"]
    found = [entry.path for folder in folders for entry in os.scandir(folder) if entry.name.startswith("hacked")]
    assert not found, found
    site.ask("scancel", absent, check=True)


def slurms_symbols_are_looked_at_after_slurm(site):
    site.put("alice/100%/x", "x")
    job = site.job(f"#BB_LUA stage_in path={site.mount}/%u/100%%", f"{site.forebay} where {site.mount}/alice/100%")
    site.ends(job)
    assert "clean" in site.output(job), site.output(job)
    # Slurm would lose the lines between the two.
    done = site.submit(f'#BB_LUA stage_in path={site.mount}/%u/100%%\n#BB_LUA stage_in path="{site.mount}/alice/a\\\\b"')
    assert "% and" in done.stderr, done
    named = site.job(f'#BB_LUA stage_in path="{site.mount}/alice/%x"', options=["--job-name=../../etc/passwd"])
    site.reason(named, "no . and .. in paths")
    lines = site.job(f"#BB_LUA stage_in path={site.mount}/alice/%x", options=["--job-name=x\n#BB_LUA stage_in path=/etc/shadow"])
    site.reason(lines, "not below")
    site.ask("scancel", named, lines, check=True)


def killed_and_failed_jobs_are_staged_out_and_cleaned_up(site):
    head = f"#BB_LUA pool=forebay capacity=4MiB\n#BB_LUA stage_out path={site.mount}/alice/%j"
    body = f"mkdir {site.mount}/alice/$SLURM_JOB_ID; echo some >{site.mount}/alice/$SLURM_JOB_ID/some; "
    killed = site.job(head, body + "exec sleep 100")
    failed = site.job(head, body + "exit 7")
    until("the job has written", lambda: (site.mount / f"alice/{killed}/some").exists())
    site.ask("scancel", killed, check=True)
    site.ends(killed, "CANCELLED")
    site.ends(failed, "FAILED")
    for job in (killed, failed):
        assert (site.pfs / f"alice/{job}/some").read_text(encoding="utf-8") == "some\n"
    assert not list((site.mount / ".jobs").iterdir())


def a_requeued_job_is_staged_in_again(site):
    site.put("alice/again", "x" * MIB)
    job = site.job(f"#BB_LUA pool=forebay capacity=4MiB\n#BB_LUA stage_in path={site.mount}/alice/again release=yes",
                   f"{site.forebay} where {site.mount}/alice/again; echo $FOREBAY_JOB_DIR\n[ $SLURM_RESTART_COUNT ] || sleep 100",
                   options=["--requeue", "--open-mode=append"])
    site.waits_for(job, "RUNNING")
    until("its output", lambda: (site.home / f"alice/job-{job}.out").exists() and "/.jobs/" in site.output(job))
    site.ask("scontrol", "requeue", job, check=True)
    site.waits_for(job, "PENDING")
    # Slurm would have it wait for two minutes.
    site.ask("scontrol", "update", f"JobId={job}", "StartTime=now", check=True)
    site.ends(job, patience_s=60)
    lines = site.output(job).splitlines()
    folders = [line for line in lines if "/.jobs/" in line]
    assert len(set(folders)) == 2 and site.output(job).count("clean") == 2, lines
    assert not list((site.mount / ".jobs").iterdir())


def a_job_that_never_ran_leaves_nothing(site):
    site.put("alice/never", "x")
    # It has its directory and its input, and waits for nodes that others have.
    busy = [site.job("", "sleep 100", options=["--exclusive", "-w", node]) for node in NODES]
    for job in busy:
        site.waits_for(job, "RUNNING")
    waits = site.job(f"#BB_LUA pool=forebay capacity=4MiB\n#BB_LUA stage_in path={site.mount}/alice/never",
                     options=["--time=1"])
    site.ask("scontrol", "update", f"JobId={busy[0]}", "TimeLimit=1", check=True)
    site.reason(waits, "JobState=PENDING")
    # It is on record before it is made.
    until("it is on record", site.record(waits).exists)
    early = until("its directory is there", lambda: list((site.mount / ".jobs").iterdir()))
    site.ask("scancel", waits, check=True)
    site.ends(waits, "CANCELLED")
    site.ask("scancel", *busy, check=True)
    assert len(early) == 1 and not list((site.mount / ".jobs").iterdir()), early


def a_burst_buffer_that_hangs_holds_up_nobody_but_its_jobs(site):
    """Its daemon is stopped: what asks it waits. slurmctld answers, takes jobs, and ends what is cancelled."""
    daemon = int((site.state / "forebay.pid").read_text(encoding="utf-8").split()[0])
    site.put("alice/late", "x")
    slowest = 0.0

    def timed(*argv, **options):
        nonlocal slowest
        begin = time.monotonic()
        done = site.ask(*argv, check=True, **options)
        slowest = max(slowest, time.monotonic() - begin)
        return done

    os.kill(daemon, signal.SIGSTOP)
    # As if it had been silent for long.
    status = site.run / "records/status"
    status.write_text("1000\n" + status.read_text(encoding="utf-8").partition("\n")[2], encoding="utf-8")
    try:
        begin = time.monotonic()
        job, cancelled = (site.job(f"#BB_LUA stage_in path={site.mount}/alice/late") for _ in range(2))
        slowest = max(slowest, (time.monotonic() - begin) / 2)
        plain = site.job("", "true")
        until("they are being staged in", lambda: "BurstBufferStageIn" in site.show(job) or "staging-in" in site.show(job))
        # Longer than between two questions for the pools.
        end = time.monotonic() + 32
        while time.monotonic() < end:
            timed("squeue", "-h")
            timed("scontrol", "ping")
            time.sleep(0.5)
        site.waits_for(plain, "COMPLETED")
        assert "TotalSpace=320MiB FreeSpace=0 " in timed("scontrol", "show", "burst").stdout
        timed("scancel", cancelled)
        assert site.in_state(job, "PENDING"), site.show(job)
    finally:
        os.kill(daemon, signal.SIGCONT)
    assert slowest < 2.0, f"slurmctld was held up for {slowest:.1f} s"
    site.ends(job)
    site.ends(cancelled, "CANCELLED")


def a_full_pfs_holds_the_job_and_names_the_file(site):
    content = os.urandom(8 * MIB)
    (site.home / "alice/content").write_bytes(content)
    ballast = site.pfs / "ballast"
    with open(ballast, "wb") as file:
        try:
            while True:
                file.write(bytes(MIB))
                file.flush()
        except OSError:
            pass
    job = site.job(f"#BB_LUA pool=forebay capacity=16MiB\n#BB_LUA stage_out path={site.mount}/alice/full",
                   f"mkdir {site.mount}/alice/full; cp content {site.mount}/alice/full/important")
    site.reason(job, "alice/full/important: .*[Nn]o space", patience_s=90)
    assert site.record(job).exists(), "the job was forgotten"
    held = site.ask("scontrol", "show", "burst").stdout
    assert f"JobID={job}" in held, held
    assert (site.mount / "alice/full/important").read_bytes() == content
    # What does not fit is kept until it does.
    ballast.unlink()
    site.stop("slurmctld")
    site.controller()
    site.ends(job, patience_s=90)
    assert (site.pfs / "alice/full/important").read_bytes() == content


def a_job_whose_stage_out_failed_can_be_given_up(site):
    job = site.job(f"#BB_LUA stage_out path={site.mount}/alice/never-made", "true")
    site.reason(job, "alice/never-made: No such file")
    site.ask("scancel", "--hurry", job, user="alice", check=True)
    site.ends(job)


def a_result_that_cannot_be_moved_is_kept(site):
    job = site.job("#BB_LUA pool=forebay capacity=4MiB\n"
                   f"#BB_LUA stage_out source=$FOREBAY_JOB_DIR/result destination={site.mount}/alice/missing/result",
                   "echo result >$FOREBAY_JOB_DIR/result")
    site.reason(job, "alice/missing/result: No such file")
    site.ask("scancel", "--hurry", job, user="alice", check=True)
    site.ends(job)
    folder = next((site.mount / ".jobs").iterdir())
    assert (folder / "result").read_text(encoding="utf-8") == "result\n"
    site.ask("rm", "-r", folder, user="alice", check=True)


def the_pool_is_what_forebay_has(site):
    shown = site.ask("scontrol", "show", "burst").stdout
    assert "TotalSpace=320MiB FreeSpace=320MiB" in shown, shown
    first = site.job("#BB_LUA pool=forebay capacity=200MiB", "sleep 4")
    site.waits_for(first, "RUNNING")
    second = site.job("#BB_LUA pool=forebay capacity=200MiB", "date +%s")
    time.sleep(2)
    assert not site.record(second).exists(), "more was promised than there is"
    site.ends(first)
    site.ends(second, patience_s=60)
    said = site.ask("scontrol", "show", "bbstat", user="bob").stdout
    assert re.search(r"320 MiB, in use .* not on the PFS yet", said), said


def slurmctld_may_be_restarted(site):
    job = site.job(f"#BB_LUA pool=forebay capacity=4MiB\n#BB_LUA stage_out path={site.mount}/alice/over",
                   f"mkdir {site.mount}/alice/over; sleep 3; echo over >{site.mount}/alice/over/x")
    site.waits_for(job, "RUNNING")
    site.stop("slurmctld")
    site.controller()
    site.ends(job, patience_s=60)
    assert (site.pfs / "alice/over/x").read_text(encoding="utf-8") == "over\n"
    assert not list((site.mount / ".jobs").iterdir())


def interactive_jobs_say_it_on_the_command_line(site):
    site.put("alice/shell", "x")
    done = site.ask("srun", f"--bb=#BB_LUA stage_in path={site.mount}/alice/shell", "--", site.forebay, "where",
                    site.mount / "alice/shell", user="alice")
    assert "clean" in done.stdout, done
    wrong = site.ask("srun", f"--bb=#BB_LUA stage_in path={site.mount}/../x", "true", user="alice")
    assert wrong.returncode != 0 and "no . and .." in wrong.stderr, wrong


def scripts_of_datawarp_run(site):
    """With `Directive=DW`; here slurmctld is no root, and becomes the user by sudo."""
    site.put("alice/dw-in/x", "x")
    job = site.job(f"#DW jobdw type=scratch capacity=10MB access_mode=striped pool=forebay\n"
                   f"#DW stage_in type=directory source={site.pfs}/alice/dw-in destination={site.mount}/alice/dw-in\n"
                   f"#DW stage_out type=file source=$DW_JOB_STRIPED/out destination={site.pfs}/alice/dw-out",
                   f"{site.forebay} where {site.mount}/alice/dw-in; echo out >$DW_JOB_STRIPED/out")
    site.ends(job, patience_s=60)
    assert "clean" in site.output(job), site.output(job)
    assert (site.pfs / "alice/dw-out").read_text(encoding="utf-8") == "out\n"
    assert not list((site.mount / ".jobs").iterdir())
    wrong = site.job(f"#DW stage_in type=file source={site.mount}/bob/secret/data")
    site.reason(wrong, "bob/secret/data: not there, or no right to look")
    site.ask("scancel", wrong, check=True)


AS_ROOT = [
    "stage_in_then_run_then_stage_out", "lists_name_many", "symbols_name_each_task_of_an_array",
    "a_job_has_a_directory_that_goes_with_it", "persistent_buffers_outlive_jobs", "wrong_directives_are_refused_at_submission",
    "wrong_paths_hold_the_job_and_are_named", "names_are_never_commands", "slurms_symbols_are_looked_at_after_slurm", "killed_and_failed_jobs_are_staged_out_and_cleaned_up",
    "a_requeued_job_is_staged_in_again", "a_job_that_never_ran_leaves_nothing", "the_pool_is_what_forebay_has", "a_job_has_a_burst_buffer_of_its_own_nodes",
    "interactive_jobs_say_it_on_the_command_line", "slurmctld_may_be_restarted", "a_job_whose_stage_out_failed_can_be_given_up",
    "a_result_that_cannot_be_moved_is_kept",
    "a_full_pfs_holds_the_job_and_names_the_file", "a_burst_buffer_that_hangs_holds_up_nobody_but_its_jobs",
]
def a_job_has_a_burst_buffer_of_its_own_nodes(site):
    """As an ordinary user, without the site's: servers and mounts are steps of the job."""
    pfs = site.pfs / "alice/own"
    pfs.mkdir()
    os.chown(pfs, USERS["alice"], USERS["alice"])
    (site.home / "alice/own.sh").write_text(
        "srun --overlap -N2 -n2 --ntasks-per-node=1 sh -c 'echo from $SLURMD_NODENAME >$FOREBAY_MOUNT/$SLURMD_NODENAME'\n"
        "srun --overlap -N1 -n1 -w n2 cat $FOREBAY_MOUNT/n1\n"
        f"{site.forebay} where $FOREBAY_MOUNT; df --output=fstype $FOREBAY_MOUNT\n", encoding="utf-8")
    job = site.job("", f"export FOREBAY_PFS={pfs} FOREBAY_MOUNT=$HOME/own FOREBAY_DRAM=16MiB FOREBAY_SSD=32MiB FOREBAY_LOCAL={site.local} FOREBAY_RUN={site.local}\n"
                   f"export FOREBAY_PROGRAM={site.forebay}\n{PLUGIN}/own-buffer run sh $HOME/own.sh 2>&1; echo ended $?; srun -N2 -n2 ls -A {site.local}",
                   options=["-N2", "--ntasks-per-node=2", "--time=2"])
    site.waits_for(job, "COMPLETED", "FAILED", "TIMEOUT", patience_s=60)
    output = site.output(job)
    assert "ended 0" in output and "from n1" in output and "fuse.forebay" in output, output
    assert (pfs / "n1").read_text(encoding="utf-8") == "from n1\n" and (pfs / "n2").exists(), output
    assert "forebay-alice" not in output and not list((site.home / "alice/.forebay-jobs").iterdir()), output


BY_SUDO = ["scripts_of_datawarp_run"]
