//! What an outsider does between two looks that one operation takes at the PFS.

use std::sync::Arc;
use std::time::Duration;

use forebay_kv::memory::Memory;
use forebay_kv::{Batch, Durability, Error, Store};
use forebay_namespace::{Arrival, Namespace};
use forebay_tiers::{PfsTree, Sums};
use forebay_types::{Errno, Ino, RenameMode, TierId};
use parking_lot::{Condvar, Mutex};

/// Long enough for a thread to come to the lock that it is to wait for.
const A_MOMENT: Duration = Duration::from_millis(300);

/// A store whose commits wait at a gate.
#[derive(Default)]
struct Gate {
    memory: Memory,
    is_closed: Mutex<bool>,
    opened: Condvar,
}

#[derive(Clone, Default)]
struct Gated(Arc<Gate>);

impl Gated {
    fn close(&self) {
        *self.0.is_closed.lock() = true;
    }

    fn open(&self) {
        *self.0.is_closed.lock() = false;
        self.0.opened.notify_all();
    }
}

impl Store for Gated {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.0.memory.get(key)
    }

    fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Error> {
        self.0.memory.scan(prefix, after, visit)
    }

    fn commit(&self, batch: Batch, durability: Durability) -> Result<(), Error> {
        let mut is_closed = self.0.is_closed.lock();
        while *is_closed {
            self.0.opened.wait(&mut is_closed);
        }
        self.0.memory.commit(batch, durability)
    }

    fn sync(&self) -> Result<(), Error> {
        self.0.memory.sync()
    }

    fn mend(&self) -> Result<bool, Error> {
        self.0.memory.mend()
    }
}

/// A clean copy of a file of the PFS.
fn bring_in(ns: &Namespace, name: &[u8]) {
    let stat = ns.pfs().stat(ns.pfs().root(), name).expect("stat");
    let arrival = Arrival {
        object: ns.new_object().expect("id"),
        tier: TierId(2),
        sums: Some(Sums::whole(stat.size, 0)),
        allocated_bytes: 0,
    };
    ns.attach(ns.root(), name, &stat, &arrival).expect("attach");
}

fn rename(ns: &Namespace, from: &[u8], to: &[u8]) -> Result<(), Errno> {
    let renamed = ns.rename(Ino::ROOT, from, Ino::ROOT, to, RenameMode::Replace);
    renamed.map(|_| ()).map_err(|error| error.errno())
}

#[test]
fn what_an_outsider_removes_in_the_moment_of_its_rename_replaces_nothing() {
    let top = tempfile::tempdir().expect("temporary directory");
    for name in ["f", "g", "other"] {
        std::fs::write(top.path().join(name), name).expect("write");
    }
    let store = Gated::default();
    let pfs = PfsTree::open(top.path()).expect("PFS");
    let (ns, _) = Namespace::open(pfs, Box::new(store.clone()), [7; 16]).expect("open");
    bring_in(&ns, b"f");
    bring_in(&ns, b"other");
    std::thread::scope(|scope| {
        store.close();
        // It has the order of the directory, and waits for the store.
        let first = scope.spawn(|| rename(&ns, b"other", b"another"));
        std::thread::sleep(A_MOMENT);
        // It has seen that the PFS has the file, and waits for the order.
        let second = scope.spawn(|| rename(&ns, b"f", b"g"));
        std::thread::sleep(A_MOMENT);
        std::fs::remove_file(top.path().join("f")).expect("remove");
        store.open();
        assert_eq!(first.join().expect("first"), Ok(()));
        assert_eq!(second.join().expect("second"), Err(Errno::ENOENT));
    });
    let found = ns.lookup(Ino::ROOT, b"g").expect("it stays");
    assert!(found.file.is_none(), "what the PFS has is what is shown");
    assert_eq!(found.attr.size, 1);
    assert_eq!(std::fs::read(top.path().join("g")).expect("read"), b"g");
}
