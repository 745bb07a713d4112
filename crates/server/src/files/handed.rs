//! What an open gives: a handle, and perhaps the object's own descriptor.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use forebay_tiers::Object;
use forebay_types::{Handle, OpenFlags, TimeSpec};
use forebay_wire::{ContentVersion, Descriptor, ObjectKey, ObjectPlace, OpenMode, Opened};

use crate::base::failure::Failure;
use crate::buffer::contents::Seen;
use crate::buffer::opens::OpenFile;
use crate::buffer::target::Target;
use crate::files::Files;

/// An object's descriptor to hand over, if it may be.
pub type Handed = Option<Arc<dyn Descriptor>>;

/// An open file with the descriptor to hand over.
pub type OpenResult = Result<(Opened, Handed), Failure>;

/// The server on whose tiers the kernel of a client may have files by itself: that of its node.
/// `None`: its reads and writes are requests.
pub type Near = Option<u16>;

/// How a client's kernel gets at an object.
pub(super) enum Way {
    /// By this descriptor.
    Descriptor(Arc<dyn Descriptor>),
    /// The data server of its node has one.
    Place(ObjectPlace),
}

pub(super) fn opened(
    handle: Handle,
    way: Option<Way>,
    content: Option<Content>,
) -> (Opened, Handed) {
    let mode = match way.is_some() {
        true => OpenMode::Passthrough,
        false => OpenMode::Plain,
    };
    let (descriptor, place) = match way {
        Some(Way::Descriptor(descriptor)) => (Some(descriptor), None),
        Some(Way::Place(place)) => (None, Some(Box::new(place))),
        None => (None, None),
    };
    let opened = Opened {
        handle,
        mode,
        place,
        content: content.map(|content| content.version),
        bytes: content.map_or(0, |content| content.bytes),
    };
    (opened, descriptor)
}

/// What a file has while nobody writes it.
#[derive(Clone, Copy)]
pub(super) struct Content {
    version: ContentVersion,
    bytes: u64,
}

impl Files {
    /// Who brings files in ahead of programs hears of those that are opened to be read.
    /// `content`: what it has, where that is known.
    pub(super) fn tell_reader(&self, open: &OpenFile, flags: OpenFlags, content: Option<Content>) {
        if !flags.reads() {
            return;
        }
        let guesses = self.buffer.guesses();
        match &*open.target.read() {
            Target::Buffer { file, .. } => {
                guesses.opened(file.object);
                if !flags.writes() && self.settings.engine.read_ahead > 0.0 {
                    guesses.read_here(file.object);
                }
            }
            Target::Pfs { node, file, .. } if guesses.wants_opens() => {
                let size = || match (content, self.base.health().is_silent()) {
                    (Some(content), _) => Some(content.bytes),
                    (None, true) => None,
                    (None, false) => {
                        let stat = self.ns.pfs().stat_file(file.file());
                        // The open has worked, and goes on: it counts for no run.
                        let stat = stat.inspect_err(|e| {
                            tracing::debug!("how much is read is not known: {e}");
                        });
                        Some(stat.ok()?.size)
                    }
                };
                let bytes = (!flags.writes()).then(size).flatten();
                guesses.opened_on_pfs(&node.parent, &node.name, bytes);
            }
            Target::Pfs { .. } => {}
        }
    }

    /// Which content an open file has, its new handle included in the counts. `None` while anybody
    /// has it open for writing or the kernel may write it: what is read then is nobody's content.
    pub(super) fn content_of(&self, open: &OpenFile) -> Option<Content> {
        if open.is_passthrough() || open.is_written() {
            return None;
        }
        let target = open.target.read();
        let (seen, bytes) = match &*target {
            Target::Buffer { file, object, .. } => {
                let is_suspect = self.integrity.at_rest().is_suspect(file.object);
                let stat = object.stat();
                let stat = stat.inspect_err(|e| tracing::debug!("its length is not known: {e}"));
                let seen = Seen::in_buffer(file).filter(|_| !is_suspect);
                (seen?, stat.ok()?.size)
            }
            // Nobody waits for a PFS that hangs to be told this.
            Target::Pfs { .. } if self.base.health().is_silent() => return None,
            Target::Pfs { file, .. } => {
                let stat = self.ns.pfs().stat_file(file.file());
                let stat = stat.inspect_err(|e| tracing::debug!("its content is not known: {e}"));
                let stat = stat.ok()?;
                (Seen::on_pfs(&stat, TimeSpec::now()), stat.size)
            }
        };
        let version = self.buffer.contents().version(open.ino, &seen)?;
        Some(Content { version, bytes })
    }
}

/// An object that is known to have a descriptor.
pub(super) struct Local(pub(super) Arc<dyn Object>);

impl Descriptor for Local {
    fn descriptor(&self) -> BorrowedFd<'_> {
        // Only objects that have one are wrapped: see `hand_over`.
        self.0
            .descriptor()
            .unwrap_or_else(|| unreachable!("an object without a descriptor"))
    }
}

impl Files {
    /// How a client that is near an object's tier gets at it.
    pub(super) fn hand_over(&self, target: &Target) -> Option<Way> {
        let Target::Buffer { file, object, tier } = target else {
            return None;
        };
        if object.descriptor().is_some() {
            return Some(Way::Descriptor(Arc::new(Local(object.clone()))));
        }
        let slot = self.buffer.tiers().get(*tier)?;
        let place = slot.tier.elsewhere(file.object)?;
        Some(Way::Place(ObjectPlace {
            server: slot.server,
            instance: place.instance,
            key: ObjectKey {
                tier: place.tier,
                object: place.object,
            },
        }))
    }
}

#[cfg(test)]
mod tests {
    use forebay_types::{Ino, OpenFlags, SetAttr, SetTime, TimeSpec};
    use forebay_wire::{ContentVersion, OpenMode, WriteHow};

    use crate::testing::{Lab, answer, create, drain, me};

    /// What a reader who opens the file now is told, beside whoever has it open.
    fn told(lab: &Lab, name: &[u8]) -> Option<ContentVersion> {
        let files = &lab.rooms().files;
        let found = lab.rooms().base.ns().lookup(Ino::ROOT, name);
        let ino = found.expect("there").attr.ino;
        let opened = files.open(ino, OpenFlags(libc::O_RDONLY as u32), None);
        let opened = opened.expect("open").0;
        assert_eq!(opened.mode, OpenMode::Plain);
        files.release(opened.handle).expect("close");
        opened.content
    }

    fn cut(lab: &Lab, ino: Ino, set: SetAttr) {
        let done = lab.rooms().files.setattr(ino, None, &set, me());
        assert_eq!(answer(done.map(drop)), Ok(()));
    }

    #[test]
    fn a_content_is_told_while_nobody_writes_and_changes_with_every_change() {
        let lab = Lab::new();
        let files = &lab.rooms().files;
        let handle = create(lab.rooms(), b"f", b"content");
        assert_eq!(told(&lab, b"f"), None, "somebody writes it");
        files.release(handle).expect("close");
        let first = told(&lab, b"f").expect("known");
        assert_eq!(told(&lab, b"f"), Some(first));
        let ino = lab.rooms().buffer.files()[0].ino;
        let flags = OpenFlags(libc::O_RDWR as u32);
        let (opened, _) = files.open(ino, flags, None).expect("open");
        assert_eq!(opened.content, None, "it may write");
        assert_eq!(told(&lab, b"f"), None, "beside a writer");
        files.release(opened.handle).expect("close");
        assert_eq!(told(&lab, b"f"), Some(first), "nothing was written");
        let (opened, _) = files.open(ino, flags, None).expect("open");
        let written = files.write(opened.handle, 0, b"C", WriteHow::WAITING);
        assert_eq!(answer(written), Ok(Some(1)));
        files.release(opened.handle).expect("close");
        let second = told(&lab, b"f").expect("known");
        assert_ne!(second, first);
        let size = |size| SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        cut(&lab, ino, size(3));
        cut(&lab, ino, size(7));
        let third = told(&lab, b"f").expect("known");
        assert!(third != second && third != first);
        let at = TimeSpec { sec: 1, nsec: 2 };
        let times = SetAttr {
            mtime: Some(SetTime::At(at)),
            ..SetAttr::default()
        };
        cut(&lab, ino, times);
        let fourth = told(&lab, b"f").expect("known");
        drain(lab.rooms());
        assert_eq!(told(&lab, b"f"), Some(fourth), "drained");
        let file = lab.rooms().buffer.files().pop().expect("file");
        assert!(lab.rooms().buffer.evict(&file).is_some());
        assert_eq!(told(&lab, b"f"), Some(fourth), "evicted");
        std::fs::write(lab.pfs("f"), b"CONTENT").expect("write");
        assert_eq!(told(&lab, b"f"), None, "it may still be written");
    }

    #[test]
    fn a_write_that_ends_after_the_close_is_another_content() {
        let lab = Lab::new();
        let files = &lab.rooms().files;
        let handle = create(lab.rooms(), b"f", b"content");
        files.release(handle).expect("close");
        let before = told(&lab, b"f").expect("known");
        let file = lab.rooms().buffer.files().pop().expect("file");
        files.begin_change(&file).expect("noted");
        assert_eq!(told(&lab, b"f"), None, "it is under way");
        files.absorb_change(&file).expect("recorded");
        let after = told(&lab, b"f").expect("known");
        assert_ne!(after, before);
        // What its object holds may not be that. An open that finds it closed looks closely.
        let flags = OpenFlags(libc::O_RDONLY as u32);
        let (opened, _) = files.open(file.ino, flags, None).expect("open");
        lab.rooms().integrity.at_rest().suspect(file.object);
        assert_eq!(told(&lab, b"f"), None);
        files.release(opened.handle).expect("close");
        let sound = told(&lab, b"f").expect("known");
        assert_ne!(
            sound, after,
            "some of it may have been read when it was not"
        );
    }
}
