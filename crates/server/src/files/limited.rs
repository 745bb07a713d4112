//! Users and groups with a limit: where their new files go, and what leaves for them.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use forebay_policy::demotion::choose_victims;
use forebay_policy::limits::{Beyond, Excess, Owner, Owners};
use forebay_tiers::TierKind;
use forebay_types::{Errno, ObjectId, TierId, format_size};

use crate::base::failure::Failure;
use crate::buffer::ledger::Refused;
use crate::buffer::opens::OpenFile;
use crate::buffer::target::Target;
use crate::files::Files;

impl Files {
    /// Where a new file goes that was to go to a tier: straight to the PFS if its owner has used up
    /// a limit, and is not to wait. `bytes`: how large it will be, if that is known.
    pub fn place_within_limits(
        &self,
        placed: TierId,
        owners: Owners,
        bytes: Option<u64>,
    ) -> Result<TierId, Failure> {
        let ledger = self.buffer.ledger();
        if !ledger.has_limits() || self.buffer.tiers().kind(placed) == TierKind::Pfs {
            return Ok(placed);
        }
        let bytes = bytes.unwrap_or(1).max(1);
        let Some((owner, excess)) = ledger.excess_of_new(owners, bytes) else {
            return Ok(placed);
        };
        self.make_room_of(owner, excess, bytes);
        match ledger.excess_of_new(owners, bytes) {
            Some((_, excess)) if excess.beyond == Beyond::Direct => self.overflow(),
            _ => Ok(placed),
        }
    }

    /// Makes room where a file was refused `len` more bytes: in its tier, or in what its owner may
    /// have. Answers with what was freed.
    pub(super) fn make_space_for(&self, tier: TierId, refused: Refused, len: u64) -> u64 {
        match refused {
            Refused::Tier { missing_bytes } => self.make_space(tier, missing_bytes.max(len)),
            Refused::Limit { owner, excess } => self.make_space_of(owner, excess.missing_bytes),
            Refused::DirtyCap | Refused::Gone => 0,
        }
    }

    /// Evicts clean copies of a user's or group's files, whichever tiers they are in, until so much
    /// is freed, or no more can go. Answers with what was freed.
    pub(super) fn make_space_of(&self, owner: Owner, wanted_bytes: u64) -> u64 {
        let held = || self.buffer.ledger().held_by(owner);
        let before = held();
        if wanted_bytes == 0 || before.bytes == before.undrained_bytes {
            // Nothing of theirs is clean: a look at all files would find none.
            return 0;
        }
        let one = self.making_space_of.lock();
        let is_theirs = |uid, gid| match owner {
            Owner::User(id) => id == uid,
            Owner::Group(id) => id == gid,
        };
        let tiers = self.buffer.tiers();
        let mut clean = self.clean_candidates(|state| {
            let tier = state.residency.tier;
            let counts = tiers.kind(tier) != TierKind::Pfs && !tiers.is_out_of_reach(tier);
            counts && is_theirs(state.meta.uid, state.meta.gid)
        });
        let (policy, now_s) = (self.plan.engine().placement(), self.catalog.apps().now_s());
        let victims = choose_victims(policy, &mut clean, wanted_bytes, now_s);
        let server_of = |id: &u64| {
            let file = self.buffer.file(ObjectId(*id))?;
            let tier = file.lock().residency.tier;
            tiers.get(tier).map(|slot| slot.server)
        };
        let servers: BTreeSet<u16> = victims.ids.iter().filter_map(server_of).collect();
        self.drop_clean(victims.ids);
        // One that hangs holds up whoever asks, and nobody else.
        drop(one);
        for server in servers {
            self.collect_garbage_of(Some(server));
        }
        before.bytes.saturating_sub(held().bytes)
    }

    /// Room for a user or group that has used up a limit: clean copies go, and where they are to
    /// wait, undrained files are drained.
    pub(super) fn make_room_of(&self, owner: Owner, excess: Excess, wanted_bytes: u64) {
        let freed = self.make_space_of(owner, excess.missing_bytes);
        if excess.beyond == Beyond::Wait && (freed == 0 || freed < excess.missing_bytes) {
            self.drain
                .urge_of(owner, wanted_bytes.max(excess.missing_bytes));
        }
    }

    /// Whether waiting may help a writer that was refused space.
    pub(super) fn may_get_room(&self, open: &OpenFile, refused: Refused) -> bool {
        match refused {
            Refused::Limit { owner, .. } => self.drain.can_drain_of(owner, open.ino),
            _ => self.drain.can_drain_for(open.ino),
        }
    }

    /// Why a file that has no content yet was refused space: `ENOSPC`, with the limit if that was
    /// the reason.
    pub(super) fn no_room(&self, refused: Refused) -> Failure {
        let Refused::Limit { owner, excess } = refused else {
            return Errno::ENOSPC.into();
        };
        let whose = match owner {
            Owner::User(id) => format!("user {id}"),
            Owner::Group(id) => format!("group {id}"),
        };
        let limits = self.buffer.ledger().limits();
        let bounds = limits.of(owner).copied();
        // What is missing of the capacity is told; of the undrained it is not.
        let (kind, bytes) = match excess.missing_bytes {
            0 => ("undrained", bounds.and_then(|b| b.undrained_bytes)),
            _ => ("capacity", bounds.and_then(|b| b.capacity_bytes)),
        };
        // It may have been changed just now.
        let size = bytes.map_or_else(String::new, |bytes| format!(" {}", format_size(bytes)));
        let what = format!("beyond the limit of {whose}: {kind}{size}");
        Failure::new(Errno::ENOSPC, what)
    }

    /// Room beyond a limit for a file that the kernel writes: it cannot go elsewhere, and no limit
    /// is to make its writes fail. Whether its tier has it.
    pub(super) fn hold_beyond_limit(
        &self,
        open: &OpenFile,
        len: u64,
        refused: Refused,
    ) -> Result<bool, Failure> {
        let Refused::Limit { .. } = refused else {
            return Ok(false);
        };
        let Target::Buffer { file, object, tier } = open.target.read().clone() else {
            return Ok(false);
        };
        let used = object.stat()?.allocated_bytes;
        let held = (used + len).max(open.lease_bytes.load(Ordering::Acquire));
        let ledger = self.buffer.ledger();
        Ok(ledger
            .try_hold_beyond_limits(file.object, tier, used, held)
            .is_ok())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_namespace::File;
    use forebay_policy::limits::{Amount, Limit, Whose};
    use forebay_testkit::needs_root;
    use forebay_types::{Ino, SetAttr};

    use super::*;
    use crate::drain::picking::Line;
    use crate::rooms::Rooms;
    use crate::testing::{Lab, create, drain, me};

    const ALICE: u32 = 12_345;
    const BOB: u32 = 12_346;

    fn limited(beyond: Beyond) -> Lab {
        Lab::with(|settings| {
            settings.limits = vec![Limit {
                whose: Whose::One(Owner::User(ALICE)),
                capacity: Some(Amount::Bytes(1 << 20)),
                undrained: None,
                rate_bytes_per_s: None,
                beyond,
            }];
        })
    }

    /// A closed file of a user.
    fn file_of(rooms: &Rooms, user: u32, name: &[u8]) -> Arc<File> {
        let handle = create(rooms, name, &[7; 1 << 20]);
        rooms.files.release(handle).expect("close");
        let found = rooms.base.ns().lookup(Ino::ROOT, name).expect("found");
        let file = found.file.expect("in the burst buffer");
        let set = SetAttr {
            uid: Some(user),
            ..SetAttr::default()
        };
        let given = rooms.files.setattr(file.ino, None, &set, me());
        given.expect("chown");
        file
    }

    fn is_there(file: &File) -> bool {
        !file.lock().is_unlinked()
    }

    #[test]
    fn clean_copies_of_others_stay() {
        if needs_root() {
            return;
        }
        let lab = limited(Beyond::Direct);
        let rooms = lab.rooms();
        let (alices, bobs) = (file_of(rooms, ALICE, b"a"), file_of(rooms, BOB, b"b"));
        let alice = Owner::User(ALICE);
        assert_eq!(rooms.files.make_space_of(alice, 8 << 20), 0, "undrained");
        while rooms.buffer.queue().has_work() {
            drain(rooms);
        }
        let held = rooms.buffer.ledger().held_by(alice).bytes;
        assert!(held >= 1 << 20);
        assert_eq!(rooms.files.make_space_of(alice, 8 << 20), held);
        assert!(!is_there(&alices) && is_there(&bobs));
        assert_eq!(rooms.files.make_space_of(alice, 8 << 20), 0, "nothing left");
        assert!(is_there(&bobs));
    }

    #[test]
    fn what_a_limit_keeps_from_coming_in_is_told_so() {
        if needs_root() {
            return;
        }
        let lab = limited(Beyond::Wait);
        let on_pfs = lab.pfs("big");
        std::fs::write(&on_pfs, vec![7; 2 << 20]).expect("write");
        std::os::unix::fs::chown(&on_pfs, Some(ALICE), Some(ALICE)).expect("chown");
        let rooms = lab.rooms();
        let root = rooms.base.ns().root();
        let failure = rooms.files.stage_in(root, b"big", true, &|_| ());
        let failure = failure.map(drop).expect_err("beyond the limit");
        assert_eq!(failure.errno(), Errno::ENOSPC);
        let told = format!("beyond the limit of user {ALICE}: capacity 1.0 MiB");
        assert_eq!(failure.to_string(), told);
        // A full tier is nobody's limit.
        let full = Refused::Tier { missing_bytes: 1 };
        assert!(!rooms.files.no_room(full).has_words());
    }

    #[test]
    fn who_waits_at_a_limit_waits_for_the_own_files_and_hurries_no_others() {
        if needs_root() {
            return;
        }
        let lab = limited(Beyond::Wait);
        let rooms = lab.rooms();
        let alice = Owner::User(ALICE);
        file_of(rooms, BOB, b"b");
        assert!(rooms.drain.can_drain_for(Ino::ROOT));
        assert!(!rooms.drain.can_drain_of(alice, Ino::ROOT), "only Bob's");
        let alices = file_of(rooms, ALICE, b"a");
        assert!(rooms.drain.can_drain_of(alice, Ino::ROOT));
        assert!(!rooms.drain.can_drain_of(alice, alices.ino), "the writer's");
        let owners = Owners { uid: ALICE, gid: 1 };
        let tier = alices.lock().residency.tier;
        let placed = rooms.files.place_within_limits(tier, owners, Some(1));
        assert_eq!(placed.ok(), Some(tier));
        let demand = rooms.buffer.queue().demand();
        assert!(demand.is_urgent && !demand.is_ordered);
        assert_eq!(rooms.drain.next_batch(Line::OWN), [alices.object]);
        // It is under way, which is worth a wait.
        assert!(rooms.drain.can_drain_of(alice, Ino::ROOT));
    }

    /// An owner that the PFS has given a copy is the file's without a change of attributes here.
    #[test]
    fn what_is_booked_counts_for_the_owner_whom_the_file_has() {
        let lab = limited(Beyond::Direct);
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", &[7; 1 << 20]);
        rooms.files.release(handle).expect("close");
        let found = rooms.base.ns().lookup(Ino::ROOT, b"f").expect("found");
        let file = found.file.expect("in the burst buffer");
        let ledger = rooms.buffer.ledger();
        let owner = Owner::User(file.lock().meta.uid);
        let held = ledger.held_by(owner);
        let others = Owners { uid: BOB, gid: BOB };
        let booked: [&dyn Fn(); 2] = [&|| rooms.buffer.book_state(&file), &|| {
            rooms.buffer.book(&file, ledger.used_bytes(file.object));
        }];
        for book in booked {
            ledger.own(file.object, others);
            assert_eq!(ledger.held_by(owner).bytes, 0);
            book();
            assert_eq!(ledger.held_by(owner), held);
        }
    }

    #[test]
    fn beyond_direct_nothing_is_hurried() {
        if needs_root() {
            return;
        }
        let lab = limited(Beyond::Direct);
        let rooms = lab.rooms();
        let alices = file_of(rooms, ALICE, b"a");
        let owners = Owners { uid: ALICE, gid: 1 };
        let tier = alices.lock().residency.tier;
        let placed = rooms.files.place_within_limits(tier, owners, Some(1));
        let placed = placed.unwrap_or_else(|_| panic!("there is an overflow"));
        assert_eq!(rooms.buffer.tiers().kind(placed), TierKind::Pfs);
        let demand = rooms.buffer.queue().demand();
        assert!(!demand.is_urgent && !demand.is_ordered);
    }
}
