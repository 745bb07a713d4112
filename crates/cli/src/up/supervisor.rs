//! Notices that a thread has died, and ends the burst buffer in order. Without the thread the burst
//! buffer would hold up its programs for ever.

use std::any::Any;
use std::io;
use std::panic::PanicHookInfo;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_server::Instance;

use super::log::Log;
use crate::exit::Exit;
use crate::mounts;

/// Between two looks at what the log holds back.
const TICK: Duration = Duration::from_secs(5);
/// Between two looks for an instance that is still starting.
const LOOK: Duration = Duration::from_millis(50);
/// After a death the end itself may take so long. Then the process ends as by a kill, which loses
/// nothing either.
const END_LIMIT: Duration = Duration::from_secs(40);

/// The instance, once there is one, for threads that are there before it.
pub type Served = Arc<OnceLock<Arc<Instance>>>;

/// Where the deaths of threads are reported.
#[derive(Clone)]
pub struct Supervisor {
    deaths: Sender<String>,
}

impl Supervisor {
    /// Watches over all threads of this process that panic.
    pub fn start(log: Log, served: Served, mount: Option<&Path>) -> io::Result<Supervisor> {
        let (deaths, heard) = mpsc::channel();
        let mount = mount.map(Path::to_path_buf);
        std::thread::Builder::new()
            .name("fb-supervisor".into())
            .spawn(move || watch(&heard, &log, &served, mount.as_deref()))?;
        let supervisor = Supervisor { deaths };
        let theirs = supervisor.clone();
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            usual(panic);
            // The hook only reports: the thread may hold any lock that an action would wait for.
            theirs.died(describe(panic));
        }));
        Ok(supervisor)
    }

    /// Reports that a thread has died.
    pub fn died(&self, what: String) {
        // If the supervisor itself has gone there is nobody to tell.
        let _ = self.deaths.send(what);
    }
}

fn describe(panic: &PanicHookInfo<'_>) -> String {
    let thread = std::thread::current();
    let place = panic.location().map(ToString::to_string);
    format!(
        "thread {} panicked at {}: {}",
        thread.name().unwrap_or("without a name"),
        place.as_deref().unwrap_or("an unknown place"),
        message(panic.payload())
    )
}

fn message(payload: &dyn Any) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message")
}

fn watch(heard: &Receiver<String>, log: &Log, served: &Served, mount: Option<&Path>) {
    loop {
        match heard.recv_timeout(TICK) {
            Ok(what) => return end(what, served, mount),
            Err(RecvTimeoutError::Timeout) => log.tell_surplus(),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Begins the end, and sees to it that there is one. The process ends before this returns.
fn end(what: String, served: &Served, mount: Option<&Path>) {
    let begun = Instant::now();
    let mut what = Some(what);
    while begun.elapsed() < END_LIMIT {
        if let Some(instance) = served.get()
            && let Some(what) = what.take()
        {
            instance.end_broken(what);
        }
        std::thread::sleep(LOOK);
    }
    tracing::error!("the end takes too long: ended at once");
    mount.into_iter().for_each(mounts::detach_ours);
    std::process::exit(Exit::Fatal as i32);
}
