//! Applications: which files belong to which, how large they get, which versions are outdated.

mod inner;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use forebay_policy::demotion::Candidate;
use forebay_policy::history::Key;
use forebay_policy::mtbf::PRIOR_MTBF_S;
use forebay_policy::series::Identity;
use forebay_policy::victims::Incoming;
use forebay_types::ObjectId;
use parking_lot::Mutex;

use inner::{Application, FileFacts, Inner, mean};

/// File series whose sizes are remembered; beyond that the memory starts anew.
const SERIES_MAX: usize = 16384;

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
    /// MTBF, as far as it is known.
    pub mtbf_s: f64,
}

/// All applications seen.
pub struct Applications {
    inner: Mutex<Inner>,
    origin: Instant,
    quiet_s: f64,
}

impl Applications {
    /// None yet. `quiet`: see [`VersionTracker::new`].
    pub fn new(origin: Instant, quiet: Duration) -> Applications {
        Applications {
            inner: Mutex::default(),
            origin,
            quiet_s: quiet.as_secs_f64(),
        }
    }

    /// Seconds since the origin: the clock of the policy.
    pub fn now_s(&self) -> f64 {
        self.origin.elapsed().as_secs_f64()
    }

    /// Seconds since an application opened or closed a file, or one of it came; infinite where none
    /// has.
    pub fn idle_s(&self, application: u32) -> f64 {
        let now = self.now_s();
        let inner = self.inner.lock();
        let known = inner.applications.get(&application);
        known.map_or(f64::INFINITY, |known| now - known.alive_s)
    }

    /// What is known of a new file with this identity.
    pub fn expect(&self, identity: &Identity) -> Expectation {
        let inner = self.inner.lock();
        let series = inner.sizes.get(&identity.series_hash());
        Expectation {
            bytes: series.and_then(|s| s.sizes.predict()),
            fsyncs: series.is_some_and(|s| s.fsyncs),
        }
    }

    /// A file has come into the burst buffer. Answers with its application.
    pub fn arrived(&self, object: ObjectId, identity: &Identity) -> u32 {
        let now = self.now_s();
        let mut inner = self.inner.lock();
        let application = inner.application(&identity.application, self.quiet_s);
        let version = identity.version.filter(|_| !inner.is_others(application));
        let facts = FileFacts {
            application,
            version,
            certain: identity.is_certain,
            unwanted: false,
            untouched: true,
            arrived_s: now as f32,
            accessed_s: now as f32,
            closed_s: now as f32,
            opened_s: now as f32,
            closed_to_open_s: 0.0,
            open_to_close_s: 0.0,
        };
        if let Some(old) = inner.files.insert(object, facts) {
            inner.known(old.application).files -= 1;
        }
        let known = inner.known(application);
        known.alive_s = now;
        known.files += 1;
        known.newest = known.newest.max(version);
        application
    }

    /// A file was opened for writing.
    pub fn opened_for_write(&self, object: ObjectId) {
        let now = self.now_s();
        let mut inner = self.inner.lock();
        if let Some(facts) = inner.files.get_mut(&object) {
            (facts.unwanted, facts.untouched) = (false, false);
        }
        inner.on_version(object, |versions, version| {
            versions.opened_for_write(version, now)
        });
    }

    /// What a file has was changed by its name, without an open.
    pub fn changed(&self, object: ObjectId) {
        if let Some(facts) = self.inner.lock().files.get_mut(&object) {
            (facts.unwanted, facts.untouched) = (false, false);
        }
    }

    /// A file was opened.
    pub fn opened(&self, object: ObjectId) {
        let now = self.now_s();
        let mut inner = self.inner.lock();
        inner.is_alive(object, now);
        if let Some(facts) = inner.files.get_mut(&object) {
            let now = now as f32;
            facts.accessed_s = now;
            (facts.unwanted, facts.untouched) = (false, false);
            if facts.closed_s > facts.opened_s {
                facts.closed_to_open_s = mean(facts.closed_to_open_s, now - facts.closed_s);
            }
            facts.opened_s = now;
        }
    }

    /// Somebody opens a file that others have open.
    pub fn joined(&self, object: ObjectId) {
        let now = self.now_s();
        if let Some(facts) = self.inner.lock().files.get_mut(&object) {
            facts.accessed_s = now as f32;
        }
    }

    /// Nobody comes for what it was brought in for: until somebody opens it, it leaves first. What
    /// somebody has opened or changed since it came, be it only to write, is theirs, and stays.
    pub fn is_unwanted(&self, object: ObjectId) {
        if let Some(facts) = self.inner.lock().files.get_mut(&object) {
            facts.unwanted = facts.untouched;
        }
    }

    /// Whether a file that is outdated ([`Applications::candidate`]) is so for more than a guess.
    /// An old version that somebody has ordered, and not read yet, may be the one to restart from.
    pub fn is_surely_outdated(&self, object: ObjectId) -> bool {
        let inner = self.inner.lock();
        let facts = inner.files.get(&object);
        facts.is_some_and(|f| f.unwanted || (f.certain && !f.untouched))
    }

    /// The last writer has closed a file of this series (by its hash) at this size.
    pub fn closed(&self, object: ObjectId, series: u64, bytes: u64, fsynced: bool) {
        let now = self.now_s();
        let mut inner = self.inner.lock();
        inner.is_alive(object, now);
        if let Some(facts) = inner.files.get_mut(&object) {
            facts.note_close(now as f32);
        }
        inner.on_version(object, |versions, version| versions.closed(version, now));
        if let Some(facts) = inner.files.get(&object).filter(|f| f.version.is_some()) {
            let application = facts.application;
            inner.unsettled.insert(application);
        }
        if inner.sizes.len() >= SERIES_MAX {
            inner.sizes.clear();
        }
        let series = inner.sizes.entry(series).or_default();
        series.sizes.observe(bytes);
        series.fsyncs = fsynced;
    }

    /// A file has another path now. Answers with its application.
    pub fn renamed(&self, object: ObjectId, identity: &Identity) -> u32 {
        let now = self.now_s();
        let mut inner = self.inner.lock();
        let application = inner.application(&identity.application, self.quiet_s);
        let version = identity.version.filter(|_| !inner.is_others(application));
        let before = inner.files.get(&object).map(|f| (f.application, f.version));
        inner.reassign(object, application);
        if let Some(facts) = inner.files.get_mut(&object) {
            facts.version = version;
            facts.certain = identity.is_certain;
        }
        let known = inner.known(application);
        known.newest = known.newest.max(version);
        // Written under a temporary name: with the right one it belongs to its version, as if it
        // were written now.
        if let Some(version) = version
            && before.is_some_and(|b| b != (application, Some(version)))
        {
            known.versions.opened_for_write(version, now);
            known.versions.closed(version, now);
            inner.unsettled.insert(application);
        }
        application
    }

    /// Somebody has said which application or version a file belongs to: that goes before its path.
    pub fn name_explicitly(
        &self,
        object: ObjectId,
        application: Option<&str>,
        version: Option<u64>,
    ) {
        let mut inner = self.inner.lock();
        if let Some(name) = application {
            let number = inner.application(name, self.quiet_s);
            inner.reassign(object, number);
        }
        let Some(facts) = inner.files.get_mut(&object) else {
            return;
        };
        facts.certain |= version.is_some();
        facts.version = version.or(facts.version);
        let (application, version) = (facts.application, facts.version);
        let known = inner.known(application);
        known.newest = known.newest.max(version);
    }

    /// Application and version of a file, by name.
    pub fn described(&self, object: ObjectId) -> Option<(String, Option<u64>)> {
        let inner = self.inner.lock();
        let facts = inner.files.get(&object)?;
        let name = inner.applications.get(&facts.application)?.name.clone();
        Some((name, facts.version))
    }

    /// What a file of that user is put on record as: of its version only what is more than a guess.
    pub fn recorded_as(&self, object: ObjectId, uid: u32) -> Option<Key> {
        let inner = self.inner.lock();
        let facts = inner.files.get(&object)?;
        let application = inner.applications.get(&facts.application)?.name.clone();
        let version = facts.version.filter(|_| facts.certain);
        Some(Key::new(application, version, uid))
    }

    /// When a file was last opened, or came, seconds: as in [`Applications::candidate`].
    pub fn accessed_s(&self, object: ObjectId) -> f64 {
        let inner = self.inner.lock();
        let facts = inner.files.get(&object).filter(|facts| !facts.unwanted);
        facts.map_or(0.0, |facts| f64::from(facts.accessed_s))
    }

    /// Time since a file was last closed, or arrived, seconds.
    pub fn quiet_s(&self, object: ObjectId) -> f64 {
        let now = self.now_s();
        let inner = self.inner.lock();
        let closed = inner.files.get(&object).map(|f| f64::from(f.closed_s));
        closed.map_or(0.0, |closed| now - closed)
    }

    /// Whether the version that a file belongs to is complete.
    pub fn is_complete(&self, object: ObjectId) -> bool {
        let now = self.now_s();
        let mut complete = false;
        self.inner.lock().on_version(object, |versions, version| {
            complete = versions.is_complete(version, now);
        });
        complete
    }

    /// The same of a version by what the path of a file of it says, wherever the file is.
    pub fn is_version_complete(&self, identity: &Identity) -> bool {
        let now = self.now_s();
        let mut inner = self.inner.lock();
        let number = inner.by_name.get(&identity.application).copied();
        let (Some(number), Some(version)) = (number, identity.version) else {
            return false;
        };
        inner.known(number).versions.is_complete(version, now)
    }

    /// The version that a file belongs to was published.
    pub fn committed(&self, object: ObjectId) {
        let now = self.now_s();
        self.inner
            .lock()
            .on_version(object, |versions, version| versions.committed(version, now));
    }

    /// A file has left the burst buffer.
    pub fn left(&self, object: ObjectId) {
        let mut inner = self.inner.lock();
        if let Some(facts) = inner.files.remove(&object) {
            inner.known(facts.application).files -= 1;
        }
    }

    /// What the policy needs to know of a file to order it.
    pub fn candidate(&self, object: ObjectId, bytes: u64, in_use: bool) -> Candidate {
        let now = self.now_s();
        let inner = self.inner.lock();
        let facts = inner.files.get(&object).copied();
        let unwanted = facts.is_some_and(|f| f.unwanted);
        let outdated = facts.is_some_and(|f| match f.version {
            Some(version) => inner
                .applications
                .get(&f.application)
                .is_some_and(|known| known.versions.is_outdated(version, now)),
            None => false,
        });
        let time = |get: fn(&FileFacts) -> f32| match facts.as_ref() {
            Some(facts) if !unwanted => f64::from(get(facts)),
            _ => 0.0,
        };
        // 1 is neutral.
        let known =
            |get: fn(&FileFacts) -> f32| Some(time(get)).filter(|t| *t > 0.0).unwrap_or(1.0);
        Candidate {
            id: object.0,
            application: facts.map_or(0, |f| u64::from(f.application)),
            version: facts.and_then(|f| f.version),
            // By any order it is the first to leave.
            outdated: outdated || unwanted,
            mtbf_s: facts
                .and_then(|f| inner.applications.get(&f.application))
                .map_or(PRIOR_MTBF_S, |known| known.mtbf_s),
            arrived_at_s: time(|f| f.arrived_s),
            accessed_at_s: time(|f| f.accessed_s),
            closed_at_s: time(|f| f.closed_s),
            closed_to_open_s: match unwanted {
                true => f64::MAX,
                false => known(|f| f.closed_to_open_s),
            },
            open_to_close_s: known(|f| f.open_to_close_s),
            bytes,
            in_use,
        }
    }

    /// Whether the version of a file is more than a guess ([`Identity::is_certain`]).
    pub fn is_certain(&self, object: ObjectId) -> bool {
        let inner = self.inner.lock();
        inner.files.get(&object).is_some_and(|f| f.certain)
    }

    /// Applications with a version that has become complete since this was last asked: older ones
    /// are outdated now.
    pub fn newly_complete(&self) -> HashSet<u32> {
        let now = self.now_s();
        let mut inner = self.inner.lock();
        let unsettled = std::mem::take(&mut inner.unsettled);
        let mut found = HashSet::new();
        for number in unsettled {
            let Some(known) = inner.applications.get_mut(&number) else {
                continue;
            };
            let newest = known.newest;
            let complete = newest.is_some_and(|v| known.versions.is_complete(v, now));
            if !complete {
                inner.unsettled.insert(number);
            } else if known.complete != newest {
                known.complete = newest;
                found.insert(number);
            }
        }
        found
    }

    /// The application a file belongs to, by number, and its name.
    pub fn of(&self, object: ObjectId) -> Option<(u32, Option<u64>)> {
        let inner = self.inner.lock();
        inner.files.get(&object).map(|f| (f.application, f.version))
    }

    /// Name by number.
    pub fn name(&self, number: u32) -> Option<String> {
        let inner = self.inner.lock();
        Some(inner.applications.get(&number)?.name.clone())
    }

    /// Number by name, of an application that was seen.
    pub fn number(&self, name: &str) -> Option<u32> {
        self.inner.lock().by_name.get(name).copied()
    }

    /// Number by name.
    pub fn number_or_new(&self, name: &str) -> u32 {
        self.inner.lock().application(name, self.quiet_s)
    }

    /// Sets what is known of an application's MTBF.
    pub fn set_mtbf(&self, number: u32, mtbf_s: f64) {
        if let Some(known) = self.inner.lock().applications.get_mut(&number) {
            known.mtbf_s = mtbf_s;
        }
    }

    /// The last handle of a file was closed.
    pub fn released(&self, object: ObjectId) {
        let now = self.now_s();
        if let Some(facts) = self.inner.lock().files.get_mut(&object) {
            facts.note_close(now as f32);
        }
    }

    /// What decides whether a new file goes straight to the PFS. Of the file: the number and MTBF
    /// of its application, and whether its version is the newest. Of all applications in the burst
    /// buffer: number and MTBF.
    pub fn compare(&self, identity: &Identity) -> (Incoming, Vec<(u64, f64)>) {
        let mut inner = self.inner.lock();
        let number = inner.application(&identity.application, self.quiet_s);
        let own = inner.known(number);
        let incoming = Incoming {
            application: number.into(),
            mtbf_s: own.mtbf_s,
            is_newest_version: identity.version >= own.newest,
            must_make_room: false,
        };
        let all = inner.applications.iter();
        let residents = all
            .filter(|(_, a)| a.files > 0)
            .map(|(n, a)| (u64::from(*n), a.mtbf_s));
        (incoming, residents.collect())
    }

    /// Figures of those applications that have files here, with their numbers.
    pub fn figures(&self) -> Vec<(u32, Figures)> {
        let inner = self.inner.lock();
        let figures = |(number, a): (&u32, &Application)| {
            let figures = Figures {
                name: a.name.clone(),
                newest: a.newest,
                mtbf_s: a.mtbf_s,
            };
            (*number, figures)
        };
        let here = inner.applications.iter().filter(|(_, a)| a.files > 0);
        here.map(figures).collect()
    }

    /// Applications that were forgotten since this was last asked, by number and name.
    pub fn take_forgotten(&self) -> Vec<(u32, String)> {
        std::mem::take(&mut self.inner.lock().forgotten)
    }
}

#[cfg(test)]
mod tests {
    use super::inner::{APPLICATIONS_MAX, OTHERS};
    use super::*;

    fn identity(name: &str, version: Option<u64>) -> Identity {
        Identity {
            application: name.into(),
            version,
            file_series: name.into(),
            is_certain: true,
        }
    }

    fn applications() -> Applications {
        Applications::new(Instant::now(), Duration::from_secs(30))
    }

    #[test]
    fn those_without_files_are_forgotten_when_there_are_many() {
        let apps = applications();
        apps.arrived(ObjectId(0), &identity("stays", Some(7)));
        for n in 1..=10 * APPLICATIONS_MAX as u64 {
            apps.arrived(ObjectId(n), &identity(&format!("passes {n}"), None));
            apps.left(ObjectId(n));
        }
        assert_eq!(apps.described(ObjectId(0)), Some(("stays".into(), Some(7))));
        let inner = apps.inner.lock();
        assert!(inner.applications.len() <= APPLICATIONS_MAX);
        assert_eq!(inner.by_name.len(), inner.applications.len());
        let told = inner.forgotten.len() + inner.applications.len();
        assert_eq!(told, 10 * APPLICATIONS_MAX + 1);
    }

    #[test]
    fn what_was_opened_or_changed_since_it_came_is_not_unwanted() {
        let apps = applications();
        let touch: [fn(&Applications, ObjectId); 3] = [
            Applications::opened,
            Applications::opened_for_write,
            Applications::changed,
        ];
        for (n, touch) in (0..).zip(touch) {
            let file = ObjectId(n);
            let is_first = || apps.candidate(file, 1, false).outdated;
            apps.arrived(file, &identity("a", Some(1)));
            assert!(!is_first());
            apps.is_unwanted(file);
            assert!(is_first() && apps.is_surely_outdated(file));
            touch(&apps, file);
            assert!(!is_first());
            // Who brought it in hears of who reads it, and later.
            apps.is_unwanted(file);
            assert!(!is_first(), "it is a program's, and perhaps new");
        }
    }

    #[test]
    fn an_old_version_that_was_ordered_is_not_outdated_for_sure_until_it_is_read() {
        let apps = applications();
        let [old, new] = [1, 2].map(ObjectId);
        apps.arrived(new, &identity("a", Some(2)));
        apps.opened_for_write(new);
        apps.closed(new, 0, 1, false);
        apps.committed(new);
        apps.arrived(old, &identity("a", Some(1)));
        assert!(apps.candidate(old, 1, false).outdated);
        assert!(!apps.is_surely_outdated(old));
        apps.opened(old);
        assert!(apps.is_surely_outdated(old));
    }

    #[test]
    fn those_for_which_there_is_no_room_are_one() {
        let apps = applications();
        for n in 0..3 * APPLICATIONS_MAX as u64 {
            apps.arrived(ObjectId(n), &identity(&format!("{n}"), Some(n)));
        }
        assert_eq!(apps.figures().len(), APPLICATIONS_MAX + 1);
        let last = ObjectId(3 * APPLICATIONS_MAX as u64 - 1);
        let others = Some((OTHERS.to_string(), None));
        assert_eq!(apps.described(last), others, "no version outdates another");
        assert_eq!(apps.described(ObjectId(5)), Some(("5".into(), Some(5))));
        // A place is free again.
        apps.left(ObjectId(5));
        apps.renamed(last, &identity("again", Some(1)));
        assert_eq!(apps.described(last), Some(("again".into(), Some(1))));
    }
}
