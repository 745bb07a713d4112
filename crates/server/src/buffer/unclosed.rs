//! Files whose last close could not ask their object what it has become.

use std::sync::Arc;

use forebay_namespace::File;

use crate::base::failure::Failure;
use crate::buffer::Buffer;
use crate::buffer::opens::Claim;

impl Buffer {
    /// Finishes a close that failed, if there was one, of a file that nobody has open for writing.
    pub fn finish_close(&self, claim: &Claim<'_>, file: &Arc<File>) -> Result<(), Failure> {
        if !self.unclosed.lock().contains(&file.object) {
            return Ok(());
        }
        // Who cuts a file that others read is not counted as one that writes it.
        let open = claim.open();
        let _end = open.as_ref().map(|open| open.end.lock());
        let tier = file.tier();
        let stat = self.tiers.open_object(tier, file.object)?.stat()?;
        let mut state = file.lock();
        state.finish_close(&stat);
        if open
            .as_ref()
            .is_some_and(|open| open.changes.are_under_way())
        {
            state.stay_written();
        }
        self.ns.save_later(file, &mut state);
        self.book_held(file, &state, stat.allocated_bytes);
        drop(state);
        self.unclosed.lock().remove(&file.object);
        Ok(())
    }
}
