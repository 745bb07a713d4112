//! Which of a mount's connections carries a request (Mulconn, sections 3 and 4).

use crate::named::named;

/// How requests are spread over the connections to one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Distribution {
    /// Writes as [`Distribution::ThreadToSocket`], reads as [`Distribution::ThreadToMany`].
    #[default]
    Auto,
    /// A thread stays on one connection: least contention, but a thread alone has one.
    ThreadToSocket,
    /// Each request of a file goes to the next connection: one reader fills several.
    ThreadToMany,
}

named!(Distribution, "distribution",
    Auto => "auto", ThreadToSocket => "ttos", ThreadToMany => "ttom");

/// Reads shorter than this are one request, whatever else there is to do.
const CUT_BYTES_MIN: usize = 512 << 10;
/// A piece of a read has so many bytes at least: for less a request costs too much.
const PIECE_BYTES_MIN: usize = 128 << 10;

/// What a request moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moves {
    /// Data to the server.
    Write,
    /// Data from the server.
    Read,
    /// None: names, attributes, opens.
    Nothing,
}

/// A request, as far as the choice needs it.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// What it moves.
    pub moves: Moves,
    /// The thread that asks, numbered by arrival; 0 where the kernel asks by itself (read-ahead,
    /// write-back).
    pub thread: u32,
    /// Counts requests: of its file where it moves data, else of the mount.
    pub nth: u64,
}

/// The connection for a request, below `links`. Without connections there is none to choose; 0 is
/// answered then.
///
/// Threads that begin together have numbers that follow each other, and so `thread mod links`
/// spreads them evenly (Mulconn, section 3.2). What no thread asks for goes to the next one each
/// time.
pub fn choose(distribution: Distribution, links: usize, asked: Asked) -> usize {
    if links <= 1 {
        return 0;
    }
    let stays = match (distribution, asked.moves) {
        // Small, and in the order of the thread: a turn would only cost cache misses.
        (_, Moves::Nothing) => true,
        (Distribution::ThreadToSocket, _) => true,
        (Distribution::ThreadToMany, _) => false,
        (Distribution::Auto, moves) => moves == Moves::Write,
    };
    let number = match stays && asked.thread != 0 {
        true => u64::from(asked.thread),
        false => asked.nth,
    };
    (number % links as u64) as usize
}

/// Into how many pieces a read is cut that go over as many links at once: 1 to `links`. It is one
/// of `under_way` such reads, itself included.
///
/// One thread that reads has one request under way. Where reads go over all links the other links
/// would have nothing to do meanwhile. Where as many reads are under way as there are links, all
/// are busy, and pieces would only cost requests.
pub fn parts(distribution: Distribution, links: usize, bytes: usize, under_way: usize) -> usize {
    if links <= 1 || distribution == Distribution::ThreadToSocket || bytes < CUT_BYTES_MIN {
        return 1;
    }
    let free = links / under_way.max(1);
    free.min(bytes / PIECE_BYTES_MIN).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn asked(moves: Moves, thread: u32, nth: u64) -> Asked {
        Asked { moves, thread, nth }
    }

    proptest! {
        #[test]
        fn it_is_one_of_those_there_are(
            links in 0usize..40,
            which in 0usize..3,
            thread in any::<u32>(),
            nth in any::<u64>(),
        ) {
            for moves in [Moves::Write, Moves::Read, Moves::Nothing] {
                let chosen = choose(Distribution::ALL[which], links, asked(moves, thread, nth));
                prop_assert!(chosen < links.max(1));
            }
        }

        #[test]
        fn a_thread_stays_and_a_file_goes_round(
            links in 2usize..17,
            thread in 1u32..u32::MAX,
            first in 0u64..u64::MAX / 2,
        ) {
            let at = |distribution, moves, nth| choose(distribution, links, asked(moves, thread, nth));
            let all = |distribution, moves| -> std::collections::BTreeSet<usize> {
                (0..links as u64).map(|n| at(distribution, moves, first + n)).collect()
            };
            for (distribution, moves, used) in [
                (Distribution::ThreadToSocket, Moves::Write, 1),
                (Distribution::ThreadToSocket, Moves::Read, 1),
                (Distribution::ThreadToMany, Moves::Write, links),
                (Distribution::ThreadToMany, Moves::Read, links),
                (Distribution::Auto, Moves::Write, 1),
                (Distribution::Auto, Moves::Read, links),
                (Distribution::ThreadToMany, Moves::Nothing, 1),
            ] {
                prop_assert_eq!(all(distribution, moves).len(), used, "{} {:?}", distribution, moves);
            }
        }

        #[test]
        fn threads_that_follow_each_other_are_spread_evenly(links in 1usize..17, first in 1u32..1 << 22) {
            let mut taken = vec![0; links];
            for thread in first..first + 4 * links as u32 {
                taken[choose(Distribution::ThreadToSocket, links, asked(Moves::Write, thread, 0))] += 1;
            }
            prop_assert!(taken.iter().all(|count| *count == 4), "{:?}", taken);
        }
    }

    #[test]
    fn a_read_is_cut_where_links_have_nothing_to_do() {
        use Distribution::{Auto, ThreadToMany, ThreadToSocket};
        const MIB: usize = 1 << 20;
        for (distribution, links, bytes, under_way, expected) in [
            (Auto, 4, MIB, 1, 4),
            (ThreadToMany, 4, MIB, 1, 4),
            (ThreadToSocket, 4, MIB, 1, 1),
            (Auto, 1, MIB, 1, 1),
            (Auto, 4, CUT_BYTES_MIN, 1, 4),
            (Auto, 4, CUT_BYTES_MIN - 1, 1, 1),
            (Auto, 64, MIB, 1, 8),
            (Auto, 4, MIB, 2, 2),
            (Auto, 8, MIB, 3, 2),
            (Auto, 8, MIB, 8, 1),
            (Auto, 8, MIB, 9, 1),
            (Auto, 0, MIB, 0, 1),
        ] {
            let cut = parts(distribution, links, bytes, under_way);
            assert_eq!(cut, expected, "{links} links, {bytes} bytes, {under_way}");
        }
    }

    #[test]
    fn what_no_thread_asks_for_goes_round() {
        let at = |nth| choose(Distribution::ThreadToSocket, 4, asked(Moves::Write, 0, nth));
        assert_eq!([at(0), at(1), at(2), at(3), at(4)], [0, 1, 2, 3, 0]);
    }
}
