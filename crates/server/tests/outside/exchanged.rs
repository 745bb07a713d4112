//! Who owns a directory on the PFS exchanges in it, again and again, somebody else's file with
//! their own, and changes their own through the mount: that is all that changes.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_types::XattrMode;
use forebay_types::{Errno, Ino, SetAttr};
use forebay_wire::control::Movement;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::common::{Running, Scratch, me, settings};
use crate::{TICK, by_hand};

const MINE: &[u8] = b"mine";
const THEIRS: &[u8] = b"somebody else's";
/// Each change is tried so long.
const LONG_ENOUGH: Duration = Duration::from_millis(800);
/// So many tries of one are made before the file is made what it was.
const TRIES: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Chmod,
    Truncate,
    Attribute,
    Link,
}

/// Exchanges two names all the time, but when it is told to pause.
struct Swapper {
    names: [PathBuf; 2],
    pause: AtomicBool,
    idle: AtomicBool,
    done: AtomicBool,
    swaps: AtomicU64,
}

impl Swapper {
    fn run(&self) {
        while !self.done.load(Ordering::Acquire) {
            self.idle
                .store(self.pause.load(Ordering::Acquire), Ordering::Release);
            if self.idle.load(Ordering::Acquire) {
                std::thread::yield_now();
                continue;
            }
            self.swap();
            let until = Instant::now() + Duration::from_micros(60);
            while Instant::now() < until {
                std::hint::spin_loop();
            }
        }
    }

    fn swap(&self) {
        let [one, other] = &self.names;
        renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).expect("exchange");
        self.swaps.fetch_add(1, Ordering::Relaxed);
    }

    /// Stops, with everything under its own name.
    fn pause(&self, mine: u64) {
        self.pause.store(true, Ordering::Release);
        while !self.idle.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        if ino(&self.names[0]) != mine {
            self.swap();
        }
    }

    fn go_on(&self) {
        self.pause.store(false, Ordering::Release);
        self.idle.store(false, Ordering::Release);
    }
}

/// For a test that fails in between.
struct Ends<'a>(&'a Swapper);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.done.store(true, Ordering::Release);
    }
}

fn ino(path: &Path) -> u64 {
    fs::metadata(path).expect("stat").ino()
}

/// `link`: a name that is free.
fn act(server: &Running, ino: Ino, (act, link): (Act, &str)) -> Result<(), Errno> {
    let client = &server.client;
    let set = |set| client.setattr(ino, None, set, me()).map(|_| ());
    match act {
        Act::Chmod => set(SetAttr {
            perm: Some(0o604),
            ..SetAttr::default()
        }),
        Act::Truncate => set(SetAttr {
            size: Some(0),
            ..SetAttr::default()
        }),
        Act::Attribute => client.set_xattr(ino, b"user.mine", b"1", XattrMode::Set, me()),
        Act::Link => client
            .link(ino, Ino::ROOT, link.as_bytes(), me())
            .map(|_| ()),
    }
}

fn unchanged(path: &Path, what: Act) {
    let meta = fs::metadata(path).expect("stat");
    assert_eq!(meta.permissions().mode() & 0o7777, 0o600, "{what:?}");
    assert_eq!(fs::read(path).expect("read"), THEIRS, "{what:?}");
    let names = rustix::fs::listxattr(path, &mut [0; 100][..]);
    assert_eq!(names.expect("attributes"), 0, "{what:?}");
    assert_eq!(meta.nlink(), 1, "{what:?}");
}

/// `staged`: the file is clean in the burst buffer each time, else only on the PFS; `linked`: it
/// has a second name and is changed where it is.
fn run(what: Act, staged: bool, linked: bool) {
    let scratch = Scratch::new();
    let server = Running::start(&by_hand(settings(scratch.path(), 64 << 20)), false);
    let at = |name: &str| scratch.pfs().join(name);
    fs::write(at("f"), MINE).expect("write");
    fs::write(at("theirs"), THEIRS).expect("write");
    fs::set_permissions(at("theirs"), PermissionsExt::from_mode(0o600)).expect("chmod");
    if linked {
        fs::hard_link(at("f"), at("f2")).expect("link");
    }
    std::thread::sleep(TICK * 2);
    let (mine, theirs) = (ino(&at("f")), ino(&at("theirs")));
    let swapper = Swapper {
        names: [at("f"), at("theirs")],
        pause: AtomicBool::new(true),
        idle: AtomicBool::new(false),
        done: AtomicBool::new(false),
        swaps: AtomicU64::new(0),
    };
    let (mut done, mut tries) = (0, 0);
    std::thread::scope(|scope| {
        let _ends = Ends(&swapper);
        scope.spawn(|| swapper.run());
        let started = Instant::now();
        while started.elapsed() < LONG_ENOUGH {
            swapper.pause(mine);
            if staged {
                let job = server.move_files(Movement::StageIn, b"f");
                assert_eq!(job.failed, 0, "{job:?}");
            }
            let look = || server.client.lookup(Ino::ROOT, b"f", 0);
            let mut found = look().expect("lookup");
            swapper.go_on();
            for _ in 0..TRIES {
                tries += 1;
                match act(&server, found.ino, (what, &format!("link-{tries}"))) {
                    Ok(()) => done += 1,
                    Err(errno) => {
                        assert!(
                            matches!(
                                errno,
                                Errno::ESTALE | Errno::ENOENT | Errno::EBUSY | Errno::EMLINK
                            ),
                            "{errno}"
                        );
                        // A copy that has been dropped stays so: as a kernel does.
                        let now = look().ok().filter(|now| now.size == MINE.len() as u64);
                        found = now.unwrap_or(found);
                    }
                }
            }
            swapper.pause(mine);
            server.move_files(Movement::StageOut, b"");
            server.move_files(Movement::Release, b"");
        }
    });
    let names = [at("f"), at("theirs")];
    let theirs = names.iter().find(|name| ino(name) == theirs);
    unchanged(theirs.expect("it has a name"), what);
    let swaps = swapper.swaps.load(Ordering::Relaxed);
    assert!(done > 0 && swaps > 0, "{done} {swaps}: nothing was raced");
    server.instance.stop();
}

#[test]
fn a_file_that_is_exchanged_for_another_while_it_is_changed_is_the_only_one_that_changes() {
    for what in [Act::Chmod, Act::Attribute] {
        run(what, false, false);
        run(what, true, false);
    }
    // An exchange moves the time of change: what is clean in the burst buffer is looked up anew.
    run(Act::Link, false, false);
    run(Act::Truncate, false, true);
}
