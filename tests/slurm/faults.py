"""What went wrong once, or could: links, jobs that run again, last checkpoints, calls that are killed, directories that are
left, names of others. One function for each case, as in cases.py."""

import contextlib
import os
import re
import signal
from pathlib import Path

from slurm_site import NODES, PLUGIN, USERS, until

from machine import run

JOB = "#BB_LUA pool=forebay capacity=4MiB\n"


def result(site, name, to):
    return f"#BB_LUA stage_out source=$FOREBAY_JOB_DIR/{name} destination={site.mount}/alice/{to}\n"


def folders(site):
    return list((site.mount / ".jobs").iterdir())


def give_up(site, job):
    site.ask("scancel", "--hurry", job, user="alice", check=True)
    site.ends(job)


def a_link_to_a_result_stands_for_the_result(site):
    job = site.job(JOB + result(site, "latest", "by-link") + result(site, "whole", "by-whole-link") + result(site, "inner/x", "by-folder"),
                   "cd $FOREBAY_JOB_DIR; for run in 7 8 9; do mkdir run$run; echo $run >run$run/x; done\n"
                   "ln -s run7 latest; ln -s $FOREBAY_JOB_DIR/run8 whole; ln -s run9 inner")
    site.ends(job)
    for name, text in (("by-link/x", "7\n"), ("by-whole-link/x", "8\n"), ("by-folder", "9\n")):
        path = site.pfs / "alice" / name
        assert not path.is_symlink() and not path.parent.is_symlink() and path.read_text(encoding="utf-8") == text, name
    assert not folders(site)
    dangling = site.job(JOB + result(site, "latest", "nothing"), "ln -s run7 $FOREBAY_JOB_DIR/latest")
    site.reason(dangling, "latest: not there")
    out = site.job(JOB + result(site, "latest", "nothing"), "ln -s /etc $FOREBAY_JOB_DIR/latest")
    site.reason(out, "latest: leads out of the job's directory")
    for job in (dangling, out):
        give_up(site, job)
    run(["rm", "-r", *folders(site)])


def a_job_that_runs_again_is_staged_out_once(site):
    """Requeued: results of the first run are not asked for, half ones not taken, and a persistent buffer stays."""
    site.ends(site.job("#BB_LUA create_persistent name=again", "echo kept >$FOREBAY_PERSISTENT_again/x"))
    job = site.job(JOB + result(site, "out", "requeued") + f"#BB_LUA stage_out path={site.mount}/alice/made-late\n"
                   "#BB_LUA persistent name=again\n#BB_LUA destroy_persistent name=again",
                   "mkdir $FOREBAY_JOB_DIR/out; echo $SLURM_RESTART_COUNT >$FOREBAY_JOB_DIR/out/half; echo began\n"
                   "[ $SLURM_RESTART_COUNT ] || exec sleep 100\n"
                   f"cat $FOREBAY_PERSISTENT_again/x; echo whole >$FOREBAY_JOB_DIR/out/whole; echo late >{site.mount}/alice/made-late",
                   options=["--requeue", "--open-mode=append"])
    until("its output", lambda: (site.home / f"alice/job-{job}.out").exists() and "began" in site.output(job))
    site.ask("scontrol", "requeue", job, check=True)
    until("the teardown of its first run", lambda: not site.record(job).exists())
    site.waits_for(job, "PENDING")
    assert not (site.mount / "alice/requeued").exists() and (site.mount / "persistent/again/x").exists()
    site.ask("scontrol", "update", f"JobId={job}", "StartTime=now", check=True)
    site.ends(job, patience_s=60)
    assert "kept" in site.output(job), site.output(job)
    assert sorted(os.listdir(site.pfs / "alice/requeued")) == ["half", "whole"]
    assert (site.pfs / "alice/requeued/half").read_text(encoding="utf-8") == "1\n"
    assert (site.pfs / "alice/made-late").read_text(encoding="utf-8") == "late\n"
    assert not (site.mount / "persistent/again").exists() and not folders(site)


def a_last_checkpoint_is_staged_out_whole(site):
    """The program has KillWait to write it, and Slurm calls the plugin before that has passed."""
    # Also where the job's directory would go at once.
    body = ("trap 'for i in 1 2 3 4 5 6 7 8; do echo $i >>$FOREBAY_JOB_DIR/last; sleep 1; done; exit 0' TERM\n"
            "touch $FOREBAY_JOB_DIR/last; echo began; sleep 100 & wait")
    job = site.job(JOB + result(site, "last", "last"), body)
    hurried = site.job(JOB, body)
    for one in (job, hurried):
        until("its output", lambda one=one: (site.home / f"alice/job-{one}.out").exists() and "began" in site.output(one))
    site.ask("scancel", job, check=True)
    site.ask("scancel", "--hurry", hurried, check=True)
    site.ends(job, "CANCELLED")
    site.ends(hurried, "CANCELLED")
    assert (site.pfs / "alice/last").read_text(encoding="utf-8").split() == list("12345678")
    assert not folders(site)


def lua_of(site):
    """The processes of slurmscriptd that run the plugin."""
    daemon = site.children["slurmctld"].pid
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(text.rpartition(")")[2].split()[1])
    scriptd = [pid for pid, parent in parents.items() if parent == daemon]
    return [pid for pid, parent in parents.items() if parent in scriptd]


def a_stage_out_that_is_killed_keeps_results(site):
    job = site.job(JOB + result(site, "final", "final-of-killed"), "echo final >$FOREBAY_JOB_DIR/final; echo began; sleep 2")
    until("its output", lambda: (site.home / f"alice/job-{job}.out").exists() and "began" in site.output(job))
    daemon = int((site.state / "forebay.pid").read_text(encoding="utf-8").split()[0])
    os.kill(daemon, signal.SIGSTOP)
    try:
        until("the stage-out", lambda: "BurstBufferState=staging-out" in site.show(job))
        until("its record", lambda: "kept=yes" in site.record(job).read_text(encoding="utf-8"))
        # As Slurm does after StageOutTimeout.
        killed = 0
        for pid in lua_of(site):
            # Another call of the plugin may have ended meanwhile.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
                killed += 1
        assert killed, "no call of the plugin runs"
        site.reason(job, "slurm_bb_data_out")
    finally:
        os.kill(daemon, signal.SIGCONT)
    give_up(site, job)
    left = folders(site)
    assert len(left) == 1 and (left[0] / "final").read_text(encoding="utf-8") == "final\n", left
    run(["rm", "-r", *left])


def a_stage_out_that_is_begun_again_knows_what_it_moved(site):
    """One result is moved, the other one cannot be; then the call ends before the first is noted."""
    job = site.job(JOB + result(site, "a", "again-a") + result(site, "b", "not-yet/b"),
                   "echo a >$FOREBAY_JOB_DIR/a; echo b >$FOREBAY_JOB_DIR/b")
    site.reason(job, "not-yet/b: No such file")
    record = site.record(job)
    text = record.read_text(encoding="utf-8")
    assert text.count("moved=yes") == 1 and "kept=yes" in text, text
    record.write_text(text.replace("moved=yes", ""), encoding="utf-8")
    site.put("alice/not-yet/x", "x", on="mount")
    site.stop("slurmctld")
    site.controller()
    site.ends(job, patience_s=60)
    assert (site.pfs / "alice/again-a").read_text(encoding="utf-8") == "a\n"
    assert (site.pfs / "alice/not-yet/b").read_text(encoding="utf-8") == "b\n"
    assert not folders(site)


def what_is_at_a_destination_is_no_result(site):
    site.put("alice/old-result", "old")
    absent = site.job(JOB + result(site, "never-made", "old-result"))
    site.reason(absent, "never-made: not there")
    give_up(site, absent)
    run(["rm", "-r", *folders(site)])
    site.ends(site.job(JOB + result(site, "new", "old-result"), "echo new >$FOREBAY_JOB_DIR/new"))
    assert (site.pfs / "alice/old-result").read_text(encoding="utf-8") == "new\n"
    site.put("alice/old-folder/x", "x")
    full = site.job(JOB + result(site, "new", "old-folder"), "mkdir $FOREBAY_JOB_DIR/new; echo new >$FOREBAY_JOB_DIR/new/new")
    site.reason(full, "old-folder: Directory not empty")
    give_up(site, full)
    left = folders(site)
    assert (left[0] / "new/new").exists() and (site.mount / "alice/old-folder/x").exists(), left
    run(["rm", "-r", *left])


def what_goes_with_a_job_is_not_called_staged_out(site):
    """By a list that the job writes, by a link, by a name of the PFS, and as a destination."""
    wanted = site.home / "alice/out.list"
    for path in (wanted, f"{wanted}-2"):
        run(["install", "-o", "alice", "/dev/null", path])
    jobs = [site.job(JOB + f"#BB_LUA stage_out list={wanted}", f"echo x >$FOREBAY_JOB_DIR/x; echo $FOREBAY_JOB_DIR/x >{wanted}; sleep 1"),
            site.job(JOB + f"#BB_LUA stage_out path={site.mount}/alice/into/x",
                     f"echo x >$FOREBAY_JOB_DIR/x; ln -s $FOREBAY_JOB_DIR {site.mount}/alice/into"),
            site.job(JOB + f"#BB_LUA stage_out list={wanted}-2",
                     f"echo x >$FOREBAY_JOB_DIR/x; echo {site.pfs}/.jobs/${{FOREBAY_JOB_DIR##*/}}/x >{wanted}-2"),
            site.job(JOB + result(site, "x", "into-3/y"), f"echo x >$FOREBAY_JOB_DIR/x; ln -s $FOREBAY_JOB_DIR {site.mount}/alice/into-3")]
    for job in jobs:
        site.reason(job, "leads into a job's directory")
        give_up(site, job)
    left = folders(site)
    assert len(left) == len(jobs) and all((folder / "x").read_text(encoding="utf-8") == "x\n" for folder in left), left
    run(["rm", "-r", *left])


def a_jobs_directory_goes_whatever_its_modes(site):
    site.ends(site.job(JOB, "cd $FOREBAY_JOB_DIR; mkdir -p ro/deep none; echo x >ro/deep/x; chmod 555 ro/deep ro; chmod 0 none"))
    assert not folders(site)


def a_directory_that_could_not_be_removed_is_not_forgotten(site):
    """The burst buffer is away when the job ends, and Slurm gives up after three attempts."""
    job = site.job(JOB, "echo x >$FOREBAY_JOB_DIR/x; echo began; cd /; exec sleep 100")
    until("its output", lambda: (site.home / f"alice/job-{job}.out").exists() and "began" in site.output(job))
    run([site.forebay, "down", "--state", site.state], timeout_s=60)
    try:
        site.ask("scancel", job, check=True)
        until("Slurm gives up", lambda: f"Teardown for JobId={job} failed 2 times" in site.log_of(job), 60)
    finally:
        site.burst_buffer()
        # Nodes have mounts of their own.
        for node in NODES:
            site.stop(f"slurmd-{node}")
        site.nodes()
    assert site.record(job).exists() and len(folders(site)) == 1, "forgotten"
    # As of a job that Slurm knows no more: minutes after its end.
    site.record(job).rename(site.record(987654))
    (site.run / "records/swept").write_text("0", encoding="utf-8")
    site.ends(site.job(JOB))
    until("the sweep", lambda: not site.record(987654).exists())
    assert not folders(site)


def what_is_on_record_of_a_run_before_is_removed(site):
    job = site.job(JOB, "ls -A $FOREBAY_JOB_DIR/..", options=["--hold"])
    old = site.mount / ".jobs" / f"{job}-0123456789abcdef"
    site.put(f".jobs/{old.name}/x", "x", on="mount")
    site.record(job).write_text(f"uid={USERS['alice']} capacity=1 dir={old.name}\n", encoding="utf-8")
    site.ask("scontrol", "release", job, check=True)
    site.ends(job)
    assert old.name not in site.output(job) and not folders(site), site.output(job)


def what_a_cancelled_job_has_left_is_removed(site):
    """As where Slurm ends a teardown together with the stage-in that it is for."""
    job, waits = (site.job(JOB, options=["--hold"]) for _ in range(2))
    site.ask("scancel", job, check=True)
    for one in (job, waits):
        site.put(f".jobs/{one}-0123456789abcdef/x", "x", on="mount")
        site.record(one).write_text(f"uid={USERS['alice']} capacity=1 dir={one}-0123456789abcdef\n", encoding="utf-8")
    (site.run / "records/swept").write_text("0", encoding="utf-8")
    site.ends(site.job(JOB))
    until("the sweep", lambda: not site.record(job).exists())
    assert [folder.name.partition("-")[0] for folder in folders(site)] == [waits], folders(site)
    site.ask("scontrol", "release", waits, check=True)
    site.ends(waits)
    assert not folders(site)


def a_directory_is_on_record_before_it_is_made(site):
    (site.mount / ".jobs").chmod(0o755)
    try:
        job = site.job(JOB)
        site.reason(job, "jobs/.*: Permission denied")
        assert "dir=" in site.record(job).read_text(encoding="utf-8")
        site.ask("scancel", job, check=True)
        site.ends(job, "CANCELLED")
    finally:
        (site.mount / ".jobs").chmod(0o1777)


def a_persistent_buffer_of_somebody_else_is_used_by_its_owners_name_only(site):
    site.ends(site.job("#BB_LUA create_persistent name=theirs", "chmod 777 $FOREBAY_PERSISTENT_theirs", user="bob"))
    unaware = site.job("#BB_LUA persistent name=theirs")
    site.reason(unaware, "theirs: it is bob's; .owner=bob. says")
    mistaken = site.job("#BB_LUA persistent name=theirs owner=alice")
    site.reason(mistaken, "theirs: it is bob's")
    aware = site.job("#BB_LUA persistent name=theirs owner=bob", "echo x >$FOREBAY_PERSISTENT_theirs/x")
    site.ends(aware)
    site.ask("ln", "-s", "theirs", site.mount / "persistent/link", user="bob", check=True)
    link = site.job("#BB_LUA persistent name=link owner=bob")
    site.reason(link, "link: a symbolic link is no persistent buffer")
    site.ask("scancel", unaware, mistaken, link, check=True)
    site.ask("rm", "-r", site.mount / "persistent/link", site.mount / "persistent/theirs", user="bob", check=True)


def what_is_no_list_is_neither_read_nor_repeated(site):
    sparse = site.home / "alice/sparse"
    with open(sparse, "wb") as file:
        file.truncate(1 << 40)
    nulls = site.home / "alice/nulls"
    nulls.write_bytes(b"/word-one\0word-two\0")
    text = site.home / "alice/text"
    text.write_text(f"{site.mount}/alice\n\nword-three\n", encoding="utf-8")
    jobs = [(site.job(f"#BB_LUA stage_in list={path}"), reason) for path, reason in (
        (sparse, "sparse: more than 64 MiB are no list"), (nulls, "nulls: line 1 is no path"), (text, "text: line 3 is no path"))]
    for job, reason in jobs:
        site.reason(job, reason)
        shown = site.show(job)
        assert not re.search("word-(one|two|three)", shown), shown
    site.ask("scancel", *(job for job, _ in jobs), check=True)


def all_stage_ins_share_one_time(site):
    """A program that takes its time: what it is told is on record."""
    site.put("alice/slow", "x")
    site.ends(site.job("#BB_LUA create_persistent name=slow", "echo x >$FOREBAY_PERSISTENT_slow/x"))
    slow, said = site.base / "slow-forebay", site.home / "alice/slow-said"
    slow.write_text(f'#!/bin/sh\n[ "$1" != stage-in ] || {{ echo "$@" >>{said}; sleep 3; }}\nexec {site.forebay} "$@"\n', encoding="utf-8")
    slow.chmod(0o755)
    conf = site.etc / "forebay_bb.conf"
    text = conf.read_text(encoding="utf-8")
    conf.write_text(text.replace(f"forebay = {site.forebay}", f"forebay = {slow}"), encoding="utf-8")
    try:
        site.ends(site.job(f"#BB_LUA stage_in path={site.mount}/alice/slow\n#BB_LUA persistent name=slow\n#BB_LUA destroy_persistent name=slow"))
    finally:
        conf.write_text(text, encoding="utf-8")
    first, second = (int(re.search(r"--timeout (\d+)", line)[1]) for line in said.read_text(encoding="utf-8").splitlines())
    assert 55 <= first <= 60 and second <= first - 3, (first, second)


def long_directives_are_refused_at_once(site):
    """In slurmctld, with its locks held. Slurm's own reading takes longer the more lines there are."""
    done = site.submit("#BB_LUA stage_in \\\n" + "#BB_LUA path=/x \\\n" * 20_000)
    assert "more than 65536 bytes of directives" in done.stderr, done
    took = [float(usec) / 1e6 for usec in re.findall(r"slurm_bb_job_process ran for usec=(\d+)", site.whole_log())]
    assert max(took) < 0.5, f"slurmctld was held up for {max(took):.1f} s"


def lines_with_another_word_are_refused(site):
    word, other = ("BB_LUA", "DW") if not site.directive else ("DW", "BB_LUA")
    done = site.submit(f"#{word} stage_in path={site.mount}/alice/a\n#{other} stage_in path={site.mount}/alice/b")
    assert f"Slurm looks for #{word} here" in done.stderr and done.returncode, done
    # A comment that begins like it is none of it.
    done = site.submit(f"#{other}X is a comment", options=["--hold"])
    assert done.returncode == 0, done
    site.ask("scancel", done.stdout.strip(), check=True)


def own_head(site, pfs):
    return (f"export FOREBAY_PFS={pfs} FOREBAY_MOUNT=$HOME/own FOREBAY_DRAM=16MiB FOREBAY_SSD=32MiB FOREBAY_LOCAL={site.local} "
            f"FOREBAY_RUN={site.local} FOREBAY_PROGRAM={site.forebay}\n")


def own_pfs(site, name):
    pfs = site.pfs / "alice" / name
    pfs.mkdir(parents=True)
    for one in (pfs, pfs.parent):
        os.chown(one, USERS["alice"], USERS["alice"])
    return pfs


def a_signal_has_an_own_burst_buffer_copied(site):
    """With `--signal=B:TERM@...` Slurm sends it before the end."""
    pfs = own_pfs(site, "own-term")
    job = site.job("", own_head(site, pfs) + f"exec {PLUGIN}/own-buffer run sh -c 'echo some >$FOREBAY_MOUNT/some; echo began; sleep 100; echo never'",
                   options=["-N1", "-w", "n1", "--ntasks-per-node=2"])
    until("its output", lambda: (site.home / f"alice/job-{job}.out").exists() and "began" in site.output(job))
    site.ask("scancel", "--batch", "--signal=TERM", job, user="alice", check=True)
    site.waits_for(job, "FAILED", "COMPLETED", patience_s=60)
    assert (pfs / "some").read_text(encoding="utf-8") == "some\n", site.output(job)
    assert "never" not in site.output(job) and "ExitCode=143:0" in site.show(job), site.show(job)


def an_own_burst_buffer_takes_no_folder_of_others(site):
    pfs = own_pfs(site, "own-taken")
    # Jobs have numbers one after the other.
    taker = site.job("", f"mkdir -m 777 {site.local}/forebay-alice-$((SLURM_JOB_ID + 1))", user="bob", options=["-w", "n1"])
    site.waits_for(taker, "COMPLETED")
    job = site.job("", own_head(site, pfs) + f"{PLUGIN}/own-buffer start 2>&1", options=["-N1", "-w", "n1", "--ntasks-per-node=2"])
    assert int(job) == int(taker) + 1
    site.waits_for(job, "FAILED")
    assert f"forebay-alice-{job}: not a folder of yours" in site.output(job), site.output(job)
    site.ask("rm", "-r", site.home / "alice/.forebay-jobs", user="alice", check=True)


def an_own_burst_buffer_goes_with_the_job_to_other_nodes(site):
    pfs = own_pfs(site, "own-moved")
    job = site.job("", own_head(site, pfs) + f"[ $SLURM_RESTART_COUNT ] || {{ {PLUGIN}/own-buffer start; echo began; sleep 100; }}\n"
                   f"{PLUGIN}/own-buffer run sh -c 'echo $SLURMD_NODENAME >$FOREBAY_MOUNT/node' 2>&1",
                   options=["-N1", "-w", "n1", "--ntasks-per-node=2", "--requeue", "--open-mode=append"])
    until("its output", lambda: (site.home / f"alice/job-{job}.out").exists() and "began" in site.output(job))
    site.ask("scontrol", "requeue", job, check=True)
    site.waits_for(job, "PENDING")
    site.ask("scontrol", "update", f"JobId={job}", "ReqNodeList=n2", "StartTime=now", check=True)
    site.waits_for(job, "COMPLETED", "FAILED", patience_s=60)
    output = site.output(job)
    assert (pfs / "node").exists() and (pfs / "node").read_text(encoding="utf-8") == "n2\n", output
    assert "was on other nodes before (n1)" in output, output
    assert (site.home / f"alice/.forebay-jobs/{job}/cluster.toml.before-1").exists(), output


AS_ROOT = [
    "a_link_to_a_result_stands_for_the_result", "a_job_that_runs_again_is_staged_out_once", "a_last_checkpoint_is_staged_out_whole",
    "a_stage_out_that_is_killed_keeps_results", "a_stage_out_that_is_begun_again_knows_what_it_moved", "what_is_at_a_destination_is_no_result",
    "what_goes_with_a_job_is_not_called_staged_out", "a_jobs_directory_goes_whatever_its_modes",
    "a_directory_that_could_not_be_removed_is_not_forgotten", "what_is_on_record_of_a_run_before_is_removed",
    "what_a_cancelled_job_has_left_is_removed", "a_directory_is_on_record_before_it_is_made", "a_persistent_buffer_of_somebody_else_is_used_by_its_owners_name_only",
    "what_is_no_list_is_neither_read_nor_repeated", "all_stage_ins_share_one_time", "long_directives_are_refused_at_once", "lines_with_another_word_are_refused",
    "a_signal_has_an_own_burst_buffer_copied", "an_own_burst_buffer_takes_no_folder_of_others",
    "an_own_burst_buffer_goes_with_the_job_to_other_nodes",
]
BY_SUDO = ["lines_with_another_word_are_refused"]
