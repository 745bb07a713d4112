//! Objects at rest on flash: what an open looks at before it hands one out, and the pace at which
//! all of them are read again in the background.

/// Slowest pace of a pass, bytes per second: what is small is gone through in less than its time.
pub const RATE_MIN_BYTES_PER_S: f64 = 1_048_576.0;
/// Looking at an object takes its time however small it is: as long as reading so many bytes.
pub const OBJECT_COST_BYTES: u64 = 16 << 10;
/// A comparison is believed for so long, seconds: flash does not change what was good a moment ago,
/// but it does not keep it for ever.
pub const VERIFIED_S: f64 = 86_400.0;

/// What is known of a file on flash that nobody has open.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ObjectAtRest {
    /// Only the object knows the size, and its content may be anything: written unseen when the
    /// last run ended.
    pub writing: bool,
    /// Its size by the record, bytes.
    pub size_bytes: u64,
    /// The checksum of its content is on record.
    pub has_checksum: bool,
    /// Its content was compared with that so long ago, seconds, and nothing has touched it since;
    /// `None`: not in this run.
    pub compared_s_ago: Option<f64>,
    /// Damage was found in it, and could not be mended yet.
    pub is_suspect: bool,
}

/// What is looked at. The identity of the object is looked at in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// The object is as long as its record says.
    pub length: bool,
    /// Whether its content is compared with its checksum.
    pub content: Content,
}

/// How content is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Not at all: there is nothing to compare it with, it was done lately, or it does not matter.
    Unread,
    /// Every block, before anything of the block is handed out for the first time.
    ByBlock,
    /// All of it, now.
    Whole,
}

/// Before a file is opened that nobody has open. To read more than `limit_bytes` would take too
/// long: such a content is compared block by block as it is asked for.
pub fn look_at_open(file: &ObjectAtRest, limit_bytes: u64) -> Look {
    let content = match look_before_change(file).content {
        Content::Whole if !file.is_suspect && file.size_bytes > limit_bytes => Content::ByBlock,
        content => content,
    };
    Look {
        content,
        ..look_in_passing(file)
    }
}

/// Before a part of a file's content is changed: what is left of it gets a new checksum then,
/// whatever it is.
pub fn look_before_change(file: &ObjectAtRest) -> Look {
    let believed = file.compared_s_ago.is_some_and(|ago| ago <= VERIFIED_S);
    match believed && !file.is_suspect {
        true => look_at_shape(file),
        false => look_in_passing(file),
    }
}

/// When the pass in the background comes by.
pub fn look_in_passing(file: &ObjectAtRest) -> Look {
    Look {
        length: !file.writing,
        content: match file.has_checksum && !file.writing {
            true => Content::Whole,
            false => Content::Unread,
        },
    }
}

/// Before a file is cut to nothing: what was in it does not matter any more.
pub fn look_at_shape(file: &ObjectAtRest) -> Look {
    Look {
        content: Content::Unread,
        ..look_in_passing(file)
    }
}

/// Before a file is copied to the PFS. Its content is compared with its checksum while it is
/// copied, and beforehand only if that is likely to be for nothing.
pub fn look_before_copy(file: &ObjectAtRest) -> Look {
    match file.is_suspect {
        true => look_in_passing(file),
        false => look_at_shape(file),
    }
}

/// What is known of a file on flash that has not been drained.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Undrained {
    /// See [`ObjectAtRest::writing`].
    pub writing: bool,
    /// See [`ObjectAtRest::has_checksum`].
    pub has_checksum: bool,
    /// A copy of it is on its way to the PFS.
    pub is_leaving: bool,
    /// Its content has not changed for so long, seconds.
    pub unchanged_s: f64,
}

/// Whether its content is to be sealed: read, and its checksum put on record. What has stood still
/// for `after_s` seconds may go on doing so; what is about to be drained is read for that.
pub fn is_to_be_sealed(file: &Undrained, after_s: f64) -> bool {
    let held = file.writing || file.is_leaving;
    !held && !file.has_checksum && file.unchanged_s >= after_s
}

/// How fast a pass goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// It takes about so long, seconds.
    pub pass_s: f64,
    /// Never faster than this, bytes per second.
    pub rate_max_bytes_per_s: f64,
}

impl Pace {
    /// The rate of a pass over so many objects and bytes.
    pub fn rate_bytes_per_s(&self, objects: u64, bytes: u64) -> f64 {
        let work = bytes.saturating_add(objects.saturating_mul(OBJECT_COST_BYTES));
        let even = work as f64 / self.pass_s.max(1e-3);
        even.max(RATE_MIN_BYTES_PER_S)
            .min(self.rate_max_bytes_per_s.max(1.0))
    }

    /// Seconds to rest after a pass that began `begun_s` ago. A clock that was set back makes no
    /// rest longer than a pass.
    pub fn rest_s(&self, begun_s: f64) -> f64 {
        (self.pass_s - begun_s.max(0.0)).max(0.0)
    }

    /// Whether it may read now: not beside programs that write, unless the pass has had its time
    /// already.
    pub fn may_read(&self, quiet: bool, begun_s: f64) -> bool {
        quiet || begun_s >= self.pass_s
    }
}

/// When the next bytes are due, seconds, after `bytes` that were due at `due_s` and were read until
/// `now_s`. Time that was lost is not made up for.
pub fn next_due_s(due_s: f64, now_s: f64, bytes: u64, rate_bytes_per_s: f64) -> f64 {
    due_s.max(now_s) + bytes as f64 / rate_bytes_per_s.max(1.0)
}

/// The objects of a pass that has come as far as `after`, in order; each has its turn once.
pub fn left_of_pass(objects: impl IntoIterator<Item = u64>, after: Option<u64>) -> Vec<u64> {
    let later = |id: &u64| after.is_none_or(|after| *id > after);
    let mut left: Vec<u64> = objects.into_iter().filter(later).collect();
    left.sort_unstable();
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WEEK: Pace = Pace {
        pass_s: 604_800.0,
        rate_max_bytes_per_s: 32.0 * 1_048_576.0,
    };

    #[test]
    fn a_pass_takes_its_time_within_the_limits_of_the_rate() {
        assert_eq!(WEEK.rate_bytes_per_s(10, 1 << 30), RATE_MIN_BYTES_PER_S);
        let even = WEEK.rate_bytes_per_s(0, 10 << 40);
        assert!((even * WEEK.pass_s / (10u64 << 40) as f64 - 1.0).abs() < 1e-9);
        assert_eq!(WEEK.rate_bytes_per_s(0, 1 << 60), WEEK.rate_max_bytes_per_s);
        assert_eq!(
            WEEK.rate_bytes_per_s(u64::MAX, u64::MAX),
            WEEK.rate_max_bytes_per_s
        );
        assert_eq!(WEEK.rest_s(4_800.0), 600_000.0);
        assert_eq!(WEEK.rest_s(1e9), 0.0);
        assert_eq!(WEEK.rest_s(-1e9), WEEK.pass_s);
    }

    #[test]
    fn others_go_first_but_not_for_ever() {
        assert!(WEEK.may_read(true, 0.0));
        assert!(!WEEK.may_read(false, 10.0));
        assert!(WEEK.may_read(false, 700_000.0));
    }

    #[test]
    fn what_is_large_is_opened_unread_and_what_was_just_compared_is_believed() {
        let file = ObjectAtRest {
            size_bytes: 10,
            has_checksum: true,
            ..ObjectAtRest::default()
        };
        let content = |file: ObjectAtRest, limit| look_at_open(&file, limit).content;
        assert_eq!(content(file, 10), Content::Whole);
        assert_eq!(content(file, 9), Content::ByBlock, "too large");
        let ago = |s| ObjectAtRest {
            compared_s_ago: Some(s),
            ..file
        };
        assert_eq!(content(ago(5.0), 10), Content::Unread, "compared");
        assert_eq!(
            content(ago(2.0 * VERIFIED_S), 10),
            Content::Whole,
            "long ago"
        );
        let suspect = ObjectAtRest {
            is_suspect: true,
            ..ago(5.0)
        };
        assert_eq!(content(suspect, 0), Content::Whole, "whatever its size");
        assert_eq!(look_before_change(&file).content, Content::Whole);
        assert_eq!(look_before_change(&ago(5.0)).content, Content::Unread);
    }

    prop_compose! {
        fn resting()(
            writing: bool,
            size_bytes in 0u64..100,
            has_checksum: bool,
            compared_s_ago in prop::option::of(0.0..2.0 * VERIFIED_S),
            is_suspect: bool,
        ) -> ObjectAtRest {
            ObjectAtRest { writing, size_bytes, has_checksum, compared_s_ago, is_suspect }
        }
    }

    proptest! {
        #[test]
        fn what_the_record_does_not_know_is_not_compared(file in resting(), limit in 0u64..100) {
            let looks = [
                look_at_open(&file, limit),
                look_before_change(&file),
                look_in_passing(&file),
                look_at_shape(&file),
                look_before_copy(&file),
            ];
            for look in looks {
                let known = file.has_checksum && !file.writing;
                prop_assert!(known || look.content == Content::Unread);
                prop_assert_eq!(look.length, !file.writing);
            }
        }

        #[test]
        fn a_pass_reads_whatever_has_a_checksum_and_an_open_no_more(file in resting(), limit in 0u64..100) {
            let passing = look_in_passing(&file).content;
            prop_assert_eq!(passing == Content::Whole, file.has_checksum && !file.writing);
            prop_assert!(passing == Content::Whole || look_at_open(&file, limit).content == Content::Unread);
        }

        #[test]
        fn what_is_opened_unread_is_compared_before_it_changes(file in resting(), limit in 0u64..100) {
            let (opened, changed) = (look_at_open(&file, limit).content, look_before_change(&file).content);
            prop_assert_ne!(changed, Content::ByBlock);
            prop_assert_eq!(opened == Content::Unread, changed == Content::Unread);
        }

        #[test]
        fn only_what_stands_still_and_has_no_checksum_is_sealed(
            writing: bool,
            has_checksum: bool,
            is_leaving: bool,
            unchanged_s in 0.0..60.0f64,
            after_s in 0.0..60.0f64,
        ) {
            let file = Undrained { writing, has_checksum, is_leaving, unchanged_s };
            let sealed = is_to_be_sealed(&file, after_s);
            prop_assert!(!(sealed && (writing || has_checksum || is_leaving)));
            let still = Undrained { unchanged_s, ..Undrained::default() };
            prop_assert_eq!(is_to_be_sealed(&still, after_s), unchanged_s >= after_s);
        }

        #[test]
        fn a_pass_is_never_faster_than_its_rate(
            reads in prop::collection::vec((0u64..1 << 20, 0.0..2.0f64), 1..50),
            rate in 1.0..1e9f64,
        ) {
            let (mut due, mut now, mut total) = (0.0, 0.0f64, 0u64);
            for (bytes, late) in reads {
                now = now.max(due) + late;
                due = next_due_s(due, now, bytes, rate);
                total += bytes;
                prop_assert!(total as f64 <= due * rate * (1.0 + 1e-9) + 1.0);
            }
        }

        #[test]
        fn every_object_has_its_turn_once_wherever_it_is_interrupted(
            ids in prop::collection::hash_set(0u64..1000, 0..60),
            stop in 0usize..60,
        ) {
            let all = left_of_pass(ids.iter().copied(), None);
            prop_assert!(all.is_sorted());
            let stop = stop.min(all.len());
            let at = all[..stop].last().copied();
            let rest = left_of_pass(ids.iter().copied(), at);
            prop_assert_eq!(&all[stop..], &rest[..]);
            prop_assert_eq!(all.len(), ids.len());
        }
    }
}
