//! Who asks over the control socket, and what they may see: no more than they could stat on the
//! PFS.

pub(crate) mod sight;

use forebay_policy::limits::Owner;
use forebay_wire::Peer;

/// A user.
#[derive(Clone, Debug)]
pub struct Asker {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    trusted: bool,
}

impl Asker {
    /// Who is at the other end.
    pub fn of(peer: Peer<'_>) -> Asker {
        Asker {
            uid: peer.uid,
            gid: peer.gid,
            groups: peer.groups.to_vec(),
            trusted: peer.is_trusted(),
        }
    }

    /// The server itself.
    pub(in crate::orders) fn server() -> Asker {
        Asker {
            uid: 0,
            gid: 0,
            groups: Vec::new(),
            trusted: true,
        }
    }

    /// Effective user id.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Whether it is the asker, or a group of theirs: of all others only who is trusted hears.
    pub fn may_hear_of(&self, owner: Owner) -> bool {
        self.trusted
            || match owner {
                Owner::User(uid) => uid == self.uid,
                Owner::Group(gid) => gid == self.gid || self.groups.contains(&gid),
            }
    }

    /// Root, or the user who runs the server: they see everything.
    pub fn is_trusted(&self) -> bool {
        self.trusted
    }
}
