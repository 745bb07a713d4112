//! Flushes and write-backs that have failed, for who comes next.
//!
//! The kernel tells a descriptor of a failed write-back once. An answer that says so may be lost
//! with the session that it was for: then the object is opened anew, and the new descriptor hears
//! nothing. So each later session is told once more, until nobody misses what was lost. What nobody
//! has asked for before a session ends would be told to a descriptor that is closed: it is asked
//! for then.

use std::collections::HashMap;
use std::io;

use forebay_tiers::{Object, heard_so_far};
use forebay_types::Errno;
use forebay_wire::{DirtyPages, ObjectKey, ObjectRequest};
use parking_lot::Mutex;

/// What has failed since this start of the data server, by object.
#[derive(Default)]
pub(crate) struct Failures(Mutex<HashMap<ObjectKey, Failed>>);

struct Failed {
    errno: Errno,
    /// The session that was told; 0: none.
    told: u64,
}

impl Failures {
    /// What `session` is answered that has asked for a flush of an object, or waited for its
    /// write-back.
    pub fn answer<T>(&self, key: ObjectKey, session: u64, done: io::Result<T>) -> io::Result<T> {
        let mut all = self.0.lock();
        match done {
            Err(error) => {
                let errno = Errno::of(&error);
                if is_loss(errno) {
                    let told = session;
                    all.insert(key, Failed { errno, told });
                }
                Err(error)
            }
            Ok(done) => match all.get_mut(&key) {
                Some(failed) if failed.told != session => {
                    failed.told = session;
                    Err(failed.errno.into())
                }
                _ => Ok(done),
            },
        }
    }

    /// An object is closed with its session: what its descriptor was to hear yet is kept.
    pub fn closes(&self, key: ObjectKey, object: &dyn Object) {
        let Err(error) = heard_so_far(object) else {
            return;
        };
        let errno = Errno::of(&error);
        if is_loss(errno) {
            self.0.lock().insert(key, Failed { errno, told: 0 });
        }
    }

    /// The object was compared, and is whole. What `session` was not told of is later than that.
    pub fn settle(&self, key: ObjectKey, session: u64) {
        let mut all = self.0.lock();
        if all.get(&key).is_some_and(|failed| failed.told == session) {
            all.remove(&key);
        }
    }

    /// The object is gone, new, or cut to nothing: nobody misses what was lost.
    pub fn forget(&self, key: ObjectKey) {
        self.0.lock().remove(&key);
    }
}

/// Whether a failure of a request says that what was written may be lost.
fn is_loss(errno: Errno) -> bool {
    !matches!(errno, Errno::EROFS | Errno::EINTR | Errno::EBADF)
}

/// Whether a request is answered by [`Failures::answer`]: somebody listens to its error.
pub(crate) fn tells(request: &ObjectRequest) -> bool {
    match request {
        ObjectRequest::WriteBack { what, .. } => *what != DirtyPages::Start,
        request => matches!(request, ObjectRequest::Sync { .. }),
    }
}
