"""What is tried, in this order, on one machine: each case goes on from the one before."""

import json
import re

from booted import until

ALL = ("in_usr_local", "installed", "manual_pages", "completions", "units", "started", "journal", "upgraded_under_a_job", "killed",
       "another_form_is_refused", "removal_is_refused", "kept_over_a_purge", "from_fstab", "in_a_cluster", "removed_when_drained",
       "named_from_fstab", "rebooted", "rebooted_after_a_mount_by_hand", "rebooted_while_in_use", "unmounted_at_the_removal")

STATE = "/var/lib/forebay/bb"
UNIT = "forebay@bb"
# Nothing is drained by itself: what is written is undrained.
SETTINGS = """
[demotion]
idle = false
start = "95%"
"""
# One that a reboot leaves: /disk stays, and no tmpfs does.
KEPT = f"""
pfs = "/disk/scratch"
mount = "/kept"
state = "/disk/state"
dram = "512MiB"
ssd = ["/disk/flash:1GiB"]
{SETTINGS}"""
KEPT_LINE = "/etc/forebay/kept.toml /kept forebay _netdev,nofail,x-systemd.requires-mounts-for=/disk 0 0"
KEPT_MIB = 300
# systemd-analyze security: 10 is a unit without any hardening, which is 9.6 for root.
EXPOSURE_MAX = 6.0


def equal(found, wanted, what):
    assert found == wanted, f"{what}: {found!r}, not {wanted!r}"


def contains(text, part):
    assert part in text, f"no {part!r} in: {text}"


def install(there, version, **options):
    return there.run("dpkg", "-i", f"/pkgs/forebay_{version}_amd64.deb", **options)


def version(there):
    return there.run("dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", "forebay", check=False).stdout


def pid(there, unit=UNIT):
    return int(there.run("systemctl", "show", "-P", "MainPID", unit).stdout)


def status(there):
    return json.loads(there.run("forebay", "status", "--state", STATE, "--json").stdout)


def undrained(there):
    return status(there)["dirty_bytes"]


def put(there, name, mib):
    """A file with random content; its checksum is kept beside."""
    there.sh(f"head -c {mib}M /dev/urandom >/bb/{name} && cd /bb && sha256sum {name} >>/root/sums")


def whole(there, where="/bb"):
    there.sh(f"cd {where} && sha256sum --quiet -c /root/sums")


def in_usr_local(there):
    there.sh("tar -xzf /pkgs/forebay-1.0-*.tar.gz -C /usr/local --strip-components=1")
    contains(there.run("/usr/local/bin/forebay", "--version").stdout, "forebay ")
    there.sh("cd /usr/local && test -s share/man/man1/forebay-up.1.gz -a -s share/doc/forebay/LICENSE-MIT -a -s share/forebay/slurm/burst_buffer.lua")
    contains(there.run("cat", "/usr/local/lib/systemd/system/forebay@.service").stdout, "ExecStart=/usr/local/bin/forebay up")
    there.sh("cd /usr/local && tar -tzf /pkgs/forebay-1.0-*.tar.gz | grep -v '/$' | cut -d/ -f2- | xargs rm && rm -r share/forebay share/doc/forebay")


def installed(there):
    install(there, "1.0")
    equal(version(there), "installed 1.0", "the package")
    equal(there.run("dpkg", "-V", "forebay").stdout, "", "files that differ from the package")
    there.sh("test -d /var/lib/forebay -a -d /etc/forebay -a -x /sbin/mount.forebay -a -x /sbin/mount.fuse.forebay")
    equal(there.sh("systemctl list-units --plain --no-legend 'forebay*'").stdout, "", "units that the installation started")
    for paper in ("copyright", "LICENSES-THIRD-PARTY.txt.gz", "operations.md.gz", "tutorial.md.gz", "faq.md.gz", "recipes/pytorch.md.gz", "examples/bb.toml", "examples/cluster.toml"):
        there.run("test", "-s", f"/usr/share/doc/forebay/{paper}")


def manual_pages(there):
    pages = there.sh("ls /usr/share/man/man1/forebay*").stdout.split()
    assert len(pages) > 20, pages
    for page in pages:
        shown = there.run("man", "--warnings=w,mac", "--encoding=UTF-8", "-l", page)
        equal(shown.stderr, "", page)
        assert len(shown.stdout) > 500, page
    lint = there.sh("for page in /usr/share/man/man1/forebay*; do zcat $page | mandoc -T lint -W warning; done", check=False).stdout
    # clap_mangen breaks the line twice before possible values; nobody sees it.
    equal([line for line in lint.splitlines() if "skipping paragraph macro" not in line], [], "mandoc")
    contains(there.sh("man mount.forebay").stdout, "forebay mount")
    # The configuration in the page is one, line by line.
    contains(there.sh("man forebay-up").stdout, "wait_for_space = \"2s\"")
    help_text = there.run("forebay", "--help").stdout
    for command in re.findall(r"^  ([a-z-]+) ", help_text.split("Commands:")[1].split("Options:")[0], re.MULTILINE):
        if command != "help":
            there.run("test", "-s", f"/usr/share/man/man1/forebay-{command}.1.gz")


def completions(there):
    bash = there.run("bash", "-c", """set -e
        source /usr/share/bash-completion/bash_completion; _completion_loader forebay || [ $? = 124 ]; complete -p forebay >&2
        COMP_WORDS=(forebay sta); COMP_CWORD=1; _forebay forebay sta forebay; echo "${COMPREPLY[@]}"
        COMP_WORDS=(forebay stage-out --w); COMP_CWORD=2; _forebay forebay --w stage-out; echo "${COMPREPLY[@]}"
        """)
    equal(sorted(bash.stdout.split()), ["--wait", "stage-in", "stage-out", "status"], "bash")
    fish = there.run("fish", "-c", "complete -C 'forebay sta'")
    equal([line.split()[0] for line in fish.stdout.splitlines()], ["stage-in", "stage-out", "status"], "fish")
    zsh = there.run("zsh", "-fc", """autoload -Uz compinit && compinit -u -D && print $_comps[forebay] && autoload +X _forebay && print -l ${(f)functions[_forebay]}
        """)
    equal(zsh.stdout.split()[0], "_forebay", "zsh")
    contains(zsh.stdout, "stage-out")


def units(there):
    for name in ("forebay@bb", "forebay-server@1", "forebay-mount@cl"):
        unit = f"{name}.service"
        equal(there.run("systemd-analyze", "verify", unit).stderr, "", unit)
        said = there.run("systemd-analyze", "security", "--no-pager", unit, check=False).stdout
        exposure = float(re.search(r"Overall exposure level for \S+: ([0-9.]+)", said)[1])
        assert exposure <= EXPOSURE_MAX, said


def started(there):
    there.sh("mkdir -p /scratch /nvme0 /bb && mount -t tmpfs tmpfs /scratch && mount -t tmpfs tmpfs /nvme0")
    there.sh("sed -e 's/4GiB/64MiB/' -e 's/200GB/256MiB/' /usr/share/doc/forebay/examples/bb.toml >/etc/forebay/bb.toml")
    there.run("systemctl", "start", UNIT)
    # Type=notify: the mount answers now.
    there.run("mountpoint", "/bb")
    contains(there.run("systemctl", "show", "-P", "StatusText", UNIT).stdout, "/bb")
    # The page is a thread of its own, and may come a moment later.
    until("it is healthy", lambda: there.run("curl", "-sf", "http://127.0.0.1:9180/healthz", check=False).returncode == 0)
    put(there, "drained", 3)
    until("it is drained", lambda: undrained(there) == 0)
    whole(there, "/scratch")
    there.run("systemctl", "stop", UNIT)
    assert there.run("mountpoint", "/bb", check=False).returncode, "/bb is still mounted"
    with_settings = f"cat >>/etc/forebay/bb.toml <<'E'\n{SETTINGS}\nE"
    there.sh(with_settings)
    there.run("systemctl", "enable", "--now", UNIT)
    # Root's rights reach the files of users through all the hardening.
    there.sh("mkdir -m 1777 /bb/all && setpriv --reuid 65534 --regid 65534 --clear-groups sh -c 'echo x >/bb/all/mine && chmod 2755 /bb/all/mine'")
    equal(there.run("stat", "-c", "%u %a", "/bb/all/mine").stdout.strip(), "65534 2755", "owner and mode")
    put(there, "one", 5)
    assert undrained(there) > 5 << 20, "drained"


def lines(there, *matches):
    # What was sent is not yet what is written.
    there.run("journalctl", "--sync")
    said = there.run("journalctl", "--no-pager", "-o", "json", *matches).stdout
    return [json.loads(line) for line in said.splitlines()]


def journal(there):
    found = lines(there, f"FOREBAY_STATE={STATE}", f"_SYSTEMD_UNIT={UNIT}.service")
    starts = [line for line in found if line["MESSAGE"].startswith("forebay ") and line["MESSAGE"].endswith("starts")]
    equal(len(starts), 2, "starts in the journal")
    for name, wanted in (("PRIORITY", "6"), ("SYSLOG_IDENTIFIER", "forebay"), ("FOREBAY_MOUNT", "/bb"), ("TARGET", "forebay::up::run")):
        equal(starts[0][name], wanted, name)
    contains(starts[0]["CODE_FILE"], "run.rs")
    # Each line stands there once.
    everything = lines(there, f"_SYSTEMD_UNIT={UNIT}.service")
    equal(sum(line["MESSAGE"].endswith(" starts") for line in everything), 2, "starts in all of the journal")
    # Warnings have their level.
    there.sh("systemctl stop forebay@bb && systemctl set-environment FOREBAY_LOG=debug && sed -i 's/127.0.0.1:9180/0.0.0.0:9180/' /etc/forebay/bb.toml"
             " && systemctl start forebay@bb && systemctl unset-environment FOREBAY_LOG")
    until("the warning is in the journal", lambda: any(
        "everybody who reaches it" in line["MESSAGE"] for line in lines(there, f"FOREBAY_STATE={STATE}", "PRIORITY=4")))
    until("lines of level debug are", lambda: lines(there, f"FOREBAY_STATE={STATE}", "PRIORITY=7"))
    there.sh("sed -i 's/0.0.0.0:9180/127.0.0.1:9180/' /etc/forebay/bb.toml && systemctl restart forebay@bb")
    whole(there)
    # A service has no terminal, can read its file again, and says as an error why it has not started.
    assert not any("Ctrl-C" in line["MESSAGE"] for line in lines(there, f"_SYSTEMD_UNIT={UNIT}.service")), "Ctrl-C in the journal"
    there.run("systemctl", "reload", UNIT)
    until("the file was read again", lambda: any(line["MESSAGE"].startswith("reload: ") for line in lines(there, f"FOREBAY_STATE={STATE}")))
    there.sh("sed 's,^mount = .*,mount = \"/nowhere\",' /etc/forebay/bb.toml >/etc/forebay/lost.toml")
    assert there.run("systemctl", "start", "forebay@lost", check=False).returncode, "a mount point that is not there"
    until("why it has not started is an error", lambda: any(
        "make an empty directory" in line["MESSAGE"] for line in lines(there, "_SYSTEMD_UNIT=forebay@lost.service", "PRIORITY=3")))
    there.sh("systemctl stop forebay@lost && rm /etc/forebay/lost.toml")


def upgraded_under_a_job(there):
    before = pid(there)
    there.sh("systemd-run --unit job sh -c 'exec 3>/bb/two; i=0; while [ ! -e /root/end ]; do head -c 1M /dev/urandom >&3; sleep 0.1; done; exec 3>&-'")
    until("the job writes", lambda: there.run("test", "-s", "/bb/two", check=False).returncode == 0)
    said = install(there, "2.0")
    contains(said.stdout, f"{UNIT}.service goes on with version 1.0 until: systemctl restart")
    equal((version(there), pid(there)), ("installed 2.0", before), "version and process")
    size = int(there.run("stat", "-c", "%s", "/bb/two").stdout)
    until("the job goes on", lambda: int(there.run("stat", "-c", "%s", "/bb/two").stdout) > size)
    there.sh("touch /root/end")
    until("the job ends", lambda: there.run("systemctl", "is-active", "job", check=False).stdout.strip() == "inactive")
    there.sh("cd /bb && sha256sum two >>/root/sums")
    left = undrained(there)
    there.run("systemctl", "restart", UNIT)
    assert pid(there) != before, "the same process"
    whole(there)
    equal(undrained(there), left, "undrained bytes after the restart")


def killed(there):
    before = pid(there)
    there.run("systemctl", "kill", "-s", "KILL", "--kill-whom", "main", UNIT)
    until("it is started again", lambda: pid(there) not in (0, before)
          and there.run("systemctl", "is-active", UNIT, check=False).returncode == 0)
    whole(there)
    assert undrained(there) > 6 << 20, "drained"


def another_form_is_refused(there):
    before = pid(there)
    said = install(there, "3.0", check=False)
    assert said.returncode, "upgraded"
    contains(said.stderr, f"{STATE}: runs;")
    contains(said.stderr, "are not yet on the PFS")
    equal((version(there), pid(there)), ("installed 2.0", before), "version and process")
    whole(there)


def removal_is_refused(there):
    before = pid(there)
    said = there.run("dpkg", "-r", "forebay", check=False)
    assert said.returncode, "removed"
    contains(said.stderr, f"`forebay down --state {STATE} --drain`")
    equal((version(there), pid(there)), ("installed 2.0", before), "version and process")
    there.run("systemctl", "stop", UNIT)
    said = there.run("dpkg", "-r", "forebay", check=False)
    assert said.returncode, "removed"
    contains(said.stderr, f"{STATE}: stopped;")
    contains(there.run("forebay", "--version").stdout, "forebay")
    there.run("systemctl", "start", UNIT)
    whole(there)


def kept_over_a_purge(there):
    said = there.run("env", "FOREBAY_KEEP_UNDRAINED=1", "dpkg", "-P", "forebay")
    contains(said.stderr, f"kept for the next installation: {STATE}: stopped;")
    contains(said.stderr, "kept, since something is in it: /var/lib/forebay")
    assert there.run("mountpoint", "/bb", check=False).returncode, "/bb is still mounted"
    there.sh("test ! -e /usr/bin/forebay -a ! -e /etc/systemd/system/multi-user.target.wants/forebay@bb.service")
    equal(there.sh("find /scratch -type f -printf '%f '").stdout.split(), ["drained"], "files on the PFS")
    said = install(there, "3.0", check=False)
    assert said.returncode, "a version of another form was installed"
    contains(said.stderr, f"{STATE}: stopped;")
    install(there, "2.0")
    there.sh("test ! -e /var/lib/forebay/kept-on-disk")
    there.run("systemctl", "start", UNIT)
    whole(there)
    assert undrained(there) > 6 << 20, "drained"


def from_fstab(there):
    there.run("systemctl", "stop", UNIT)
    for kind, how in (("forebay", ("mount", "/bb")), ("fuse.forebay", ("systemctl", "start", "bb.mount"))):
        there.sh(f"echo '/etc/forebay/bb.toml /bb {kind} _netdev,nofail 0 0' >/etc/fstab && systemctl daemon-reload")
        there.run(*how)
        whole(there)
        contains(there.run("findmnt", "-n", "-o", "SOURCE,FSTYPE", "/bb").stdout, "fuse.forebay")
        if how[0] == "mount":
            # The first run has not ended yet when umount returns.
            there.sh("umount /bb && mount /bb")
            whole(there)
            there.run("umount", "/bb")
        else:
            contains(there.sh("systemctl show -P Wants -P Requires remote-fs.target").stdout, "bb.mount")
            there.run("systemctl", "stop", "bb.mount")
        until("it has ended", lambda: there.run("pgrep", "-x", "forebay", check=False).returncode)
    there.sh(": >/etc/fstab && systemctl daemon-reload")
    there.run("systemctl", "start", UNIT)
    whole(there)


def in_a_cluster(there):
    there.sh("mkdir -p /scratch/of-cluster /nvme1 /cl && ip link set lo up && forebay keygen /etc/forebay/bb0.key && "
             "sed -e 's/10.0.0.1/127.0.0.1/' -e 's/64GiB/64MiB/' -e 's/1TiB/128MiB/' -e 's:nvme0:nvme1:' -e 's:\"/scratch\":\"/scratch/of-cluster\":'"
             " /usr/share/doc/forebay/examples/cluster.toml >/etc/forebay/cluster.toml")
    # The mount comes before its server, and is tried again.
    assert there.run("systemctl", "start", "forebay-mount@cl", check=False).returncode, "there is no server"
    there.run("systemctl", "start", "forebay-server@1")
    until("it is mounted", lambda: there.run("systemctl", "is-active", "forebay-mount@cl", check=False).returncode == 0)
    there.sh("test \"$(findmnt -n -o FSTYPE /cl)\" = fuse.forebay && head -c 1M /dev/urandom >/cl/file && cmp /cl/file /cl/file")
    found = lines(there, "FOREBAY_MOUNT=/cl", "_SYSTEMD_UNIT=forebay-mount@cl.service", "PRIORITY=6")
    assert found, "nothing in the journal"
    there.run("systemctl", "stop", "forebay-mount@cl")
    there.run("forebay", "down", "--state", "/var/lib/forebay/bb0", "--drain", "--timeout", "30s")
    there.sh("test -s /scratch/of-cluster/file && systemctl stop forebay-server@1")


def removed_when_drained(there):
    there.run("forebay", "down", "--state", STATE, "--drain", "--timeout", "60s")
    whole(there, "/scratch")
    # The unit sees the end as one in order; what runs and has nothing is stopped.
    there.run("systemctl", "start", UNIT)
    said = there.run("dpkg", "-P", "forebay")
    contains(said.stderr, "kept, since something is in it: /etc/forebay")
    equal(there.run("pgrep", "-x", "forebay", check=False).stdout, "", "processes")
    equal(there.sh("systemctl list-units --plain --no-legend 'forebay*.service'").stdout, "", "units")
    equal(there.sh("find /usr /etc/systemd -xdev -path '*forebay*' -newer /pkgs").stdout, "", "files that are left")


def pid_of(there):
    return int(there.run("cat", "/disk/state/forebay.pid").stdout)


def group_of(there):
    return there.run("cat", f"/proc/{pid_of(there)}/cgroup").stdout.strip()


def has_ended(there):
    """At once: nobody waits here. The note is written before the lock is let go."""
    return "undrained_files" in there.run("cat", "/disk/state/forebay.ended").stdout and there.run(
        "flock", "--nonblock", "/disk/state/forebay.lock", "true", check=False).returncode == 0


def named_from_fstab(there):
    install(there, "1.0")
    there.sh(f"mkdir -p /disk/scratch /disk/flash /kept && cat >/etc/forebay/kept.toml <<'E'\n{KEPT}\nE")
    for options, time in (("defaults", "30min"), ("x-systemd.mount-timeout=7min", "7min")):
        there.sh(f"echo '/etc/forebay/kept.toml /kept forebay {options} 0 0' >/etc/fstab && systemctl daemon-reload")
        equal(there.run("systemctl", "show", "-P", "TimeoutUSec", "kept.mount").stdout.strip(), time, f"time by {options}")
    there.sh(f"echo '{KEPT_LINE}' >/etc/fstab && systemctl daemon-reload && systemctl start kept.mount && echo data >/kept/file")
    contains(group_of(there), "/kept.mount")
    before = pid_of(there)
    said = install(there, "2.0")
    contains(said.stdout, "forebay: /kept goes on with version 1.0 until: umount '/kept' && mount '/kept'")
    equal(pid_of(there), before, "process")
    # As umount calls its helper by a path, by a name, and from systemd.
    for how in ("umount /kept", "cd / && umount kept", "umount -c /kept", "systemctl stop kept.mount"):
        # systemd sees a mount by hand a moment later, and would stop nothing.
        until("systemd knows of it", lambda: there.run("systemctl", "is-active", "kept.mount", check=False).returncode == 0)
        there.sh(how)
        assert has_ended(there), f"{how} returned before the end"
        there.run("mount", "/kept")
        contains(there.run("cat", "/kept/file").stdout, "data")
    busy = there.sh("cd /kept && umount -c /kept", check=False)
    equal(busy.returncode, 32, "umount of what is in use")
    contains(busy.stderr, "busy")


def fill_and_reboot(there):
    """All that is in memory of the copy is lost; systemd gives what is left at the end no time to speak of."""
    there.sh("mkdir -p /etc/systemd/system.conf.d && printf '[Manager]\\nDefaultTimeoutStopSec=50ms\\n' >/etc/systemd/system.conf.d/short.conf"
             " && systemctl daemon-reload")
    there.sh(f"rm -f /kept/[123]; for i in 1 2 3; do head -c {KEPT_MIB // 3}M /dev/urandom >/kept/$i; done; cd /kept && sha256sum 1 2 3 >/disk/sums")
    tiers = json.loads(there.run("forebay", "status", "--state", "/disk/state", "--json").stdout)["tiers"]
    in_memory = sum(tier["dirty_bytes"] for tier in tiers if tier["name"] == "dram")
    assert in_memory >= KEPT_MIB << 20, f"in memory: {in_memory}"
    there.reboot()
    assert there.run("mountpoint", "/kept", check=False).returncode, "/kept is mounted, so that nothing shows the reboot"
    there.run("systemctl", "start", "kept.mount")
    there.sh("cd /kept && sha256sum --quiet -c /disk/sums")


def started_by_systemd(there):
    there.sh("umount /kept")
    until("systemd knows of it", lambda: there.run("systemctl", "is-active", "kept.mount", check=False).returncode)
    there.run("systemctl", "start", "kept.mount")
    contains(group_of(there), "/kept.mount")


def rebooted(there):
    started_by_systemd(there)
    fill_and_reboot(there)


def rebooted_after_a_mount_by_hand(there):
    # As from a session, whose scope systemd ends in its own time.
    there.sh("umount /kept && systemd-run --scope --unit=session mount /kept")
    group = group_of(there)
    assert group.endswith(".scope") and "session" not in group, group
    fill_and_reboot(there)


def rebooted_while_in_use(there):
    started_by_systemd(there)
    # Nothing says that it needs the mount: systemd does not stop it before. It does not end by SIGTERM.
    there.sh("systemd-run --unit=job -p TimeoutStopSec=20s sh -c 'cd /kept; trap : TERM; while :; do sleep 1; done'")
    until("the job runs", lambda: there.sh("test \"$(readlink /proc/$(systemctl show -P MainPID job)/cwd)\" = /kept", check=False).returncode == 0)
    fill_and_reboot(there)


def unmounted_at_the_removal(there):
    there.run("forebay", "down", "--state", "/disk/state", "--drain", "--timeout", "60s")
    there.run("mount", "/kept")
    busy = there.sh("cd /kept && dpkg -r forebay", check=False)
    assert busy.returncode, "removed"
    contains(busy.stderr, "/kept (of /etc/fstab) is mounted: umount: /kept: target is busy")
    there.run("mountpoint", "/kept")
    there.run("dpkg", "-r", "forebay")
    equal(there.run("pgrep", "-x", "forebay", check=False).stdout, "", "processes")
    assert there.run("mountpoint", "/kept", check=False).returncode, "/kept is mounted"
