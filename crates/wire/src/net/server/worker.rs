//! The threads that read requests and run them.

use std::sync::Arc;
use std::time::Duration;

use super::core::Core;
use super::poller::About;
use super::pool::THREADS_MIN;
use super::serve::{self, Then};

/// A thread with nothing to do for so long ends, if it is one too many.
const IDLE: Duration = Duration::from_secs(10);

/// Starts the first threads.
pub(crate) fn start(core: &Arc<Core>) -> std::io::Result<()> {
    for _ in 0..THREADS_MIN {
        core.pool.count_thread();
        spawn(core)?;
    }
    Ok(())
}

/// Starts a thread that is counted already.
fn spawn(core: &Arc<Core>) -> std::io::Result<()> {
    let shared = core.clone();
    let spawned = std::thread::Builder::new()
        .name("fb-net".into())
        .spawn(move || work(&shared));
    match spawned {
        Ok(handle) => core.pool.started(handle),
        Err(error) => {
            core.pool.not_started();
            return Err(error);
        }
    }
    Ok(())
}

fn spawn_spare(core: &Arc<Core>, spare: bool) {
    if spare && let Err(error) = spawn(core) {
        tracing::error!("network: no further thread: {error}");
    }
}

fn work(core: &Arc<Core>) {
    while !core.pool.is_stopping() {
        if let Some((job, spare)) = core.pool.next() {
            spawn_spare(core, spare);
            job();
            core.pool.done();
            continue;
        }
        match core.poller.wait(IDLE) {
            Ok(Some(About::Bell)) => core.poller.take_stroke(),
            Ok(Some(About::Input(id))) => input(core, id),
            Ok(Some(About::Output(id))) => {
                if let Some(link) = core.link(id) {
                    serve::drain(core, &link);
                }
            }
            Ok(None) if core.pool.may_end() => return,
            Ok(None) => {}
            Err(error) => {
                tracing::error!("network: waiting for requests: {error}");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn input(core: &Arc<Core>, id: u64) {
    let Some(link) = core.link(id) else {
        return;
    };
    if let Then::Run(call, spare) = serve::receive(core, &link) {
        spawn_spare(core, spare);
        serve::run(core, &link, *call);
        core.pool.done();
    }
}
