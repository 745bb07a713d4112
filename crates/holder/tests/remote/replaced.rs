//! Metadata servers one after the other: the latest has the data server.

use super::*;

#[test]
fn who_begins_ends_the_session_before() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = server(dir.path(), "boot 1");
    let (first, second) = (Breaking::new(server.clone()), Breaking::new(server.clone()));
    let (before, after) = (tier_of(first.clone()), tier_of(second));
    let object = after.create(ObjectId(1), &conformance::identity(1));
    object.expect("create").write_at(b"new", 0).expect("write");
    assert_eq!(errno(before.remove(ObjectId(1))), Some(AWAY));
    assert_eq!(errno(before.open(ObjectId(1))), Some(AWAY));
    assert_eq!(read(&*after.open(ObjectId(1)).expect("open")), b"new");
    // Nor does anybody get in who has not begun, or wants another's objects.
    first.begin(server);
    let ask = Request::Object(ObjectCall::Space(forebay_types::TierId(0)));
    assert_eq!(
        first.call(ask, &[], &mut []).err(),
        Some(forebay_wire::NOT_BEGUN)
    );
    let other = RemoteTiers::new(first, Claim::new([8; 16], 1)).find("server-2");
    assert_eq!(errno(other), Some(Errno::EBUSY));
}

#[test]
fn a_session_that_began_too_late_gives_way_to_a_new_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = server(dir.path(), "boot 1");
    let connection = Breaking::new(server.clone());
    let tier = tier_of(connection.clone());
    let object = create(&tier, 1);
    // What was sent in a session that was given up arrives now.
    let late = Breaking::new(server.clone());
    tier_of(late.clone());
    assert_eq!(errno(object.sync(false)), Some(AWAY));
    let (instance, epoch) = (INSTANCE, 1);
    let begin = Request::Object(ObjectCall::Begin { instance, epoch });
    let answer = connection.call(begin, &[], &mut []);
    assert_eq!(
        answer.err(),
        Some(Errno::ENOTCONN),
        "another one is to begin"
    );
    connection.begin(server);
    object.sync(false).expect("its turn again");
}

#[test]
fn who_was_replaced_gets_no_data_server_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = server(dir.path(), "boot 1");
    let connect = || Breaking::new(server.clone()) as Arc<dyn Connection>;
    let of = |epoch| RemoteTiers::new(connect(), Claim::new(INSTANCE, epoch));
    let before = of(5);
    let tier = before.find("server-2").expect("tiers").remove(0);
    tier.space().expect("its turn");
    let after = of(6).find("server-2").expect("tiers").remove(0);
    after.space().expect("its turn");
    // A program goes on with whoever has come instead.
    assert!(!before.is_replaced());
    assert_eq!(errno(tier.space()), Some(AWAY));
    assert!(before.is_replaced() && !tier.is_answering());
    assert_eq!(errno(of(5).find("server-2")), Some(Errno::ESTALE));
    after.space().expect("its turn still");
    let again = of(6).find("server-2");
    again.expect("the same start, over another connection");
    // Who may not hold the records any more does not even ask.
    let silent = Claim::new(INSTANCE, 7).only_while(|| false);
    let silent = RemoteTiers::new(connect(), silent).find("server-2");
    assert_eq!(errno(silent), Some(forebay_wire::OUT_OF_REACH));
    of(6).find("server-2").expect("nobody has come between");
}

/// A data server as a process starts it: with the folder of its state.
fn started(dir: &Path, state: &Path) -> Arc<DataServer> {
    let server = server(dir, "boot 1");
    let kept = server.keep_latest(state.join("latest"));
    kept.expect("what an earlier process has kept");
    server
}

#[test]
fn who_was_replaced_stays_out_when_the_data_server_is_started_anew() {
    let [dir, state] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let start = || started(dir.path(), state.path());
    let connect = |server: &Arc<DataServer>| Breaking::new(server.clone());
    let of = |connection: &Arc<Breaking>, epoch| {
        RemoteTiers::new(connection.clone(), Claim::new(INSTANCE, epoch))
    };
    let first = start();
    let (old, new) = (connect(&first), connect(&first));
    let old_tiers = of(&old, 5);
    let old_tier = old_tiers.find("server-2").expect("tiers").remove(0);
    let old_object = create(&old_tier, 1);
    old_object.write_at(b"old", 0).expect("write");
    let new_tier = of(&new, 6).find("server-2").expect("tiers").remove(0);
    let new_object = new_tier.open(ObjectId(1)).expect("open");
    new_object.write_at(b"new", 0).expect("write");
    drop(first);
    for _ in 0..2 {
        // The old one is back first, and has not heard of anything.
        let again = start();
        old.begin(again.clone());
        assert_eq!(errno(old_object.write_at(b"old", 0)), Some(AWAY));
        assert_eq!(errno(old_tier.remove(ObjectId(1))), Some(AWAY));
        assert!(old_tiers.is_replaced());
        let anew = of(&connect(&again), 5).find("server-2");
        assert_eq!(errno(anew), Some(Errno::ESTALE));
        assert!(!again.is_used(), "nobody has the turn");
        new.begin(again);
        assert_eq!(read(&*new_object), b"new");
    }
    // Another burst buffer has used the node meanwhile.
    let other = Breaking::new(start());
    let other = RemoteTiers::new(other, Claim::new([8; 16], 1)).find("server-2");
    assert_eq!(errno(other), None);
    let again = start();
    old.begin(again.clone());
    assert_eq!(errno(old_tier.remove(ObjectId(1))), Some(AWAY));
    new.begin(again);
    assert_eq!(read(&*new_object), b"new");
}
