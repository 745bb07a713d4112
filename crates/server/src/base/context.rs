//! What every room stands on.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_namespace::Namespace;
use forebay_tiers::PfsHealth;
use forebay_types::Errno;

use crate::base::Base;
use crate::base::conflicts::Conflicts;
use crate::base::counters::Counters;
use crate::base::errors::ErrorLog;
use crate::base::life::Life;
use crate::base::processes::Processes;
use crate::base::settings::Settings;

impl Base {
    /// Whether threads are to end.
    pub fn is_ending(&self) -> bool {
        self.life.is_ending()
    }

    /// Whether the PFS answers.
    pub fn health(&self) -> &PfsHealth {
        self.ns.pfs().health()
    }

    /// One line for a person, if the PFS has been given up.
    pub fn given_up(&self) -> Option<String> {
        let silent = self.health().silent_for()?;
        self.health().is_given_up().then(|| {
            let silent = Duration::from_secs(silent.as_secs());
            let silent = forebay_types::format_duration(silent);
            format!("the PFS has not answered for {silent}")
        })
    }

    /// Remembers an error and says it in the log.
    pub fn report(&self, path: Vec<u8>, errno: Errno, reason: String) {
        // The log bounds lines by the place that says them: many files shall not hide what is below
        // them all.
        match path.starts_with(b"(") {
            true => tracing::warn!("{}: {reason}", path.escape_ascii()),
            false => tracing::warn!("{}: {reason}", path.escape_ascii()),
        }
        self.remember(path, errno, reason);
    }

    /// The same for bytes that are lost: the log names more of those.
    pub fn report_loss(&self, path: Vec<u8>, errno: Errno, reason: String) {
        tracing::error!("{}: {reason}", path.escape_ascii());
        self.counters.losses.fetch_add(1, Ordering::Relaxed);
        self.remember(path, errno, reason);
    }

    fn remember(&self, path: Vec<u8>, errno: Errno, reason: String) {
        self.counters.errors.fetch_add(1, Ordering::Relaxed);
        self.errors.add(path, errno, reason);
    }

    /// Of a file that was removed there is nothing left to be done.
    pub fn forget_error(&self, parent: forebay_types::Ino, name: &[u8]) {
        if self.errors.is_empty() {
            return;
        }
        if let Ok(forebay_namespace::Node::Dir(dir)) = self.ns.node(parent) {
            self.errors.clear(&dir.path_of(name));
        }
    }
}

impl Base {
    /// What every room stands on, at a start.
    pub fn new(settings: Settings, ns: Namespace, epoch: u32, started: Instant) -> Base {
        Base {
            conflicts: Conflicts::load(&ns),
            settings: Arc::new(settings),
            ns: Arc::new(ns),
            life: Life::default(),
            errors: ErrorLog::default(),
            counters: Counters::default(),
            processes: Arc::default(),
            epoch,
            started,
        }
    }

    /// As started.
    pub fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    /// Tells this start from all others of the same state.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Processes that ask.
    pub fn processes(&self) -> &Arc<Processes> {
        &self.processes
    }

    /// The tree.
    pub fn ns(&self) -> &Arc<Namespace> {
        &self.ns
    }

    /// How it comes to an end.
    pub fn life(&self) -> &Life {
        &self.life
    }

    /// Errors that people are told of.
    pub fn errors(&self) -> &ErrorLog {
        &self.errors
    }

    /// Counts.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Conflicts with changes made on the PFS.
    pub fn conflicts(&self) -> &Conflicts {
        &self.conflicts
    }

    /// Start of this server.
    pub fn started(&self) -> Instant {
        self.started
    }
}
