//! Ids, sizes, limits, attributes and errno: the words every other crate speaks. No I/O.

mod attr;
mod entry;
mod errno;
pub mod failpoint;
pub mod history;
mod ids;
pub mod limits;
mod lock;
mod name;
mod procstat;
mod quantity;

pub use attr::{Attr, Cred, FileKind, OpenFlags, Process, SetAttr, SetTime, Statfs, TimeSpec};
pub use entry::{Dirent, RenameMode, XattrMode};
pub use errno::Errno;
pub use ids::{Generation, Handle, Ino, ObjectId, TierId};
pub use lock::{ByteRange, LockClass, LockMode};
pub use name::{NameError, check_name};
pub use procstat::ProcStat;
pub use quantity::{
    QuantityError, format_duration, format_size, parse_duration, parse_percent, parse_size,
};
