//! What one process of a benchmark is told to do, and how it says what came of it: lines of JSON on
//! its standard input and output. Names are below its working directory.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use forebay_types::Errno;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::pattern::{self, Mismatch, Origin};
use crate::exit::{Exit, Failure};

/// Pieces of a file, one after another, each `every` bytes behind the one before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pieces {
    /// Name of the file.
    pub name: String,
    /// Its number, for the data.
    pub file: u64,
    /// Where the first piece begins.
    pub first: u64,
    /// Length of each.
    pub len: u64,
    /// From the begin of one to that of the next.
    pub every: u64,
    /// How many.
    pub count: u64,
}

/// Up to so much is made before it is written, and compared after it was read, outside of the time
/// that is measured. What is larger would take too much memory: it is made and compared piece by
/// piece, within that time.
pub const PREPARED_MAX: u64 = 256 << 20;

/// What a process is to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Makes the data of the pieces, so that it is there when they are to be written.
    Prepare(Pieces),
    /// Opens the file, makes it if need be, writes the pieces, fsyncs, closes.
    Write(Pieces),
    /// Opens the file and reads the pieces.
    Read(Pieces),
    /// Compares what was read.
    Check(Pieces),
    /// Asks the kernel to forget the pages of a file.
    Forget(String),
    /// Makes so many empty files in a new directory.
    Create(String, u64),
    /// Asks for their attributes.
    Stat(String, u64),
    /// Renames each.
    Rename(String, u64),
    /// Removes them by their new names.
    Unlink(String, u64),
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// When it began and ended, on the clock of the machine.
    pub begun_ns: u64,
    /// See there.
    pub ended_ns: u64,
    /// Of a file whose pages were to be forgotten: those still in memory, and all, if that is
    /// known.
    pub pages: Option<(u64, u64)>,
    /// It failed, with this number, at this step.
    pub error: Option<(i32, String)>,
    /// What was read is not what was written.
    pub damage: Option<String>,
}

/// The body of the process: orders until there are no more.
pub fn run() -> Result<Exit, Failure> {
    let mut hand = Hand::default();
    let (mut lines, mut out) = (io::stdin().lock().lines(), io::stdout().lock());
    while let Some(Ok(line)) = lines.next() {
        let order = serde_json::from_str(&line)
            .map_err(|error| Failure::fatal(format!("bench: no order: {error}")))?;
        let done = serde_json::to_string(&hand.obey(&order))
            .map_err(|error| Failure::fatal(format!("bench: no answer: {error}")))?;
        // Without a reader there is nobody to work for.
        if writeln!(out, "{done}").and_then(|()| out.flush()).is_err() {
            break;
        }
    }
    Ok(Exit::Complete)
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32).as_nanos() as u64
}

impl Pieces {
    fn bytes(&self) -> u64 {
        self.len * self.count
    }

    /// Whether all of it is in memory at once.
    fn is_prepared(&self) -> bool {
        self.bytes() <= PREPARED_MAX
    }

    /// Where a piece is in the file, and where in a buffer that has them all or, if that would be
    /// too large, the one.
    fn place(&self, nth: u64) -> (Origin, std::ops::Range<usize>) {
        let at = Origin {
            file: self.file,
            offset: self.first + nth * self.every,
        };
        let start = if self.is_prepared() {
            nth * self.len
        } else {
            0
        } as usize;
        (at, start..start + self.len as usize)
    }
}

/// A process with the data of its last order.
#[derive(Default)]
struct Hand {
    buffer: Vec<u8>,
}

impl Hand {
    fn obey(&mut self, order: &Order) -> Done {
        let mut done = Done::default();
        let outcome = match order {
            Order::Prepare(pieces) => {
                self.prepare(pieces);
                Ok(())
            }
            Order::Write(pieces) => self.write(pieces, &mut done),
            Order::Read(pieces) => self.read(pieces, &mut done),
            Order::Check(pieces) => {
                let all = 0..if pieces.is_prepared() {
                    pieces.count
                } else {
                    0
                };
                let wrong = all.map(|nth| self.compare(pieces, nth));
                done.damage = wrong.into_iter().find_map(Result::err);
                Ok(())
            }
            Order::Forget(name) => forget(name, &mut done).map_err(|error| (error, name.clone())),
            Order::Create(dir, count) => create(dir, *count, &mut done),
            Order::Stat(dir, count) => each(*count, &mut done, &|at| {
                let name = old(dir, at);
                std::fs::symlink_metadata(&name).map_err(|error| (error, name))
            }),
            Order::Rename(dir, count) => each(*count, &mut done, &|at| {
                let name = old(dir, at);
                std::fs::rename(&name, new(dir, at)).map_err(|error| (error, name))
            }),
            Order::Unlink(dir, count) => each(*count, &mut done, &|at| {
                let name = new(dir, at);
                std::fs::remove_file(&name).map_err(|error| (error, name))
            }),
        };
        if let Err((error, what)) = outcome {
            done.error = Some((Errno::of(&error).0, what));
        }
        done
    }

    /// Pages of memory that were never touched would be made within the measured time: so all are
    /// written to, also before a read.
    fn prepare(&mut self, pieces: &Pieces) {
        let len = if pieces.is_prepared() {
            pieces.bytes()
        } else {
            pieces.len
        };
        self.buffer.resize(len as usize, 1);
        for nth in 0..if pieces.is_prepared() {
            pieces.count
        } else {
            0
        } {
            let (at, place) = pieces.place(nth);
            pattern::fill(&mut self.buffer[place], at);
        }
    }

    fn write(&mut self, pieces: &Pieces, done: &mut Done) -> Step<()> {
        let failed = failed_at(&pieces.name);
        done.begun_ns = now_ns();
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        let file = options.open(&pieces.name).map_err(failed("open"))?;
        for nth in 0..pieces.count {
            let (at, place) = pieces.place(nth);
            let part = &mut self.buffer[place];
            if !pieces.is_prepared() {
                pattern::fill(part, at);
            }
            file.write_all_at(part, at.offset)
                .map_err(failed("write"))?;
        }
        file.sync_all().map_err(failed("fsync"))?;
        drop(file);
        done.ended_ns = now_ns();
        Ok(())
    }

    fn read(&mut self, pieces: &Pieces, done: &mut Done) -> Step<()> {
        let failed = failed_at(&pieces.name);
        done.begun_ns = now_ns();
        let file = File::open(&pieces.name).map_err(failed("open"))?;
        for nth in 0..pieces.count {
            let (at, place) = pieces.place(nth);
            let part = &mut self.buffer[place];
            file.read_exact_at(part, at.offset)
                .map_err(failed("read"))?;
            if !pieces.is_prepared()
                && let Err(damage) = self.compare(pieces, nth)
            {
                done.damage = Some(damage);
                break;
            }
        }
        done.ended_ns = now_ns();
        Ok(())
    }

    fn compare(&self, pieces: &Pieces, nth: u64) -> Result<(), String> {
        let (at, place) = pieces.place(nth);
        let compared = pattern::check(&self.buffer[place], at);
        compared.map_err(|mismatch| describe(&pieces.name, &mismatch))
    }
}

/// Puts the step and the name to an error.
fn failed_at(name: &str) -> impl Fn(&'static str) -> Box<dyn Fn(io::Error) -> (io::Error, String)> {
    let name = name.to_string();
    move |what| {
        let name = name.clone();
        Box::new(move |error| (error, format!("{what} of {name}")))
    }
}

/// An error, and the step it is of.
type Step<T> = Result<T, (io::Error, String)>;

fn old(dir: &str, at: u64) -> String {
    format!("{dir}/f{at:06}")
}

fn new(dir: &str, at: u64) -> String {
    format!("{dir}/g{at:06}")
}

fn each<T>(count: u64, done: &mut Done, once: &dyn Fn(u64) -> Step<T>) -> Step<()> {
    done.begun_ns = now_ns();
    for at in 0..count {
        once(at)?;
    }
    done.ended_ns = now_ns();
    Ok(())
}

fn create(dir: &str, count: u64, done: &mut Done) -> Step<()> {
    std::fs::create_dir(dir).map_err(|error| (error, dir.to_string()))?;
    each(count, done, &|at| {
        let name = old(dir, at);
        File::create_new(&name).map_err(|error| (error, name))
    })
}

fn describe(name: &str, mismatch: &Mismatch) -> String {
    let at = mismatch.at;
    let found = match mismatch.zeros {
        true => "zeros".to_string(),
        false => format!(
            "data that would belong to byte {} of file {}",
            mismatch.found.offset, mismatch.found.file
        ),
    };
    format!("{name} (file {}), byte {}: {found}", at.file, at.offset)
}

fn forget(name: &str, done: &mut Done) -> io::Result<()> {
    let file = File::open(name)?;
    let len = file.metadata()?.len();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    // Where it cannot be known, that is said.
    done.pages = resident(&file, len).ok();
    Ok(())
}

/// How many pages of a file are in memory, and how many it has.
fn resident(file: &File, len: u64) -> io::Result<(u64, u64)> {
    if len == 0 {
        return Ok((0, 0));
    }
    let page = rustix::param::page_size();
    let len = len as usize;
    let mut seen = vec![0u8; len.div_ceil(page)];
    // SAFETY: a fresh mapping of our own, which nobody reads through; mincore writes one byte for
    // each page of it, and there are as many in `seen`; it is unmapped before this returns.
    let asked = unsafe {
        let flags = libc::MAP_SHARED;
        let at = libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ,
            flags,
            file.as_raw_fd(),
            0,
        );
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let asked = match libc::mincore(at, len, seen.as_mut_ptr()) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        libc::munmap(at, len);
        asked
    };
    asked?;
    let inside = seen.iter().filter(|flags| *flags & 1 != 0).count();
    Ok((inside as u64, seen.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(name: String, first: u64) -> Pieces {
        Pieces {
            name,
            file: 5,
            first,
            len: 4096,
            every: 8192,
            count: 3,
        }
    }

    fn text(folder: &tempfile::TempDir, name: &str) -> String {
        folder.path().join(name).to_str().expect("UTF-8").into()
    }

    #[test]
    fn what_one_writes_another_reads_and_damage_is_named() {
        let folder = tempfile::tempdir().expect("tempdir");
        let name = text(&folder, "f");
        for first in [0, 4096] {
            let mut hand = Hand::default();
            hand.obey(&Order::Prepare(pieces(name.clone(), first)));
            let done = hand.obey(&Order::Write(pieces(name.clone(), first)));
            assert_eq!(done.error, None);
            assert!(done.ended_ns > done.begun_ns);
        }
        assert_eq!(std::fs::metadata(&name).expect("there").len(), 6 * 4096);
        let read = || {
            let mut hand = Hand::default();
            let pieces = pieces(name.clone(), 4096);
            hand.obey(&Order::Prepare(pieces.clone()));
            hand.buffer.fill(0);
            assert_eq!(hand.obey(&Order::Read(pieces.clone())).error, None);
            hand.obey(&Order::Check(pieces)).damage
        };
        assert_eq!(read(), None);
        // Another's piece in the place of the second.
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&name)
            .expect("open");
        let mut other = [0; 4096];
        file.read_exact_at(&mut other, 0).expect("read");
        file.write_all_at(&other, 4096 + 8192).expect("write");
        let damage = read().expect("found");
        assert!(
            damage.ends_with("byte 12288: data that would belong to byte 0 of file 5"),
            "{damage}"
        );
        file.write_all_at(&[0; 4096], 4096 + 8192).expect("write");
        assert!(read().expect("found").ends_with("byte 12288: zeros"));
    }

    #[test]
    fn what_is_too_large_for_memory_goes_piece_by_piece() {
        let large = Pieces {
            len: 4096,
            count: PREPARED_MAX / 4096 + 1,
            ..pieces("f".into(), 0)
        };
        assert!(!large.is_prepared() && pieces("f".into(), 0).is_prepared());
        assert_eq!(large.place(7).1, 0..4096);
        let mut hand = Hand::default();
        hand.prepare(&large);
        assert_eq!(hand.buffer.len(), 4096);
    }

    #[test]
    fn metadata_goes_round() {
        let folder = tempfile::tempdir().expect("tempdir");
        let dir = text(&folder, "d");
        for order in [
            Order::Create(dir.clone(), 5),
            Order::Stat(dir.clone(), 5),
            Order::Rename(dir.clone(), 5),
            Order::Unlink(dir.clone(), 5),
        ] {
            assert_eq!(Hand::default().obey(&order).error, None, "{order:?}");
        }
        assert_eq!(std::fs::read_dir(&dir).expect("read_dir").count(), 0);
        let (errno, what) = Hand::default()
            .obey(&Order::Stat(dir, 1))
            .error
            .expect("gone");
        assert!(errno == libc::ENOENT && what.ends_with("f000000"), "{what}");
    }

    #[test]
    fn pages_are_counted() {
        let folder = tempfile::tempdir().expect("tempdir");
        let name = text(&folder, "f");
        std::fs::write(&name, vec![7; 100_000]).expect("write");
        let file = File::open(&name).expect("open");
        let all = 100_000u64.div_ceil(rustix::param::page_size() as u64);
        assert_eq!(resident(&file, 100_000).expect("known"), (all, all));
        let done = Hand::default().obey(&Order::Forget(name));
        assert_eq!(done.pages.expect("known").1, all);
    }

    #[test]
    fn orders_survive_the_way() {
        for order in [
            Order::Write(pieces("f".into(), 1)),
            Order::Create("d".into(), 2),
        ] {
            let text = serde_json::to_string(&order).expect("JSON");
            assert_eq!(serde_json::from_str::<Order>(&text).expect("JSON"), order);
        }
    }
}
