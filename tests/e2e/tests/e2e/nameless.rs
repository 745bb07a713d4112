//! Files that are unlinked and open, over restarts of the server.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use forebay_testkit::{Fleet, needs_nodes, pattern, wait_until};
use rustix::process::Signal;

use crate::near::of_flash;

const MIB: usize = 1 << 20;

fn create(path: &Path) -> File {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path);
    file.expect("create")
}

/// Objects in the memory tier, and what its file system has allocated, bytes.
fn objects(fleet: &Fleet) -> usize {
    fn count(dir: &Path) -> usize {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let one = |entry: fs::DirEntry| match entry.path().is_dir() {
            true => count(&entry.path()),
            false => 1,
        };
        entries.map(one).sum()
    }
    count(&fleet.base().join("state/dram/objects"))
}

fn again(fleet: &mut Fleet, in_order: bool) {
    match in_order {
        true => fleet.stop_server(),
        false => fleet.kill_server(),
    }
    fleet.start_server();
}

#[test]
fn promise_8_an_unlinked_file_that_is_open_outlives_restarts_of_the_server() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::new(2, "");
    let own = create(&fleet.mnt(1, "own"));
    pattern(1, 3 * MIB).write(&own);
    fs::remove_file(fleet.mnt(1, "own")).expect("unlink");
    let others = create(&fleet.mnt(1, "others"));
    pattern(2, MIB).write(&others);
    fs::remove_file(fleet.mnt(2, "others")).expect("the other node unlinks it");
    let replaced = create(&fleet.mnt(1, "replaced"));
    pattern(3, MIB).write(&replaced);
    drop(create(&fleet.mnt(2, "next")));
    fs::rename(fleet.mnt(2, "next"), fleet.mnt(2, "replaced")).expect("rename");
    fs::write(fleet.pfs("drained"), pattern(4, MIB).bytes()).expect("write");
    let drained = OpenOptions::new()
        .read(true)
        .write(true)
        .open(fleet.mnt(1, "drained"));
    let drained = drained.expect("open");
    fs::remove_file(fleet.mnt(2, "drained")).expect("unlink");
    assert!(!fleet.pfs("drained").exists());
    // Its name is another file's by now.
    drop(create(&fleet.mnt(2, "own")));
    assert_eq!(fleet.status()["files"], 6);
    for (n, in_order) in [false, true, false].into_iter().enumerate() {
        again(&mut fleet, in_order);
        let files = [
            (&own, 1, 3 * MIB),
            (&others, 2, MIB),
            (&replaced, 3, MIB),
            (&drained, 4, MIB),
        ];
        for (file, seed, len) in files {
            let meta = file.metadata().expect("fstat");
            let extra = (n * MIB) as u64;
            assert_eq!((meta.nlink(), meta.len()), (0, len as u64 + extra));
            let mut content = vec![0; len];
            file.read_exact_at(&mut content, 0).expect("read");
            assert!(content == pattern(seed, len).bytes(), "{seed}: other bytes");
            let mut added = vec![0; MIB];
            for m in 0..n {
                let at = (len + m * MIB) as u64;
                file.read_exact_at(&mut added, at).expect("read");
                assert!(added == vec![m as u8; MIB], "what was added is there");
            }
            let more = vec![n as u8; MIB];
            file.write_all_at(&more, len as u64 + extra).expect("write");
        }
        // Nothing of them is to be drained, and who looks for them finds nothing.
        assert_eq!(fleet.status()["open_files"], 4);
        assert!(fs::metadata(fleet.mnt(2, "others")).is_err());
    }
    own.set_len(10).expect("truncate");
    assert_eq!(own.metadata().expect("fstat").len(), 10);
    own.sync_all().expect("fsync");
    drop((own, others, replaced, drained));
    for name in ["own", "replaced"] {
        fs::remove_file(fleet.mnt(2, name)).expect("unlink");
    }
    wait_until("their space is given back", || {
        objects(&fleet) == 0 && fleet.status()["files"] == 0
    });
}

/// The kernel of the server's own node has files by itself: also what has lost its name.
#[test]
fn promise_8_what_a_kernel_has_by_itself_outlives_its_name_and_a_kill_of_the_server() {
    if needs_nodes() {
        return;
    }
    const LEN: usize = 300_000;
    let mut fleet = Fleet::new(1, "");
    fleet.mount(0, &[]);
    let dir = fleet.mnt(0, "");
    let put = |name: &str, seed: u64| {
        let file = create(&dir.join(name));
        pattern(seed, LEN).write(&file);
        file.sync_all().expect("fsync");
    };
    let open = |name: &str, writes: bool| {
        let file = OpenOptions::new()
            .read(true)
            .write(writes)
            .open(dir.join(name));
        file.expect("open")
    };
    let mut files = Vec::new();
    for (seed, writes) in [(1, false), (2, true)] {
        put("unlinked", seed);
        files.push((open("unlinked", writes), seed));
        fs::remove_file(dir.join("unlinked")).expect("unlink");
    }
    for (seed, writes) in [(3, false), (4, true)] {
        put("replaced", seed);
        files.push((open("replaced", writes), seed));
        put("next", 5);
        fs::rename(dir.join("next"), dir.join("replaced")).expect("rename");
        fs::remove_file(dir.join("replaced")).expect("unlink");
    }
    for _ in 0..2 {
        again(&mut fleet, false);
        for (file, seed) in &files {
            let meta = file.metadata().expect("fstat");
            assert_eq!((meta.nlink(), meta.len()), (0, LEN as u64), "{seed}");
            let mut content = vec![0; LEN];
            file.read_exact_at(&mut content, 0).expect("read");
            assert!(
                content == pattern(*seed, LEN).bytes(),
                "{seed}: other bytes"
            );
        }
    }
    drop(files);
    wait_until("their space is given back", || {
        objects(&fleet) == 0 && fleet.status()["files"] == 0
    });
}

/// A program that stops where it says so.
struct Steps(Child, BufReader<std::process::ChildStdout>);

impl Steps {
    fn run(script: &str, dir: PathBuf) -> Steps {
        let head = "import fcntl, mmap, os, sys, tempfile\n\
            def step(what):\n    print(what, flush=True)\n    assert sys.stdin.readline() == 'go\\n'\n";
        let mut child = Command::new("python3")
            .args(["-c", &format!("{head}{script}")])
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 runs");
        let said = BufReader::new(child.stdout.take().expect("a pipe"));
        Steps(child, said)
    }

    #[track_caller]
    fn says(&mut self, what: &str) {
        let mut line = String::new();
        self.1.read_line(&mut line).expect("it speaks");
        assert_eq!(line.trim_end(), what);
    }

    fn go(&mut self) {
        let mut stdin = self.0.stdin.as_ref().expect("a pipe");
        stdin.write_all(b"go\n").expect("it listens");
    }

    #[track_caller]
    fn ends(mut self) {
        assert!(self.0.wait().expect("it ends").success());
    }
}

/// Nobody tells the second stop what the mount has: it has not come back yet.
#[test]
fn promise_8_what_a_kernel_reads_by_itself_is_open_after_two_stops_in_a_row() {
    if needs_nodes() {
        return;
    }
    let flash = tempfile::tempdir().expect("temporary directory");
    let mut fleet = Fleet::new(1, &of_flash(flash.path()));
    fleet.mount(0, &[]);
    let script = "
d, size = sys.argv[1], 300000
files = []
for name in (b'named', b'unlinked'):
    with open(os.fsencode(d) + b'/' + name, 'xb') as made:
        made.write(name * size)
    files.append((made.name, name))
step('made')
files = [(os.open(path, os.O_RDONLY), name) for path, name in files]
os.unlink(d + '/unlinked')
step('open')
for fd, name in files:
    found = os.pread(fd, 2 * size * len(name), 0)
    assert found == name * size, (name, len(found))
step('read')
";
    let mut program = Steps::run(script, fleet.mnt(0, ""));
    program.says("made");
    // Who joins a file while it is being closed reads it by requests.
    wait_until("they are closed", || fleet.status()["open_files"] == 0);
    program.go();
    program.says("open");
    fleet.signal_mount(0, Signal::STOP);
    for _ in 0..2 {
        again(&mut fleet, true);
    }
    fleet.signal_mount(0, Signal::CONT);
    program.go();
    program.says("read");
    program.go();
    program.ends();
    wait_until("what has no name is gone", || objects(&fleet) == 1);
}

#[test]
fn promise_8_temporary_files_of_programs_outlive_a_restart_of_the_server() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::new(2, "");
    let script = "
d = sys.argv[1]
made = tempfile.TemporaryFile(dir=d)
made.write(b'x' * 300000); made.flush()
linked = os.open(d, os.O_TMPFILE | os.O_RDWR, 0o600)
os.write(linked, b'y' * 300000)
fd = os.open(d + '/mapped', os.O_RDWR | os.O_CREAT, 0o600)
os.ftruncate(fd, 8192)
m = mmap.mmap(fd, 8192)
os.unlink(d + '/mapped')
m[0:5] = b'first'
fcntl.lockf(fd, fcntl.LOCK_EX)
m[4096:4101] = b'dirty'
step('open')
assert os.fstat(fd).st_nlink == 0, os.fstat(fd)
assert m[0:5] == b'first' and m[4096:4101] == b'dirty'
m.flush()
assert os.pread(fd, 5, 0) == b'first' and os.pread(fd, 5, 4096) == b'dirty'
m[0:5] = b'again'
m.flush()
assert os.pread(fd, 5, 0) == b'again'
made.seek(0)
assert made.read() == b'x' * 300000
made.write(b'more'); made.flush()
assert os.fstat(made.fileno()).st_size == 300004
os.link('/proc/self/fd/%d' % linked, d + '/named', src_dir_fd=os.open('/', os.O_RDONLY))
assert os.fstat(linked).st_nlink == 1
os.write(linked, b'more')
m.close(); os.close(fd); made.close(); os.close(linked)
step('closed')
";
    for in_order in [false, true] {
        let mut program = Steps::run(script, fleet.mnt(1, ""));
        program.says("open");
        again(&mut fleet, in_order);
        program.go();
        program.says("closed");
        wait_until("what has no name is gone", || objects(&fleet) == 1);
        let named = fs::read(fleet.mnt(2, "named")).expect("read");
        assert!(named == [vec![b'y'; 300_000], b"more".to_vec()].concat());
        program.go();
        program.ends();
        fs::remove_file(fleet.mnt(2, "named")).expect("unlink");
        wait_until("so is what had one", || objects(&fleet) == 0);
    }
}

/// Makes files, takes their names away, writes, cuts and reads what it has open, until it is told
/// to stop. A change of names may get `EIO` where the server ends; nothing else may go wrong.
const CHURN: &str = "
import errno, random, threading
stop, wrong = threading.Event(), []
def make(r, path):
    kind = r.choice(['unnamed', 'unlinked', 'replaced'])
    if kind == 'unnamed':
        return os.open(sys.argv[1], os.O_TMPFILE | os.O_RDWR, 0o600)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        if kind == 'unlinked':
            os.unlink(path)
        else:
            os.close(os.open(path + '.new', os.O_WRONLY | os.O_CREAT, 0o600))
            os.rename(path + '.new', path)
    except OSError as e:
        if e.errno not in (errno.EIO, errno.ENOENT): raise
    return fd
def use(r, fd, data):
    op = r.random()
    if op < 0.4:
        at, more = r.randrange(len(data) + 1), os.urandom(r.randrange(1, 9000))
        os.pwrite(fd, more, at)
        data[at:at + len(more)] = more
    elif op < 0.5:
        cut = r.randrange(len(data) + 1)
        os.ftruncate(fd, cut)
        del data[cut:]
    else:
        assert os.fstat(fd).st_size == len(data), 'its size'
        assert os.pread(fd, len(data) + 1, 0) == bytes(data), 'its content'
        if op > 0.8:
            os.close(fd)
            return True
def churn(n):
    r, held, made = random.Random(), [], 0
    while held or not stop.is_set():
        try:
            if not stop.is_set() and len(held) < 6 and r.random() < 0.3:
                made += 1
                held.append((make(r, '%s/%d-%d-%d' % (sys.argv[1], os.getpid(), n, made)), bytearray()))
            elif held:
                at = r.randrange(len(held))
                if use(r, *held[at]): held.pop(at)
        except OSError as e:
            if e.errno not in (errno.EIO, errno.EEXIST) or e.filename is None:
                wrong.append(repr(e)); return
        except AssertionError as e:
            wrong.append(repr(e)); return
threads = [threading.Thread(target=churn, args=(n,)) for n in range(3)]
for thread in threads: thread.start()
step('begun')
stop.set()
for thread in threads: thread.join()
assert not wrong, wrong
step('closed')
";

#[test]
fn promise_8_files_without_a_name_are_whole_whenever_the_server_ends() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::new(2, "");
    let mut programs = [1, 2].map(|node| Steps::run(CHURN, fleet.mnt(node, "")));
    programs
        .iter_mut()
        .for_each(|program| program.says("begun"));
    for (ms, in_order) in [(700, false), (1400, false), (900, true), (1100, false)] {
        std::thread::sleep(Duration::from_millis(ms));
        again(&mut fleet, in_order);
        // What has a name may be let go by a stop in order before it is open again.
        for node in [1, 2] {
            fs::write(fleet.mnt(node, "again"), b"").expect("it is served again");
        }
    }
    for mut program in programs {
        program.go();
        program.says("closed");
        program.go();
        program.ends();
    }
    for entry in fs::read_dir(fleet.mnt(1, "")).expect("list") {
        fs::remove_file(entry.expect("entry").path()).expect("unlink");
    }
    wait_until("their space is given back", || {
        objects(&fleet) == 0 && fleet.status()["files"] == 0
    });
    assert_eq!(fleet.status()["errors"], serde_json::json!([]));
}
