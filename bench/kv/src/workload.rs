//! Create, stat, rename and unlink as a file system does them on a key-value store.

use std::time::Instant;

use forebay_kv::{Batch, Durability, Error, Store};

/// Files in one directory.
const FILES_PER_DIR: u64 = 1000;

/// An inode with its layout, and a directory entry that carries the attributes a listing needs.
const VALUE_BYTES: usize = 250;

/// A prime larger than any count of files that is asked for in practice shares no factor with it,
/// so that stepping by it visits every file once, in no order a cache could guess.
const STRIDE: u64 = 1_000_003;

/// What one phase took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Phase {
    /// Operations per second over all threads.
    pub per_s: f64,
    /// Median time of one operation.
    pub p50_us: f64,
    /// 99th percentile of the time of one operation.
    pub p99_us: f64,
    /// Longest time of one operation.
    pub max_ms: f64,
}

/// One of the operations measured.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// One batch: entry and inode, expecting the entry absent.
    Create,
    /// Two point reads: entry, then inode.
    Stat,
    /// One batch: old entry deleted, new entry put, expecting the old as it was and the new absent.
    Rename,
    /// One batch: entry and inode deleted.
    Unlink,
}

/// Runs `op` once on each of `files` files, divided between `threads`.
pub fn run(
    store: &dyn Store,
    op: Op,
    durability: Durability,
    files: u64,
    threads: u64,
) -> Result<Phase, Error> {
    let start = Instant::now();
    let mut nanoseconds = Vec::with_capacity(usize::try_from(files).unwrap_or(0));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || run_thread(store, op, durability, (files, threads, thread)))
            })
            .collect();
        for worker in workers {
            let times = worker
                .join()
                .map_err(|_| Error::Corrupt("a thread of the benchmark panicked".into()))?;
            nanoseconds.extend(times?);
        }
        Ok::<(), Error>(())
    })?;
    let elapsed_s = start.elapsed().as_secs_f64();
    nanoseconds.sort_unstable();
    let quantile_us =
        |per_cent: usize| f64::from(nanoseconds[(nanoseconds.len() - 1) * per_cent / 100]) / 1e3;
    Ok(Phase {
        per_s: nanoseconds.len() as f64 / elapsed_s,
        p50_us: quantile_us(50),
        p99_us: quantile_us(99),
        max_ms: quantile_us(100) / 1e3,
    })
}

fn run_thread(
    store: &dyn Store,
    op: Op,
    durability: Durability,
    (files, threads, thread): (u64, u64, u64),
) -> Result<Vec<u32>, Error> {
    let mut times = Vec::new();
    for step in (thread..files).step_by(usize::try_from(threads).unwrap_or(1)) {
        // Files are created in order, as a job does, and used in another.
        let file = if matches!(op, Op::Create) {
            step
        } else {
            step * STRIDE % files
        };
        let start = Instant::now();
        perform(store, op, durability, file)?;
        times.push(u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX));
    }
    Ok(times)
}

fn perform(store: &dyn Store, op: Op, durability: Durability, file: u64) -> Result<(), Error> {
    let mut batch = Batch::new();
    match op {
        Op::Create => {
            let name = entry_key(file, "tmp");
            batch
                .expect(&name, None)
                .put(name.clone(), value(file))
                .put(inode_key(file), value(!file));
        }
        Op::Stat => {
            let entry = store.get(&entry_key(file, "tmp"))?;
            let inode = store.get(&inode_key(file))?;
            if entry.is_none() || inode.is_none() {
                return Err(Error::Corrupt(format!("file {file} is gone")));
            }
            return Ok(());
        }
        Op::Rename => {
            let (from, to) = (entry_key(file, "tmp"), entry_key(file, "dat"));
            batch
                .expect(&from, Some(&value(file)))
                .expect(&to, None)
                .delete(from.clone())
                .put(to.clone(), value(file));
        }
        Op::Unlink => {
            batch.delete(entry_key(file, "dat")).delete(inode_key(file));
        }
    }
    store.commit(batch, durability)
}

fn entry_key(file: u64, suffix: &str) -> Vec<u8> {
    format!("d/{:016x}/rank-{file:010}.{suffix}", file / FILES_PER_DIR).into_bytes()
}

fn inode_key(file: u64) -> Vec<u8> {
    format!("i/{file:016x}").into_bytes()
}

/// Half zeros, half noise, which compresses about as an inode does.
fn value(seed: u64) -> Vec<u8> {
    let mut value = vec![0; VALUE_BYTES];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for chunk in value[VALUE_BYTES / 2..].chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
    value
}
