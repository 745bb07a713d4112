//! Files of the PFS that clients have open and that are about to lose their last name there: after
//! a restart of the server nothing would lead to one, so it comes into the burst buffer first.

use forebay_namespace::Node;
use forebay_policy::placement::FirstChange;
use forebay_types::FileKind;
use forebay_wire::Link;

use crate::base::failure::Failure;
use crate::buffer::target::Target;
use crate::files::Files;

impl Files {
    /// To be asked before a name is taken away or given to another file. What is large, or finds no
    /// room, stays where it is, and does not outlive a restart.
    pub fn keep_for_clients(&self, link: &Link) {
        if let Err(failure) = self.bring_in_open(link) {
            let name = link.name.escape_ascii();
            tracing::debug!("{name}: would not outlive a restart without a name: {failure}");
        }
    }

    fn bring_in_open(&self, link: &Link) -> Result<(), Failure> {
        let Node::Dir(dir) = self.ns.node(link.parent)? else {
            return Ok(());
        };
        if !self.ns.may_be_open_plain(&dir, &link.name) {
            return Ok(());
        }
        let found = self.ns.lookup_in(&dir, &link.name, false)?;
        let attr = &found.attr;
        if attr.kind != FileKind::Regular || !self.ns.is_open_by_client(attr.ino) {
            return Ok(());
        }
        if attr.nlink > 1 {
            self.ns.note_links(attr.ino);
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
                // Nobody's copy goes for a file that is about to be deleted.
                let path = dir.path_of(&link.name);
                if self.way_into_room(&path, &stat, false) == FirstChange::InPlaceOnPfs {
                    return Ok(());
                }
                let (file, ..) =
                    self.bring_in(&dir, &link.name, (Some(node.id), None), false, &|_| ())?;
                file
            }
        };
        let now = self.open_arrived(arrived)?;
        open.put(&mut target, now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use forebay_types::{Ino, OpenFlags};
    use forebay_wire::Link;

    use crate::testing::{Lab, create, drain};

    #[test]
    fn what_is_about_to_go_drives_nothing_out_of_the_buffer() {
        let lab = Lab::with(|settings| settings.ssd[0].capacity_bytes = Some(32 << 20));
        let rooms = lab.rooms();
        let handle = create(rooms, b"clean", &vec![7; 20 << 20]);
        rooms.files.release(handle).expect("close");
        drain(rooms);
        let ns = rooms.base.ns();
        let flags = OpenFlags(libc::O_RDONLY as u32);
        let keep = |name: &str, bytes: usize| {
            std::fs::write(lab.pfs(name), vec![8; bytes]).expect("write");
            let found = ns.lookup(Ino::ROOT, name.as_bytes()).expect("lookup");
            let ino = found.attr.ino;
            let (opened, _) = rooms.files.open(ino, flags, None).expect("open");
            ns.hold(ino, 3).expect("hold");
            rooms.files.keep_for_clients(&Link {
                parent: Ino::ROOT,
                name: name.as_bytes().to_vec(),
            });
            ns.let_go(ino, 3);
            rooms.files.release(opened.handle).expect("close");
            ns.root().child(name.as_bytes()).is_some()
        };
        assert_eq!(
            [keep("large", 20 << 20), keep("small", 1 << 20)],
            [false, true]
        );
        assert!(ns.root().child(b"clean").is_some());
    }
}
