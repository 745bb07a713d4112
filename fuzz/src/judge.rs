//! One input: no panic, and no more memory and time than its length allows.

use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::{Target, memory, notes};

/// Processor time for any input, and for each byte of it.
const TIME_MAX: Duration = Duration::from_millis(200);
const TIME_PER_BYTE: Duration = Duration::from_micros(50);
/// Without optimisation everything takes longer.
const PATIENCE: u32 = if cfg!(debug_assertions) { 4 } else { 1 };

/// What an input has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It panicked, with these words.
    Panic(String),
    /// It made the target hold so many bytes at once; allowed are fewer.
    Memory(usize, usize),
    /// It took so much processor time; allowed is less.
    Time(Duration, Duration),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Panic(words) => write!(f, "panics: {words}"),
            Fault::Memory(held, allowed) => {
                write!(f, "holds {held} bytes at once, allowed are {allowed}")
            }
            Fault::Time(taken, allowed) => {
                write!(
                    f,
                    "takes {} ms of processor time, allowed are {}",
                    taken.as_millis(),
                    allowed.as_millis()
                )
            }
        }
    }
}

thread_local! {
    static IS_JUDGED: Cell<bool> = const { Cell::new(false) };
    static WORDS: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Panics of what is judged are kept for the verdict; all others are said as ever.
fn listen_to_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| match IS_JUDGED.get() {
            true => WORDS.set(info.to_string().replace('\n', " ")),
            false => before(info),
        }));
    });
}

/// Processor time of this thread.
pub fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Runs a target on an input. `Ok`: what it noted on the way.
pub fn judge(target: &Target, input: &[u8]) -> Result<Vec<u64>, Fault> {
    listen_to_panics();
    drop(notes::taken());
    IS_JUDGED.set(true);
    memory::begin();
    let begun = processor_time();
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    let taken = processor_time().saturating_sub(begun);
    let held = memory::most_bytes();
    IS_JUDGED.set(false);
    let noted = notes::taken();
    if outcome.is_err() {
        return Err(Fault::Panic(WORDS.take()));
    }
    let bytes_allowed = target.bytes + target.bytes_per_byte * input.len();
    if held > bytes_allowed {
        return Err(Fault::Memory(held, bytes_allowed));
    }
    let time_allowed = (TIME_MAX + TIME_PER_BYTE * input.len() as u32) * PATIENCE;
    match taken > time_allowed {
        true => Err(Fault::Time(taken, time_allowed)),
        false => Ok(noted),
    }
}
