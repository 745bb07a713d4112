//! The pass in the background: reads everything at rest on flash about once in `pass`, in the order
//! of the objects, and remembers over restarts how far it has come. How fast, and beside whom, is
//! `policy::scrub`'s.

pub(crate) mod pass;

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use forebay_namespace::{Namespace, NsError};
use forebay_tiers::Object;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Name of the fact.
const NAME: &str = "scrub";

/// How far it has come is put on record so often.
const SAVE_EVERY: Duration = Duration::from_secs(30);

/// What was read is taken out of the page cache again after so much: nobody has asked for it.
const DROP_EVERY_BYTES: u64 = 16 << 20;

/// What is kept over restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Progress {
    /// A pass is under way, and has done with objects up to this one.
    at: Option<u64>,
    under_way: bool,
    /// When it, or the last one, began, seconds since the epoch.
    begun_s: Option<i64>,
    last_end_s: Option<i64>,
    passes: u64,
    checked_objects: u64,
    checked_bytes: u64,
    found: u64,
}

/// How far the pass in the background has come.
#[derive(Default)]
pub struct Scrub {
    progress: Mutex<Progress>,
    /// As the last run left it.
    earlier: Progress,
    left: AtomicU64,
}

impl Scrub {
    /// Where the last run left off. What cannot be read begins anew.
    pub fn load(ns: &Namespace) -> Result<Scrub, NsError> {
        let progress = match ns.get_fact(NAME)? {
            Some(bytes) => postcard::from_bytes(&bytes).unwrap_or_else(|error| {
                tracing::warn!("how far the last pass had come: {error}");
                Progress::default()
            }),
            None => Progress::default(),
        };
        Ok(Scrub {
            progress: Mutex::new(progress),
            earlier: progress,
            ..Scrub::default()
        })
    }
}

/// Only a hint: what stays in the cache is dropped by the kernel in its own time.
pub(crate) fn out_of_cache(object: &dyn Object) {
    if let Err(error) = object.drop_cache() {
        tracing::debug!("cache: {error}");
    }
}
