//! Everything that an outsider can do to a file of the PFS, in every state that the file can be in
//! here, followed by everything that a program can do to it through the mount: nothing of the
//! outsider's is overwritten, nothing of ours is lost, nothing removed comes back under its name.

#[path = "outside/cases.rs"]
mod cases;
mod common;
#[path = "outside/exchanged.rs"]
mod exchanged;
#[path = "outside/links.rs"]
mod links;
#[path = "outside/tree.rs"]
mod tree;
#[cfg(debug_assertions)]
#[path = "outside/window.rs"]
mod window;

use std::collections::BTreeSet;
use std::time::Duration;

use cases::{Case, Change, State, Then};
use common::{Running, Scratch, me, settings};
use forebay_server::Settings;
use forebay_types::{Ino, OpenFlags, RenameMode};
use forebay_wire::control::Movement;
use tree::{Tree, snapshot};

/// Time stamps of file systems may be as coarse as a tick of the kernel.
const TICK: Duration = Duration::from_millis(12);

/// Demotes only when it is told to.
fn by_hand(mut settings: Settings) -> Settings {
    settings.demotion.idle = false;
    settings.demotion.start_fraction = 0.9;
    settings
}

/// All that a program can do after `then`, on a server of its own; cases lie beside each other.
fn run(then: Then, descriptors: bool) {
    let scratch = Scratch::new();
    let settings = by_hand(settings(scratch.path(), 64 << 20));
    let server = Running::start(&settings, descriptors);
    let mut cases: Vec<Case> = State::ALL
        .iter()
        .flat_map(|state| Change::ALL.iter().map(move |change| (*state, *change)))
        .filter(|(state, change)| change.applies(*state))
        .enumerate()
        .map(|(n, (state, change))| Case::new(n, state, change, then))
        .collect();
    cases.iter_mut().for_each(|case| case.publish(&server));
    let job = server.move_files(Movement::StageOut, b"");
    assert_eq!(job.failed, 0, "{job:?}");
    cases
        .iter_mut()
        .for_each(|case| case.prepare(&server, &scratch));
    std::thread::sleep(TICK);
    for case in &mut cases {
        case.change(&scratch);
    }
    cases.iter_mut().for_each(|case| case.then(&server));
    cases.iter_mut().for_each(|case| case.close(&server));
    server.stage_out_past_outsiders();
    let mut conflicts = 0;
    for case in &cases {
        let now = snapshot(&scratch.pfs().join(&case.dir));
        conflicts += tree::conflicts(&now) as u64;
        case.check(&now);
        shown(&server, case, &now);
    }
    let status = server.status();
    assert_eq!(status.conflicts_total, conflicts, "each is counted once");
    let listed: BTreeSet<_> = status.conflicts.iter().map(|c| c.kept_as.clone()).collect();
    assert_eq!(listed.len(), status.conflicts.len());
    assert_eq!(server.instance.undrained().undrained_files, 0);
    server.instance.stop();
}

/// The mount shows what the PFS has.
fn shown(server: &Running, case: &Case, now: &Tree) {
    for (name, entry) in now {
        let path = format!("{}/{name}", case.dir).into_bytes();
        if let Some(data) = &entry.data {
            let read = server.read_all(&path);
            assert_eq!(read.as_ref(), Ok(data), "{case:?}: {name} of {now:?}");
            let perm = server.find(&path).expect("attributes").perm;
            assert_eq!(u32::from(perm), entry.mode, "{case:?}: mode of {name}");
        }
    }
    let listed = server.residency(case.dir.as_bytes());
    let regular = now.values().filter(|e| e.data.is_some()).count();
    assert_eq!(listed.len(), regular, "{case:?}: {listed:?}");
}

macro_rules! followed_by {
    ($($name:ident: $then:ident),*) => {$(
        #[test]
        fn $name() {
            run(Then::$then, false);
        }
    )*};
}

followed_by! {
    changed_outside_and_then_left_alone: Nothing,
    changed_outside_and_then_appended_to: Append,
    changed_outside_and_then_appended_to_unseen: AppendByIno,
    changed_outside_and_then_renamed: Rename,
    changed_outside_and_then_replaced: ReplaceByNew,
    changed_outside_and_then_replaced_by_a_drained_file: ReplaceByDrained,
    changed_outside_and_then_exchanged: Exchange,
    changed_outside_and_then_unlinked: Unlink,
    changed_outside_and_then_given_another_mode: Chmod,
    changed_outside_and_then_given_another_mode_unseen: ChmodByIno,
    changed_outside_and_then_given_an_attribute_unseen: XattrByIno,
    changed_outside_and_then_linked: Link
}

#[test]
fn changed_outside_and_then_left_alone_with_passthrough() {
    run(Then::Nothing, true);
}

/// Without flash there is nowhere to flush what takes the name: a loss of power must leave one of
/// the two.
#[test]
fn what_readers_have_open_stays_on_the_pfs_until_what_replaces_it_is_there() {
    const LEN: u64 = 65 << 20;
    let scratch = Scratch::new();
    let mut settings = by_hand(settings(scratch.path(), 64 << 20));
    settings.ssd.clear();
    settings.dram_bytes = Some(16 << 20);
    let server = Running::start(&settings, false);
    let older = scratch.pfs().join("f");
    let made = std::fs::File::create(&older).expect("create");
    made.set_len(LEN).expect("truncate");
    drop(made);
    let found = server.client.lookup(Ino::ROOT, b"f", 0).expect("found");
    let flags = OpenFlags(libc::O_RDONLY as u32);
    let reader = server.client.open(found.ino, flags, me()).expect("open");
    server.put(b"g", b"newer");
    let (from, to) = ((Ino::ROOT, &b"g"[..]), (Ino::ROOT, &b"f"[..]));
    let renamed = server.client.rename(from, to, RenameMode::Replace, me());
    renamed.expect("rename");
    let left = std::fs::metadata(&older).expect("the older version is gone");
    assert_eq!(left.len(), LEN);
    assert_eq!(server.read_all(b"f").expect("read"), b"newer");
    server.drain();
    assert_eq!(std::fs::read(&older).expect("read"), b"newer");
    let handle = reader.opened.handle;
    assert_eq!(server.read(handle, LEN - 4, 8).expect("read"), [0; 4]);
    server.client.release(handle).expect("close");
}
