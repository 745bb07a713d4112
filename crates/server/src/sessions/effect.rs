//! What an answered request has shown and changed, so far as other clients may believe it.

use forebay_types::{Errno, Handle, Ino};
use forebay_wire::{Link, OpenMode, Request, Response};
use smallvec::SmallVec;

use super::shown::{NameKey, ShownLately, Targets};

/// What of a request matters here; taken before the request is answered.
#[derive(Default)]
pub struct Effect {
    /// When it began.
    since: u64,
    /// A name whose target the answer shows.
    shows: Option<NameKey>,
    /// It only looks whether the name leads anywhere.
    looks: bool,
    /// What has other attributes afterwards.
    changes: Option<Ino>,
    /// It changes the content of that.
    content: bool,
    /// It brings what was stored in pages: the kernel holds these meanwhile.
    write_back: bool,
    /// It sets the size: the kernel writes nothing back meanwhile.
    sets_size: bool,
    /// It keeps pages of this file, read by this handle.
    keeps: Option<(Ino, Handle)>,
    /// Names that lead elsewhere afterwards, with what they led to before.
    names: SmallVec<[(NameKey, Option<Targets>); 2]>,
    /// By renaming one to the other.
    renames: bool,
    /// It opens a file to write it.
    opens: bool,
    /// It makes a name in this directory.
    makes_in: Option<Ino>,
    /// That of a directory.
    makes_dir: bool,
}

/// The directory in which a request makes a name.
fn makes_in(request: &Request) -> Option<Ino> {
    match request {
        Request::Mknod { link, .. }
        | Request::Mkdir { link, .. }
        | Request::Symlink { link, .. }
        | Request::Create { link, .. }
        | Request::Link { link, .. } => Some(link.parent),
        Request::Rename { to, .. } => Some(to.parent),
        _ => None,
    }
}

/// To a client that does not listen nothing may be said that it may believe.
pub fn not_firm(response: &mut Response) {
    match response {
        Response::Attr(shown) => (shown.firm, shown.whole) = (false, false),
        Response::Created(shown, _, parent) => {
            shown.firm = false;
            *parent = None;
        }
        _ => {}
    }
}

/// How long a request may wait for pages of others, which its own kernel's pages may wait for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Not at all: its kernel holds pages that others may wait for.
    None,
    /// As long as attributes are believed: others that do the same may wait for each other.
    Short,
    /// Until who does not drop its pages is fenced.
    Full,
}

/// Whom an effect concerns.
pub struct Concerned {
    /// What has other attributes now.
    pub changed: Targets,
    /// What a name led to is not known: nobody knows whom it concerns.
    pub unknown: bool,
}

impl Effect {
    /// `file` is what the request's handle is open on.
    pub fn of(request: &Request, file: Option<Ino>, lately: &ShownLately) -> Effect {
        let mut effect = Effect {
            since: lately.now(),
            makes_in: makes_in(request),
            ..Effect::default()
        };
        let shows = |link: &Link| Some(lately.key(link));
        let leaves = |link: &Link| {
            let name = lately.key(link);
            (name, lately.targets(name))
        };
        match request {
            Request::Lookup { link, .. } => {
                effect.shows = shows(link);
                effect.looks = true;
            }
            Request::Mknod { link, .. }
            | Request::Mkdir { link, .. }
            | Request::Symlink { link, .. } => {
                effect.shows = shows(link);
                effect.makes_dir = matches!(request, Request::Mkdir { .. });
            }
            Request::Create { link, flags, .. } => {
                effect.shows = shows(link);
                effect.opens = flags.writes();
                effect.content = flags.truncates();
            }
            Request::Link { ino, link, .. } => {
                effect.shows = shows(link);
                effect.changes = Some(*ino);
            }
            Request::Setattr { ino, set, .. } => {
                effect.changes = Some(*ino);
                effect.content = set.size.is_some();
                effect.sets_size = effect.content;
            }
            Request::SetXattr { ino, .. } | Request::RemoveXattr { ino, .. } => {
                effect.changes = Some(*ino)
            }
            Request::CreateUnnamed { .. } => effect.opens = true,
            Request::Open { ino, flags, .. } if flags.writes() || flags.truncates() => {
                effect.changes = Some(*ino);
                effect.opens = flags.writes();
                effect.content = flags.truncates();
            }
            Request::Write { how, .. } => {
                effect.changes = file;
                effect.content = true;
                effect.write_back = how.write_back;
            }
            Request::Space { .. } => {
                effect.changes = file;
                effect.content = true;
            }
            Request::Read {
                pages: true,
                handle,
                ..
            } => effect.keeps = file.map(|file| (file, *handle)),
            Request::Unlink { link, .. } | Request::Rmdir { link, .. } => {
                effect.names.push(leaves(link));
            }
            Request::Rename { from, to, .. } => {
                effect.names.extend([leaves(from), leaves(to)]);
                effect.renames = true;
            }
            _ => {}
        }
        effect
    }

    /// Whether it may change what others believe.
    pub fn may_concern(&self) -> bool {
        self.changes.is_some() || !self.names.is_empty() || self.makes_in.is_some()
    }

    /// Whether it may change what a file holds, or gives the right to do that unseen. What a kernel
    /// writes back is from before, and who has it waits for nobody.
    pub fn may_change_content(&self) -> bool {
        (self.content || self.opens) && !self.write_back
    }

    /// The file whose content it changes, where that is known before it is answered.
    pub fn content(&self) -> Option<Ino> {
        self.changes.filter(|_| self.content)
    }

    /// The file of which it keeps pages, and the handle by which it reads them.
    pub fn keeps(&self) -> Option<(Ino, Handle)> {
        self.keeps
    }

    /// The file whose content it has changed, or is about to change out of the server's sight.
    pub fn changed_content(&self, response: &Response) -> Option<Ino> {
        match response {
            Response::Created(shown, ..) if self.content => Some(shown.attr.ino),
            _ => self.content(),
        }
    }

    /// How long who asks may wait for others.
    pub fn patience(&self) -> Patience {
        match (self.write_back, self.sets_size) {
            (true, _) => Patience::None,
            (_, true) => Patience::Short,
            _ => Patience::Full,
        }
    }

    /// A file that the kernel of `client` is to write by itself, if it is one.
    pub fn written(&self, response: &Response) -> Option<Ino> {
        let (ino, opened) = match response {
            Response::Opened(opened) => (self.changes?, opened),
            Response::Created(shown, opened, _) => (shown.attr.ino, opened),
            _ => return None,
        };
        (self.opens && opened.mode == OpenMode::Passthrough).then_some(ino)
    }

    /// What an answer changes.
    pub fn changed(&self, response: &Response, client: u32, lately: &ShownLately) -> Concerned {
        let mut concerned = Concerned {
            changed: Targets::new(),
            unknown: false,
        };
        if matches!(response, Response::Failed(_) | Response::WouldWait) {
            return concerned;
        }
        let created = match response {
            // It may have been there before.
            Response::Created(shown, ..) => Some(shown.attr.ino),
            _ => None,
        };
        let changed = [self.changes, created].into_iter().flatten();
        concerned.changed.extend(changed);
        let made_in = self.makes_in.filter(|dir| lately.makes_name(*dir, client));
        concerned.changed.extend(made_in);
        let mut led = SmallVec::<[Targets; 2]>::new();
        for (name, before) in &self.names {
            // Who looked before the change and notes what it has found from here on finds this.
            lately.name_changed(*name);
            let now = lately.targets(*name);
            concerned.unknown |= before.is_none() && now.is_none();
            led.push(before.iter().chain(&now).flatten().copied().collect());
        }
        concerned.changed.extend(led.iter().flatten().copied());
        if self.renames {
            for (to, from) in [(1, 0), (0, 1)] {
                for target in &led[from] {
                    lately.leads_to(self.names[to].0, Some(*target));
                }
            }
        }
        concerned
    }

    /// Notes what an answer shows to `client`, and says in the answer whether that is firm. A
    /// directory that is made may have the number of one that others believe to know.
    pub fn show(&self, response: &mut Response, client: u32, lately: &ShownLately) -> Option<Ino> {
        let (shown, parent) = match response {
            Response::Attr(shown) => (shown, None),
            Response::Created(shown, _, parent) => (shown, parent.as_deref_mut()),
            Response::Failed(Errno::ENOENT) => {
                if let Some(name) = self.shows.filter(|_| self.looks) {
                    lately.leads_to(name, None);
                }
                return None;
            }
            _ => return None,
        };
        let mut is_others = false;
        if self.makes_dir {
            (shown.whole, is_others) = lately.begin_whole(shown.attr.ino, client, self.since);
        }
        let mut parent = parent;
        if let Some(parent) = &mut parent {
            parent.whole = parent.whole && lately.is_whole(parent.attr.ino, client);
        }
        for shown in std::iter::once(&mut *shown).chain(parent) {
            shown.firm = lately.show_attr(shown.attr.ino, client, self.since) && !shown.outdated;
        }
        if let Some(name) = self.shows {
            lately.leads_to(name, Some(shown.attr.ino));
            shown.firm &= !lately.has_name_changed(name, self.since);
        }
        is_others.then_some(shown.attr.ino)
    }
}
