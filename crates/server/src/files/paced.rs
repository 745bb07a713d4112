//! Files whose user or group writes at a rate.

use std::time::Duration;

use forebay_namespace::File;
use forebay_policy::limits::Owners;
use forebay_types::Handle;
use forebay_wire::WriteHow;

use crate::buffer::target::Target;
use crate::files::Files;

impl Files {
    /// Whether a file's user or group has a rate: its writes are requests then. As long as clients
    /// of the last run come back, what their kernels have stays with these.
    pub(super) fn is_paced(&self, file: &File) -> bool {
        let rates = self.buffer.rates();
        rates.has_some() && rates.limits(owners_of(file)) && !self.awaits_clients()
    }

    /// So much was written. Answers with how much later the program is to hear of it. The data of a
    /// program that does not hear of it (it has stored them through a mapping) count for its next
    /// write.
    pub fn pause_after(&self, handle: Handle, bytes: usize, how: WriteHow) -> Duration {
        if !self.buffer.rates().has_some() {
            return Duration::ZERO;
        }
        // It may have been closed meanwhile: nobody waits for it then.
        let Ok((open, _)) = self.buffer.opens().file(handle) else {
            return Duration::ZERO;
        };
        let owners = match &*open.target.read() {
            Target::Buffer { file, .. } => owners_of(file),
            // What is changed on the PFS is not written here.
            Target::Pfs { .. } => return Duration::ZERO,
        };
        (self.buffer.rates()).wrote(owners, bytes as u64, !how.write_back)
    }
}

fn owners_of(file: &File) -> Owners {
    let state = file.lock();
    Owners {
        uid: state.meta.uid,
        gid: state.meta.gid,
    }
}
