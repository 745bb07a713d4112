//! A metadata server that waits while another one leads.

use std::cell::{Cell, RefCell};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use forebay_server::Settings;
use forebay_types::Errno;
use forebay_wire::control::{Control, ControlResponse, StandbyStatus, StatusBits};
use forebay_wire::{Peer, Reply, Request, Response, Service, UnixServer};
use parking_lot::Mutex;

use super::Announce;
use super::again;
use super::front::Front;
use super::log::Log;
use super::run::{tell, tell_losses, web};
use super::settle::Plan;
use crate::exit::{Exit, Explain, Failure};
use crate::state::{self, SocketPath};
use crate::web::Web;

/// Whether a start stands by, for who wants it to stop.
#[derive(Clone, Default)]
pub struct Watch(Arc<Flags>);

#[derive(Default)]
struct Flags {
    stands_by: AtomicBool,
    is_to_stop: AtomicBool,
}

impl Watch {
    /// Ends it, if it stands by; else answers with false.
    pub fn stop(&self) -> bool {
        let stands_by = self.0.stands_by.load(Ordering::SeqCst);
        self.0.is_to_stop.fetch_or(stands_by, Ordering::SeqCst);
        stands_by
    }

    /// Whether somebody has ended it.
    pub fn is_to_stop(&self) -> bool {
        self.0.is_to_stop.load(Ordering::SeqCst)
    }
}

/// A start that may have to stand by.
pub struct Standby<'a, 'b> {
    plan: &'a Plan,
    front: &'a dyn Front,
    detached: bool,
    watch: Watch,
    announce: RefCell<&'a mut Announce<'b>>,
    /// Why it could not stand by.
    failed: Cell<Option<Failure>>,
    waiting: RefCell<Option<Waiting>>,
}

/// What there is while it stands by.
struct Waiting {
    leader: Arc<Mutex<String>>,
    _control: UnixServer,
    _web: Option<Web>,
}

impl<'a, 'b> Standby<'a, 'b> {
    /// One that does not stand by yet. `announce` is for the first line: that it stands by, or that
    /// it serves.
    pub fn new(
        plan: &'a Plan,
        front: &'a dyn Front,
        detached: bool,
        watch: Watch,
        announce: &'a mut Announce<'b>,
    ) -> Standby<'a, 'b> {
        Standby {
            plan,
            front,
            detached,
            watch,
            announce: RefCell::new(announce),
            failed: Cell::default(),
            waiting: RefCell::default(),
        }
    }

    /// Somebody leads, who calls itself so. Whether it goes on to wait.
    pub fn stands_by(&self, leader: &str) -> bool {
        if self.waiting.borrow().is_none() {
            match self.begin(leader) {
                Ok(waiting) => *self.waiting.borrow_mut() = Some(waiting),
                Err(failure) => {
                    self.failed.set(Some(failure));
                    return false;
                }
            }
        }
        if let Some(waiting) = &*self.waiting.borrow() {
            let mut known = waiting.leader.lock();
            if *known != leader {
                *known = leader.to_string();
                tracing::info!("{leader} leads now");
            }
        }
        !self.watch.is_to_stop()
    }

    fn begin(&self, leader: &str) -> Result<Waiting, Failure> {
        let settings = &self.plan.settings;
        let Some((server, cluster)) = self.front.stands_by_as() else {
            return Err(Failure::fatal(format!("{leader} leads")));
        };
        let waiting = Arc::new(Mutex::new(leader.to_string()));
        let orders = Orders {
            server,
            cluster: cluster.to_string(),
            leader: waiting.clone(),
            settings: settings.clone(),
            since: Instant::now(),
            watch: self.watch.clone(),
        };
        let socket = SocketPath::of(&settings.state).explain(settings.state.display(), "")?;
        let orders = Arc::new(orders);
        let control = UnixServer::start(&socket.path, orders.clone()).explain(
            format_args!("{}: control socket", settings.state.display()),
            "",
        )?;
        self.watch.0.stands_by.store(true, Ordering::SeqCst);
        let line = format!(
            "server {server} of {cluster} stands by, and takes over when {leader} has gone (process {})",
            std::process::id()
        );
        tracing::info!("{line}");
        (self.announce.borrow_mut())(&line)?;
        Ok(Waiting {
            leader: waiting,
            _control: control,
            _web: web(self.plan, orders),
        })
    }

    /// It has been told to stop while it stood by.
    pub fn end(self, log: &Log) -> Result<Exit, Failure> {
        drop(self.waiting.take());
        for file in [state::PID, state::SOCKET] {
            // Both files only repeat what the lock says.
            let _ = std::fs::remove_file(self.plan.settings.state.join(file));
        }
        log.tell_surplus();
        if let Some(failure) = self.failed.take() {
            return Err(failure);
        }
        let name = self.front.name(self.plan).display();
        tell(
            self.detached,
            &format!("{name}: stopped, while it stood by"),
        );
        Ok(Exit::Complete)
    }

    /// It leads from now on, and has found that so many files lost something: what says that it
    /// serves.
    pub fn take_over(self, lossy_files: u64) -> impl FnMut() -> Result<(), Failure> + use<'a, 'b> {
        self.watch.0.stands_by.store(false, Ordering::SeqCst);
        let stood_by = self.waiting.take().is_some();
        let (plan, front, detached) = (self.plan, self.front, self.detached);
        tell_losses(detached, lossy_files);
        let announce = self.announce.into_inner();
        move || {
            let line = front.announcement(plan);
            match stood_by {
                true => {
                    tell(detached, &format!("took over: {line}"));
                    Ok(())
                }
                false => announce(&line),
            }
        }
    }
}

/// Answers `forebay status` and `forebay down`.
struct Orders {
    server: u16,
    cluster: String,
    leader: Arc<Mutex<String>>,
    settings: Settings,
    since: Instant,
    watch: Watch,
}

impl Orders {
    fn status(&self) -> StatusBits {
        let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
        let pfs = bytes(&self.settings.pfs);
        StatusBits {
            version: env!("CARGO_PKG_VERSION").into(),
            mount: pfs.clone(),
            pfs,
            state: bytes(&self.settings.state),
            keeper: self.settings.keeper_status(),
            pid: std::process::id(),
            uptime_ms: self.since.elapsed().as_millis() as u64,
            standby: Some(Box::new(StandbyStatus {
                server: self.server,
                cluster: self.cluster.clone(),
                leader: self.leader.lock().clone(),
            })),
            ..StatusBits::default()
        }
    }
}

impl Service for Orders {
    fn handle(&self, peer: Peer<'_>, request: Request, _: &[u8], _: &mut [u8]) -> Reply {
        match request {
            Request::Control(Control::Status) => {
                let status = Box::new(self.status());
                Response::Control(ControlResponse::Status(status)).into()
            }
            Request::Control(Control::Shutdown { .. }) if peer.is_trusted() => {
                match self.watch.stop() {
                    true => Response::Control(ControlResponse::Stopping).into(),
                    // It takes over at this moment: the next one is for that.
                    false => Errno::EAGAIN.into(),
                }
            }
            Request::Control(Control::Shutdown { .. }) => Errno::EPERM.into(),
            Request::Control(Control::Reload) => again::refused(format!(
                "it stands by, and reads the file when it takes over; {} leads: `forebay reload` there",
                self.leader.lock()
            )),
            // Who leads knows what is there.
            _ => Errno::EOPNOTSUPP.into(),
        }
    }
}
