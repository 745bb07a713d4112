//! Applications: which files belong to which, how large they get, which versions are outdated.

use std::collections::HashMap;
use std::time::Instant;

use forebay_policy::demotion::Candidate;
use forebay_policy::series::Identity;
use forebay_policy::version::{SizeHistory, VersionTracker};
use forebay_types::ObjectId;
use parking_lot::Mutex;

/// File series whose sizes are remembered; beyond that the memory starts anew.
const SERIES_MAX: usize = 16384;

struct Application {
    name: String,
    versions: VersionTracker,
    newest: Option<u64>,
}

#[derive(Clone, Copy)]
struct FileFacts {
    application: u32,
    version: Option<u64>,
    arrived_s: f32,
    accessed_s: f32,
    closed_s: f32,
}

#[derive(Default)]
struct Inner {
    applications: Vec<Application>,
    by_name: HashMap<String, u32>,
    files: HashMap<ObjectId, FileFacts>,
    sizes: HashMap<String, Series>,
}

#[derive(Default)]
struct Series {
    sizes: SizeHistory,
    fsyncs: bool,
}

/// What is known of a file about to be created.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expectation {
    /// Size, bytes.
    pub bytes: Option<u64>,
    /// Files of this series are fsynced.
    pub fsyncs: bool,
}

/// Figures of one application.
pub struct Figures {
    /// Name.
    pub name: String,
    /// Newest version seen.
    pub newest: Option<u64>,
}

/// All applications seen.
pub struct Applications {
    inner: Mutex<Inner>,
    origin: Instant,
}

impl Applications {
    /// None yet.
    pub fn new(origin: Instant) -> Applications {
        Applications {
            inner: Mutex::default(),
            origin,
        }
    }

    /// Seconds since the origin: the clock of the policy.
    pub fn now_s(&self) -> f64 {
        self.origin.elapsed().as_secs_f64()
    }

    /// What is known of a new file with this identity.
    pub fn expect(&self, identity: &Identity) -> Expectation {
        let inner = self.inner.lock();
        let series = inner.sizes.get(&identity.file_series);
        Expectation {
            bytes: series.and_then(|s| s.sizes.predict()),
            fsyncs: series.is_some_and(|s| s.fsyncs),
        }
    }

    /// A file has come into the burst buffer.
    pub fn arrived(&self, object: ObjectId, identity: &Identity) {
        let now = self.now_s();
        let mut inner = self.inner.lock();
        let application = inner.application(&identity.application);
        let facts = FileFacts {
            application,
            version: identity.version,
            arrived_s: now as f32,
            accessed_s: now as f32,
            closed_s: now as f32,
        };
        inner.files.insert(object, facts);
        let known = &mut inner.applications[application as usize];
        known.newest = known.newest.max(identity.version);
    }

    /// A file was opened for writing.
    pub fn opened_for_write(&self, object: ObjectId) {
        let now = self.now_s();
        self.inner.lock().on_version(object, |versions, version| {
            versions.opened_for_write(version, now)
        });
    }

    /// A file was opened.
    pub fn opened(&self, object: ObjectId) {
        let now = self.now_s();
        if let Some(facts) = self.inner.lock().files.get_mut(&object) {
            facts.accessed_s = now as f32;
        }
    }

    /// The last writer has closed a file of this identity at this size.
    pub fn closed(&self, object: ObjectId, identity: Identity, bytes: u64, fsynced: bool) {
        let now = self.now_s();
        let mut inner = self.inner.lock();
        if let Some(facts) = inner.files.get_mut(&object) {
            facts.closed_s = now as f32;
        }
        inner.on_version(object, |versions, version| versions.closed(version, now));
        if inner.sizes.len() >= SERIES_MAX {
            inner.sizes.clear();
        }
        let series = inner.sizes.entry(identity.file_series).or_default();
        series.sizes.observe(bytes);
        series.fsyncs = fsynced;
    }

    /// A file has another path now.
    pub fn renamed(&self, object: ObjectId, identity: &Identity) {
        let mut inner = self.inner.lock();
        let application = inner.application(&identity.application);
        if let Some(facts) = inner.files.get_mut(&object) {
            facts.application = application;
            facts.version = identity.version;
        }
        let known = &mut inner.applications[application as usize];
        known.newest = known.newest.max(identity.version);
    }

    /// Somebody has said which application or version a file belongs to: that goes before its path.
    pub fn name_explicitly(
        &self,
        object: ObjectId,
        application: Option<&str>,
        version: Option<u64>,
    ) {
        let mut inner = self.inner.lock();
        let number = application.map(|name| inner.application(name));
        let Some(facts) = inner.files.get_mut(&object) else {
            return;
        };
        facts.application = number.unwrap_or(facts.application);
        facts.version = version.or(facts.version);
        let (application, version) = (facts.application, facts.version);
        let known = &mut inner.applications[application as usize];
        known.newest = known.newest.max(version);
    }

    /// Application and version of a file, by name.
    pub fn described(&self, object: ObjectId) -> Option<(String, Option<u64>)> {
        let inner = self.inner.lock();
        let facts = inner.files.get(&object)?;
        let name = inner.applications[facts.application as usize].name.clone();
        Some((name, facts.version))
    }

    /// A file has left the burst buffer.
    pub fn left(&self, object: ObjectId) {
        self.inner.lock().files.remove(&object);
    }

    /// What the policy needs to know of a file to order it.
    pub fn candidate(&self, object: ObjectId, bytes: u64, in_use: bool) -> Candidate {
        let now = self.now_s();
        let inner = self.inner.lock();
        let facts = inner.files.get(&object).copied();
        let outdated = facts.is_some_and(|f| match f.version {
            Some(version) => inner.applications[f.application as usize]
                .versions
                .is_outdated(version, now),
            None => false,
        });
        let time = |get: fn(&FileFacts) -> f32| facts.as_ref().map_or(0.0, |f| f64::from(get(f)));
        Candidate {
            id: object.0,
            application: facts.map_or(0, |f| u64::from(f.application)),
            version: facts.and_then(|f| f.version),
            outdated,
            mtbf_s: 1.0,
            arrived_at_s: time(|f| f.arrived_s),
            accessed_at_s: time(|f| f.accessed_s),
            closed_at_s: time(|f| f.closed_s),
            closed_to_open_s: 1.0,
            open_to_close_s: 1.0,
            bytes,
            in_use,
        }
    }

    /// The application a file belongs to, by number, and its name.
    pub fn of(&self, object: ObjectId) -> Option<(u32, Option<u64>)> {
        let inner = self.inner.lock();
        inner.files.get(&object).map(|f| (f.application, f.version))
    }

    /// Figures by number.
    pub fn figures(&self) -> Vec<Figures> {
        let inner = self.inner.lock();
        let figures = |a: &Application| Figures {
            name: a.name.clone(),
            newest: a.newest,
        };
        inner.applications.iter().map(figures).collect()
    }
}

impl Inner {
    fn application(&mut self, name: &str) -> u32 {
        if let Some(&known) = self.by_name.get(name) {
            return known;
        }
        let number = self.applications.len() as u32;
        self.applications.push(Application {
            name: name.to_string(),
            versions: VersionTracker::default(),
            newest: None,
        });
        self.by_name.insert(name.to_string(), number);
        number
    }

    fn on_version(&mut self, object: ObjectId, act: impl FnOnce(&mut VersionTracker, u64)) {
        if let Some(facts) = self.files.get(&object).copied()
            && let Some(version) = facts.version
        {
            act(
                &mut self.applications[facts.application as usize].versions,
                version,
            );
        }
    }
}
