//! The bytes of copies go over a connection of their own, which has no rights of its own.

use forebay_tiers::testing::{Effect, FaultyTier, Operation, When};
use forebay_types::Handle;
use forebay_wire::net::Guest;
use forebay_wire::{NOT_BEGUN, ObjectRequest};

use super::ends::{ENDS, Ending};
use super::*;

/// A data server by two connections, and the tier there for copies.
struct Two {
    first: Arc<Breaking>,
    second: Arc<Breaking>,
    tiers: RemoteTiers,
    tier: RemoteTier,
}

impl Two {
    fn of(server: &Arc<DataServer>, epoch: u32) -> Two {
        let [first, second] = [(); 2].map(|()| Breaking::new(server.clone()));
        let replication = Some(second.clone() as Arc<dyn Connection>);
        let claim = Claim::new(INSTANCE, epoch);
        let tiers = RemoteTiers::with_replication(first.clone(), replication, claim);
        let tier = tiers.find("server-2").expect("tiers").remove(0);
        Two {
            first,
            second,
            tiers,
            tier: tier.for_copies(),
        }
    }

    fn ask(&self, call: ObjectCall) -> Option<Errno> {
        let asked = self.second.call(Request::Object(call), &[], &mut [0; 8]);
        asked.err()
    }
}

fn moves_bytes(request: &Request) -> bool {
    let Request::Object(ObjectCall::On(_, request)) = request else {
        return false;
    };
    matches!(
        request,
        ObjectRequest::Read { .. } | ObjectRequest::Write { .. }
    )
}

fn join(epoch: u32) -> ObjectCall {
    let instance = INSTANCE;
    ObjectCall::Join { instance, epoch }
}

const READ: ObjectRequest = ObjectRequest::Read { offset: 0, len: 8 };

#[test]
fn bytes_of_copies_and_nothing_else_go_over_the_second_connection() {
    let dir = tempfile::tempdir().expect("a directory");
    let two = Two::of(&server(dir.path(), "boot 1"), 1);
    let object = create(&two.tier, 1);
    object.write_at(b"copied", 0).expect("write");
    object.sync(false).expect("sync");
    assert_eq!(read(&*object), b"copied");
    assert!(!two.first.calls.lock().iter().any(moves_bytes));
    let over_second = std::mem::take(&mut *two.second.calls.lock());
    let (moved, joins): (Vec<_>, Vec<_>) = over_second.into_iter().partition(moves_bytes);
    assert_eq!((moved.len(), joins), (2, vec![Request::Object(join(1))]));
    // What somebody waits for goes over the first.
    let tier = two.tiers.find("server-2").expect("tiers").remove(0);
    let object = tier.open(ObjectId(1)).expect("open");
    assert_eq!(read(&*object), b"copied");
    assert!(two.second.calls.lock().is_empty());
}

#[test]
fn copies_go_on_over_the_end_of_either_session() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = server(dir.path(), "boot 1");
    let two = Two::of(&server, 1);
    let object = create(&two.tier, 1);
    object.write_at(b"1", 0).expect("write");
    two.second.begin(server.clone());
    object.write_at(b"2", 1).expect("write");
    two.first.begin(server.clone());
    object.write_at(b"3", 2).expect("write");
    two.first.restart_unheard(server.clone());
    object.write_at(b"4", 3).expect("write");
    two.second.restart_unheard(server);
    assert_eq!(read(&*object), b"1234");
    assert!(two.tiers.takes_copies());
}

#[test]
fn a_connection_for_copies_has_the_rights_of_the_session_that_it_joined() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = server(dir.path(), "boot 1");
    let alone = Breaking::new(server.clone());
    let asked = alone.call(Request::Object(join(1)), &[], &mut []);
    assert_eq!(asked.err(), Some(NOT_BEGUN), "there is no session");
    let two = Two::of(&server, 5);
    let object = create(&two.tier, 1);
    object.write_at(b"ours", 0).expect("write");
    // It reads and writes what is open, and does nothing else.
    let key = forebay_wire::ObjectKey {
        tier: forebay_types::TierId(0),
        object: ObjectId(1),
    };
    assert_eq!(two.ask(ObjectCall::Remove(key)), Some(Errno::EPERM));
    let how = forebay_wire::ObjectUse::Write;
    assert_eq!(two.ask(ObjectCall::Open { key, how }), Some(Errno::EPERM));
    let [instance, epoch] = [(INSTANCE, 5), (INSTANCE, 6)];
    let begin = |(instance, epoch)| ObjectCall::Begin { instance, epoch };
    assert_eq!(two.ask(begin(instance)), Some(Errno::EINVAL));
    assert_eq!(two.ask(begin(epoch)), Some(Errno::EINVAL));
    let cut = ObjectCall::On(Handle(1), ObjectRequest::SetLen { size: 0 });
    assert_eq!(two.ask(cut), Some(Errno::EPERM));
    let unknown = ObjectCall::On(Handle(1), READ);
    assert_eq!(two.ask(unknown), Some(Errno::EBADF));
    // Of another start, and of another burst buffer, there is none to join.
    assert_eq!(two.ask(join(6)), Some(NOT_BEGUN));
    assert_eq!(two.ask(join(4)), Some(Errno::ESTALE));
    let (instance, epoch) = ([8; 16], 5);
    let others = ObjectCall::Join { instance, epoch };
    assert_eq!(two.ask(others), Some(NOT_BEGUN));
    // Nor does a session become one.
    let asked = two.first.call(Request::Object(join(5)), &[], &mut []);
    assert_eq!(asked.err(), Some(Errno::EINVAL));
    assert_eq!(read(&*object), b"ours");
}

#[test]
fn who_was_replaced_writes_nothing_over_its_connection_for_copies() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = server(dir.path(), "boot 1");
    let before = Two::of(&server, 5);
    let object = create(&before.tier, 1);
    object.write_at(b"before", 0).expect("write");
    let find_handle = |request: &Request| match request {
        Request::Object(ObjectCall::On(handle, _)) => Some(*handle),
        _ => None,
    };
    let handle = before.second.calls.lock().iter().find_map(find_handle);
    let handle = handle.expect("it was written");
    let after = Two::of(&server, 6);
    let write = ObjectCall::On(handle, ObjectRequest::Write { offset: 0 });
    let written = before.second.call(Request::Object(write), b"late", &mut []);
    assert_eq!(written.err(), Some(NOT_BEGUN));
    assert_eq!(errno(object.write_at(b"late", 0)), Some(AWAY));
    assert!(!before.tiers.takes_copies());
    assert_eq!(before.ask(join(5)), Some(Errno::ESTALE));
    assert!(before.tiers.is_replaced());
    let object = after.tier.open(ObjectId(1)).expect("open");
    assert_eq!(read(&*object), b"before");
    // The end of its connection ends nothing of the session that has the turn.
    before.second.session.read().end();
    after.second.session.read().end();
    after.tier.space().expect("its turn still");
    assert_eq!(read(&*object), b"before");
}

#[test]
fn who_begins_waits_for_a_write_over_the_connection_for_copies() {
    let dir = tempfile::tempdir().expect("a directory");
    let faulty = Arc::new(FaultyTier::new(flash(dir.path())));
    let theirs: Arc<dyn Tier> = faulty.clone();
    let open = move |_| Ok(vec![theirs.clone()]);
    let server = DataServer::new("boot 1".into(), Vec::new(), Box::new(open), None);
    let two = Two::of(&server, 5);
    let object = create(&two.tier, 1);
    let pause = std::time::Duration::from_millis(500);
    faulty.inject(Operation::Write, When::Nth(1), Effect::Delay(pause));
    let begun = std::time::Instant::now();
    std::thread::scope(|scope| {
        let write = scope.spawn(|| object.write_at(b"late", 0));
        while faulty.calls(Operation::Write) == 0 {
            std::thread::yield_now();
        }
        // The first session is over, and the second knows nothing of that.
        two.first.session.read().end();
        let after = Two::of(&server, 6);
        assert!(begun.elapsed() >= pause, "a write of before is under way");
        let object = after.tier.open(ObjectId(1)).expect("open");
        assert_eq!(read(&*object), b"late");
        drop(write.join().expect("no panic"));
        assert_eq!(read(&*object), b"late");
    });
}

#[test]
fn copies_wait_while_their_network_is_away_and_nothing_else_does() {
    let dir = tempfile::tempdir().expect("a directory");
    let first = Breaking::new(server(dir.path(), "boot 1"));
    let away: Arc<dyn Connection> = Arc::new(Away);
    let claim = Claim::new(INSTANCE, 1);
    let tiers = RemoteTiers::with_replication(first, Some(away), claim);
    let tier = tiers.find("server-2").expect("tiers").remove(0);
    assert!(tier.is_answering() && !tiers.takes_copies());
    let copy = create(&tier.for_copies(), 1);
    assert_eq!(errno(copy.write_at(b"copied", 0)), Some(AWAY));
    let object = create(&tier, 2);
    object.write_at(b"written", 0).expect("write");
    assert_eq!(read(&*object), b"written");
}

#[test]
fn no_end_of_the_session_for_copies_is_an_error_of_an_object() {
    let moves = |call: &ObjectCall| moves_bytes(&Request::Object(call.clone()));
    let joins = |call: &ObjectCall| matches!(call, ObjectCall::Join { .. });
    for ended in ENDS {
        let dir = tempfile::tempdir().expect("a directory");
        let server = server(dir.path(), "boot 1");
        for is_it in [moves as fn(&ObjectCall) -> bool, joins] {
            let second = Ending::of(Breaking::new(server.clone()), is_it, ended);
            let replication = Some(second.clone() as Arc<dyn Connection>);
            let first = Breaking::new(server.clone());
            let claim = Claim::new(INSTANCE, 1);
            let tiers = RemoteTiers::with_replication(first, replication, claim);
            let tier = tiers
                .find("server-2")
                .expect("tiers")
                .remove(0)
                .for_copies();
            let object = create(&tier, 1);
            second.end_in(u64::MAX);
            assert_eq!(errno(object.write_at(b"some", 0)), Some(AWAY));
            assert_eq!(errno(object.read_at(&mut [0; 4], 0)), Some(AWAY));
            object.sync(false).expect("over the first");
            second.end_in(0);
            object.write_at(b"some", 0).expect("write");
            assert_eq!(read(&*object), b"some", "after {ended:?}");
            tier.remove(ObjectId(1)).expect("remove");
        }
        // Once is not heard of at all.
        let second = Ending::of(Breaking::new(server.clone()), moves, ended);
        let replication = Some(second.clone() as Arc<dyn Connection>);
        let (first, claim) = (Breaking::new(server.clone()), Claim::new(INSTANCE, 1));
        let tiers = RemoteTiers::with_replication(first, replication, claim);
        let tier = tiers
            .find("server-2")
            .expect("tiers")
            .remove(0)
            .for_copies();
        let object = create(&tier, 2);
        second.end_in(1);
        object.write_at(b"once", 0).expect("asked again");
        assert!(second.has_ended());
        assert_eq!(read(&*object), b"once");
    }
}

/// A network that is not there.
struct Away;

impl Connection for Away {
    fn call(&self, _: Request, _: &[u8], _: &mut [u8]) -> Result<Reply, Errno> {
        Err(AWAY)
    }

    fn hands_over_descriptors(&self) -> bool {
        false
    }
}
