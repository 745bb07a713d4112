//! Attributes of files that may be open.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_namespace::File;
use forebay_types::{Attr, Errno};
use forebay_wire::OUT_OF_REACH;

use crate::base::failure::Failure;
use crate::buffer::opens::OpenFile;
use crate::buffer::target::Target;
use crate::files::Files;
use crate::files::change::grow_to;

impl Files {
    /// Attributes of a file that may be open: the object knows the size.
    pub fn live_attr(&self, mut attr: Attr, file: Option<&Arc<File>>) -> Result<Attr, Failure> {
        let Some(file) = file else {
            return Ok(attr);
        };
        // The last writer may have closed it since `attr` was taken: it is in the table until the
        // record has what it wrote. Or the file has been evicted since: then it has no names any
        // more in the burst buffer, but all of them on the PFS.
        let mut writing = false;
        let (open, changing) = self.buffer.opens().look(attr.ino, |open| {
            let nlink = attr.nlink;
            (attr, writing) = file.attr_and_writing();
            attr.nlink = nlink;
            let changing = open.is_some_and(|open: &Arc<OpenFile>| {
                open.is_written() || open.touched.load(Ordering::Acquire)
            });
            (open.cloned(), changing)
        });
        // Its last close is not on record: it has met the end of its node, or of an earlier server.
        if !changing && writing {
            let opened = self.buffer.tiers().open_object(file.tier(), file.object);
            match opened.and_then(|object| object.stat()) {
                Ok(stat) => grow_to(&mut attr, &stat),
                // Who waits for its node learns it.
                Err(error) if Errno::of(&error) == OUT_OF_REACH => return Err(error.into()),
                // Who opens it gets the error; until then it has a name, and can be removed.
                Err(error) => tracing::debug!("{}: {error}", file.path().escape_ascii()),
            }
            return Ok(attr);
        }
        let Some(open) = open else {
            return Ok(attr);
        };
        let target = open.target.read();
        let live = match &*target {
            Target::Buffer { .. } => changing,
            // Opened before it came into the burst buffer.
            Target::Pfs { writable, .. } => *writable,
        };
        if live && !(self.buffer.is_on_pfs(&target) && self.base.health().is_silent()) {
            grow_to(&mut attr, &target.object().stat()?);
        }
        Ok(attr)
    }

    /// Attributes to show with a name that was looked up. The kernel holds the directory until it
    /// has them, and whoever wants another name there waits: so they are, while the node of the
    /// file is away, those on record. Whether that is so.
    pub fn attr_of_name(
        &self,
        attr: Attr,
        file: Option<&Arc<File>>,
    ) -> Result<(Attr, bool), Failure> {
        let is_away = |file: &&Arc<File>| self.buffer.tiers().is_out_of_reach(file.tier());
        match (self.live_attr(attr, file), file.filter(is_away)) {
            (Err(failure), Some(file)) if failure.errno() == OUT_OF_REACH => {
                let recorded = file.attr();
                let nlink = attr.nlink;
                Ok((Attr { nlink, ..recorded }, true))
            }
            (live, _) => live.map(|attr| (attr, false)),
        }
    }
}
