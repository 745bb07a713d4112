//! Memory of a data server that is borrowed: how much of its memory tier jobs have at a time.
//!
//! The data server decides ([`Lender`]), and says it with the tier's space
//! ([`forebay_tiers::Space::lent_bytes`]); what has to leave is moved by the metadata server, which
//! knows the files. The tmpfs keeps its full size: what was set aside before the metadata server
//! heard of it still finds room, and no write fails for memory that was lent.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use forebay_policy::lending::{
    CAPACITY_MIN_BYTES, LendOrders, Lender, Lending, LendingError, Memory, Pool, Target, tightest,
};
use forebay_tiers::{MemoryNow, MemorySource};
use forebay_types::{Errno, format_size};
use forebay_wire::control::{LENDING_NAME_MAX, LENDING_ORDERS_MAX, LendingOrder, LendingStatus};
use parking_lot::Mutex;

use crate::kept;

const HEAD: &str = "forebay orders\n";
/// What a tmpfs may have beside objects, bytes: the metadata server counts only those.
const OWN_BYTES: u64 = 64 << 10;

/// What one look has seen and come to.
struct Look {
    now: MemoryNow,
    target: Target,
}

struct Deciding {
    lender: Lender,
    orders: LendOrders,
    last: Option<Look>,
    /// Said already.
    missing_group: Option<PathBuf>,
    is_blind: bool,
}

/// The pools of a look.
pub fn pools_of(now: &MemoryNow) -> impl Iterator<Item = Pool> + use<> {
    let pools = now.each_pool().into_iter();
    pools.map(|pool| Pool {
        total_bytes: pool.total_bytes,
        available_bytes: pool.available_bytes,
    })
}

/// A look, as the policy takes it: at `now_s`, of a tier that may hold so many bytes and occupies
/// so many.
pub fn memory_seen(now: &MemoryNow, now_s: f64, (capacity, used): (u64, u64)) -> Memory {
    Memory {
        now_s,
        total_bytes: now.total_bytes,
        pool: tightest(pools_of(now)).unwrap_or(Pool {
            total_bytes: now.total_bytes,
            available_bytes: now.available_bytes,
        }),
        stall_us: now.stall_us,
        capacity_bytes: capacity,
        used_bytes: now.resident_bytes(used),
    }
}

/// Says once which control group cannot be found.
pub fn tell_of_missing_group(now: &MemoryNow, told: &mut Option<PathBuf>) {
    if let Some(group) = now.missing_group.as_ref()
        && told.as_ref() != Some(group)
    {
        tracing::warn!(
            "the control group {} cannot be found: for memory, what is around it counts",
            group.display()
        );
        *told = Some(group.clone());
    }
}

/// The memory tier of a data server that borrows.
pub struct BorrowedMemory {
    source: Arc<dyn MemorySource>,
    full_bytes: u64,
    lent_bytes: Arc<AtomicU64>,
    /// Where the tier's tmpfs is, once there is one.
    memory: PathBuf,
    begun: Instant,
    deciding: Mutex<Deciding>,
    /// Where the orders are on record.
    path: PathBuf,
}

impl BorrowedMemory {
    /// A tier of `full_bytes` where nothing is lent, in a tmpfs on `memory`. Orders of before,
    /// which `path` has, stay in force.
    ///
    /// # Errors
    /// The bounds make no sense, or `path` cannot be read or is damaged.
    pub fn new(
        bounds: Lending,
        source: Arc<dyn MemorySource>,
        full_bytes: u64,
        (memory, path): (PathBuf, PathBuf),
    ) -> io::Result<BorrowedMemory> {
        let lender = Lender::new(bounds).map_err(|error: LendingError| {
            io::Error::new(io::ErrorKind::InvalidInput, error.to_string())
        })?;
        Ok(BorrowedMemory {
            source,
            full_bytes,
            lent_bytes: Arc::default(),
            memory,
            begun: Instant::now(),
            deciding: Mutex::new(Deciding {
                lender,
                orders: orders_of(&path)?,
                last: None,
                missing_group: None,
                is_blind: false,
            }),
            path,
        })
    }

    /// What jobs have of the tier, bytes; for the tier, which tells it with its space.
    pub fn lent_bytes(&self) -> Arc<AtomicU64> {
        self.lent_bytes.clone()
    }

    /// What a run of before has left counts, too.
    fn used_bytes(&self) -> io::Result<u64> {
        let device = |path: &Path| Ok::<_, io::Error>(fs::symlink_metadata(path)?.dev());
        let around = self.memory.parent().unwrap_or(&self.memory);
        let memory = match device(&self.memory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            memory => memory?,
        };
        // Nothing is mounted there yet.
        if memory == device(around)? {
            return Ok(0);
        }
        let stat = rustix::fs::statvfs(&self.memory)?;
        let blocks = stat.f_blocks.saturating_sub(stat.f_bfree);
        Ok(blocks
            .saturating_mul(stat.f_frsize)
            .saturating_sub(OWN_BYTES))
    }

    fn capacity_bytes(&self) -> u64 {
        let lent = self.lent_bytes.load(Ordering::Acquire);
        self.full_bytes.saturating_sub(lent)
    }

    fn set_capacity(&self, bytes: u64) {
        let lent = self.full_bytes.saturating_sub(bytes);
        self.lent_bytes.store(lent, Ordering::Release);
    }

    /// Looks at memory, and decides what the tier may hold. Whether the next look is to be soon.
    pub fn look(&self) -> bool {
        self.decide(&mut self.deciding.lock())
    }

    fn decide(&self, deciding: &mut Deciding) -> bool {
        let looked = self
            .source
            .look()
            .and_then(|now| Ok((now, self.used_bytes()?)));
        let (now, used_bytes) = match looked {
            Ok(looked) => looked,
            Err(error) => {
                if !std::mem::replace(&mut deciding.is_blind, true) {
                    tracing::warn!("nobody says how much memory there is: {error}");
                }
                self.obey_orders(deciding);
                return true;
            }
        };
        deciding.is_blind = false;
        tell_of_missing_group(&now, &mut deciding.missing_group);
        let now_s = self.begun.elapsed().as_secs_f64();
        let memory = memory_seen(&now, now_s, (self.capacity_bytes(), used_bytes));
        let target = deciding.lender.step(&memory, deciding.orders.sum());
        self.set_capacity(target.capacity_bytes);
        let before = deciding.last.replace(Look { now, target });
        if before.is_none_or(|before| before.target.why != target.why) {
            let size = format_size(target.capacity_bytes);
            tracing::info!("borrowed memory: {size}: {}", target.why);
        }
        target.is_tense()
    }

    /// An order says by itself how much is to go, of what was known last.
    fn obey_orders(&self, deciding: &mut Deciding) {
        let order = deciding.orders.sum();
        let known = deciding.last.as_ref().map(|last| last.now.total_bytes);
        let ceiling = match known {
            Some(total_bytes) => deciding.lender.ceiling_bytes(total_bytes, order),
            None => {
                let ordered = order.map_or(0, |order| order.bytes);
                let left = self.full_bytes.saturating_sub(ordered);
                left.max(CAPACITY_MIN_BYTES)
            }
        };
        self.set_capacity(self.capacity_bytes().min(ceiling));
    }

    /// Has jobs get so many bytes back until another order of that name; 0 takes it back. It is on
    /// stable storage and in force when this returns.
    ///
    /// # Errors
    /// `EDQUOT` beyond [`LENDING_ORDERS_MAX`] orders, `ENAMETOOLONG` beyond [`LENDING_NAME_MAX`];
    /// of the file.
    pub fn order(&self, name: &str, bytes: u64) -> io::Result<()> {
        if name.len() > LENDING_NAME_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        let mut deciding = self.deciding.lock();
        let mut orders = deciding.orders.clone();
        orders.set(name, bytes);
        if orders.count() > LENDING_ORDERS_MAX {
            return Err(Errno::EDQUOT.into());
        }
        kept::write(&self.path, &text_of(&orders))?;
        deciding.orders = orders;
        self.decide(&mut deciding);
        Ok(())
    }

    /// What is borrowed, and why it is that; `None` before the first look.
    pub fn status(&self) -> Option<LendingStatus> {
        let deciding = self.deciding.lock();
        let Look { now, target } = deciding.last.as_ref()?;
        let used_bytes = self.used_bytes().unwrap_or(0);
        let borrowed_bytes = self.capacity_bytes();
        let orders = deciding.orders.iter().map(|(name, bytes)| LendingOrder {
            name: name.to_string(),
            bytes,
        });
        Some(LendingStatus {
            borrowed_bytes,
            used_bytes,
            floor_bytes: target.floor_bytes,
            ceiling_bytes: target.ceiling_bytes,
            ordered_bytes: deciding.orders.sum().map_or(0, |order| order.bytes),
            orders: orders.collect(),
            owed_bytes: used_bytes.saturating_sub(borrowed_bytes),
            why: target.why.name().to_string(),
            memory_bytes: now.total_bytes,
            available_bytes: now.available_bytes,
            ..LendingStatus::default()
        })
    }
}

/// Ends an order of a run of before, where nothing is borrowed now: whoever has given it does not
/// know that.
///
/// # Errors
/// Of the file, or it is damaged.
pub fn end_order_of_before(path: &Path, name: &str) -> io::Result<()> {
    let mut orders = orders_of(path)?;
    if orders.iter().all(|(known, _)| known != name) {
        return Ok(());
    }
    orders.set(name, 0);
    kept::write(path, &text_of(&orders))
}

/// A line for each: bytes, and the name in hexadecimal digits.
fn text_of(orders: &LendOrders) -> String {
    let mut text = HEAD.to_string();
    for (name, bytes) in orders.iter() {
        let name: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
        text += &format!("{bytes} {name}\n");
    }
    text
}

fn orders_of(path: &Path) -> io::Result<LendOrders> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(LendOrders::default()),
        Err(error) => return Err(error),
    };
    parse(&text).ok_or_else(|| {
        let why = format!(
            "{}: damaged; remove it, and give the orders anew",
            path.display()
        );
        io::Error::new(io::ErrorKind::InvalidData, why)
    })
}

/// Whole lines only: what is cut off says nothing.
fn parse(text: &str) -> Option<LendOrders> {
    let mut orders = LendOrders::default();
    let lines = text.strip_prefix(HEAD)?;
    if !lines.is_empty() && !lines.ends_with('\n') {
        return None;
    }
    for line in lines.lines() {
        let (bytes, digits) = line.split_once(' ')?;
        let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
        let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let name: Option<Vec<u8>> = pairs.iter().map(byte).collect();
        let name = String::from_utf8(name.filter(|_| rest.is_empty())?).ok()?;
        orders.set(&name, bytes.parse().ok()?);
    }
    (orders.count() <= LENDING_ORDERS_MAX).then_some(orders)
}

#[cfg(test)]
#[path = "lending_tests.rs"]
mod tests;
