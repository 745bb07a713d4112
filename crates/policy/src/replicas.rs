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

use forebay_types::Generation;

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

/// What is known of a file whose server is away, and of its second copy, which answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Away {
    /// The PFS has this content, verified.
    pub is_drained: bool,
    /// It has a name, and nothing moves its content or copies it to the PFS at the moment.
    pub is_at_rest: bool,
    /// A flush of it has failed: what its server has is in doubt, and so is what was copied.
    pub is_doubtful: bool,
    /// Its content by now.
    pub generation: Generation,
    /// What the second copy has at least.
    pub copied: Generation,
    /// What an fsync has promised last, in the tiers of its server or in the second copy.
    pub flushed: Option<Generation>,
    /// What an fsync has put on the PFS last.
    pub safe: Option<Generation>,
    /// Whether a change was acknowledged since the copy was made; `None`: nobody has counted, and
    /// the generations say it.
    pub lacks: Option<bool>,
}

/// What becomes of such a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It waits for its server: the copy is not all that was promised.
    Waits,
    /// The copy is the file from now on.
    Promoted {
        /// What was written since the last fsync may be lost, as in a crash: who has it open for
        /// writing is told so.
        loses: bool,
    },
}

/// Decides that. What was promised is never given up: it is in the copy, or the file waits.
pub fn fate(file: &Away) -> Fate {
    let has = |promised: Option<Generation>| promised.is_none_or(|of| of <= file.copied);
    let has_all = has(file.flushed) && has(file.safe);
    match file.is_drained || !file.is_at_rest || file.is_doubtful || !has_all {
        true => Fate::Waits,
        false => Fate::Promoted {
            loses: file.lacks.unwrap_or(file.copied < file.generation),
        },
    }
}

/// After so long without an answer the second copies of what a server has are the files: a server
/// that is only started anew is there before, and who waits for a file has it within ten seconds.
pub const PROMOTED_AFTER_S: f64 = 4.0;

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

    #[test]
    fn a_copy_that_has_all_that_was_promised_becomes_the_file() {
        let of = Generation;
        let file = Away {
            is_drained: false,
            is_at_rest: true,
            is_doubtful: false,
            generation: of(7),
            copied: of(7),
            flushed: Some(of(7)),
            safe: None,
            lacks: None,
        };
        assert_eq!(fate(&file), Fate::Promoted { loses: false });
        let loses = Fate::Promoted { loses: true };
        let written = Away {
            generation: of(8),
            ..file
        };
        assert_eq!(fate(&written), loses);
        assert_eq!(
            fate(&Away {
                lacks: Some(true),
                ..file
            }),
            loses
        );
        // What was begun and not acknowledged is begun again.
        let begun = Away {
            lacks: Some(false),
            ..written
        };
        assert_eq!(fate(&begun), Fate::Promoted { loses: false });
        let waits = [
            Away {
                is_drained: true,
                ..file
            },
            Away {
                is_at_rest: false,
                ..file
            },
            Away {
                is_doubtful: true,
                ..file
            },
            Away {
                flushed: Some(of(8)),
                ..written
            },
            Away {
                safe: Some(of(8)),
                ..written
            },
        ];
        for file in waits {
            assert_eq!(fate(&file), Fate::Waits, "{file:?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_that_was_promised_is_given_up(
            (generation, copied) in (0u64..9, 0u64..9),
            (flushed, safe) in (prop::option::of(0u64..9), prop::option::of(0u64..9)),
            (is_drained, is_at_rest, is_doubtful) in any::<(bool, bool, bool)>(),
            lacks in any::<Option<bool>>(),
        ) {
            let file = Away {
                is_drained,
                is_at_rest,
                is_doubtful,
                generation: Generation(generation.max(copied)),
                copied: Generation(copied),
                flushed: flushed.map(Generation),
                safe: safe.map(Generation),
                lacks,
            };
            if let Fate::Promoted { loses } = fate(&file) {
                let promised = [flushed, safe].into_iter().flatten().max();
                prop_assert!(promised.is_none_or(|of| of <= copied));
                prop_assert!(!is_drained && !is_doubtful);
                prop_assert!(loses || lacks == Some(false) || generation <= copied, "silence");
            }
        }

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
