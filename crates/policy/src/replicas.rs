//! Second copies: where they go, when an fsync at the level `replica` may return, and how lost ones
//! are made again (ONFS 2017, dual replicas in different cabinets: acknowledged when both hold the
//! data).
//!
//! A copy is of undrained data only: what is clean has its second copy on the PFS.
//!
//! Where no second holder answers or has room, the next stronger level takes its place, as a full
//! flash is replaced by the PFS on the level `ssd`: the fsync drains. Where the PFS is silent, too,
//! or the file has no name there, the fsync is refused with EIO: it promises nothing that would not
//! survive the loss of one server.

use crate::holders::{Holder, HolderId, Home, Rack, Room, Wanted, best};

/// Chooses the holder of the second copy of an object at `primary`: never `primary` itself, in
/// another rack if one has room, else in the same. Then by space, load and weight
/// ([`crate::holders`]). `None`: no holder can take it now. What it must not be in, memory, is in
/// `wanted`; a path rule's preference of near holders does not count, its lists do.
pub fn second_holder(primary: HolderId, holders: &[Holder], wanted: &Wanted) -> Option<Home> {
    let rack = rack_of(primary, holders);
    let others = |same_rack: bool| {
        let others = holders.iter().filter(|h| h.id != primary);
        others.filter(move |h| (Some(h.rack) == rack) == same_rack)
    };
    let found = best(others(false), wanted, Room::AfterEvicting, None)
        .or_else(|| best(others(true), wanted, Room::AfterEvicting, None));
    found.map(Home::of)
}

fn rack_of(id: HolderId, holders: &[Holder]) -> Option<Rack> {
    holders.iter().find(|h| h.id == id).map(|h| h.rack)
}

/// One holder's copy, as far as an fsync needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldCopy {
    /// Whose.
    pub holder: HolderId,
    /// It has acknowledged all that was written before the fsync began, of this generation.
    pub has_all: bool,
    /// It answers.
    pub is_answering: bool,
}

/// What an fsync at the level `replica` does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FsyncStep {
    /// Two servers have it, or the PFS: it returns.
    Return,
    /// It waits for this holder to have all that was written.
    Await(HolderId),
    /// A second copy is begun.
    CopyTo {
        /// Where.
        holder: HolderId,
        /// Clean copies must be evicted there for it.
        must_evict: bool,
    },
    /// The file is drained: the PFS is the next stable place.
    Drain,
    /// It fails with EIO, and `status` names the file: nobody can keep a promise.
    Refuse,
}

/// Decides that. `copies` are those on record, the primary included, each holder once. `second`
/// comes from [`second_holder`]. `is_drained`: the PFS has this content, verified. `can_drain`: the
/// PFS answers and the file has a name.
pub fn fsync_step(
    copies: &[HeldCopy],
    second: Option<Home>,
    is_drained: bool,
    can_drain: bool,
) -> FsyncStep {
    let whole = copies.iter().filter(|c| c.has_all && c.is_answering);
    if is_drained || whole.count() >= 2 {
        return FsyncStep::Return;
    }
    // Of what nobody has whole there is nothing to send, to copy or to drain.
    if !copies.iter().any(|c| c.has_all && c.is_answering) {
        return FsyncStep::Refuse;
    }
    let behind = copies.iter().find(|c| !c.has_all && c.is_answering);
    if let Some(behind) = behind {
        return FsyncStep::Await(behind.holder);
    }
    match second {
        Some(Home::On { holder, must_evict }) => FsyncStep::CopyTo { holder, must_evict },
        _ if can_drain => FsyncStep::Drain,
        _ => FsyncStep::Refuse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{any_holders, any_rule};
    use proptest::prelude::*;

    fn held(holder: u16, has_all: bool, is_answering: bool) -> HeldCopy {
        HeldCopy {
            holder: HolderId(holder),
            has_all,
            is_answering,
        }
    }

    const SECOND: Option<Home> = Some(Home::On {
        holder: HolderId(2),
        must_evict: false,
    });

    #[test]
    fn an_fsync_returns_when_two_servers_have_it() {
        let (whole, behind) = (held(1, true, true), held(2, false, true));
        let step = |copies: &[HeldCopy]| fsync_step(copies, SECOND, false, true);
        assert_eq!(step(&[whole, held(2, true, true)]), FsyncStep::Return);
        assert_eq!(step(&[whole, behind]), FsyncStep::Await(HolderId(2)));
        let copy = FsyncStep::CopyTo {
            holder: HolderId(2),
            must_evict: false,
        };
        assert_eq!(step(&[whole]), copy);
        assert_eq!(step(&[whole, held(3, true, false)]), copy, "it may be gone");
        assert_eq!(
            step(&[whole, held(3, false, false)]),
            copy,
            "nobody waits for it"
        );
    }

    #[test]
    fn without_a_second_server_it_is_the_pfs_and_then_nothing() {
        let alone = [held(1, true, true)];
        let wait = Some(Home::Wait(HolderId(2)));
        for second in [None, wait] {
            assert_eq!(fsync_step(&alone, second, false, true), FsyncStep::Drain);
            assert_eq!(fsync_step(&alone, second, false, false), FsyncStep::Refuse);
            assert_eq!(fsync_step(&alone, second, true, false), FsyncStep::Return);
        }
        let gone = [held(1, true, false)];
        assert_eq!(fsync_step(&gone, SECOND, false, true), FsyncStep::Refuse);
    }

    proptest! {
        #[test]
        fn a_promise_is_never_made_with_less_than_two_places(
            copies in prop::collection::vec((any::<bool>(), any::<bool>()), 0..4),
            has_second: bool,
            is_drained: bool,
            can_drain: bool,
        ) {
            let copies: Vec<HeldCopy> = copies.into_iter().enumerate()
                .map(|(id, (has_all, is_answering))| held(id as u16, has_all, is_answering))
                .collect();
            let second = SECOND.filter(|_| has_second);
            let whole = copies.iter().filter(|c| c.has_all && c.is_answering).count();
            let step = fsync_step(&copies, second, is_drained, can_drain);
            prop_assert_eq!(step == FsyncStep::Return, is_drained || whole >= 2);
            prop_assert!(step != FsyncStep::Drain || can_drain);
            let begins = matches!(step, FsyncStep::Await(_) | FsyncStep::CopyTo { .. } | FsyncStep::Drain);
            prop_assert!(!begins || whole == 1, "from somewhere");
        }

        #[test]
        fn a_second_copy_is_elsewhere_and_in_another_rack_if_one_has_room(
            mut all in any_holders(),
            rule in any_rule(),
            (primary, mib, object) in (1u16..7, 1u64..300, any::<u64>()),
        ) {
            let wanted = Wanted {
                object,
                expected_bytes: Some(mib << 20),
                may_be_in_memory: true,
                rule: &rule,
            };
            let found = second_holder(HolderId(primary), &all, &wanted);
            let lists = |h: &Holder| (rule.servers.is_empty() && rule.racks.is_empty())
                || rule.servers.contains(&h.id) || rule.racks.contains(&h.rack);
            let can = |h: &&Holder| h.id != HolderId(primary) && h.takes_files() && lists(h)
                && h.room_for(&wanted) >= Room::AfterEvicting;
            let able: Vec<&Holder> = all.iter().filter(can).collect();
            let rack = rack_of(HolderId(primary), &all);
            match found {
                None => prop_assert!(able.is_empty()),
                Some(Home::On { holder, .. }) => {
                    let chosen = able.iter().find(|h| h.id == holder);
                    let chosen = chosen.expect("one that can");
                    let elsewhere = able.iter().any(|h| Some(h.rack) != rack);
                    prop_assert!(!elsewhere || Some(chosen.rack) != rack);
                }
                Some(other) => prop_assert!(false, "{:?}", other),
            }
            all.reverse();
            prop_assert_eq!(second_holder(HolderId(primary), &all, &wanted), found);
        }
    }
}
