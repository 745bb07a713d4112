//! Files that are brought in before a program asks for them: the next ones of a list that it works
//! through (ONFS, upward migration), or of a folder that it reads one after the other.
//!
//! 1. A file is worth the copy only if the copy is there before the program comes for the file: the
//!    first one that is brought in is so far ahead that its copy takes less time than the program
//!    takes to get there (the k-th next group of ONFS).
//! 2. Of what is only guessed, no more lies unread than twice what was read already, and a few
//!    files right before the program: a guess that is wrong wastes little, and one that is right
//!    soon runs far ahead.
//! 3. Nothing is brought in that the program has passed, but for an epoch: a program that reads a
//!    whole folder comes back for it.

/// Opens that follow one another before more are expected.
pub const STREAK_MIN: u32 = 4;
/// Files that a reader of several threads may skip within a streak.
const STREAK_GAP_MAX: u32 = 16;
/// Share of a folder that is read before all of it is expected.
pub const EPOCH_SHARE: f64 = 0.1;
/// At least so many files of it.
pub const EPOCH_FILES_MIN: usize = 32;
/// Unread guesses that are always allowed, files.
pub const UNREAD_MIN: usize = 8;
/// Farthest beginning of what is brought in, files ahead of the program.
const NEAR_MAX: f64 = 8.0;
/// Weight of the newest value in a mean.
const NEWEST: f64 = 0.2;

#[derive(Clone, Copy, Debug, Default)]
struct Mean(Option<f64>);

impl Mean {
    fn add(&mut self, value: f64) {
        self.0 = Some(self.0.map_or(value, |mean| mean + NEWEST * (value - mean)));
    }
}

/// What is known of how a folder is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// By name.
    ByName,
    /// As the file system lists it.
    AsListed,
}

/// Why files are expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The program has said so.
    List,
    /// They follow one another.
    Streak(Order),
    /// So much of the folder was read that all of it will be.
    Epoch,
    /// They are read every so often ([`crate::runs`]).
    Run,
}

/// Opens that follow one another, in one order.
#[derive(Clone, Copy, Debug, Default)]
struct Streak {
    /// The farthest.
    top: Option<u32>,
    /// How often it got farther.
    count: u32,
}

impl Streak {
    fn opened(&mut self, at: u32) {
        let Some(top) = self.top else {
            self.top = Some(at);
            return;
        };
        if at > top && at - top <= STREAK_GAP_MAX {
            (self.top, self.count) = (Some(at), self.count + 1);
        } else if at.abs_diff(top) > STREAK_GAP_MAX {
            (self.top, self.count) = (Some(at), 0);
        }
        // Threads of one program overtake each other.
    }
}

/// Learns from the opens of one folder what is read next.
#[derive(Debug)]
pub struct Folder {
    /// Of each file, in the order of names: its place in the listing.
    listed: Vec<u32>,
    streaks: [Streak; 2],
    seen: Vec<bool>,
    seen_count: usize,
}

impl Folder {
    /// A folder whose files, in the order of their names, have these places in the listing.
    pub fn new(listed: Vec<u32>) -> Folder {
        Folder {
            seen: vec![false; listed.len()],
            listed,
            streaks: [Streak::default(); 2],
            seen_count: 0,
        }
    }

    /// The file with that place in the order of names was opened. Whether others are expected.
    pub fn opened(&mut self, place: usize) -> Option<Reason> {
        let listed = *self.listed.get(place)?;
        if !std::mem::replace(&mut self.seen[place], true) {
            self.seen_count += 1;
        }
        for (order, at) in [place as u32, listed].into_iter().enumerate() {
            self.streaks[order].opened(at);
        }
        let share = EPOCH_SHARE * self.listed.len() as f64;
        if self.seen_count >= EPOCH_FILES_MIN.max(share.ceil() as usize) {
            return Some(Reason::Epoch);
        }
        match self.streaks.map(|streak| streak.count >= STREAK_MIN) {
            [true, _] => Some(Reason::Streak(Order::ByName)),
            [_, true] => Some(Reason::Streak(Order::AsListed)),
            _ => None,
        }
    }

    /// Whether the file with that place in the order of names was opened.
    pub fn has_seen(&self, place: usize) -> bool {
        self.seen.get(place).copied().unwrap_or(false)
    }

    /// Files in the order in which they are expected, by their place in the order of names.
    pub fn expected(&self, reason: Reason) -> Vec<u32> {
        let mut places: Vec<u32> = (0..self.listed.len() as u32).collect();
        if reason == Reason::Streak(Order::AsListed) {
            places.sort_unstable_by_key(|place| self.listed[*place as usize]);
        }
        places
    }
}

/// A program on its way through files in a known order.
#[derive(Debug)]
pub struct Reader {
    reason: Reason,
    /// Of each: what was done about it.
    states: Vec<State>,
    /// One past the last that was opened.
    reached: usize,
    /// The next one to be looked at for a copy.
    next: usize,
    /// The next one to be looked at of those that were passed.
    passed: usize,
    opened_count: usize,
    unread_count: usize,
    gone_count: usize,
    last_open_s: Option<f64>,
    between_opens_s: Mean,
    copy_s: Mean,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Untouched,
    /// Brought in, or about to be, and not read yet.
    Ahead,
    /// It is there already.
    Left,
    /// Nobody will come for it.
    Gone,
    Read,
}

impl Reader {
    /// Of so many files.
    pub fn new(reason: Reason, count: usize) -> Reader {
        Reader {
            reason,
            states: vec![State::Untouched; count],
            reached: 0,
            next: 0,
            passed: 0,
            opened_count: 0,
            unread_count: 0,
            gone_count: 0,
            last_open_s: None,
            between_opens_s: Mean::default(),
            copy_s: Mean::default(),
        }
    }

    /// Why they are expected.
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// The program has opened a file.
    pub fn opened(&mut self, index: usize, now_s: f64) {
        let Some(state) = self.states.get_mut(index) else {
            return;
        };
        match std::mem::replace(state, State::Read) {
            State::Read => return,
            State::Gone => self.gone_count -= 1,
            State::Ahead => self.unread_count -= 1,
            State::Untouched | State::Left => {}
        }
        self.opened_count += 1;
        self.reached = self.reached.max(index + 1);
        if let Some(last_s) = self.last_open_s {
            self.between_opens_s.add((now_s - last_s).max(0.0));
        }
        self.last_open_s = Some(now_s);
    }

    /// A copy took so long, seconds.
    pub fn copied(&mut self, took_s: f64) {
        self.copy_s.add(took_s.max(0.0));
    }

    /// A file that [`Reader::take_next`] has named is here already, or, where it is `gone`, is none
    /// that anybody waits for.
    pub fn not_copied(&mut self, index: usize, gone: bool) {
        if self.states.get(index) == Some(&State::Ahead) {
            self.states[index] = if gone { State::Gone } else { State::Left };
            self.unread_count -= 1;
            self.gone_count += usize::from(gone);
        }
    }

    /// Files that had been read before anything was expected.
    pub fn begin_after(&mut self, read: impl IntoIterator<Item = usize>) {
        for index in read {
            if let Some(state) = self.states.get_mut(index) {
                *state = State::Read;
                self.opened_count += 1;
                self.reached = self.reached.max(index + 1);
            }
        }
    }

    /// Whether the program has read all that can be read.
    pub fn is_done(&self) -> bool {
        self.opened_count + self.gone_count >= self.states.len()
    }

    /// Whether the program has come to the end, or beyond.
    pub fn has_reached_end(&self) -> bool {
        self.reached >= self.states.len()
    }

    /// Whether nobody waits for any of them.
    pub fn is_gone(&self) -> bool {
        self.gone_count >= self.states.len()
    }

    /// There was no room for a file that [`Reader::take_next`] has named: it is named again.
    pub fn give_back(&mut self, index: usize) {
        if self.states.get(index) == Some(&State::Ahead) {
            self.states[index] = State::Untouched;
            self.unread_count -= 1;
            self.next = self.next.min(index);
        }
    }

    /// Whether the program has opened a file.
    pub fn has_read(&self, index: usize) -> bool {
        self.states.get(index) == Some(&State::Read)
    }

    /// Files that were brought in and not read yet.
    pub fn unread(&self) -> usize {
        self.unread_count
    }

    /// Files that were read.
    pub fn read(&self) -> usize {
        self.opened_count
    }

    /// How far ahead of the program what is brought in begins, files (invariant 1).
    pub fn near(&self) -> usize {
        match (self.copy_s.0, self.between_opens_s.0) {
            (Some(copy_s), Some(between_s)) if self.reached > 0 && between_s > 0.0 => {
                (copy_s / between_s).ceil().min(NEAR_MAX) as usize
            }
            _ => 0,
        }
    }

    /// The next file to bring in; `None`: none now.
    pub fn take_next(&mut self, now_s: f64) -> Option<usize> {
        let most = UNREAD_MIN.max(2 * self.opened_count);
        let is_bounded = !matches!(self.reason, Reason::List | Reason::Run);
        let is_full = |count, most| is_bounded && count >= most;
        if is_full(self.unread_count, most + NEAR_MAX as usize) {
            return None;
        }
        let is_full = is_full(self.unread_count, most);
        if let Some(at) = self.take_near(now_s) {
            return Some(at);
        }
        if is_full {
            return None;
        }
        // Where it reads in no order, it has not passed anything.
        let from = match self.reason {
            Reason::Epoch | Reason::Run => self.next,
            _ => self.next.max(self.reached + self.near()),
        };
        let found = (from..self.states.len()).find(|at| self.states[*at] == State::Untouched);
        if let Some(at) = found {
            self.next = at + 1;
            self.states[at] = State::Ahead;
            self.unread_count += 1;
            return Some(at);
        }
        self.next = self.states.len();
        None
    }

    /// What was left to the program, which does not come for it: it computes, and a copy is in time
    /// after all.
    fn take_near(&mut self, now_s: f64) -> Option<usize> {
        let paused_s = now_s - self.last_open_s?;
        if paused_s < 2.0 * self.copy_s.0? {
            return None;
        }
        let end = self.next.min(self.reached + NEAR_MAX as usize);
        let mut near = self.reached..end.max(self.reached);
        let at = near.find(|at| self.states[*at] == State::Untouched)?;
        self.states[at] = State::Ahead;
        self.unread_count += 1;
        Some(at)
    }

    /// After all that lies ahead: what was read before it could be brought in, for the next time
    /// (invariant 3). Each once.
    pub fn take_passed(&mut self) -> Option<usize> {
        if self.reason != Reason::Epoch || self.next < self.states.len() {
            return None;
        }
        while self.passed < self.states.len() {
            let at = self.passed;
            self.passed += 1;
            if self.states[at] == State::Read {
                return Some(at);
            }
        }
        None
    }

    /// Whether nothing more will be brought in.
    pub fn is_over(&self) -> bool {
        let is_read = |state: &State| matches!(state, State::Read | State::Gone);
        match self.reason {
            Reason::Epoch => self.passed >= self.states.len(),
            _ => self.next >= self.states.len() || self.states.iter().all(is_read),
        }
    }
}

/// What guesses of one folder or list were worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Worth {
    /// Brought in, bytes.
    pub guessed_bytes: u64,
    /// Of those, read, bytes.
    pub hit_bytes: u64,
    /// Of those, gone before anybody read them, bytes.
    pub wasted_bytes: u64,
}

impl Worth {
    /// Whether guesses go on: a fifth of what has ended may have been in vain.
    pub fn goes_on(&self) -> bool {
        let ended = self.hit_bytes + self.wasted_bytes;
        self.wasted_bytes * 5 <= ended
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn in_turn(count: usize) -> Folder {
        Folder::new((0..count as u32).rev().collect())
    }

    #[test]
    fn what_follows_one_another_is_expected_by_name_or_as_listed() {
        let mut folder = in_turn(1000);
        let mut said = Vec::new();
        for place in 100..106 {
            said.push(folder.opened(place));
        }
        // The listing is the other way round here, and runs along with the names.
        let expected = Some(Reason::Streak(Order::ByName));
        assert_eq!(said, [None, None, None, None, expected, expected]);
        let listed: Vec<u32> = (0..1000u32).map(|n| (n * 389) % 1000).collect();
        let mut folder = Folder::new(listed.clone());
        let mut order: Vec<usize> = (0..1000).collect();
        order.sort_by_key(|place| listed[*place]);
        let said = order[..6].iter().map(|place| folder.opened(*place)).last();
        let reason = Reason::Streak(Order::AsListed);
        assert_eq!(said, Some(Some(reason)));
        let expected: Vec<usize> = folder
            .expected(reason)
            .iter()
            .map(|p| *p as usize)
            .collect();
        assert_eq!(expected, order);
        assert_eq!(folder.opened(1000), None, "it came later");
    }

    #[test]
    fn a_run_is_brought_in_as_a_whole_and_once() {
        let mut reader = Reader::new(Reason::Run, 50);
        let mut taken: Vec<usize> = (0..20).filter_map(|_| reader.take_next(0.0)).collect();
        // A program of several threads passes what it has not read.
        reader.opened(40, 1.0);
        reader.opened(30, 1.0);
        taken.extend((0..100).filter_map(|_| reader.take_next(1.0)));
        let expected: Vec<usize> = (0..50).filter(|at| ![30, 40].contains(at)).collect();
        assert_eq!(taken, expected);
        assert!(reader.is_over() && reader.take_passed().is_none());
        (0..50).for_each(|at| reader.not_copied(at, true));
        assert!(!reader.is_gone(), "two were read");
        let mut reader = Reader::new(Reason::Run, 2);
        for _ in 0..2 {
            assert!(!reader.is_gone());
            let at = reader.take_next(0.0).expect("one");
            reader.not_copied(at, true);
        }
        assert!(reader.is_gone());
    }

    #[test]
    fn few_files_here_and_there_are_no_epoch_and_a_tenth_is() {
        let mut folder = Folder::new((0..1000u32).map(|n| (n * 731) % 1000).collect());
        let place = |n: usize| (n * 617) % 1000;
        for n in 0..99 {
            assert_eq!(folder.opened(place(n)), None, "{n}");
        }
        assert_eq!(folder.opened(place(5)), None, "the same once more");
        assert_eq!(folder.opened(place(99)), Some(Reason::Epoch));
        let mut small = Folder::new(vec![0, 100, 200]);
        for at in [0, 2, 1, 0, 2, 1] {
            assert_ne!(small.opened(at), Some(Reason::Epoch));
        }
    }

    #[test]
    fn what_would_come_too_late_is_left_to_the_program() {
        let mut reader = Reader::new(Reason::List, 100);
        assert_eq!(
            reader.take_next(0.0),
            Some(0),
            "before it starts, from the start"
        );
        reader.copied(1.0);
        for at in 0..5 {
            reader.opened(at, 0.25 * at as f64);
        }
        assert_eq!(reader.near(), 4);
        assert_eq!(reader.take_next(1.0), Some(9));
        assert_eq!(reader.take_next(1.0), Some(10));
        // A program that does not come for those before them has them, too.
        assert_eq!(reader.take_next(4.0), Some(5));
        assert_eq!(reader.take_next(4.0), Some(6));
        // A program that waits for itself has every file brought in.
        let mut slow = Reader::new(Reason::List, 100);
        slow.copied(0.1);
        for at in 0..50 {
            slow.opened(at, 10.0 * at as f64);
        }
        assert_eq!(slow.take_next(490.0), Some(51));
    }

    #[test]
    fn a_whole_folder_comes_in_and_then_what_was_passed() {
        let mut reader = Reader::new(Reason::Epoch, 60);
        for at in [3, 50, 20] {
            reader.opened(at, 0.0);
        }
        let mut came = Vec::new();
        for round in 0..1000 {
            match reader.take_next(0.0) {
                Some(at) => came.push(at),
                None => match came.get(round % came.len().max(1)) {
                    Some(at) => reader.opened(*at, 0.0),
                    None => break,
                },
            }
        }
        came.sort_unstable();
        let ahead: Vec<usize> = (0..60).filter(|at| ![3, 50, 20].contains(at)).collect();
        assert_eq!(came, ahead);
        let mut passed: Vec<usize> = reader.take_passed().into_iter().collect();
        reader.opened(59, 0.0);
        passed.extend(std::iter::from_fn(|| reader.take_passed()));
        assert!([3, 20, 50].iter().all(|at| passed.contains(at)));
        assert!(reader.is_over() && reader.take_next(0.0).is_none());
    }

    #[test]
    fn the_same_file_again_and_the_way_back_are_no_streak() {
        let mut folder = Folder::new((0..1000).collect());
        for place in [500; 20].into_iter().chain((300..360).rev()) {
            assert_eq!(folder.opened(place), None, "{place}");
        }
    }

    #[test]
    fn a_list_is_done_when_all_is_read_that_can_be() {
        let mut reader = Reader::new(Reason::List, 4);
        reader.begin_after([0]);
        assert_eq!((reader.read(), reader.take_next(0.0)), (1, Some(1)));
        reader.not_copied(1, true);
        assert_eq!(reader.take_next(0.0), Some(2));
        reader.not_copied(2, false);
        assert_eq!(reader.take_next(0.0), Some(3));
        reader.opened(3, 0.0);
        assert!(!reader.is_done() && reader.has_reached_end());
        reader.opened(2, 0.0);
        assert!(reader.is_done());
        reader.opened(1, 0.0);
        assert!(reader.is_done());
    }

    #[test]
    fn guesses_that_were_in_vain_end() {
        let mut worth = Worth::default();
        assert!(worth.goes_on(), "nothing has ended yet");
        worth.hit_bytes = 80;
        worth.wasted_bytes = 20;
        assert!(worth.goes_on());
        worth.wasted_bytes = 21;
        assert!(!worth.goes_on());
    }

    proptest! {
        /// Invariants 2 and 3, and each file once.
        #[test]
        fn guesses_are_bounded_and_each_is_made_once(
            count in 1usize..200,
            steps in proptest::collection::vec((any::<bool>(), 0usize..200), 0..400),
            epoch in any::<bool>(),
        ) {
            let reason = if epoch { Reason::Epoch } else { Reason::Streak(Order::ByName) };
            let mut reader = Reader::new(reason, count);
            let mut named = vec![false; count];
            let mut opened = vec![false; count];
            for (n, (opens, at)) in steps.into_iter().enumerate() {
                if opens {
                    reader.opened(at, n as f64);
                    if let Some(opened) = opened.get_mut(at) {
                        *opened = true;
                    }
                    continue;
                }
                let reached = opened.iter().rposition(|is| *is).map_or(0, |at| at + 1);
                if let Some(at) = reader.take_next(n as f64) {
                    prop_assert!(!named[at] && !opened[at]);
                    prop_assert!(epoch || at >= reached);
                    named[at] = true;
                }
                let read = opened.iter().filter(|is| **is).count();
                prop_assert_eq!(reader.read(), read);
                let unread = (0..count).filter(|at| named[*at] && !opened[*at]).count();
                prop_assert_eq!(reader.unread(), unread);
                prop_assert!(unread <= UNREAD_MIN.max(2 * read) + NEAR_MAX as usize);
            }
        }
    }
}
