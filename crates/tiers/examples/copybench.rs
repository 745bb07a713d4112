//! Measures what this crate promises: `copybench [MIB] [ROUNDS] [FROM] [TO]...`
//!
//! Copies a file of random bytes from a directory in memory to others, by turns with `cp` and with
//! a plain read-write loop, and prints the ratios; then the checksum, and creating objects. Each
//! copy goes into a new file; rounds alternate, so that what else the machine does hits all alike.
//! The best round counts.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use forebay_tiers::conformance::{Random, identity};
use forebay_tiers::{
    CopyControl, DirTier, FileObject, Object, Tier, TierKind, checksum, copy, crc32c_update,
};
use forebay_types::ObjectId;

type Way = fn(&Path, &Path) -> Result<(), Failure>;
type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |at: usize, default: u64| arguments.get(at).map_or(Ok(default), |text| text.parse());
    let (mib, rounds) = (number(0, 512)?, number(1, 7)?);
    let from = arguments.get(2).map_or("/dev/shm", String::as_str);
    let mut to: Vec<PathBuf> = arguments.iter().skip(3).map(PathBuf::from).collect();
    if to.is_empty() {
        to = vec![PathBuf::from("/dev/shm"), std::env::temp_dir()];
    }
    checksum_speed();
    let source = Path::new(from).join(format!("copybench-{}.source", std::process::id()));
    let result = fill(&source, mib).and_then(|()| {
        for dir in &to {
            compare(&source, mib, rounds, dir)?;
            creates(dir)?;
        }
        Ok(())
    });
    std::fs::remove_file(&source)?;
    result
}

fn fill(path: &Path, mib: u64) -> Result<(), Failure> {
    let file = FileObject::new(File::create_new(path)?);
    let mut random = Random::new(1);
    let block = random.bytes(1 << 20);
    for at in 0..mib {
        file.write_at(&block, at << 20)?;
    }
    Ok(())
}

fn checksum_speed() {
    for len in [4 << 10, 256 << 10, 1 << 20] {
        let block = Random::new(2).bytes(len);
        let times = (4 << 30) / len;
        let started = Instant::now();
        let crc = (0..times).fold(0, |crc, _| crc32c_update(crc, &block));
        let rate = (times * len) as f64 / started.elapsed().as_secs_f64() / 1e9;
        println!(
            "checksum, {:>4} KiB: {rate:6.1} GB/s ({crc:08x})",
            len >> 10
        );
    }
}

fn compare(source: &Path, mib: u64, rounds: u64, dir: &Path) -> Result<(), Failure> {
    let target = dir.join(format!("copybench-{}.copy", std::process::id()));
    let bytes = (mib << 20) as f64;
    let ways: [Way; 3] = [by_cp, by_copy, by_loop];
    let mut best = [f64::INFINITY; 3];
    for round in 0..rounds {
        for turn in 0..ways.len() {
            let way = (turn + round as usize) % ways.len();
            let started = Instant::now();
            ways[way](source, &target)?;
            best[way] = best[way].min(started.elapsed().as_secs_f64());
            // Not left to the next in turn: neither space nor dirty pages.
            File::open(&target)?.sync_all()?;
            std::fs::remove_file(&target)?;
        }
    }
    let rate = |way: usize| bytes / best[way] / 1e9;
    println!(
        "{mib} MiB to {}: cp {:.2} GB/s, copy with checksum {:.2} GB/s ({:.2} of cp), plain loop {:.2} GB/s",
        dir.display(),
        rate(0),
        rate(1),
        rate(1) / rate(0),
        rate(2),
    );
    by_copy(source, &target)?;
    let object = FileObject::new(File::open(&target)?);
    let started = Instant::now();
    checksum(&object, mib << 20, &|| false)?;
    println!(
        "  verify: {:.2} GB/s",
        bytes / started.elapsed().as_secs_f64() / 1e9
    );
    std::fs::remove_file(&target)?;
    Ok(())
}

fn by_cp(source: &Path, target: &Path) -> Result<(), Failure> {
    let status = Command::new("cp").arg(source).arg(target).status()?;
    if status.success() {
        Ok(())
    } else {
        Err("cp failed".into())
    }
}

fn by_copy(source: &Path, target: &Path) -> Result<(), Failure> {
    let source = FileObject::new(File::open(source)?);
    let target = FileObject::new(File::create_new(target)?);
    copy(&source, &target, &CopyControl::NONE)?;
    Ok(())
}

fn by_loop(source: &Path, target: &Path) -> Result<(), Failure> {
    let source = FileObject::new(File::open(source)?);
    let target = FileObject::new(File::create_new(target)?);
    let mut buffer = vec![0; 256 << 10];
    let mut at = 0;
    loop {
        match source.read_at(&mut buffer, at)? {
            0 => return Ok(()),
            count => {
                target.write_at(&buffer[..count], at)?;
                at += count as u64;
            }
        }
    }
}

fn creates(dir: &Path) -> Result<(), Failure> {
    const COUNT: u64 = 20_000;
    let dir = dir.join(format!("copybench-{}.tier", std::process::id()));
    std::fs::create_dir(&dir)?;
    let tier = DirTier::open("bench", TierKind::Dram, &dir, None, [1; 16])?;
    let per_second = |work: &dyn Fn(u64) -> std::io::Result<()>| -> std::io::Result<f64> {
        let started = Instant::now();
        for id in 0..COUNT {
            work(id)?;
        }
        Ok(COUNT as f64 / started.elapsed().as_secs_f64() / 1e3)
    };
    // Each its own: file systems share equal attributes.
    let create = per_second(&|id| tier.create(ObjectId(id), &identity(id)).map(drop))?;
    let open = per_second(&|id| tier.open(ObjectId(id)).map(drop))?;
    let remove = per_second(&|id| tier.remove(ObjectId(id)))?;
    println!("  objects: {create:.0} k creates/s, {open:.0} k opens/s, {remove:.0} k removes/s");
    drop(tier);
    Ok(std::fs::remove_dir_all(&dir)?)
}
