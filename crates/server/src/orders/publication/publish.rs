//! Versions get their names.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use forebay_namespace::{Dir, DirKey, File, Publication};
use forebay_policy::publication::{GroupMode, PublicationStep, VersionFacts, next_step};
use forebay_types::{Attr, Cred, Errno};
use forebay_wire::Link;
use forebay_wire::control::VersionStatus;

use super::{Figures, LOOK, pause_after};
use crate::base::failure::Failure;
use crate::buffer::target::Target;
use crate::orders::Orders;
use crate::orders::asker::Asker;
use crate::orders::asker::sight::Sight;
use crate::orders::walk::Visited;

impl Orders {
    /// Makes a directory; one that a path rule calls a version is made where outsiders do not see
    /// it.
    pub fn mkdir(&self, link: &Link, perm: u16, cred: &Cred) -> Result<Attr, Failure> {
        let version = self.catalog.rules().has_groups() && {
            match self.ns.node(link.parent)? {
                forebay_namespace::Node::Dir(parent) => {
                    self.catalog
                        .rules()
                        .group(&parent.path_of(&link.name))
                        .is_some()
                        && self.ns.version_of(&parent).is_none()
                }
                _ => false,
            }
        };
        Ok(match version {
            true => self
                .ns
                .mkdir_unpublished(link.parent, &link.name, perm, cred)?,
            false => self.ns.mkdir(link.parent, &link.name, perm, cred)?,
        })
    }

    /// Orders the publication of a version by its directory, after which neither the order nor what
    /// it is for is lost by a loss of power. `EINVAL` for a directory that no rule calls a version,
    /// `ENODATA` for one of which files are lost. One that is published already needs nothing.
    pub fn order_publication(&self, dir: &Arc<Dir>) -> Result<(), Failure> {
        if dir.hidden().is_none() {
            let is_version = self.catalog.rules().group(&dir.path()).is_some();
            return match is_version && self.ns.version_of(dir).is_none() {
                true => Ok(()),
                false => Err(Errno::EINVAL.into()),
            };
        }
        let figures = self.version_figures();
        for (_, figures) in figures.iter().filter(|(d, _)| Arc::ptr_eq(d, dir)) {
            for (file, _) in &figures.undrained {
                self.files.make_stable(file)?;
            }
        }
        match self.ns.order_publication(dir)? {
            true => Ok(()),
            false => Err(Errno::ENODATA.into()),
        }
    }

    fn figures_of(&self, dir: &Arc<Dir>) -> Option<Figures> {
        let all = self.version_figures();
        let own = all.into_iter().find(|(d, _)| Arc::ptr_eq(d, dir));
        own.map(|(_, figures)| figures)
    }

    /// The files of every version that is not published, by its directory.
    pub fn version_figures(&self) -> Vec<(Arc<Dir>, Figures)> {
        let mut versions: HashMap<DirKey, (Arc<Dir>, Figures)> = self
            .ns
            .unpublished()
            .into_iter()
            .map(|dir| (dir.key, (dir, Figures::default())))
            .collect();
        if versions.is_empty() {
            return Vec::new();
        }
        let mut version_of: HashMap<DirKey, Option<DirKey>> = HashMap::new();
        let files: Vec<Arc<File>> = self.buffer.files();
        for file in files {
            let (names, dirty) = {
                let state = file.lock();
                (state.names.clone(), state.is_dirty())
            };
            for (dir, name) in names {
                let version = version_of
                    .entry(dir.key)
                    .or_insert_with(|| self.ns.version_of(&dir).map(|version| version.key));
                if let Some((_, figures)) = version.and_then(|key| versions.get_mut(&key)) {
                    self.count(figures, &file, dirty);
                    if figures.any.is_none() && self.is_of_version(&file, &dir.path_of(&name)) {
                        figures.any = Some(file.object);
                    }
                }
            }
        }
        self.count_on_pfs(&mut versions);
        versions.into_values().collect()
    }

    /// Files that are only on the PFS and are changed there.
    fn count_on_pfs(&self, versions: &mut HashMap<DirKey, (Arc<Dir>, Figures)>) {
        self.buffer.opens().each(|open| {
            if !open.is_written() {
                return;
            }
            let (version, path) = match open.target.try_read().as_deref() {
                Some(Target::Buffer { .. }) => return,
                Some(Target::Pfs { node, .. }) => {
                    let path = node.parent.path_of(&node.name);
                    (self.ns.version_of(&node.parent), path)
                }
                // It is just being moved, and could be any.
                None => {
                    let all = versions.values_mut();
                    return all.for_each(|(_, figures)| figures.written += 1);
                }
            };
            if let Some((_, figures)) = version.and_then(|v| versions.get_mut(&v.key)) {
                figures.written += 1;
                figures.written_path = Some(path);
            }
        });
    }

    fn count(&self, figures: &mut Figures, file: &Arc<File>, dirty: bool) {
        figures.files += 1;
        // Who has just claimed it may wait for the PFS; it counts as written until that is over.
        let written = match self.buffer.opens().try_claim(file.ino) {
            Some(claim) => claim.open().is_some_and(|open| open.is_written()),
            None => true,
        };
        if written {
            figures.written += 1;
            figures.written_path.get_or_insert_with(|| file.path());
        }
        if dirty {
            let bytes = self.buffer.ledger().used_bytes(file.object);
            figures.undrained.push((file.clone(), bytes));
        }
        let quiet_s = self.catalog.apps().quiet_s(file.object);
        figures.quiet_s = match figures.files {
            1 => quiet_s,
            _ => figures.quiet_s.min(quiet_s),
        };
    }

    /// Whether a file is of the version that this name of it is in. A link to a file of an older
    /// version, as of what has not changed since, says nothing of when the new one is complete.
    fn is_of_version(&self, file: &File, path: &[u8]) -> bool {
        let known = self.catalog.apps().of(file.object);
        let version = known.and_then(|(_, version)| version);
        version == self.catalog.rules().identify(path).version
    }

    fn facts(&self, dir: &Arc<Dir>, figures: &Figures) -> VersionFacts {
        let hidden = dir.hidden();
        let group = self.catalog.rules().group(&dir.path());
        let mode = group.unwrap_or(GroupMode::Commit);
        let (mut has_files, quiet_s) = self.versions.follow(dir, figures);
        let apps = self.catalog.apps();
        let mut complete = figures.any.is_some_and(|any| apps.is_complete(any));
        // All of it may have been drained, and left as outdated, since the last look.
        if mode == GroupMode::Complete
            && figures.any.is_none()
            && self.versions.looks_on_pfs(dir)
            && let Some(path) = self.file_on_pfs(dir)
        {
            self.versions.found_on_pfs(dir);
            has_files = true;
            complete = apps.is_version_complete(&self.catalog.rules().identify(&path));
        }
        VersionFacts {
            mode,
            committed: hidden.as_ref().is_some_and(|hidden| hidden.committed),
            interrupted: hidden.is_some_and(|hidden| hidden.interrupted),
            has_files,
            written: figures.written,
            undrained: figures.undrained.len() as u64,
            complete,
            quiet_s,
        }
    }

    /// The path of any file of a version that has none in the burst buffer. What cannot be read now
    /// is looked at again.
    fn file_on_pfs(&self, dir: &Arc<Dir>) -> Option<Vec<u8>> {
        let server = Asker::server();
        let sight = Sight::new(self, &server);
        let mut found = None;
        let mut look = |visited: Visited| {
            found = Some(visited.path());
            false
        };
        let mut unread = |path: Vec<u8>, failure| {
            tracing::debug!("{}: not looked at: {failure}", path.escape_ascii());
        };
        self.walk_dir(dir, &sight, &mut look, &mut unread, 0);
        found
    }

    /// Versions that were ordered to be published and are not yet.
    pub fn publications_under_way(&self) -> bool {
        let ordered = |dir: &Arc<Dir>| dir.hidden().is_some_and(|hidden| hidden.committed);
        self.ns.unpublished().iter().any(ordered)
    }

    /// What `status` says of versions that are not published.
    pub fn version_status(&self) -> Vec<VersionStatus> {
        let mut all: Vec<VersionStatus> = self
            .version_figures()
            .into_iter()
            .filter_map(|(dir, figures)| {
                let hidden = dir.hidden()?;
                let failing = figures.failing().map(|(_, errno)| errno);
                Some(VersionStatus {
                    path: dir.path(),
                    files: figures.files,
                    undrained_files: figures.undrained.len() as u64,
                    undrained_bytes: figures.undrained_bytes(),
                    written_files: figures.written,
                    committed: hidden.committed,
                    interrupted: hidden.interrupted,
                    lost_files: hidden.lost.len() as u64,
                    since_s: hidden.since_s,
                    error: self
                        .versions
                        .why(&dir)
                        .or(failing)
                        .map(|errno| errno.message()),
                })
            })
            .collect();
        all.sort_by(|a, b| a.path.cmp(&b.path));
        all
    }

    fn look_at_versions(&self) {
        let all = self.version_figures();
        self.versions.forget_others(&all);
        for (dir, figures) in all {
            let step = next_step(&self.facts(&dir, &figures));
            if matches!(step, PublicationStep::Order | PublicationStep::Publish)
                && !self.versions.may_try(&dir)
            {
                continue;
            }
            match step {
                PublicationStep::Wait => {}
                PublicationStep::Order => {
                    let path = dir.path();
                    match self.order_publication(&dir) {
                        Ok(()) => {
                            tracing::info!("{}: complete", path.escape_ascii());
                            self.versions.tried(&dir, None);
                        }
                        Err(failure) => self.not_published(&dir, &failure),
                    }
                }
                PublicationStep::Drain => {
                    for (file, _) in &figures.undrained {
                        self.buffer.queue().urge_again(file.object);
                    }
                }
                PublicationStep::Publish => self.publish(&dir, &figures),
            }
        }
    }

    fn publish(&self, dir: &Arc<Dir>, figures: &Figures) {
        let path = dir.path();
        let whole = || {
            let now = self.figures_of(dir);
            now.is_some_and(|now| now.written == 0 && now.undrained.is_empty())
        };
        let is_in_it = |parent: &Arc<Dir>| {
            let version = self.ns.version_of(parent);
            version.is_some_and(|version| Arc::ptr_eq(&version, dir))
        };
        let flushed = self.files.flush_in_place_in(&is_in_it);
        if let Err(failure) = flushed.and_then(|()| self.check_losses(dir)) {
            let what = "what was changed in place in it may be lost on the PFS";
            return self.not_published(dir, &failure.about(what));
        }
        let published = self.ns.publish_version(dir, &whole);
        self.base.absorb_conflicts();
        match published {
            Ok(Publication::Changed) => {}
            Ok(publication) => {
                self.versions.tried(dir, None);
                self.base.errors().clear(&path);
                if let Some(any) = figures.any {
                    self.catalog.apps().committed(any);
                }
                let name = match publication {
                    Publication::Conflict { name } => format!(" as {}", name.escape_ascii()),
                    _ => String::new(),
                };
                tracing::info!("{}: published{name}", path.escape_ascii());
            }
            Err(error) => self.not_published(dir, &error.into()),
        }
        self.buffer.queue().wake_all();
    }

    fn not_published(&self, dir: &Dir, failure: &Failure) {
        self.versions.tried(dir, Some(failure.errno()));
        let reason = match dir.hidden() {
            Some(_) => format!("not published: {failure}; it is kept and tried again"),
            None => "somebody has renamed or removed this version on the PFS".into(),
        };
        self.base.report(dir.path(), failure.errno(), reason);
    }
}

/// The thread that publishes versions.
pub fn run(orders: &Arc<Orders>) {
    while !orders.base.is_ending() {
        let began = Instant::now();
        orders.look_at_versions();
        std::thread::sleep(pause_after(began, LOOK));
    }
}

#[cfg(test)]
mod tests {
    use forebay_types::Ino;

    use super::*;
    use crate::base::settings::PathRule;
    use crate::rooms::Rooms;
    use crate::testing::{Lab, create_in, drain, me};

    /// Checkpoints are published when they are complete.
    fn lab() -> Lab {
        Lab::with(|settings| {
            settings.rules = vec![PathRule {
                pattern: "/ckpt-{version}".into(),
                durability: None,
                mtbf: None,
                group: Some(GroupMode::Complete),
                placement: None,
                trust: None,
            }];
        })
    }

    /// A version with a file.
    fn write_version(rooms: &Rooms, name: &str) {
        let link = Link {
            parent: Ino::ROOT,
            name: name.into(),
        };
        let made = rooms.orders.mkdir(&link, 0o755, &me()).expect("mkdir");
        let handle = create_in(rooms, made.ino, b"f", b"content");
        rooms.files.release(handle).expect("close");
    }

    #[test]
    fn a_link_to_a_file_of_an_older_version_does_not_complete_a_version() {
        let lab = lab();
        let rooms = lab.rooms();
        let link = |parent, name: &str| Link {
            parent,
            name: name.into(),
        };
        let look = || (0..3).for_each(|_| rooms.orders.look_at_versions());
        write_version(rooms, "ckpt-1");
        let made = rooms.orders.mkdir(&link(Ino::ROOT, "ckpt-2"), 0o755, &me());
        let second = made.expect("mkdir").ino;
        let handle = create_in(rooms, second, b"g", b"");
        drain(rooms);
        look();
        assert_eq!(lab.on_pfs("ckpt-1/f"), b"content");
        rooms.files.release(handle).expect("close");
        // The next one has what has not changed as a link, and no file of its own yet.
        let made = rooms.orders.mkdir(&link(Ino::ROOT, "ckpt-3"), 0o755, &me());
        let third = made.expect("mkdir").ino;
        let first = rooms
            .orders
            .ns
            .lookup(Ino::ROOT, b"ckpt-1")
            .expect("there")
            .attr
            .ino;
        let old = rooms.orders.ns.lookup(first, b"f").expect("there").attr.ino;
        rooms
            .files
            .link(old, &link(third, "f"), &me())
            .expect("link");
        drain(rooms);
        look();
        assert!(!lab.pfs("ckpt-3").exists(), "published before its files");
        let handle = create_in(rooms, third, b"h", b"more");
        rooms.files.release(handle).expect("close");
        drain(rooms);
        let handle = create_in(rooms, second, b"i", b"");
        rooms.files.release(handle).expect("close");
        look();
        assert!(!lab.pfs("ckpt-3").exists(), "nothing newer has begun");
    }

    #[test]
    fn a_version_whose_files_were_never_seen_here_is_published_too() {
        let lab = lab();
        let rooms = lab.rooms();
        write_version(rooms, "ckpt-1");
        write_version(rooms, "ckpt-2");
        drain(rooms);
        // Outdated, it leaves before anybody has looked.
        let mut left = 0;
        for file in rooms.buffer.files() {
            if file.path().starts_with(b"ckpt-1/") {
                left += usize::from(rooms.buffer.evict(&file).is_some());
            }
        }
        assert_eq!(left, 1);
        assert!(!lab.pfs("ckpt-1").exists());
        for _ in 0..3 {
            rooms.orders.look_at_versions();
        }
        assert_eq!(lab.on_pfs("ckpt-1/f"), b"content");
    }
}
