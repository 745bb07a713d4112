//! Sessions that end at a certain call: no program hears of that.

use forebay_tiers::{Allocate, Seek, WriteBack};
use forebay_types::SetTime;
use forebay_wire::{NOT_SENT, ObjectRequest};

use super::*;

/// How a caller hears of the end of a session: both errors that a connection has for it.
pub const ENDS: [Errno; 2] = [Errno::ENOTCONN, NOT_SENT];

/// A connection whose session ends in so many calls of one kind.
pub struct Ending {
    inner: Arc<Breaking>,
    is_it: fn(&ObjectCall) -> bool,
    left: AtomicU64,
    errno: Errno,
}

impl Ending {
    fn new(dir: &Path, is_it: fn(&ObjectCall) -> bool, errno: Errno) -> (Arc<Ending>, RemoteTier) {
        let connection = Ending::of(Breaking::new(server(dir, "boot 1")), is_it, errno);
        let tiers = RemoteTiers::new(connection.clone(), Claim::new(INSTANCE, 1));
        let tier = tiers.find("server-2").expect("tiers").remove(0);
        (connection, tier)
    }

    pub fn of(inner: Arc<Breaking>, is_it: fn(&ObjectCall) -> bool, errno: Errno) -> Arc<Ending> {
        Arc::new(Ending {
            inner,
            is_it,
            left: AtomicU64::new(0),
            errno,
        })
    }

    fn end(&self) {
        let server = self.inner.server.read().clone();
        self.inner.begin(server);
    }

    /// The session ends in the next calls of the kind.
    pub fn end_in(&self, calls: u64) {
        self.left.store(calls, Ordering::Release);
    }

    /// All of them have come.
    pub fn has_ended(&self) -> bool {
        self.left.swap(0, Ordering::AcqRel) == 0
    }
}

impl Connection for Ending {
    fn call(&self, request: Request, payload: &[u8], into: &mut [u8]) -> Result<Reply, Errno> {
        let ends = match &request {
            Request::Object(call) if (self.is_it)(call) => {
                let left = |left: u64| left.checked_sub(1);
                let counted = self
                    .left
                    .fetch_update(Ordering::AcqRel, Ordering::Acquire, left);
                counted.is_ok()
            }
            _ => false,
        };
        if !ends {
            return self.inner.call(request, payload, into);
        }
        if self.errno != NOT_SENT {
            // It is done, and nobody hears of it.
            drop(self.inner.call(request, payload, into));
        }
        self.end();
        Err(self.errno)
    }

    fn generation(&self) -> u64 {
        self.inner.generation()
    }

    fn hands_over_descriptors(&self) -> bool {
        false
    }
}

fn is_open(call: &ObjectCall) -> bool {
    matches!(call, ObjectCall::Open { .. })
}

#[test]
fn a_session_that_ends_while_an_object_is_opened_anew_is_no_error() {
    for ended in ENDS {
        let dir = tempfile::tempdir().expect("a directory");
        let (connection, tier) = Ending::new(dir.path(), is_open, ended);
        let object = create(&tier, 1);
        object.write_at(b"some", 0).expect("write");
        for ends in [1, 2] {
            connection.end();
            connection.end_in(ends);
            object.sync(false).expect("asked again");
            assert!(connection.has_ended());
        }
        connection.end_in(1);
        drop(tier.open(ObjectId(1)).expect("asked again"));
        assert!(connection.has_ended());
        // Who asks for ever so long is told that the node is away, and asks again by himself.
        connection.end();
        connection.end_in(100);
        assert_eq!(errno(object.sync(false)), Some(AWAY), "after {ended:?}");
        assert_eq!(errno(object.append(b"more")), Some(AWAY));
        assert_eq!(errno(tier.open(ObjectId(1))), Some(AWAY));
        connection.end_in(0);
        assert_eq!(read(&*object), b"some");
    }
}

#[test]
fn no_end_of_a_session_is_an_error_of_an_object() {
    for ended in ENDS {
        let dir = tempfile::tempdir().expect("a directory");
        let begins = |call: &ObjectCall| !matches!(call, ObjectCall::Begin { .. });
        let (connection, tier) = Ending::new(dir.path(), begins, ended);
        let object = create(&tier, 1);
        object.write_at(b"some", 0).expect("write");
        let identity = conformance::identity(1);
        let at = Some(SetTime::Now);
        connection.end_in(u64::MAX);
        let told = [
            ("read", errno(object.read_at(&mut [0; 4], 0))),
            ("write", errno(object.write_at(b"more", 4))),
            ("set_len", errno(object.set_len(2))),
            ("allocate", errno(object.allocate(Allocate::Extend, 0, 9))),
            ("seek", errno(object.seek(0, Seek::Hole))),
            ("sync", errno(object.sync(false))),
            ("finish", errno(object.write_back(WriteBack::Finish, 0, 0))),
            ("wait", errno(object.write_back(WriteBack::Wait, 0, 1))),
            ("stat", errno(object.stat())),
            ("set_times", errno(object.set_times(at, at))),
            ("set_identity", errno(object.set_identity(&identity))),
            ("has_writers", errno(object.has_writers())),
            ("drop_cache", errno(object.drop_cache())),
            ("block_writers", errno(object.block_writers())),
            ("append", errno(object.append(b"more"))),
            ("forget", errno(object.forget_failed_flushes())),
            ("space", errno(tier.space())),
            ("create", errno(tier.create(ObjectId(2), &identity))),
            ("share", errno(tier.create_shared(ObjectId(3), &identity))),
            ("open", errno(tier.open(ObjectId(1)))),
            ("open_shared", errno(tier.open_shared(ObjectId(1)))),
            ("remove", errno(tier.remove(ObjectId(4)))),
            ("quarantine", errno(tier.quarantine(ObjectId(5)))),
            ("identity", errno(tier.identity(ObjectId(1)))),
            ("list", errno(tier.list(&mut |_| {}))),
            ("sync_all", errno(tier.sync_all())),
            ("give_back", errno(tier.give_back())),
        ];
        for (what, told) in told {
            assert_eq!(told, Some(AWAY), "{what} after {ended:?}");
        }
        connection.end_in(0);
        // Whatever of that was done: the object is there, and the way to it.
        object.write_at(b"new", 0).expect("write");
        assert!(read(&*object).starts_with(b"new"));
    }
}

#[test]
fn an_append_of_which_nobody_can_tell_is_not_done_twice() {
    let is_append = |call: &ObjectCall| matches!(call, ObjectCall::On(_, ObjectRequest::Append));
    let dir = tempfile::tempdir().expect("a directory");
    let (connection, tier) = Ending::new(dir.path(), is_append, Errno::ENOTCONN);
    let object = create(&tier, 1);
    let other = tier.open_shared(ObjectId(1)).expect("open");
    assert_eq!(object.append(b"one").expect("append"), (3, 3));
    // Somebody else writes it as well: what is there is not known to be ours.
    let here = flash(dir.path()).open(ObjectId(1)).expect("open");
    here.write_at(b"theirs", 3).expect("write");
    connection.end_in(1);
    assert_eq!(errno(object.append(b"two")), Some(Errno::EIO));
    assert_eq!(read(&*other), b"onetheirstwo");
    // From there on it is.
    connection.end_in(1);
    assert_eq!(object.append(b"three").expect("asked again"), (5, 17));
    assert_eq!(read(&*other), b"onetheirstwothree");
    // Nothing was sent: it is asked again.
    let (connection, tier) = Ending::new(dir.path(), is_append, NOT_SENT);
    let object = tier.open(ObjectId(1)).expect("open");
    connection.end_in(2);
    assert_eq!(object.append(b"!").expect("asked again"), (1, 18));
    assert!(connection.has_ended());
}

#[test]
fn an_append_is_looked_for_over_sessions_that_end_one_after_the_other() {
    let moves_the_end = |call: &ObjectCall| {
        let ObjectCall::On(_, request) = call else {
            return false;
        };
        matches!(request, ObjectRequest::Append | ObjectRequest::Stat)
    };
    let dir = tempfile::tempdir().expect("a directory");
    let (connection, tier) = Ending::new(dir.path(), moves_the_end, Errno::ENOTCONN);
    let object = create(&tier, 1);
    assert_eq!(object.append(b"one").expect("append"), (3, 3));
    // As one request is asked no more often than three times.
    connection.end_in(1 + 4);
    assert_eq!(object.append(b"two").expect("looked for"), (3, 6));
    assert!(connection.has_ended());
    assert_eq!(read(&*object), b"onetwo");
}

#[test]
fn what_others_may_have_appended_is_not_taken_for_ours() {
    let is_append = |call: &ObjectCall| matches!(call, ObjectCall::On(_, ObjectRequest::Append));
    let dir = tempfile::tempdir().expect("a directory");
    let (connection, tier) = Ending::new(dir.path(), is_append, Errno::ENOTCONN);
    drop(create(&tier, 1));
    let object = tier.open_shared(ObjectId(1)).expect("open");
    assert_eq!(object.append(b"one").expect("append"), (3, 3));
    // It may be the same record of somebody who writes it now.
    let here = flash(dir.path()).open(ObjectId(1)).expect("open");
    connection.end_in(1);
    assert_eq!(errno(object.append(b"two")), Some(Errno::EIO));
    drop(here);
    connection.end_in(1);
    assert_eq!(object.append(b"two").expect("asked again"), (3, 9));
    assert_eq!(read(&*object), b"onetwotwo");
}

/// A connection on which something is done right after an append, before its answer, or right
/// before a write.
struct Between {
    inner: Arc<Breaking>,
    after_append: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    before_write: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Between {
    fn new(dir: &Path) -> (Arc<Between>, RemoteTier) {
        let connection = Arc::new(Between {
            inner: Breaking::new(server(dir, "boot 1")),
            after_append: Mutex::default(),
            before_write: Mutex::default(),
        });
        let tiers = RemoteTiers::new(connection.clone(), Claim::new(INSTANCE, 1));
        let tier = tiers.find("server-2").expect("tiers").remove(0);
        (connection, tier)
    }

    fn do_if(is_due: bool, act: &Mutex<Option<Box<dyn FnOnce() + Send>>>) {
        let act = act.lock().take_if(|_| is_due);
        if let Some(act) = act {
            act();
        }
    }
}

impl Connection for Between {
    fn call(&self, request: Request, payload: &[u8], into: &mut [u8]) -> Result<Reply, Errno> {
        let (is_append, is_write) = match &request {
            Request::Object(ObjectCall::On(_, ObjectRequest::Append)) => (true, false),
            Request::Object(ObjectCall::On(_, ObjectRequest::Write { .. })) => (false, true),
            _ => (false, false),
        };
        Between::do_if(is_write, &self.before_write);
        let reply = self.inner.call(request, payload, into);
        Between::do_if(is_append, &self.after_append);
        reply
    }

    fn generation(&self) -> u64 {
        self.inner.generation()
    }

    fn hands_over_descriptors(&self) -> bool {
        false
    }
}

#[test]
fn an_append_beside_another_change_tells_no_end() {
    type Change = fn(&dyn Object);
    let changes: [(Change, u64); 3] = [
        (|object| drop(object.write_at(b"more", 3)), 7),
        (|object| object.set_len(2).expect("cut"), 2),
        (
            |object| object.allocate(Allocate::Extend, 0, 9).expect("grow"),
            9,
        ),
    ];
    for (change, end) in changes {
        let dir = tempfile::tempdir().expect("a directory");
        let (connection, tier) = Between::new(dir.path());
        let object = create(&tier, 1);
        let changed = object.clone();
        *connection.after_append.lock() = Some(Box::new(move || change(&*changed)));
        assert_eq!(object.append(b"one").expect("append"), (3, 3));
        connection.inner.loses_answer.store(true, Ordering::Release);
        let appended = object.append(b"two").expect("looked for where it ends");
        assert_eq!(appended, (3, end + 3));
    }
    // The change has begun before the append.
    let dir = tempfile::tempdir().expect("a directory");
    let (connection, tier) = Between::new(dir.path());
    let object = create(&tier, 1);
    let other = object.clone();
    let append = move || assert_eq!(other.append(b"one").expect("append"), (3, 3));
    *connection.before_write.lock() = Some(Box::new(append));
    assert_eq!(object.write_at(b"more", 3).expect("write"), 4);
    connection.inner.loses_answer.store(true, Ordering::Release);
    assert_eq!(object.append(b"two").expect("looked for"), (3, 10));
}

#[test]
fn a_copy_that_has_ended_with_its_session_is_made_anew() {
    let ([flash_dir, pfs_dir], breaking, _) = served_with_pfs();
    let is_go = |call: &ObjectCall| matches!(call, ObjectCall::CopyGo { .. });
    for errno in ENDS {
        let connection = Ending::of(breaking.clone(), is_go, errno);
        let tiers = RemoteTiers::new(connection.clone(), Claim::new(INSTANCE, 1));
        let tier = tiers.find("server-2").expect("tiers").remove(0);
        let object = create(&tier, 1);
        object.write_at(&vec![7; 4 << 20], 0).expect("write");
        let elsewhere = tier.copies_out().expect("elsewhere");
        let (to, file) = outside(pfs_dir.path(), 1);
        connection.end_in(1);
        let lost = elsewhere.copy_out(ObjectId(1), &to, &CopyControl::NONE);
        let Err(OutsideError::Copy(CopyError::Source(error))) = lost else {
            panic!("{lost:?}");
        };
        assert_eq!(Errno::of(&error), AWAY, "after {errno:?}");
        std::fs::remove_file(&file).expect("remove");
        let (to, file) = outside(pfs_dir.path(), 2);
        let copied = elsewhere.copy_out(ObjectId(1), &to, &CopyControl::NONE);
        copied.expect("copied");
        assert_eq!(std::fs::read(&file).expect("read"), vec![7; 4 << 20]);
        std::fs::remove_file(&file).expect("remove");
        tier.remove(ObjectId(1)).expect("remove");
    }
    drop(flash_dir);
}
