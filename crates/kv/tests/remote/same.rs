//! What every engine must do.

use forebay_kv::conformance::check_all;
use forebay_kv::{Error, Options, open_url};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::servers::{Kind, Server, prefix};
use crate::steps::{check, step};

fn conforms(kind: Kind) {
    let server = Server::start(kind);
    check_all(&|| server.store());
}

#[test]
fn redis_conforms() {
    conforms(Kind::Redis);
}

#[test]
fn etcd_conforms() {
    conforms(Kind::Etcd);
}

fn is_an_ordered_map(kind: Kind) {
    let server = Server::start(kind);
    let mut runner = TestRunner::new(ProptestConfig::with_cases(24));
    let run = |steps: Vec<_>| {
        let url = server.url(&prefix());
        let open = || open_url(&url, &Options::default()).expect("the store opens");
        check(&steps, open(), &mut |store| {
            drop(store);
            open()
        })
    };
    let steps = prop::collection::vec(step(), 0..60);
    if let Err(error) = runner.run(&steps, run) {
        panic!("{error}");
    }
}

#[test]
fn redis_is_an_ordered_map() {
    is_an_ordered_map(Kind::Redis);
}

#[test]
fn etcd_is_an_ordered_map() {
    is_an_ordered_map(Kind::Etcd);
}

#[test]
fn a_url_names_the_embedded_store_too() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let url = format!("embedded:{}/kv", dir.path().display());
    let store = open_url(&url, &Options::default()).expect("the store opens");
    assert!(matches!(
        open_url(&url, &Options::default()),
        Err(Error::InUse(_))
    ));
    drop(store);
}

#[test]
fn a_server_that_is_not_there_is_storage_that_fails() {
    for kind in [Kind::Redis, Kind::Etcd] {
        let mut server = Server::start(kind);
        server.kill();
        let options = Options::default();
        let refused = open_url(&server.url(&prefix()), &options).err();
        assert!(matches!(refused, Some(Error::Io(_))), "{refused:?}");
    }
}
