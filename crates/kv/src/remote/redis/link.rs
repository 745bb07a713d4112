//! Connections to Redis, and how its answers are read.

use std::io;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Client, Cmd, Connection, ConnectionLike, ErrorKind, RedisError, Value};

use crate::Error;

/// A server that is slow to take so much is not taken for one that hangs.
const BYTES_PER_SECOND: usize = 1024 * 1024;

/// Beyond what as many readers use as there may be, a connection is closed after use.
const IDLE_MAX: usize = 16;

/// The scripts, which each connection loads before its first use: a server that was started again
/// knows none.
#[derive(Clone, Copy)]
pub(super) enum Script {
    Apply,
    Page,
    Fence,
    Take,
    Keep,
    Release,
}

const SCRIPTS: [&str; 6] = [
    include_str!("apply.lua"),
    include_str!("page.lua"),
    include_str!("fence.lua"),
    include_str!("take.lua"),
    include_str!("keep.lua"),
    include_str!("release.lua"),
];

/// A connection, and what the server calls the scripts.
struct Link {
    connection: Connection,
    scripts: Arc<Vec<String>>,
}

/// Connections that are used by one caller at a time.
pub(super) struct Links {
    client: Client,
    patience: Duration,
    idle: Mutex<Idle>,
}

#[derive(Default)]
struct Idle {
    links: Vec<Link>,
    /// Raised when all connections are forgotten: one in use then is not kept after it.
    generation: u64,
    scripts: Option<Arc<Vec<String>>>,
}

impl Links {
    pub(super) fn new(server: &str, patience: Duration) -> Result<Links, Error> {
        Ok(Links {
            client: Client::open(server).map_err(from_redis)?,
            patience,
            idle: Mutex::default(),
        })
    }

    /// Other connections to the same server.
    pub(super) fn sibling(&self) -> Links {
        Links {
            client: self.client.clone(),
            patience: self.patience,
            idle: Mutex::default(),
        }
    }

    /// From now on every call uses a connection that is made after this.
    pub(super) fn forget(&self) {
        let mut idle = self.idle.lock();
        idle.generation += 1;
        idle.links.clear();
        idle.scripts = None;
    }

    /// Runs a script; `fill` adds the number of its keys, the keys and the arguments, which have
    /// `bytes` together.
    pub(super) fn run(
        &self,
        script: Script,
        bytes: usize,
        fill: impl FnOnce(&mut Cmd),
    ) -> Result<Value, Error> {
        let (mut link, generation) = self.link()?;
        let mut call = redis::cmd("EVALSHA");
        call.arg(&link.scripts[script as usize]);
        fill(&mut call);
        let longer = Duration::from_secs((bytes / BYTES_PER_SECOND) as u64);
        if !longer.is_zero() {
            link.set_patience(self.patience + longer)?;
        }
        let answer = link.connection.req_command(&call);
        if answer.is_ok() && !longer.is_zero() {
            link.set_patience(self.patience)?;
        }
        self.keep(link, generation, answer)
    }

    /// Runs a command.
    pub(super) fn call(&self, command: impl FnOnce() -> Cmd) -> Result<Value, Error> {
        let (mut link, generation) = self.link()?;
        let answer = link.connection.req_command(&command());
        self.keep(link, generation, answer)
    }

    fn link(&self) -> Result<(Link, u64), Error> {
        let (generation, scripts) = {
            let mut idle = self.idle.lock();
            if let Some(link) = idle.links.pop() {
                return Ok((link, idle.generation));
            }
            (idle.generation, idle.scripts.clone())
        };
        let connection = self.client.get_connection_with_timeout(self.patience);
        let mut link = Link {
            connection: connection.map_err(from_redis)?,
            scripts: Arc::default(),
        };
        link.set_patience(self.patience)?;
        link.scripts = match scripts {
            Some(scripts) => scripts,
            None => link.load()?,
        };
        self.idle.lock().scripts.get_or_insert(link.scripts.clone());
        Ok((link, generation))
    }

    /// A connection that has failed in any way is not used again.
    fn keep(
        &self,
        link: Link,
        generation: u64,
        answer: Result<Value, RedisError>,
    ) -> Result<Value, Error> {
        let answer = answer.and_then(Value::extract_error);
        let mut idle = self.idle.lock();
        match answer {
            Ok(answer) => {
                if idle.generation == generation && idle.links.len() < IDLE_MAX {
                    idle.links.push(link);
                }
                Ok(answer)
            }
            Err(error) => {
                // The others may be as dead as this one, or the scripts unknown.
                idle.links.clear();
                idle.scripts = None;
                Err(from_redis(error))
            }
        }
    }
}

impl Link {
    fn set_patience(&self, patience: Duration) -> Result<(), Error> {
        let connection = &self.connection;
        let set = connection.set_read_timeout(Some(patience));
        set.and_then(|()| connection.set_write_timeout(Some(patience)))
            .map_err(from_redis)
    }

    fn load(&mut self) -> Result<Arc<Vec<String>>, Error> {
        let mut names = Vec::new();
        for script in SCRIPTS {
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(script);
            let answer = self.connection.req_command(&load);
            let answer = answer.and_then(Value::extract_error).map_err(from_redis)?;
            let name = bytes_of(answer)?.map(|name| String::from_utf8_lossy(&name).into_owned());
            names.push(name.ok_or_else(|| strange(&Value::Nil))?);
        }
        Ok(Arc::new(names))
    }
}

/// Whatever a server refuses is a failure of storage: it may be full, loading, or a replica. Only
/// who may not log in, or not do what a store does, need not try again.
pub(super) fn from_redis(error: RedisError) -> Error {
    let refused = matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"));
    match error.code() {
        Some("OOM") => Error::Io(io::Error::from_raw_os_error(libc::ENOSPC)),
        _ if refused || error.kind() == ErrorKind::AuthenticationFailed => Error::Setup(format!(
            "Redis refuses access: {error}; look at user and password in the store's URL"
        )),
        _ => Error::Io(io::Error::other(format!("Redis: {error}"))),
    }
}

pub(super) fn strange(answer: &Value) -> Error {
    let shown: String = format!("{answer:?}").chars().take(80).collect();
    Error::Corrupt(format!(
        "Redis has given an answer of another kind: {shown}"
    ))
}

/// A string, or nothing.
pub(super) fn bytes_of(answer: Value) -> Result<Option<Vec<u8>>, Error> {
    match answer {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => Ok(Some(bytes)),
        Value::SimpleString(text) => Ok(Some(text.into_bytes())),
        other => Err(strange(&other)),
    }
}

/// A word of a script.
pub(super) fn word(answer: &Value) -> Result<&str, Error> {
    match answer {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).map_err(|_| strange(answer)),
        _ => Err(strange(answer)),
    }
}

pub(super) fn list(answer: Value) -> Result<Vec<Option<Vec<u8>>>, Error> {
    match answer {
        Value::Array(values) => values.into_iter().map(bytes_of).collect(),
        other => Err(strange(&other)),
    }
}

type List = Vec<Option<Vec<u8>>>;

pub(super) fn two_lists(answer: Value) -> Result<(List, List), Error> {
    match answer {
        Value::Array(lists) => match <[Value; 2]>::try_from(lists) {
            Ok([first, second]) => Ok((list(first)?, list(second)?)),
            Err(lists) => Err(strange(&Value::Array(lists))),
        },
        other => Err(strange(&other)),
    }
}

/// One end of a range as ZRANGEBYLEX wants it.
pub(super) fn bound(bound: Bound<Vec<u8>>, unbounded: &[u8]) -> Vec<u8> {
    match bound {
        Bound::Included(key) => [b"[", &key[..]].concat(),
        Bound::Excluded(key) => [b"(", &key[..]].concat(),
        Bound::Unbounded => unbounded.to_vec(),
    }
}
