//! What every engine must do.

use forebay_kv::conformance::check_all;
use forebay_kv::{Options, open_url};
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
