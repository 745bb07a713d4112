//! Whether a Redis is set up so that it keeps what it confirms.

use redis::Value;

use super::link::{Links, bytes_of, list};
use crate::Error;

/// What matters of a server's settings.
#[derive(Debug, Default)]
struct Setup {
    appendonly: String,
    appendfsync: String,
    no_appendfsync_on_rewrite: String,
    maxmemory: String,
    maxmemory_policy: String,
}

/// Refuses a server that would lose commits that it has confirmed.
pub(super) fn check(links: &Links, accepts_everysec: bool) -> Result<(), Error> {
    let role = links.call(|| redis::cmd("ROLE").take())?;
    if !is_master(&role) {
        return Err(Error::Setup(
            "this Redis is a replica: name its master".into(),
        ));
    }
    match Setup::read(links)? {
        Some(setup) => setup.judge(accepts_everysec),
        None => judge_without_config(links, accepts_everysec),
    }
}

fn is_master(role: &Value) -> bool {
    let Value::Array(parts) = role else {
        return false;
    };
    matches!(parts.first(), Some(Value::BulkString(name)) if name == b"master")
}

/// A server that hides its settings still says whether it writes a journal, not how it flushes it.
fn judge_without_config(links: &Links, accepts_everysec: bool) -> Result<(), Error> {
    let info = links.call(|| redis::cmd("INFO").arg("persistence").take())?;
    let info = match info {
        Value::VerbatimString { text, .. } => text,
        other => String::from_utf8_lossy(&bytes_of(other)?.unwrap_or_default()).into_owned(),
    };
    if !info.lines().any(|line| line.trim() == "aof_enabled:1") {
        return Err(Error::Setup(
            "this Redis keeps nothing: set `appendonly yes` and `appendfsync always`".into(),
        ));
    }
    match accepts_everysec {
        true => Ok(()),
        false => Err(Error::Setup(
            "this Redis does not tell how it flushes (CONFIG GET is refused): allow \
             `CONFIG GET`, or accept the loss of seconds with ?durability=everysec"
                .into(),
        )),
    }
}

impl Setup {
    /// `None` if the server refuses to tell.
    fn read(links: &Links) -> Result<Option<Setup>, Error> {
        let mut setup = Setup::default();
        let fields = [
            ("appendonly", &mut setup.appendonly),
            ("appendfsync", &mut setup.appendfsync),
            (
                "no-appendfsync-on-rewrite",
                &mut setup.no_appendfsync_on_rewrite,
            ),
            ("maxmemory", &mut setup.maxmemory),
            ("maxmemory-policy", &mut setup.maxmemory_policy),
        ];
        for (name, field) in fields {
            // One that cannot be reached has told already that it can.
            let Ok(answer) = links.call(|| redis::cmd("CONFIG").arg("GET").arg(name).take()) else {
                return Ok(None);
            };
            if let Some(Some(value)) = list(answer)?.pop() {
                *field = String::from_utf8_lossy(&value).into_owned();
            }
        }
        Ok(Some(setup))
    }

    fn judge(&self, accepts_everysec: bool) -> Result<(), Error> {
        let refuse = |what: String| Err(Error::Setup(what));
        if self.appendonly != "yes" {
            return refuse(
                "this Redis keeps nothing: set `appendonly yes` and `appendfsync always`".into(),
            );
        }
        let evicts = self.maxmemory != "0" && self.maxmemory_policy.starts_with("allkeys");
        if evicts {
            return refuse(format!(
                "this Redis forgets keys when memory is short (maxmemory-policy {}): set \
                 `maxmemory-policy noeviction`",
                self.maxmemory_policy
            ));
        }
        match (&*self.appendfsync, accepts_everysec) {
            ("always", _) if self.no_appendfsync_on_rewrite == "no" => Ok(()),
            ("always", false) => refuse(
                "this Redis does not flush while it rewrites its journal: set \
                 `no-appendfsync-on-rewrite no`"
                    .into(),
            ),
            ("always" | "everysec", true) => Ok(()),
            (other, _) => refuse(format!(
                "a power cut would take what this Redis has confirmed (appendfsync {other}): set \
                 `appendfsync always`, or accept the loss of seconds with `appendfsync everysec` \
                 and ?durability=everysec"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(appendfsync: &str) -> Setup {
        Setup {
            appendonly: "yes".into(),
            appendfsync: appendfsync.into(),
            no_appendfsync_on_rewrite: "no".into(),
            maxmemory: "0".into(),
            maxmemory_policy: "noeviction".into(),
        }
    }

    fn refusal(setup: &Setup, accepts_everysec: bool) -> Option<String> {
        setup.judge(accepts_everysec).err().map(|e| e.to_string())
    }

    #[test]
    fn only_what_loses_nothing_is_accepted_unless_asked_for() {
        assert_eq!(refusal(&setup("always"), false), None);
        assert_eq!(refusal(&setup("everysec"), true), None);
        for (setup, accepts, advice) in [
            (setup("everysec"), false, "`appendfsync always`"),
            (setup("no"), true, "`appendfsync always`"),
            (
                Setup {
                    appendonly: "no".into(),
                    ..setup("always")
                },
                true,
                "`appendonly yes`",
            ),
            (
                Setup {
                    no_appendfsync_on_rewrite: "yes".into(),
                    ..setup("always")
                },
                false,
                "`no-appendfsync-on-rewrite no`",
            ),
            (
                Setup {
                    maxmemory: "1".into(),
                    maxmemory_policy: "allkeys-lru".into(),
                    ..setup("always")
                },
                true,
                "`maxmemory-policy noeviction`",
            ),
        ] {
            let refusal = refusal(&setup, accepts).expect("it is refused");
            assert!(refusal.contains(advice), "{refusal}");
        }
    }
}
