//! Answers to writes that are done, and of which the program is to hear later: its user or group
//! writes at a rate. Such an answer holds no thread and no data, so that nobody else waits for it.

use std::time::{Duration, Instant};

use fuser::ReplyWrite;
use parking_lot::Mutex;

use crate::asker;

/// Of writes that go round the page cache (`O_DIRECT`), so many are held back at a time. The kernel
/// may count each as one of those in the background, of which it has few for all programs.
const DIRECT_MAX: usize = 16;

/// An answer that is held back.
struct Paced<R> {
    due: Instant,
    is_direct: bool,
    thread: u32,
    written: u32,
    reply: R,
}

/// All of them. The watchdog gives them: a pause is longer than its program was told by one look of
/// the watchdog at most, and the server counts that time for the next pause.
pub(crate) struct PacedAnswers<R = ReplyWrite> {
    held: Mutex<Vec<Paced<R>>>,
}

impl<R> Default for PacedAnswers<R> {
    fn default() -> Self {
        PacedAnswers {
            held: Mutex::default(),
        }
    }
}

impl<R> PacedAnswers<R> {
    /// Holds an answer back: so many bytes were written for a thread of a program. Gives it back
    /// if it is to be given at once.
    pub(crate) fn hold(
        &self,
        (written, pause): (u32, Duration),
        (thread, is_direct): (u32, bool),
        reply: R,
    ) -> Option<R> {
        let now = Instant::now();
        let mut held = self.held.lock();
        if is_direct && held.iter().filter(|paced| paced.is_direct).count() >= DIRECT_MAX {
            return Some(reply);
        }
        held.push(Paced {
            due: now.checked_add(pause).unwrap_or(now),
            is_direct,
            thread,
            written,
            reply,
        });
        None
    }

    /// Those that are due, and those of programs that have been killed: these end with the answer
    /// only.
    pub(crate) fn take_due(&self) -> Vec<(u32, R)> {
        let now = Instant::now();
        let mut due = self.take(|paced| paced.due <= now);
        let mut threads: Vec<u32> = self.held.lock().iter().map(|paced| paced.thread).collect();
        // Readers of requests need the lock, and a look at a program takes its time.
        threads.retain(|thread| asker::is_dying(*thread));
        if !threads.is_empty() {
            due.extend(self.take(|paced| threads.contains(&paced.thread)));
        }
        due
    }

    /// All, at the end of the mount.
    pub(crate) fn take_all(&self) -> Vec<(u32, R)> {
        self.take(|_| true)
    }

    fn take(&self, is_taken: impl Fn(&Paced<R>) -> bool) -> Vec<(u32, R)> {
        let mut held = self.held.lock();
        let taken = held.extract_if(.., |paced| is_taken(paced));
        taken.map(|paced| (paced.written, paced.reply)).collect()
    }
}

/// Gives answers.
pub(crate) fn give(answers: Vec<(u32, ReplyWrite)>) {
    for (written, reply) in answers {
        reply.written(written);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn an_answer_is_held_until_it_is_due_or_its_program_is_killed() {
        let mut program = Command::new("sleep").arg("60").spawn().expect("sleep");
        let answers = PacedAnswers::<char>::default();
        let hold = |written, pause, thread, reply| {
            assert_eq!(answers.hold((written, pause), (thread, false), reply), None);
        };
        hold(1, Duration::ZERO, 0, 'a');
        hold(2, LONG, 0, 'b');
        hold(3, LONG, program.id(), 'c');
        assert_eq!(answers.take_due(), [(1, 'a')]);
        assert_eq!(answers.take_due(), []);
        // It stays a zombie until it is waited for: its threads are at their end.
        program.kill().expect("kill");
        let until = Instant::now() + Duration::from_secs(30);
        let mut taken = answers.take_due();
        while taken.is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
            taken = answers.take_due();
        }
        program.wait().expect("wait");
        assert_eq!(taken, [(3, 'c')]);
        assert_eq!(answers.take_all(), [(2, 'b')]);
        assert_eq!(answers.take_all(), []);
    }

    #[test]
    fn few_writes_round_the_page_cache_are_held_back_at_a_time() {
        let answers = PacedAnswers::<usize>::default();
        for n in 0..DIRECT_MAX {
            assert_eq!(answers.hold((1, LONG), (0, true), n), None);
        }
        assert_eq!(answers.hold((1, LONG), (0, true), 99), Some(99));
        assert_eq!(answers.hold((1, LONG), (0, false), 7), None);
        assert_eq!(answers.take_all().len(), DIRECT_MAX + 1);
        assert_eq!(answers.hold((1, LONG), (0, true), 99), None);
    }
}
