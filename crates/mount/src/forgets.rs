//! References that the kernel has and drops, and the directories that the mount knows by name: what
//! it answers by itself gives the kernel references that the server knows nothing of.
//!
//! The kernel says how many references of a number it drops, not of which session: after a new
//! session with the server the kernel may have the file twice under one number, once for each
//! session ([`fuser::Generation`]). Invariants:
//!
//! 1. A session is told to drop no reference that an earlier session has given.
//! 2. Once the kernel has dropped all that it was given under a number, the session is told to drop
//!    all that it has given, and not before: while the kernel has one, the session keeps one.
//! 3. The mount gives a reference only of what the session has given one of, under the same lock.
//! 4. The client is told of each answer once that the kernel has nothing of any more. One that has
//!    come and that the kernel has not been given yet does not count: the client still knows it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};

use forebay_client::Client;
use forebay_types::{Attr, FileKind, Ino, limits};
use forebay_wire::Shown;
use parking_lot::Mutex;

use crate::company::Company;
use crate::dirs::{Dirs, Moment, Touched};
use crate::wholes::Wholes;

/// So many are dropped at once, without waiting for more.
const BATCH: usize = 512;

const _: () = assert!(BATCH <= limits::FORGETS_PER_MESSAGE_MAX);

type Counts = HashMap<Ino, u64>;

/// What the kernel has of one number in this session.
#[derive(Default)]
struct Held {
    /// What it was given, by the server and by the mount.
    kernel: u64,
    /// What the server has given.
    server: u64,
}

/// When a request began.
#[derive(Clone, Copy)]
pub(crate) struct Began {
    moment: Moment,
    generation: u64,
}

/// What the kernel has, by the session that has given it.
#[derive(Default)]
struct References {
    /// Of this session.
    generation: u64,
    now: HashMap<Ino, Held>,
    /// Of all earlier ones.
    before: Counts,
    /// By how many answers the kernel was given what it has, of any session.
    answers: Counts,
    /// Of this session, and to be dropped.
    waiting: Vec<(Ino, u64)>,
    /// Somebody sends those that wait, or is to, until none do.
    are_sent: bool,
    /// Of this session.
    dirs: Dirs,
    /// Of this session.
    wholes: Wholes,
}

impl References {
    fn follow(&mut self, generation: u64) {
        if generation <= self.generation {
            return;
        }
        self.generation = generation;
        for (ino, held) in self.now.drain() {
            *self.before.entry(ino).or_default() += held.kernel;
        }
        self.dirs.clear();
        self.wholes.clear();
        // The end of its session has dropped them.
        self.waiting.clear();
    }

    /// Whether nobody was to send those that wait; the caller is to.
    fn claim(&mut self) -> bool {
        !std::mem::replace(&mut self.are_sent, true)
    }

    fn gives(&mut self, ino: Ino, generation: u64) -> bool {
        self.follow(generation);
        let answers = self.answers.entry(ino).or_default();
        *answers += 1;
        let is_new = *answers == 1;
        match generation == self.generation {
            true => {
                let held = self.now.entry(ino).or_default();
                held.kernel += 1;
                held.server += 1;
            }
            false => *self.before.entry(ino).or_default() += 1,
        }
        is_new
    }

    /// Those of earlier sessions come first: a reference that is dropped too late costs memory, one
    /// that is dropped too early a file that is in use.
    ///
    /// If the kernel has none any more, of any session: how many answers have given those.
    fn drops(&mut self, ino: Ino, count: u64) -> Option<u64> {
        let rest = count - take(&mut self.before, ino, count);
        let Entry::Occupied(mut entry) = self.now.entry(ino) else {
            return self.take_answers(ino);
        };
        let held = entry.get_mut();
        held.kernel = held.kernel.saturating_sub(rest);
        let kept = u64::from(held.kernel > 0);
        let dropped = match kept {
            0 => held.server,
            _ => rest.min(held.server - 1),
        };
        held.server -= dropped;
        if kept == 0 {
            entry.remove();
            self.dirs.forgotten(ino);
            self.wholes.remove(ino);
        }
        if dropped > 0 {
            self.waiting.push((ino, dropped));
        }
        self.take_answers(ino)
    }

    fn take_answers(&mut self, ino: Ino) -> Option<u64> {
        let has_some = self.now.contains_key(&ino) || self.before.contains_key(&ino);
        (!has_some).then(|| self.answers.remove(&ino))?
    }

    /// A directory that is known by this name, with one reference more for the kernel.
    fn give_known(&mut self, parent: Ino, name: &[u8]) -> Option<(Attr, Duration)> {
        let (attr, span) = self.dirs.find(parent, name)?;
        self.now.get_mut(&attr.ino)?.kernel += 1;
        Some((attr, span))
    }
}

/// Takes at most so many of a number away; how many those are.
fn take(counts: &mut Counts, ino: Ino, count: u64) -> u64 {
    let Entry::Occupied(mut held) = counts.entry(ino) else {
        return 0;
    };
    let taken = count.min(*held.get());
    *held.get_mut() -= taken;
    if *held.get() == 0 {
        held.remove();
    }
    taken
}

/// Where a server is elsewhere, references are dropped many by one message: nobody waits for it.
pub(crate) struct Forgets {
    references: Mutex<References>,
    at_once: bool,
}

impl Forgets {
    pub(crate) fn new(company: Company) -> Forgets {
        Forgets {
            references: Mutex::default(),
            at_once: company == Company::Alone,
        }
    }

    /// The kernel is about to get a reference, as one of this generation. Whether it has had none.
    pub(crate) fn gives(&self, ino: Ino, generation: u64) -> bool {
        // A server in this process has one session, and nobody asks.
        self.at_once || self.references.lock().gives(ino, generation)
    }

    /// Something is about to be asked for.
    pub(crate) fn begin(&self, client: &Client) -> Began {
        let generation = client.generation();
        let moment = self.references.lock().dirs.now();
        Began { moment, generation }
    }

    /// The directory that a name leads to, if the mount knows: the kernel is about to get a
    /// reference, as one of this generation, and may believe the attributes for so long. No recall
    /// may be followed until the answer is given.
    pub(crate) fn give_known(
        &self,
        (parent, name): (Ino, &[u8]),
        generation: u64,
    ) -> Option<(Attr, Duration)> {
        if self.at_once {
            return None;
        }
        let mut references = self.references.lock();
        references.follow(generation);
        match references.generation == generation {
            true => references.give_known(parent, name),
            false => None,
        }
    }

    /// Whether a name certainly leads nowhere. No recall may be followed until that is answered.
    pub(crate) fn lacks(&self, (parent, name): (Ino, &[u8]), generation: u64) -> bool {
        if self.at_once {
            return false;
        }
        let mut references = self.references.lock();
        references.follow(generation);
        references.generation == generation && references.wholes.lack(parent, name)
    }

    /// The kernel is about to get a reference of what it has made, by a request that began in that
    /// generation and has ended in this one. What the answer says is firm for `span`, and no recall
    /// may be followed meanwhile.
    pub(crate) fn gives_made(&self, made: &Shown, (began, now): (u64, u64), span: Duration) {
        if self.at_once {
            return;
        }
        let mut references = self.references.lock();
        references.gives(made.ino, now);
        let is_now = (began, references.generation) == (now, now);
        match made.whole && is_now && !span.is_zero() {
            true => references.wholes.begin(made.ino, Instant::now() + span),
            false => references.wholes.remove(made.ino),
        }
    }

    /// The kernel is about to get a reference of what a name was found to lead to, as the answer to
    /// a request that began then. It is firm for `span`, and no recall may be followed meanwhile.
    /// Whether the kernel may believe its attributes: no change of this mount is after them.
    pub(crate) fn gives_found(
        &self,
        name: (Ino, &[u8]),
        shown: &Attr,
        (began, generation): (Began, u64),
        span: Duration,
    ) -> bool {
        if self.at_once {
            return true;
        }
        let mut references = self.references.lock();
        references.gives(shown.ino, generation);
        let is_now = (began.generation, references.generation) == (generation, generation);
        if is_now && !span.is_zero() {
            let asked = (began.moment, Instant::now() + span);
            references.dirs.enter(name, shown, asked);
        }
        let is_dir = shown.kind == FileKind::Directory;
        !is_dir || references.dirs.are_newest(shown.ino, began.moment)
    }

    /// A file is about to be made in a directory. Whether the directory's attributes are to be
    /// asked for, too.
    pub(crate) fn makes_in(&self, dir: Ino, name: &[u8]) -> bool {
        if self.at_once {
            return false;
        }
        let mut references = self.references.lock();
        references.wholes.make(dir, name);
        references.dirs.wants(dir) || references.wholes.has(dir)
    }

    /// A request that began then has made a file in a directory, or has failed. What the answer has
    /// of the directory is firm for `span`.
    pub(crate) fn made_in(&self, dir: Ino, shown: Option<&Shown>, began: Began, span: Duration) {
        if self.at_once {
            return;
        }
        let mut references = self.references.lock();
        let is_firm = references.generation == began.generation && !span.is_zero();
        let shown = shown.filter(|shown| shown.firm && is_firm);
        let asked = (began.moment, Instant::now() + span);
        if shown.is_some_and(|shown| shown.whole && shown.attr.ino == dir) {
            references.wholes.go_on(dir, asked.1);
        }
        references
            .dirs
            .made_in(dir, shown.map(|shown| &shown.attr), asked);
    }

    /// Asks by `ask` for a change of these.
    pub(crate) fn changing<T>(&self, touched: &[Touched<'_>], ask: impl FnOnce() -> T) -> T {
        if self.at_once {
            return ask();
        }
        let each = |change: fn(&mut Dirs, Touched<'_>)| {
            let references = &mut *self.references.lock();
            for touched in touched {
                if let Touched::Name(dir, name) | Touched::Made(dir, name) = *touched {
                    references.wholes.make(dir, name);
                }
                change(&mut references.dirs, *touched);
            }
        };
        each(Dirs::begin_change);
        let answer = ask();
        each(Dirs::end_change);
        answer
    }

    /// The server recalls these.
    pub(crate) fn recalled(&self, attrs: impl Iterator<Item = Ino>) {
        let references = &mut *self.references.lock();
        attrs.for_each(|ino| {
            references.dirs.remove(ino);
            references.wholes.remove(ino);
        });
    }

    /// The session is lost.
    pub(crate) fn lost(&self) {
        let references = &mut *self.references.lock();
        references.dirs.clear();
        references.wholes.clear();
    }

    /// Whether the kernel has references, or is about to get some.
    pub(crate) fn are_owed(&self, ino: Ino) -> bool {
        self.references.lock().answers.contains_key(&ino)
    }

    /// All that the kernel has references of.
    pub(crate) fn known(&self) -> Vec<Ino> {
        let references = self.references.lock();
        let all = references.answers.keys();
        all.copied().chain([Ino::ROOT]).collect()
    }

    /// The kernel has dropped some references. Whether so many wait that they are to be sent: by
    /// another thread, for a reader that waits for the server reads nothing.
    #[must_use]
    pub(crate) fn add(&self, client: &Client, nodes: impl Iterator<Item = (Ino, u64)>) -> bool {
        if self.at_once {
            client.forget(nodes.collect());
            return false;
        }
        let mut gone = Vec::new();
        {
            let mut references = self.references.lock();
            references.follow(client.generation());
            for (ino, count) in nodes {
                gone.extend(references.drops(ino, count).map(|answers| (ino, answers)));
            }
        }
        let of_client = gone.into_iter().filter_map(|(ino, answers)| {
            let generation = client.forgotten(ino, answers)?;
            Some((ino, generation))
        });
        let of_client: Vec<_> = of_client.collect();
        let mut references = self.references.lock();
        for (ino, generation) in of_client {
            references.follow(generation);
            if references.generation == generation {
                references.waiting.push((ino, 1));
            }
        }
        references.waiting.len() >= BATCH && references.claim()
    }

    /// Whether some wait that nobody is to send: who asks is to.
    #[must_use]
    pub(crate) fn are_to_be_sent(&self) -> bool {
        let mut references = self.references.lock();
        !references.waiting.is_empty() && references.claim()
    }

    /// Sends those that wait, by the one who is to.
    pub(crate) fn send(&self, client: &Client) {
        let mut references = self.references.lock();
        loop {
            references.follow(client.generation());
            let generation = references.generation;
            let waiting = std::mem::take(&mut references.waiting);
            if waiting.is_empty() {
                references.are_sent = false;
                return;
            }
            drop(references);
            for batch in waiting.chunks(limits::FORGETS_PER_MESSAGE_MAX) {
                client.forget_in(generation, batch.to_vec());
            }
            references = self.references.lock();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use forebay_client::{Dial, Lasting, OnLost};
    use forebay_policy::links::Distribution;
    use forebay_types::{Errno, TimeSpec};
    use forebay_wire::{Connection, Reply, Request, Response};

    use super::*;

    const FILE: Ino = Ino(7);
    /// The client has a reference of its own of it.
    const HAD: Ino = Ino(1000);
    const NAME: (Ino, &[u8]) = (Ino(2), b"d");

    /// Notes what it is told to drop.
    struct Server {
        generation: AtomicU64,
        dropped: Mutex<Vec<(Ino, u64)>>,
    }

    impl Connection for Server {
        fn call(&self, request: Request, _: &[u8], _: &mut [u8]) -> Result<Reply, Errno> {
            if let Request::Forget(nodes) = request {
                self.dropped.lock().extend(nodes);
            }
            Ok(Response::Done.into())
        }

        fn generation(&self) -> u64 {
            self.generation.load(Ordering::Relaxed)
        }

        fn hands_over_descriptors(&self) -> bool {
            false
        }

        fn forgotten(&self, ino: Ino, _: u64) -> Option<u64> {
            (ino == HAD).then(|| self.generation())
        }
    }

    struct Lab {
        server: Arc<Server>,
        client: Client,
        forgets: Forgets,
    }

    impl Lab {
        fn new() -> Lab {
            let server = Arc::new(Server {
                generation: AtomicU64::new(1),
                dropped: Mutex::default(),
            });
            Lab {
                client: Client::of_another_node(server.clone(), Distribution::default()),
                server,
                forgets: Forgets::new(Company::Shared),
            }
        }

        fn give(&self, count: u64) {
            let generation = self.client.generation();
            for _ in 0..count {
                self.forgets.gives(FILE, generation);
            }
        }

        /// The kernel drops so many; what the server is told.
        fn drop(&self, count: u64) -> Vec<(Ino, u64)> {
            let dropped = std::iter::once((FILE, count));
            assert!(!self.forgets.add(&self.client, dropped), "one is not many");
            self.forgets.send(&self.client);
            std::mem::take(&mut *self.server.dropped.lock())
        }

        fn begin_session(&self) {
            self.server.generation.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_an_earlier_session_gave_is_not_dropped_in_the_next() {
        let lab = Lab::new();
        lab.give(3);
        assert_eq!(lab.drop(1), [(FILE, 1)]);
        lab.begin_session();
        lab.give(2);
        // The kernel has the file twice, and drops the one that it had before.
        assert_eq!(lab.drop(2), []);
        assert_eq!(lab.drop(2), [(FILE, 2)]);
    }

    #[test]
    fn whichever_goes_first_all_go_in_the_end() {
        let lab = Lab::new();
        lab.give(5);
        lab.begin_session();
        lab.give(2);
        assert_eq!(lab.drop(2), []);
        assert_eq!(lab.drop(5), [(FILE, 2)]);
        assert_eq!(lab.drop(1), []);
    }

    #[test]
    fn many_are_sent_by_one_and_what_the_client_had_goes_with_them() {
        let lab = Lab::new();
        let many = |first: u64| (first..first + BATCH as u64).map(Ino);
        for ino in many(1000).chain(many(5000)) {
            lab.forgets.gives(ino, 1);
        }
        let drop = |first| {
            lab.forgets
                .add(&lab.client, many(first).map(|ino| (ino, 1)))
        };
        assert!(drop(1000));
        // Somebody is to send them, and has not come to the end.
        assert!(!drop(5000) && !lab.forgets.are_to_be_sent());
        lab.forgets.send(&lab.client);
        let dropped = std::mem::take(&mut *lab.server.dropped.lock());
        assert_eq!(dropped.len(), 2 * BATCH + 1);
        assert_eq!(dropped.iter().filter(|(ino, _)| *ino == HAD).count(), 2);
        assert!(!lab.forgets.are_to_be_sent());
    }

    #[test]
    fn what_was_to_be_dropped_in_an_earlier_session_is_not_sent() {
        let lab = Lab::new();
        lab.give(1);
        assert!(!lab.forgets.add(&lab.client, std::iter::once((FILE, 1))));
        assert!(!lab.forgets.references.lock().waiting.is_empty());
        lab.begin_session();
        lab.give(1);
        assert!(lab.forgets.references.lock().waiting.is_empty());
        assert_eq!(lab.drop(1), [(FILE, 1)]);
    }

    #[test]
    fn an_answer_of_an_earlier_session_that_comes_late_is_of_that_one() {
        let lab = Lab::new();
        lab.begin_session();
        lab.give(1);
        lab.forgets.gives(FILE, 1);
        assert_eq!(lab.drop(1), []);
        assert_eq!(lab.drop(1), [(FILE, 1)]);
    }

    fn directory() -> Attr {
        let at = TimeSpec::default();
        Attr {
            ino: FILE,
            kind: FileKind::Directory,
            perm: 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: at,
            mtime: at,
            ctime: at,
        }
    }

    /// The server answers a look with the directory, firm.
    fn find(lab: &Lab) -> bool {
        let began = lab.forgets.begin(&lab.client);
        let of = (began, lab.client.generation());
        lab.forgets
            .gives_found(NAME, &directory(), of, limits::SHOWN_FOR * 60)
    }

    fn is_known(lab: &Lab) -> bool {
        let generation = lab.client.generation();
        lab.forgets.give_known(NAME, generation).is_some()
    }

    #[test]
    fn what_the_mount_gives_the_server_need_not_know_of() {
        let lab = Lab::new();
        assert!(!is_known(&lab));
        assert!(find(&lab));
        assert!(is_known(&lab) && is_known(&lab));
        // The kernel has three, and the server has given one.
        assert_eq!(lab.drop(1), []);
        assert!(is_known(&lab));
        assert_eq!(lab.drop(2), []);
        assert_eq!(lab.drop(1), [(FILE, 1)]);
        assert!(!is_known(&lab), "the server may have forgotten it");
        assert!(find(&lab));
        assert!(find(&lab));
        assert!(is_known(&lab));
        assert_eq!(lab.drop(2), [(FILE, 1)]);
        assert_eq!(lab.drop(1), [(FILE, 1)]);
    }

    #[test]
    fn what_is_recalled_or_of_an_earlier_session_is_not_known() {
        let lab = Lab::new();
        assert!(find(&lab));
        lab.forgets.recalled(std::iter::once(Ino(8)));
        assert!(is_known(&lab));
        lab.forgets.recalled(std::iter::once(FILE));
        assert!(!is_known(&lab));
        assert!(find(&lab));
        lab.begin_session();
        assert!(!is_known(&lab));
        // It has had one of this session, and two of the one before.
        assert!(find(&lab));
        assert!(is_known(&lab));
        lab.forgets.lost();
        assert!(!is_known(&lab));
        assert_eq!(lab.drop(3), []);
        assert_eq!(lab.drop(2), [(FILE, 1)]);
    }

    #[test]
    fn a_change_of_this_mount_is_over_before_anything_is_known_again() {
        let lab = Lab::new();
        assert!(find(&lab));
        let touched = [Touched::Name(NAME.0, NAME.1)];
        lab.forgets.changing(&touched, || assert!(!is_known(&lab)));
        assert!(!is_known(&lab));
        // The kernel is not to believe what is asked for meanwhile.
        let touched = [Touched::Attr(FILE)];
        let believed = lab.forgets.changing(&touched, || find(&lab));
        assert!(!believed && !is_known(&lab));
        assert!(find(&lab) && is_known(&lab));
    }

    /// A server that knows one directory, and each client that comes back.
    struct Known;

    impl Connection for Known {
        fn call(&self, request: Request, _: &[u8], _: &mut [u8]) -> Result<Reply, Errno> {
            let response = match request {
                Request::Lookup { .. } | Request::Getattr { .. } => {
                    Response::Attr(directory().into())
                }
                _ => Response::Done,
            };
            Ok(response.into())
        }

        fn hands_over_descriptors(&self) -> bool {
            false
        }
    }

    struct Dials(Arc<Mutex<Vec<OnLost>>>);

    impl Dial for Dials {
        fn dial(&self, _: u64, lost: OnLost) -> Result<Arc<dyn Connection>, String> {
            self.0.lock().push(lost);
            Ok(Arc::new(Known))
        }
    }

    #[test]
    fn what_is_found_while_the_kernel_forgets_it_is_known_after_a_restart_of_the_server() {
        let losses = Arc::new(Mutex::new(Vec::new()));
        let lasting = Lasting::begin(Box::new(Dials(losses.clone())), None).expect("there");
        let client = Client::of_another_node(Arc::new(lasting), Distribution::default());
        losses.lock().pop().expect("a session")();
        let forgets = Forgets::new(Company::Shared);
        let find = || {
            let found = client.lookup(Ino::ROOT, b"d", 0);
            found.expect("found").attr.ino
        };
        let gives = |ino| forgets.gives(ino, client.generation());
        let is_there = || client.getattr(FILE, None).is_ok();
        gives(find());
        assert!(
            client.generation() > 1,
            "of the first session nothing was had before"
        );
        // The kernel has forgotten it and asks for it anew; the answer comes before its word.
        let found = find();
        assert!(!forgets.add(&client, std::iter::once((FILE, 1))));
        gives(found);
        assert!(is_there());
    }
}
