//! Writes, flushes and write-back of what is at a distance, also over the end of a session.

use forebay_tiers::testing::{Effect, FaultyTier, Operation, When, unwritten_bytes};
use forebay_tiers::{WriteBack, start_writeback, wait_writeback};

use super::*;

/// A data server whose flash fails as a test says.
fn on_faulty_flash(dir: &Path) -> (Arc<FaultyTier>, Arc<DataServer>) {
    let faulty = Arc::new(FaultyTier::new(flash(dir)));
    let tiers = faulty.clone();
    let open = move |_| Ok(vec![tiers.clone() as Arc<dyn Tier>]);
    let server = DataServer::new("boot 1".into(), Vec::new(), Box::new(open), None);
    (faulty, server)
}

#[test]
fn what_is_open_goes_on_over_the_end_of_a_session() {
    let dir = tempfile::tempdir().expect("a directory");
    let (connection, tier) = served(dir.path());
    let object = create(&tier, 1);
    object.write_at(b"one", 0).expect("write");
    restart(&connection, dir.path(), "boot 1");
    assert_eq!(read(&*object), b"one");
    connection.loses_answer.store(true, Ordering::Release);
    assert_eq!(object.write_at(b"two", 3).expect("asked again"), 3);
    connection.loses_answer.store(true, Ordering::Release);
    object.sync(false).expect("asked again");
    assert_eq!(read(&*object), b"onetwo");
    drop(object);
    assert_eq!(connection.open_objects(), 1, "closed with the next call");
    drop(tier.open(ObjectId(1)).expect("open"));
    tier.remove(ObjectId(1)).expect("remove");
    assert_eq!(connection.open_objects(), 0);
}

#[test]
fn a_failed_flush_whose_answer_was_lost_is_told_to_who_asks_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let (faulty, server) = on_faulty_flash(dir.path());
    let connection = Breaking::new(server.clone());
    let tier = tier_of(connection.clone());
    let object = create(&tier, 1);
    object.write_at(b"one", 0).expect("write");
    faulty.inject(Operation::Sync, When::Nth(1), Effect::Fail(Errno::EIO));
    connection.loses_answer.store(true, Ordering::Release);
    // The kernel would tell a descriptor that is opened anew nothing.
    assert_eq!(errno(object.sync(false)), Some(Errno::EIO), "asked again");
    object.sync(false).expect("told once in a session");
    connection.begin(server);
    let waited = object.write_back(WriteBack::Finish, 0, 0);
    assert_eq!(errno(waited), Some(Errno::EIO), "another metadata server");
    object.set_len(0).expect("cut");
    object.sync(false).expect("nobody misses it");
}

#[test]
fn dirty_pages_are_written_where_they_are() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let (connection, tier) = served(dir.path());
    let object = create(&tier, 1);
    object.write_at(&[7; 8192], 0).expect("write");
    let here = flash(dir.path()).open(ObjectId(1)).expect("open");
    if unwritten_bytes(&*here).is_none_or(|bytes| bytes == 0) {
        // No cachestat(2), or a file system without a device.
        return;
    }
    wait_writeback(&*object).expect("write-back");
    assert_eq!(unwritten_bytes(&*here), Some(0));
    // A stream tells of its pieces now and then, not of each.
    connection.calls.lock().clear();
    for piece in 0..16 {
        start_writeback(&*object, piece << 20, 1 << 20);
    }
    assert_eq!(connection.calls.lock().len(), 4);
}

#[test]
fn a_failed_flush_is_told_until_the_object_was_compared_and_no_more() {
    let dir = tempfile::tempdir().expect("a directory");
    let (faulty, server) = on_faulty_flash(dir.path());
    let connection = Breaking::new(server.clone());
    let tier = tier_of(connection.clone());
    let object = create(&tier, 1);
    let fails = || {
        faulty.inject(Operation::Sync, When::Nth(1), Effect::Fail(Errno::EIO));
        assert_eq!(errno(object.sync(false)), Some(Errno::EIO));
    };
    fails();
    for _ in 0..2 {
        connection.begin(server.clone());
        assert_eq!(errno(object.sync(false)), Some(Errno::EIO), "not settled");
    }
    object.forget_failed_flushes().expect("settled");
    object.sync(false).expect("settled");
    connection.begin(server.clone());
    object.sync(false).expect("settled for later sessions, too");
    // A later one is another one, and is not settled by who has not heard of it.
    fails();
    connection.begin(server.clone());
    object.forget_failed_flushes().expect("of before");
    assert_eq!(errno(object.sync(false)), Some(Errno::EIO));
}

#[test]
fn a_failed_write_back_that_nobody_has_heard_of_is_told_to_the_next_session() {
    let dir = tempfile::tempdir().expect("a directory");
    let (faulty, server) = on_faulty_flash(dir.path());
    let connection = Breaking::new(server.clone());
    let tier = tier_of(connection.clone());
    let object = create(&tier, 1);
    // The kernel has an error for the descriptor of this session, and for no later one.
    faulty.inject(Operation::WriteBack, When::Nth(1), Effect::Fail(Errno::EIO));
    connection.begin(server.clone());
    assert_eq!(errno(object.sync(false)), Some(Errno::EIO));
    object.sync(false).expect("told once in a session");
    connection.begin(server);
    assert_eq!(errno(object.sync(false)), Some(Errno::EIO), "not settled");
}
