//! The processes of a benchmark, as the command leads them.
//!
//! Processes, not threads: the ranks of a parallel program are processes. They share neither a
//! table of descriptors nor an address space, whose locks threads would wait for, and a file system
//! may treat each process on its own.

use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::work::{Done, Order};

/// The processes; they end on drop.
pub struct Crew {
    all: Vec<Rank>,
}

struct Rank {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Crew {
    /// Starts so many in a directory.
    pub fn start(dir: &Path, count: usize) -> io::Result<Crew> {
        let program = std::env::current_exe()?;
        let mut crew = Crew { all: Vec::new() };
        for _ in 0..count {
            let mut child = Command::new(&program)
                .args(["bench", "--rank"])
                .current_dir(dir)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let missing = || io::Error::other("a process without pipes");
            crew.all.push(Rank {
                orders: child.stdin.take().ok_or_else(missing)?,
                answers: BufReader::new(child.stdout.take().ok_or_else(missing)?),
                child,
            });
        }
        Ok(crew)
    }

    /// Their ids.
    pub fn ids(&self) -> Vec<u32> {
        self.all.iter().map(|rank| rank.child.id()).collect()
    }

    /// Gives each an order, all at once, and waits for what came of it.
    pub fn obey(&mut self, order: impl Fn(usize) -> Order) -> io::Result<Vec<Done>> {
        // Made before the first begins, so that they begin together.
        let lines: io::Result<Vec<String>> = (0..self.all.len())
            .map(|rank| Ok(serde_json::to_string(&order(rank))? + "\n"))
            .collect();
        for (rank, line) in self.all.iter_mut().zip(lines?) {
            rank.orders.write_all(line.as_bytes())?;
        }
        let answer = |rank: &mut Rank| {
            let mut line = String::new();
            match rank.answers.read_line(&mut line)? {
                0 => Err(io::Error::other("a process of the benchmark has died")),
                _ => Ok(serde_json::from_str(&line)?),
            }
        };
        self.all.iter_mut().map(answer).collect()
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for rank in &mut self.all {
            // It may have ended by itself, as by Ctrl-C on a terminal.
            let _ = rank.child.kill();
            let _ = rank.child.wait();
        }
    }
}
