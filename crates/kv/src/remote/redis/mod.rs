//! A store in Redis, or in Valkey.
//!
//! | key (all begin with `{prefix}:`) | what it is |
//! | --- | --- |
//! | `mark` | the holder, and how many groups have taken effect: [`Mark`] |
//! | `keys` | a sorted set of all keys, with equal scores: in the order of their bytes |
//! | `values` | a hash of the values |
//! | `undo` | a hash of what the last group replaced, for [`Store::mend`](crate::Store::mend) |
//! | `hold` | who holds the store, until it expires |
//!
//! A group is one script. Redis runs a script alone, and writes what it did into its journal as one
//! transaction.

use std::time::Duration;

use redis::Value;

use super::backend::{Applied, Backend, Limits, Page};
use super::hold::{Hold, Keeper};
use super::mark::Mark;
use super::plan::Plan;
use super::store::Remote;
use super::{Options, TakeOver, boottime};
use crate::{Entry, Error, Store, range};

mod durability;
mod link;

use link::{Links, Script, bytes_of, word};

/// A script stops all other work of the server.
const LIMITS: Limits = Limits {
    entries: 4096,
    bytes: 1024 * 1024,
};

const PAGE_ENTRIES: usize = 256;

/// Bytes of a mark that name its form and its holder, see `fence.lua`.
const HOLDER_BYTES: usize = 17;

/// Opens the store `prefix` of a server.
pub(super) fn open(
    server: &str,
    prefix: &str,
    accepts_everysec: bool,
    options: &Options,
) -> Result<Box<dyn Store>, Error> {
    let links = Links::new(server, options.patience)?;
    durability::check(&links, accepts_everysec)?;
    let names = Names::new(prefix);
    let hold = Hold::default();
    let mark = take(&links, &names, &hold, options)?;
    let word = hold_word(&options.holder, &mark);
    let keeper = {
        let (links, names, word) = (links.sibling(), names.clone(), word.clone());
        let (lease, hold) = (options.lease, hold.clone());
        Keeper::start(lease, move || {
            let sent = boottime::now();
            let is_kept = keep(&links, &names, &word, lease, &mark)?;
            match is_kept {
                true => hold.extend(sent, lease),
                false => hold.lose(),
            }
            Ok(is_kept)
        })?
    };
    let backend = Redis {
        links,
        names,
        word,
        hold,
        keeper,
    };
    Ok(Box::new(Remote::new(backend, mark, options.patience)))
}

#[derive(Clone)]
struct Names {
    mark: String,
    keys: String,
    values: String,
    undo: String,
    hold: String,
}

impl Names {
    /// The braces keep all of them on one server where Redis spreads keys over several.
    fn new(prefix: &str) -> Names {
        let name = |name: &str| format!("{{{prefix}}}:{name}");
        Names {
            mark: name("mark"),
            keys: name("keys"),
            values: name("values"),
            undo: name("undo"),
            hold: name("hold"),
        }
    }
}

/// What `hold` has: different for each opening, and readable for people.
fn hold_word(holder: &str, mark: &Mark) -> String {
    let drawn = mark.holder.iter().map(|byte| format!("{byte:02x}"));
    format!("{holder} {}", drawn.collect::<String>())
}

fn milliseconds(lease: Duration) -> String {
    lease.as_millis().to_string()
}

/// Sets a mark of a new holder.
fn take(links: &Links, names: &Names, hold: &Hold, options: &Options) -> Result<Mark, Error> {
    loop {
        let sent = boottime::now();
        let held = bytes_of(links.call(|| redis::cmd("GET").arg(&names.mark).take())?)?;
        let number = match &held {
            Some(held) => Mark::decode(held)?.number,
            None => 0,
        };
        let mark = Mark::draw(number)?;
        let took = links.run(Script::Take, 0, |call| {
            call.arg(2).arg(&names.mark).arg(&names.hold);
            call.arg(hold_word(&options.holder, &mark));
            call.arg(milliseconds(options.lease));
            call.arg(held.as_deref().unwrap_or_default());
            call.arg(&mark.encode()[..]);
            call.arg(match &options.take_over {
                TakeOver::Never => String::new(),
                TakeOver::From(holder) => format!("{holder} "),
                TakeOver::Anybody => "*".into(),
            });
        })?;
        match word(&took)? {
            "done" => {
                hold.extend(sent, options.lease);
                return Ok(mark);
            }
            "held" => return Err(Error::InUse(holder(links, names)?)),
            // A commit of the holder came between.
            _ => {}
        }
    }
}

/// Who holds the store, for people; `None` if nobody does any more.
fn holder(links: &Links, names: &Names) -> Result<Option<String>, Error> {
    let word = bytes_of(links.call(|| redis::cmd("GET").arg(&names.hold).take())?)?;
    let word = word.map(|word| String::from_utf8_lossy(&word).into_owned());
    Ok(word.and_then(|word| Some(word.rsplit_once(' ')?.0.to_string())))
}

/// Tells the server that the holder lives; false if somebody else holds the store.
fn keep(
    links: &Links,
    names: &Names,
    hold: &str,
    lease: Duration,
    mark: &Mark,
) -> Result<bool, Error> {
    let kept = links.run(Script::Keep, 0, |call| {
        call.arg(2).arg(&names.mark).arg(&names.hold);
        call.arg(hold).arg(milliseconds(lease));
        call.arg(&mark.encode()[..HOLDER_BYTES]);
    })?;
    Ok(word(&kept)? == "done")
}

struct Redis {
    links: Links,
    names: Names,
    word: String,
    hold: Hold,
    keeper: Keeper,
}

impl Backend for Redis {
    fn limits(&self) -> Limits {
        LIMITS
    }

    fn apply(&self, held: &Mark, next: &Mark, plan: &Plan) -> Result<Applied, Error> {
        let (puts, deletes): (Vec<_>, Vec<_>) =
            plan.changes.iter().partition(|(_, value)| value.is_some());
        let (there, absent): (Vec<_>, Vec<_>) =
            plan.checks.iter().partition(|(_, value)| value.is_some());
        let names = &self.names;
        let applied = self.links.run(Script::Apply, plan.bytes(), |call| {
            call.arg(4).arg(&names.mark).arg(&names.keys);
            call.arg(&names.values).arg(&names.undo);
            call.arg(&held.encode()[..]).arg(&next.encode()[..]);
            call.arg(absent.len()).arg(there.len());
            call.arg(puts.len()).arg(deletes.len());
            for (key, _) in absent.iter().chain(&there) {
                call.arg(&key[..]);
            }
            for (_, value) in &there {
                call.arg(value.as_deref().unwrap_or_default());
            }
            for (key, value) in puts {
                call.arg(&key[..]).arg(value.as_deref().unwrap_or_default());
            }
            for (key, _) in deletes {
                call.arg(&key[..]);
            }
        })?;
        match word(&applied)? {
            "done" => Ok(Applied::Done),
            "conflict" => Ok(Applied::Conflict),
            _ => Ok(Applied::OtherMark),
        }
    }

    fn read(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        self.held_in(&self.names.values, keys)
    }

    fn page(&self, prefix: &[u8], after: Option<&[u8]>) -> Result<Page, Error> {
        let Some((start, end)) = range::bounds(prefix, after) else {
            return Ok(Page::default());
        };
        let page = self.links.run(Script::Page, 0, |call| {
            call.arg(2).arg(&self.names.keys).arg(&self.names.values);
            call.arg(link::bound(start, b"-"));
            call.arg(link::bound(end, b"+"));
            call.arg(PAGE_ENTRIES);
        })?;
        let (keys, values) = link::two_lists(page)?;
        let next = match keys.len() == PAGE_ENTRIES {
            true => keys.last().cloned().flatten(),
            false => None,
        };
        let pairs = keys.into_iter().zip(values);
        let pairs = pairs.map(|(key, value)| match (key, value) {
            (Some(key), Some(value)) => Ok((key, value)),
            _ => Err(Error::Corrupt("a key in Redis has no value".into())),
        });
        Ok(Page {
            pairs: pairs.collect::<Result<_, _>>()?,
            next,
        })
    }

    fn fence(&self, held: &Mark, incarnation: u64) -> Result<Option<u64>, Error> {
        self.links.forget();
        let holder = &held.encode()[..HOLDER_BYTES];
        let found = self.links.run(Script::Fence, 0, |call| {
            call.arg(1).arg(&self.names.mark);
            call.arg(holder).arg(&incarnation.to_be_bytes()[..]);
        })?;
        let found = bytes_of(found)?.ok_or_else(|| {
            Error::Corrupt("the store has vanished from Redis: was it flushed or evicted?".into())
        })?;
        let found = Mark::decode(&found)?;
        Ok((found.holder == held.holder).then_some(found.number))
    }

    fn before(&self, plan: &Plan) -> Result<Vec<Entry>, Error> {
        let keys = plan.changes.iter().map(|(key, _)| &**key);
        let values = self.held_in(&self.names.undo, &keys.collect::<Vec<_>>())?;
        let keys = plan.changes.iter().map(|(key, _)| key.clone());
        Ok(keys.zip(values).collect())
    }

    fn settled(&self) {}

    fn hold(&self) -> &Hold {
        &self.hold
    }

    fn release(&self) {
        self.keeper.stop();
        self.hold.end();
        // Where this fails, the hold expires by itself.
        drop(self.links.run(Script::Release, 0, |call| {
            call.arg(1).arg(&self.names.hold).arg(&self.word);
        }));
    }
}

impl Redis {
    fn held_in(&self, hash: &str, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let mut values = Vec::with_capacity(keys.len());
        for part in keys.chunks(PAGE_ENTRIES) {
            let held = self
                .links
                .call(|| redis::cmd("HMGET").arg(hash).arg(part).take())?;
            values.extend(link::list(held)?);
        }
        match values.len() == keys.len() {
            true => Ok(values),
            false => Err(link::strange(&Value::Nil)),
        }
    }
}
