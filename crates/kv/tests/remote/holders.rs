//! One holder at a time.

use std::time::{Duration, Instant};

use forebay_kv::remote::{Location, Onlooker, TakeOver};
use forebay_kv::{Batch, Durability, Error, Options, Store, open_url};

use crate::proxy::{Mode, Proxy};
use crate::servers::{Kind, Server, prefix};

fn put(store: &dyn Store, value: &str) -> Result<(), Error> {
    let mut batch = Batch::new();
    batch.put("key", value);
    store.commit(batch, Durability::Buffered)
}

fn take_over() -> Options {
    Options {
        take_over: TakeOver::Anybody,
        ..Options::default()
    }
}

fn only_one_holds(kind: Kind) {
    let server = Server::start(kind);
    let proxy = Proxy::start(server.port());
    let prefix = prefix();
    let url = server.url(&prefix);
    let first = open_url(&server.url_at(proxy.port, &prefix), &Options::default()).expect("first");
    put(&*first, "first").expect("a commit");
    let refused = open_url(&url, &Options::default());
    let holder = refused.err().expect("it is held").to_string();
    let named = format!("in use by {}", Options::default().holder);
    assert!(holder.ends_with(&named), "{holder}");
    let hold = first.hold().expect("a store on a server");
    assert!(hold.is_valid() && !hold.is_lost());
    // The first is out of reach, as one that was stopped, and hears nothing of what comes.
    proxy.set(Mode::Stalled);
    let second = open_url(&url, &take_over()).expect("second");
    put(&*second, "second").expect("a commit");
    proxy.set(Mode::Open);
    for _ in 0..2 {
        let lost = put(&*first, "late");
        assert!(matches!(lost, Err(Error::Lost)), "{lost:?}");
    }
    assert!(matches!(first.mend(), Err(Error::Lost)));
    assert!(matches!(first.sync(), Err(Error::Lost)));
    assert_eq!(
        second.get(b"key").expect("a read"),
        Some(b"second".to_vec())
    );
    // Also who has nothing to commit hears of it, the next time that the hold is due.
    let begun = Instant::now();
    while !hold.is_lost() && begun.elapsed() < Options::default().lease {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(hold.is_lost() && !hold.is_valid());
    // Who has lost the store gives back nothing that another holds.
    drop(first);
    put(&*second, "third").expect("a commit");
    assert!(matches!(
        open_url(&url, &Options::default()),
        Err(Error::InUse(_))
    ));
    drop(second);
    let third = open_url(&url, &Options::default()).expect("nobody holds it");
    assert_eq!(third.get(b"key").expect("a read"), Some(b"third".to_vec()));
}

#[test]
fn redis_has_one_holder() {
    only_one_holds(Kind::Redis);
}

#[test]
fn etcd_has_one_holder() {
    only_one_holds(Kind::Etcd);
}

/// A commit that was on its way when the store was taken over changes nothing.
fn late_commits_change_nothing(kind: Kind) {
    let server = Server::start(kind);
    let proxy = Proxy::start(server.port());
    let prefix = prefix();
    let first = open_url(&server.url_at(proxy.port, &prefix), &Options::default()).expect("first");
    put(&*first, "first").expect("a commit");
    proxy.set(Mode::Stalled);
    std::thread::scope(|scope| {
        let late = scope.spawn(|| put(&*first, "late"));
        std::thread::sleep(Duration::from_millis(200));
        let second = open_url(&server.url(&prefix), &take_over()).expect("second");
        proxy.set(Mode::Open);
        let late = late.join().expect("the commit ends");
        assert!(matches!(late, Err(Error::Lost)), "{late:?}");
        assert_eq!(second.get(b"key").expect("a read"), Some(b"first".to_vec()));
    });
}

#[test]
fn redis_refuses_late_commits() {
    late_commits_change_nothing(Kind::Redis);
}

#[test]
fn etcd_refuses_late_commits() {
    late_commits_change_nothing(Kind::Etcd);
}

/// A hold that nobody keeps ends by itself.
fn a_hold_expires(kind: Kind) {
    let server = Server::start(kind);
    let proxy = Proxy::start(server.port());
    let prefix = prefix();
    let options = Options {
        lease: Duration::from_secs(3),
        patience: Duration::from_secs(2),
        ..Options::default()
    };
    let first = open_url(&server.url_at(proxy.port, &prefix), &options).expect("first");
    put(&*first, "first").expect("a commit");
    std::thread::sleep(Duration::from_secs(4));
    let refused = open_url(&server.url(&prefix), &options);
    assert!(matches!(refused, Err(Error::InUse(_))), "it is kept");
    proxy.set(Mode::Cut);
    let hold = first.hold().expect("a store on a server");
    let second = loop {
        match open_url(&server.url(&prefix), &options) {
            Err(Error::InUse(_)) => std::thread::sleep(Duration::from_millis(100)),
            other => break other.expect("second"),
        }
    };
    assert!(!hold.is_valid(), "two hold it");
    put(&*second, "second").expect("a commit");
    proxy.set(Mode::Open);
    assert!(matches!(put(&*first, "late"), Err(Error::Lost)));
}

/// Nothing is committed, so that only the keeper can find out.
fn an_idle_holder_hears_that_it_has_lost_the_store(kind: Kind) {
    let server = Server::start(kind);
    let url = server.url(&prefix());
    let options = Options {
        lease: Duration::from_secs(3),
        ..Options::default()
    };
    let first = open_url(&url, &options).expect("first");
    assert!(!first.mend().expect("nothing to mend"));
    let second = open_url(&url, &take_over()).expect("second");
    let begun = Instant::now();
    loop {
        match first.mend() {
            Ok(false) if begun.elapsed() < options.lease * 2 => {
                std::thread::sleep(Duration::from_millis(50));
            }
            mended => break assert!(matches!(mended, Err(Error::Lost)), "{mended:?}"),
        }
    }
    assert!(matches!(first.sync(), Err(Error::Lost)));
    assert!(second.hold().expect("a hold").is_valid());
}

#[test]
fn an_idle_holder_of_redis_hears_of_its_loss() {
    an_idle_holder_hears_that_it_has_lost_the_store(Kind::Redis);
}

#[test]
fn an_idle_holder_of_etcd_hears_of_its_loss() {
    an_idle_holder_hears_that_it_has_lost_the_store(Kind::Etcd);
}

#[test]
fn a_hold_on_redis_expires() {
    a_hold_expires(Kind::Redis);
}

#[test]
fn a_hold_on_etcd_expires() {
    a_hold_expires(Kind::Etcd);
}

#[test]
fn an_onlooker_sees_the_leader_of_etcd_come_and_go() {
    let server = Server::start(Kind::Etcd);
    let url = server.url(&prefix());
    let location = Location::parse(&url).expect("a store");
    let onlooker = Onlooker::new(&location, Options::default().patience).expect("etcd");
    let leader = || onlooker.leader().expect("an answer");
    assert_eq!(leader(), None);
    let first = open_url(&url, &Options::default()).expect("nobody leads");
    assert_eq!(leader(), Some(Options::default().holder));
    drop(first);
    assert_eq!(leader(), None);
    let redis = Location::parse("redis://localhost").expect("a store");
    let refused = Onlooker::new(&redis, Options::default().patience).err();
    assert!(matches!(refused, Some(Error::Setup(_))), "{refused:?}");
}

/// Who restarts knows only that the holder that it has seen is dead.
fn only_the_holder_that_is_meant_loses_the_store(kind: Kind) {
    let server = Server::start(kind);
    let url = server.url(&prefix());
    let called = |holder: &str, take_over| Options {
        holder: holder.into(),
        take_over,
        ..Options::default()
    };
    let first = open_url(&url, &called("first", TakeOver::Never)).expect("nobody has it");
    let from = |holder: &str| TakeOver::From(holder.into());
    for other in ["second", "fir", "first and others"] {
        let refused = open_url(&url, &called("third", from(other))).err();
        let is_held = matches!(&refused, Some(Error::InUse(Some(by))) if by == "first");
        assert!(is_held, "{other}: {refused:?}");
    }
    put(&*first, "first").expect("it has the store");
    let second = open_url(&url, &called("second", from("first"))).expect("taken");
    put(&*second, "second").expect("it has the store");
    assert!(matches!(put(&*first, "late"), Err(Error::Lost)));
}

#[test]
fn only_the_holder_that_is_meant_loses_its_redis() {
    only_the_holder_that_is_meant_loses_the_store(Kind::Redis);
}

#[test]
fn only_the_holder_that_is_meant_loses_its_etcd() {
    only_the_holder_that_is_meant_loses_the_store(Kind::Etcd);
}

#[test]
fn a_redis_that_wants_another_password_is_not_asked_again() {
    let server = Server::start_with(Kind::Redis, &["--requirepass", "right"]);
    let url = server.url(&prefix());
    let with = |login: &str| url.replace("redis://", &format!("redis://{login}"));
    drop(open_url(&with(":right@"), &Options::default()).expect("it opens"));
    for login in ["", ":wrong@", "nobody:wrong@"] {
        match open_url(&with(login), &Options::default()) {
            Err(Error::Setup(said)) => {
                assert!(
                    said.contains("refuses access") && !said.contains("wrong"),
                    "{said}"
                );
            }
            other => panic!("{login}: {:?}", other.err()),
        }
    }
}

#[test]
fn a_redis_that_would_lose_commits_is_refused() {
    let everysec = ["--appendfsync", "everysec"];
    let silent = ["--rename-command", "CONFIG", ""];
    let cases: [(&[&str], &str, Option<&str>); 5] = [
        (&everysec, "", Some("`appendfsync always`")),
        (&everysec, "&durability=everysec", None),
        (
            &["--appendonly", "no"],
            "&durability=everysec",
            Some("`appendonly yes`"),
        ),
        (&silent, "", Some("`CONFIG GET`")),
        (&silent, "&durability=everysec", None),
    ];
    for (set, url_option, advice) in cases {
        let server = Server::start_with(Kind::Redis, set);
        let url = server.url(&prefix()) + url_option;
        match (open_url(&url, &Options::default()), advice) {
            (Ok(store), None) => put(&*store, "value").expect("a commit"),
            (Err(Error::Setup(said)), Some(advice)) => assert!(said.contains(advice), "{said}"),
            (other, _) => panic!("{set:?}: {:?}", other.err()),
        }
    }
}
