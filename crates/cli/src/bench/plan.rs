//! What is done, in numbers: which process has which bytes, how much room that takes.

use std::time::Duration;

use clap::ValueEnum;

use super::work::Pieces;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pattern {
    /// Each process has a file of its own.
    #[value(name = "n-n")]
    Own,
    /// One file; each process has one part of it.
    Segmented,
    /// One file; the processes take turns, transfer by transfer.
    Strided,
    /// Names: create, stat, rename, unlink.
    Metadata,
    /// A checkpoint after the other, and a restart from the newest.
    Checkpoint,
}

impl Pattern {
    /// In the order in which they are done.
    pub const ALL: [Pattern; 5] = [
        Pattern::Own,
        Pattern::Segmented,
        Pattern::Strided,
        Pattern::Metadata,
        Pattern::Checkpoint,
    ];
}

/// Versions of a checkpoint that are kept at a time, the one that is being written included.
const VERSIONS: u64 = 3;

/// How much of everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Processes.
    pub processes: usize,
    /// Bytes of each in each pattern.
    pub size: u64,
    /// Bytes of one read or write.
    pub transfer: u64,
    /// Files of each in `metadata`.
    pub files: u64,
    /// Checkpoints in a row.
    pub checkpoints: u64,
    /// Time between them.
    pub pause: Duration,
}

impl Scale {
    /// What makes no sense, in one line.
    pub fn check(&self) -> Result<(), String> {
        if self.transfer == 0 || !self.transfer.is_multiple_of(8) {
            return Err("--transfer must be a multiple of 8 bytes".into());
        }
        if self.size == 0 || !self.size.is_multiple_of(self.transfer) {
            return Err("--size must be a multiple of --transfer".into());
        }
        Ok(())
    }

    /// The pieces of one process. `first`: the number of the pattern's first file.
    pub fn pieces(&self, pattern: Pattern, folder: &str, first: u64, rank: usize) -> Pieces {
        let at = rank as u64;
        let all = self.processes as u64;
        let (name, file, begin, every) = match pattern {
            Pattern::Segmented => (
                format!("{folder}/shared"),
                first,
                at * self.size,
                self.transfer,
            ),
            Pattern::Strided => {
                let every = all * self.transfer;
                (format!("{folder}/shared"), first, at * self.transfer, every)
            }
            _ => (
                format!("{folder}/rank-{rank}"),
                first + at,
                0,
                self.transfer,
            ),
        };
        Pieces {
            name,
            file,
            first: begin,
            len: self.transfer,
            every,
            count: self.size / self.transfer,
        }
    }

    /// Whose data a process reads: its neighbour's, so that none reads what it has itself written.
    pub fn neighbour(&self, rank: usize) -> usize {
        (rank + 1) % self.processes
    }

    /// Bytes of all processes in one go.
    pub fn bytes(&self) -> u64 {
        self.processes as u64 * self.size
    }

    /// The most that lies in the directory at a time: bytes and files.
    pub fn room(&self, patterns: &[Pattern]) -> (u64, u64) {
        let all = self.processes as u64;
        let one = |pattern: &Pattern| match pattern {
            Pattern::Metadata => (0, all * (self.files + 1)),
            Pattern::Checkpoint => {
                let versions = self.checkpoints.min(VERSIONS);
                (versions * self.bytes(), versions * (all + 1))
            }
            _ => (self.bytes(), all),
        };
        let most = patterns.iter().map(one);
        // And the directories around them.
        most.fold((0, 0), |most, one| {
            (most.0.max(one.0), most.1.max(one.1 + 2))
        })
    }

    /// Bytes that one repeat writes and reads, for progress.
    pub fn work(&self, patterns: &[Pattern]) -> u64 {
        let one = |pattern: &Pattern| match pattern {
            Pattern::Metadata => 0,
            Pattern::Checkpoint => (self.checkpoints + 1) * self.bytes(),
            _ => 2 * self.bytes(),
        };
        patterns.iter().map(one).sum()
    }

    /// The version that goes when this one is whole, if there is one.
    pub fn outdated(&self, version: u64) -> Option<u64> {
        version.checked_sub(VERSIONS - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn scale() -> Scale {
        Scale {
            processes: 3,
            size: 64,
            transfer: 16,
            files: 10,
            checkpoints: 5,
            pause: Duration::ZERO,
        }
    }

    #[test]
    fn each_pattern_covers_its_files_once() {
        for (pattern, files, len) in [
            (Pattern::Own, 3, 64),
            (Pattern::Segmented, 1, 192),
            (Pattern::Strided, 1, 192),
        ] {
            let mut seen = BTreeSet::new();
            for rank in 0..3 {
                let pieces = scale().pieces(pattern, "d", 7, rank);
                for nth in 0..pieces.count {
                    let at = pieces.first + nth * pieces.every;
                    for byte in at..at + pieces.len {
                        assert!(
                            seen.insert((pieces.name.clone(), pieces.file, byte)),
                            "{pattern:?} {byte}"
                        );
                    }
                }
            }
            let names: BTreeSet<_> = seen.iter().map(|(name, ..)| name).collect();
            let last = seen.iter().map(|(.., byte)| byte).max().expect("some");
            assert_eq!((names.len(), last + 1), (files, len), "{pattern:?}");
        }
    }

    #[test]
    fn strided_pieces_of_one_process_lie_apart() {
        let pieces = scale().pieces(Pattern::Strided, "d", 0, 1);
        assert_eq!((pieces.first, pieces.every, pieces.len), (16, 48, 16));
    }

    #[test]
    fn room_is_for_what_lies_there_at_a_time() {
        assert_eq!(scale().room(&[Pattern::Own]), (192, 5));
        assert_eq!(scale().room(&Pattern::ALL), (3 * 192, 35));
        assert_eq!(scale().outdated(0), None);
        assert_eq!(scale().outdated(1), None);
        assert_eq!(scale().outdated(4), Some(2));
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        assert_eq!(scale().check(), Ok(()));
        for (size, transfer) in [(64, 0), (64, 12), (64, 48), (0, 16)] {
            let wrong = Scale {
                size,
                transfer,
                ..scale()
            };
            assert!(wrong.check().is_err(), "{size} {transfer}");
        }
        assert_eq!(scale().neighbour(2), 0);
    }
}
