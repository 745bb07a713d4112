//! Files of the PFS that clients have open and that are about to lose their last name there: after
//! a restart of the server nothing would lead to one, so it comes into the burst buffer first.

use forebay_namespace::Node;
use forebay_policy::placement::FirstChange;
use forebay_types::FileKind;
use forebay_wire::Link;

use crate::base::failure::Failure;
use crate::buffer::opens::Target;
use crate::files::Files;

impl Files {
    /// To be asked before a name is taken away or given to another file. What is large, or finds no
    /// room, stays where it is, and does not outlive a restart.
    pub fn keep_for_clients(&self, link: &Link) {
        if !self.ns.has_plain_open() {
            return;
        }
        if let Err(failure) = self.bring_in_open(link) {
            let name = link.name.escape_ascii();
            tracing::debug!("{name}: would not outlive a restart without a name: {failure}");
        }
    }

    fn bring_in_open(&self, link: &Link) -> Result<(), Failure> {
        let Node::Dir(dir) = self.ns.node(link.parent)? else {
            return Ok(());
        };
        let found = self.ns.lookup_in(&dir, &link.name, false)?;
        let attr = &found.attr;
        let is_last = attr.kind == FileKind::Regular && attr.nlink == 1;
        if !is_last || !self.ns.is_open_by_client(attr.ino) {
            return Ok(());
        }
        let Some(open) = self.buffer.opens().by_ino(attr.ino) else {
            return Ok(());
        };
        let mut target = open.target.write();
        // What is written in place has no content that stands still.
        let Target::Pfs {
            node,
            file,
            writable: false,
            ..
        } = &*target
        else {
            return Ok(());
        };
        let arrived = match found.file {
            Some(file) => file,
            None => {
                let stat = self.ns.pfs().stat_file(file.file())?;
                if self.way_in(&stat, false) == FirstChange::InPlaceOnPfs {
                    return Ok(());
                }
                let (file, ..) = self.bring_in(&dir, &link.name, Some(node.id), false, &|_| ())?;
                file
            }
        };
        let now = self.open_arrived(arrived)?;
        open.put(&mut target, now);
        Ok(())
    }
}
