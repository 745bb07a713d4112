//! What is remembered of applications and their files.

use std::collections::{HashMap, HashSet};

use forebay_policy::mtbf::PRIOR_MTBF_S;
use forebay_policy::version::{SizeHistory, VersionTracker};
use forebay_types::ObjectId;

/// Applications that are remembered. Beyond that those that have no file here and were not seen for
/// longest are forgotten, a quarter at once; where all have files, new ones are taken for one.
pub(super) const APPLICATIONS_MAX: usize = 2048;
/// The application of files that there is no further one for. Nothing is known of its versions.
pub(super) const OTHERS: &str = "(others)";

pub(super) struct Application {
    pub(super) name: String,
    /// When a file of it last came, was opened or closed.
    pub(super) alive_s: f64,
    pub(super) mtbf_s: f64,
    /// In the burst buffer.
    pub(super) files: u64,
    pub(super) versions: VersionTracker,
    pub(super) newest: Option<u64>,
    /// The version that was last seen to be complete.
    pub(super) complete: Option<u64>,
}

#[derive(Clone, Copy)]
pub(super) struct FileFacts {
    pub(super) application: u32,
    pub(super) version: Option<u64>,
    /// See [`Identity::is_certain`].
    pub(super) certain: bool,
    /// It was brought in for a reader who has not come, and nobody has opened it since.
    pub(super) unwanted: bool,
    /// Nobody has opened or changed it since it came.
    pub(super) untouched: bool,
    pub(super) arrived_s: f32,
    pub(super) accessed_s: f32,
    pub(super) closed_s: f32,
    pub(super) opened_s: f32,
    /// T_co and T_oc of ONFS, means; 0 until known.
    pub(super) closed_to_open_s: f32,
    pub(super) open_to_close_s: f32,
}

#[derive(Default)]
pub(super) struct Inner {
    /// By number; none is used twice, so one that was forgotten is nobody else's.
    pub(super) applications: HashMap<u32, Application>,
    pub(super) next: u32,
    /// Those that were forgotten since this was last asked, by number and name.
    pub(super) forgotten: Vec<(u32, String)>,
    pub(super) by_name: HashMap<String, u32>,
    pub(super) files: HashMap<ObjectId, FileFacts>,
    /// By the hash of the series: one that collides costs a wrong guess of a size.
    pub(super) sizes: HashMap<u64, Series>,
    /// Applications with a version that may become complete.
    pub(super) unsettled: HashSet<u32>,
}

#[derive(Default)]
pub(super) struct Series {
    pub(super) sizes: SizeHistory,
    pub(super) fsyncs: bool,
}

impl FileFacts {
    pub(super) fn note_close(&mut self, now: f32) {
        self.open_to_close_s = mean(self.open_to_close_s, now - self.opened_s);
        self.closed_s = now;
    }
}

/// The mean of a mean and a further value; the value where there was none.
pub(super) fn mean(known: f32, value: f32) -> f32 {
    match known > 0.0 {
        true => f32::midpoint(known, value.max(0.0)),
        false => value.max(0.0),
    }
}

impl Inner {
    /// An application that has files or has just been asked for.
    pub(super) fn known(&mut self, number: u32) -> &mut Application {
        let known = self.applications.get_mut(&number);
        known.unwrap_or_else(|| unreachable!("only those without files are forgotten"))
    }

    pub(super) fn is_others(&self, number: u32) -> bool {
        let known = self.applications.get(&number);
        known.is_some_and(|known| known.name == OTHERS)
    }

    /// The application of a file does something with it.
    pub(super) fn is_alive(&mut self, object: ObjectId, now_s: f64) {
        if let Some(facts) = self.files.get(&object).copied() {
            self.known(facts.application).alive_s = now_s;
        }
    }

    /// Moves a file to an application.
    pub(super) fn reassign(&mut self, object: ObjectId, application: u32) {
        if let Some(facts) = self.files.get_mut(&object) {
            let before = std::mem::replace(&mut facts.application, application);
            let left = self.known(before);
            left.files -= 1;
            let alive_s = left.alive_s;
            let now = self.known(application);
            now.files += 1;
            now.alive_s = now.alive_s.max(alive_s);
        }
    }

    pub(super) fn application(&mut self, name: &str, quiet_s: f64) -> u32 {
        if let Some(&known) = self.by_name.get(name) {
            return known;
        }
        if self.applications.len() >= APPLICATIONS_MAX && name != OTHERS && !self.forget_some() {
            return self.application(OTHERS, quiet_s);
        }
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        let fresh = Application {
            name: name.to_string(),
            alive_s: f64::NEG_INFINITY,
            mtbf_s: PRIOR_MTBF_S,
            files: 0,
            versions: VersionTracker::new(quiet_s),
            newest: None,
            complete: None,
        };
        self.applications.insert(number, fresh);
        self.by_name.insert(name.to_string(), number);
        number
    }

    /// Forgets applications that have no files here, those first that were not seen for longest;
    /// whether there were any.
    pub(super) fn forget_some(&mut self) -> bool {
        let all = self.applications.iter();
        let mut idle: Vec<(f64, u32)> = all
            .filter(|(_, known)| known.files == 0)
            .map(|(number, known)| (known.alive_s, *number))
            .collect();
        idle.sort_by(|a, b| a.0.total_cmp(&b.0));
        idle.truncate(APPLICATIONS_MAX / 4);
        for (_, number) in &idle {
            if let Some(known) = self.applications.remove(number) {
                self.by_name.remove(&known.name);
                self.unsettled.remove(number);
                self.forgotten.push((*number, known.name));
            }
        }
        !idle.is_empty()
    }

    pub(super) fn on_version(
        &mut self,
        object: ObjectId,
        act: impl FnOnce(&mut VersionTracker, u64),
    ) {
        if let Some(facts) = self.files.get(&object).copied()
            && let Some(version) = facts.version
        {
            act(&mut self.known(facts.application).versions, version);
        }
    }
}
