//! Answers to requests that list a directory.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use forebay_types::{Handle, Ino};
use fuser::{FileHandle, FopenFlags, INodeNo, ReplyDirectory, ReplyOpen};

use crate::convert::{errno, kind};
use crate::serving::Adapter;

impl Adapter {
    pub(crate) fn answer_opened_dir(&self, node: Ino, uid: u32, reply: ReplyOpen) {
        let turn = self.in_flight.turn(reply);
        let opened = self.client.open_dir(node, uid);
        match (turn.reply::<ReplyOpen>(), opened) {
            (Some(reply), Ok(dir)) => reply.opened(FileHandle(dir.0), FopenFlags::empty()),
            (Some(reply), Err(e)) => reply.error(errno(e)),
            // A directory handle that cannot be closed costs the memory of its entries only.
            (None, Ok(dir)) => drop(self.client.close_dir(dir)),
            (None, Err(_)) => {}
        }
    }

    pub(crate) fn answer_listing(&self, dir: Handle, offset: u64, reply: ReplyDirectory) {
        // A listing asks the PFS when it begins, and may block there.
        let turn = self.in_flight.turn(reply);
        let entries = self.client.read_dir(dir, offset);
        let (mut reply, entries) = match (turn.reply::<ReplyDirectory>(), entries) {
            (Some(reply), Ok(entries)) => (reply, entries),
            (Some(reply), Err(e)) => return reply.error(errno(e)),
            (None, _) => return,
        };
        for entry in entries {
            let name = OsStr::from_bytes(&entry.name);
            if reply.add(INodeNo(entry.ino.0), entry.next, kind(entry.kind), name) {
                break;
            }
        }
        reply.ok();
    }
}
