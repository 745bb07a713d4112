//! Sessions that end at a certain call: no program hears of that.

use forebay_wire::NOT_SENT;

use super::*;

/// How a caller hears of the end of a session: both errors that a connection has for it.
const ENDS: [Errno; 2] = [Errno::ENOTCONN, NOT_SENT];

/// A connection whose session ends in so many calls of one kind.
struct Ending {
    inner: Arc<Breaking>,
    is_it: fn(&ObjectCall) -> bool,
    left: AtomicU64,
    errno: Errno,
}

impl Ending {
    fn new(dir: &Path, is_it: fn(&ObjectCall) -> bool, errno: Errno) -> (Arc<Ending>, RemoteTier) {
        let connection = Arc::new(Ending {
            inner: Breaking::new(server(dir, "boot 1")),
            is_it,
            left: AtomicU64::new(0),
            errno,
        });
        let tiers = RemoteTiers::new(connection.clone(), Claim::new(INSTANCE, 1));
        let tier = tiers.find("server-2").expect("tiers").remove(0);
        (connection, tier)
    }

    fn end(&self) {
        let server = self.inner.server.read().clone();
        self.inner.begin(server);
    }

    /// The session ends in the next calls of the kind.
    fn end_in(&self, calls: u64) {
        self.left.store(calls, Ordering::Release);
    }

    /// All of them have come.
    fn has_ended(&self) -> bool {
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
