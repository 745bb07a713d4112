//! Whether something of a version is lost: nobody shall take it for whole.

use std::sync::Arc;

use forebay_namespace::Dir;
use forebay_types::Errno;

use crate::base::failure::Failure;
use crate::orders::Orders;
use crate::orders::asker::Asker;
use crate::orders::asker::sight::Sight;
use crate::orders::jobs::stores;
use crate::orders::walk::Visited;

impl Orders {
    /// Fails where something of a file in a version may be lost, whoever was told of it before.
    pub(super) fn check_losses(&self, version: &Arc<Dir>) -> Result<(), Failure> {
        if self.files.losses().is_empty() {
            return Ok(());
        }
        if let Err(error) = self.ns.list(version)
            && matches!(error.errno(), Errno::ENOENT | Errno::ESTALE)
        {
            // Somebody has removed or renamed it on the PFS, which the publication will find.
            return Ok(());
        }
        let server = Asker::server();
        let sight = Sight::new(self, &server);
        let (mut lost, mut unread) = (None, None);
        let mut look = |visited: Visited| {
            lost = stores::lost(self, &visited);
            lost.is_none()
        };
        // What moves meanwhile is looked at once more.
        self.walk_dir(
            version,
            &sight,
            &mut look,
            &mut |_, failure| unread = Some(failure),
            0,
        );
        lost.or(unread).map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use forebay_tiers::testing::FaultyTier;
    use forebay_types::{Ino, OpenFlags, RenameMode};
    use forebay_wire::{Link, WriteHow};

    use super::*;
    use crate::rooms::Rooms;
    use crate::testing::{Lab, answer, beside, drain, lose_store};

    const EIO: Result<(), Errno> = Err(Errno::EIO);

    /// A directory on the PFS.
    fn make_dir(lab: &Lab, name: &str) -> Ino {
        std::fs::create_dir(lab.pfs(name)).expect("mkdir");
        let found = (lab.rooms().base.ns()).lookup(Ino::ROOT, name.as_bytes());
        found.expect("there").attr.ino
    }

    fn check(rooms: &Rooms, dir: &str) -> Result<(), Errno> {
        let (dir, _) =
            (rooms.base.ns().resolve(dir.as_bytes())).unwrap_or_else(|error| panic!("{error}"));
        answer(rooms.orders.check_losses(&dir))
    }

    /// A file of the burst buffer that has lost a store through a mapping.
    fn lose(rooms: &Rooms, flash: &FaultyTier, name: &[u8]) -> Ino {
        let (file, handle) = lose_store(rooms, flash, name);
        rooms.files.release(handle).expect("close");
        file.ino
    }

    fn link(parent: Ino, name: &[u8]) -> Link {
        let name = name.to_vec();
        Link { parent, name }
    }

    fn rename(rooms: &Rooms, from: &Link, to: &Link) {
        let had = (rooms.files.had(from), rooms.files.had(to));
        let mode = RenameMode::Replace;
        let ns = rooms.base.ns();
        ns.rename(from.parent, &from.name, to.parent, &to.name, mode)
            .expect("rename");
        rooms.files.was_renamed((from, &had.0), (to, &had.1), mode);
    }

    #[test]
    fn a_version_with_any_name_of_a_file_that_has_lost_a_store_is_refused() {
        let (lab, flash) = Lab::with_faulty_flash();
        let rooms = lab.rooms();
        let version = make_dir(&lab, "v");
        let file = lose(rooms, &flash, b"f");
        assert_eq!(check(rooms, "v"), Ok(()));
        rooms.base.ns().link(file, version, b"f-too").expect("link");
        assert_eq!((check(rooms, "v"), check(rooms, "")), (EIO, EIO));
    }

    /// It has left the burst buffer, and moves through the mount, and then by an outsider's hand.
    #[test]
    fn what_was_lost_of_a_file_moves_with_it() {
        let (lab, flash) = Lab::with_faulty_flash();
        let rooms = lab.rooms();
        let (version, _) = (make_dir(&lab, "v"), make_dir(&lab, "w"));
        lose(rooms, &flash, b"f");
        drain(rooms);
        let file = rooms.base.ns().root().child(b"f").expect("clean");
        rooms.buffer.evict(&file).expect("evicted");
        drop(file);
        assert_eq!((check(rooms, "v"), check(rooms, "")), (Ok(()), EIO));
        rename(rooms, &link(Ino::ROOT, b"f"), &link(version, b"g"));
        assert_eq!(rooms.files.unflushed(), [b"v/g"]);
        assert_eq!((check(rooms, "v"), check(rooms, "w")), (EIO, Ok(())));
        std::fs::rename(lab.pfs("v/g"), lab.pfs("w/g")).expect("rename");
        std::thread::sleep(std::time::Duration::from_millis(1100));
        assert_eq!((check(rooms, "v"), check(rooms, "w")), (Ok(()), EIO));
        rooms.files.look_after_losses(0);
        assert_eq!(rooms.files.unflushed(), [b"w/g"], "the walk came by it");
        // Another file has that name then.
        std::fs::remove_file(lab.pfs("w/g")).expect("unlink");
        std::fs::write(lab.pfs("w/g"), b"another").expect("write");
        std::thread::sleep(std::time::Duration::from_millis(1100));
        assert_eq!(check(rooms, "w"), Ok(()));
        rooms.files.look_after_losses(0);
        assert!(rooms.files.unflushed().is_empty());
    }

    /// It is changed in place through one of its names.
    #[test]
    fn a_version_with_the_other_name_of_a_file_is_flushed_and_refused() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        make_dir(&lab, "v");
        std::fs::write(lab.pfs("f"), b"content").expect("write");
        std::fs::hard_link(lab.pfs("f"), lab.pfs("v/f")).expect("link");
        let found = rooms.base.ns().lookup(Ino::ROOT, b"f").expect("there");
        let flags = OpenFlags(libc::O_RDWR as u32);
        let opened = rooms.files.open(found.attr.ino, flags, None);
        let handle = opened.expect("open").0.handle;
        let written = rooms.files.write(handle, 0, b"CON", WriteHow::WAITING);
        assert_eq!(answer(written), Ok(Some(3)));
        assert_eq!(rooms.files.unflushed().len(), 1);
        rooms.files.flush_in_place_in(&|_| false).expect("flushed");
        assert!(rooms.files.unflushed().is_empty());
        let open = rooms.buffer.opens().file(handle).expect("open").0;
        (rooms.files).store_is_lost(&open, &Errno::EIO.into());
        assert_eq!(check(rooms, "v"), EIO);
        rooms.files.release(handle).expect("close");
    }

    /// A version that gets another name meanwhile is no less looked at.
    #[test]
    fn a_version_that_is_renamed_meanwhile_is_refused() {
        let (lab, flash) = Lab::with_faulty_flash();
        let rooms = lab.rooms();
        let version = make_dir(&lab, "v");
        let file = lose(rooms, &flash, b"f");
        let ns = rooms.base.ns();
        ns.link(file, version, b"f").expect("link");
        let (dir, _) = ns.resolve(b"v").expect("there");
        let mut names = [&b"v"[..], b"w"];
        let rename = || {
            let mode = RenameMode::Replace;
            ns.rename(Ino::ROOT, names[0], Ino::ROOT, names[1], mode)
                .expect("rename");
            names.swap(0, 1);
        };
        beside(rename, || {
            for _ in 0..200 {
                assert!(rooms.orders.check_losses(&dir).is_err());
            }
        });
    }
}
