//! Files that were made without a name (`O_TMPFILE`): open like any other, drained only once they
//! have one.
//!
//! Such a file is served by requests, for nothing tells how large it will be. It goes when nobody
//! has it open and the kernel does not know it any more: until then a link may still be under way,
//! by a descriptor that is just being closed.

pub(crate) mod ops;

use std::collections::HashMap;
use std::sync::Arc;

use forebay_namespace::File;
use forebay_types::Ino;
use parking_lot::Mutex;

/// Files without a name that may get one yet.
#[derive(Default)]
pub struct Unnamed {
    files: Mutex<HashMap<Ino, Arc<File>>>,
}
