//! Tiers at a distance: what every tier must do, and what the end of a session does to them.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_holder::{Claim, DataServer, DataSession, RemoteTier, RemoteTiers};
use forebay_tiers::{
    CopyControl, CopyError, DirTier, Object, Outside, OutsideError, PfsTree, Tier, TierKind,
    conformance,
};
use forebay_types::{Errno, ObjectId};
use forebay_wire::{Connection, ObjectCall, Peer, Reply, Request, Response, Service};
use parking_lot::{Mutex, RwLock};

#[path = "remote/ends.rs"]
mod ends;
#[path = "remote/flushes.rs"]
mod flushes;
#[path = "remote/replaced.rs"]
mod replaced;
#[path = "remote/replication.rs"]
mod replication;

/// A connection whose sessions end when a test says so.
struct Breaking {
    server: RwLock<Arc<DataServer>>,
    session: RwLock<Arc<DataSession>>,
    generation: AtomicU64,
    /// The session ends after the next call was done, and before its answer.
    loses_answer: AtomicBool,
    calls: Mutex<Vec<Request>>,
}

impl Breaking {
    fn new(server: Arc<DataServer>) -> Arc<Breaking> {
        Arc::new(Breaking {
            session: RwLock::new(Arc::new(server.session())),
            server: RwLock::new(server),
            generation: AtomicU64::new(1),
            loses_answer: AtomicBool::new(false),
            calls: Mutex::default(),
        })
    }

    /// What was open is closed; the next session is of this server.
    fn begin(&self, server: Arc<DataServer>) {
        self.restart_unheard(server);
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// The same, and who asks has not heard of it.
    fn restart_unheard(&self, server: Arc<DataServer>) {
        *self.session.write() = Arc::new(server.session());
        *self.server.write() = server;
    }

    fn open_objects(&self) -> usize {
        self.session.read().open_objects()
    }
}

impl Connection for Breaking {
    fn call(&self, request: Request, payload: &[u8], into: &mut [u8]) -> Result<Reply, Errno> {
        let session = self.session.read().clone();
        let peer = Peer {
            uid: 0,
            gid: 0,
            groups: &[],
            local: false,
            near: false,
            mount: false,
            socket: None,
        };
        self.calls.lock().push(request.clone());
        let reply = session.handle(peer, request, payload, into);
        if self.loses_answer.swap(false, Ordering::AcqRel) {
            let server = self.server.read().clone();
            self.begin(server);
            return Err(Errno::ENOTCONN);
        }
        match reply.response {
            Response::Failed(errno) => Err(errno),
            _ => Ok(reply),
        }
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn hands_over_descriptors(&self) -> bool {
        false
    }
}

fn flash(dir: &Path) -> Arc<dyn Tier> {
    let tier = DirTier::open("ssd", TierKind::Ssd, dir, None, [7; 16]);
    Arc::new(tier.expect("a tier"))
}

const INSTANCE: [u8; 16] = [7; 16];
const AWAY: Errno = Errno(libc::EHOSTDOWN);

fn server(dir: &Path, boot: &str) -> Arc<DataServer> {
    let dir = dir.to_path_buf();
    let open = move |_| Ok(vec![flash(&dir)]);
    DataServer::new(boot.into(), Vec::new(), Box::new(open), None)
}

fn served(dir: &Path) -> (Arc<Breaking>, RemoteTier) {
    let connection = Breaking::new(server(dir, "boot 1"));
    (connection.clone(), tier_of(connection))
}

/// The same, in the first of two directories of its own; the other is a PFS that it sees.
fn served_with_pfs() -> ([tempfile::TempDir; 2], Arc<Breaking>, RemoteTier) {
    let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let flash_dir = dirs[0].path().to_path_buf();
    let open = move |_| Ok(vec![flash(&flash_dir)]);
    let pfs = PfsTree::open(dirs[1].path()).expect("a PFS");
    let server = DataServer::new("boot 1".into(), Vec::new(), Box::new(open), Some(pfs));
    let connection = Breaking::new(server);
    (dirs, connection.clone(), tier_of(connection))
}

fn tier_of(connection: Arc<Breaking>) -> RemoteTier {
    let tiers = RemoteTiers::new(connection, Claim::new(INSTANCE, 1)).find("server-2");
    tiers.expect("tiers").remove(0)
}

fn restart(connection: &Breaking, dir: &Path, boot: &str) {
    connection.begin(server(dir, boot));
}

fn create(tier: &RemoteTier, id: u64) -> Arc<dyn Object> {
    tier.create(ObjectId(id), &conformance::identity(id))
        .expect("create")
}

fn read(object: &dyn Object) -> Vec<u8> {
    let mut content = vec![0; 100];
    let count = object.read_at(&mut content, 0).expect("read");
    content.truncate(count);
    content
}

fn errno<T>(result: std::io::Result<T>) -> Option<Errno> {
    result.err().map(|error| Errno::of(&error))
}

/// Keeps its directory for as long as it lives.
struct Kept(RemoteTier, #[allow(dead_code)] tempfile::TempDir);

macro_rules! to_inner {
    ($($name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> $out { self.0.$name($($arg),*) })*
    };
}

impl Tier for Kept {
    to_inner! {
        name() -> &str;
        kind() -> TierKind;
        capacity_bytes() -> u64;
        boot() -> Option<String>;
        space() -> std::io::Result<forebay_tiers::Space>;
        create(id: ObjectId, identity: &forebay_tiers::Identity) -> std::io::Result<Arc<dyn Object>>;
        create_shared(id: ObjectId, identity: &forebay_tiers::Identity) -> std::io::Result<Arc<dyn Object>>;
        open(id: ObjectId) -> std::io::Result<Arc<dyn Object>>;
        open_shared(id: ObjectId) -> std::io::Result<Arc<dyn Object>>;
        remove(id: ObjectId) -> std::io::Result<()>;
        quarantine(id: ObjectId) -> std::io::Result<String>;
        identity(id: ObjectId) -> std::io::Result<Option<forebay_tiers::Identity>>;
        list(visit: &mut dyn FnMut(ObjectId)) -> std::io::Result<()>;
        sync_all() -> std::io::Result<()>;
    }
}

#[test]
fn a_tier_at_a_distance_is_a_tier() {
    conformance::all(&|| {
        let dir = tempfile::tempdir().expect("a directory");
        let (_, tier) = served(dir.path());
        Arc::new(Kept(tier, dir))
    });
}

#[test]
fn more_ids_than_one_answer_has_room_for_are_listed() {
    let dir = tempfile::tempdir().expect("a directory");
    let (connection, tier) = served(dir.path());
    let mut listed = Vec::new();
    for id in 1..=300 {
        drop(create(&tier, id * 7));
    }
    tier.list(&mut |id| listed.push(id.0)).expect("list");
    assert_eq!(listed, (1..=300).map(|id| id * 7).collect::<Vec<_>>());
    // In small answers.
    let (mut after, mut found) = (None, Vec::new());
    loop {
        let mut room = [0; 100];
        let tier = forebay_types::TierId(0);
        let request = Request::Object(ObjectCall::List { tier, after });
        let Ok(Reply {
            response: Response::Moved(bytes),
            ..
        }) = connection.call(request, &[], &mut room)
        else {
            panic!("no list");
        };
        let ids = room[..bytes as usize].chunks_exact(8);
        found.extend(ids.map(|id| u64::from_le_bytes(id.try_into().expect("8 bytes"))));
        if bytes == 0 {
            break;
        }
        after = found.last().map(|id| ObjectId(*id));
    }
    assert_eq!(found, listed);
}

#[test]
fn what_was_appended_or_made_or_removed_happens_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let (connection, tier) = served(dir.path());
    connection.loses_answer.store(true, Ordering::Release);
    let object = create(&tier, 1);
    for (end, part) in [(1, "x"), (3, "yz"), (5, "yz")] {
        connection.loses_answer.store(true, Ordering::Release);
        let appended = object.append(part.as_bytes()).expect("appended once");
        assert_eq!(appended, (part.len(), end));
    }
    assert_eq!(read(&*object), b"xyzyz");
    connection.loses_answer.store(true, Ordering::Release);
    tier.remove(ObjectId(1)).expect("removed once");
    assert_eq!(errno(tier.open(ObjectId(1))), Some(Errno::ENOENT));
    assert_eq!(errno(tier.remove(ObjectId(1))), Some(Errno::ENOENT));
}

#[test]
fn what_a_node_had_when_it_stopped_is_looked_at_by_who_starts_anew() {
    let dir = tempfile::tempdir().expect("a directory");
    let (connection, tier) = served(dir.path());
    let object = create(&tier, 1);
    object.write_at(b"some", 0).expect("write");
    restart(&connection, dir.path(), "boot 2");
    // Not even an fsync that finds nothing to do.
    for _ in 0..2 {
        assert_eq!(errno(object.sync(false)), Some(AWAY));
    }
    assert_eq!(errno(object.stat()), Some(AWAY));
    assert_eq!(errno(tier.open(ObjectId(1))), Some(AWAY));
    assert!(!tier.is_answering());
    assert_eq!(tier.boot().as_deref(), Some("boot 1"));
    let anew = tier_of(connection);
    assert_eq!(anew.boot().as_deref(), Some("boot 2"));
    assert_eq!(read(&*anew.open(ObjectId(1)).expect("open")), b"some");
}

#[test]
fn a_directory_in_the_place_of_another_is_not_taken_for_it() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let both = |first: usize| {
        let dirs = dirs.each_ref().map(|dir| dir.path().to_path_buf());
        let open = move |_| Ok(vec![flash(&dirs[first]), flash(&dirs[1 - first])]);
        DataServer::new("boot 1".into(), Vec::new(), Box::new(open), None)
    };
    let connection = Breaking::new(both(0));
    let tiers = RemoteTiers::new(connection.clone(), Claim::new(INSTANCE, 1));
    let tier = tiers.find("server-2").expect("tiers").remove(0);
    let object = create(&tier, 1);
    object.write_at(b"some", 0).expect("write");
    assert!(!tiers.is_to_be_looked_at());
    connection.begin(both(1));
    assert!(tiers.is_to_be_looked_at());
    assert_eq!(errno(object.stat()), Some(AWAY));
    assert_eq!(
        errno(tier.create(ObjectId(2), &conformance::identity(2))),
        Some(AWAY)
    );
    let anew = RemoteTiers::new(connection, Claim::new(INSTANCE, 1)).find("server-2");
    let second = anew.expect("tiers").remove(1);
    assert_eq!(second.mark(), tier.mark());
    assert_eq!(read(&*second.open(ObjectId(1)).expect("open")), b"some");
}

#[test]
fn what_is_only_expected_is_not_used_before_it_was_looked_at() {
    let dir = tempfile::tempdir().expect("a directory");
    let (connection, tier) = served(dir.path());
    create(&tier, 1).write_at(b"some", 0).expect("write");
    let tiers = RemoteTiers::new(connection, Claim::new(INSTANCE, 1));
    let expected = tiers
        .expect("server-2", vec![tier.facts().clone()])
        .remove(0);
    assert_eq!(
        (expected.name(), expected.mark()),
        (tier.name(), tier.mark())
    );
    assert_eq!(errno(expected.open(ObjectId(1))), Some(AWAY));
    assert!(!expected.is_answering() && tiers.is_to_be_looked_at());
    assert_eq!(errno(expected.remove(ObjectId(1))), Some(AWAY));
}

#[test]
fn what_is_gone_when_its_server_comes_back_is_not_taken_for_another() {
    let dir = tempfile::tempdir().expect("a directory");
    let (connection, tier) = served(dir.path());
    let object = create(&tier, 1);
    object.write_at(b"some", 0).expect("write");
    object.sync(false).expect("sync");
    flash(dir.path()).remove(ObjectId(1)).expect("remove");
    restart(&connection, dir.path(), "boot 1");
    let mut bytes = [0; 4];
    assert_eq!(errno(object.read_at(&mut bytes, 0)), Some(Errno::EIO));
    create(&tier, 1);
    assert_eq!(errno(object.read_at(&mut bytes, 0)), Some(Errno::EIO));
}

#[test]
fn a_handle_of_before_is_nobodys() {
    let dir = tempfile::tempdir().expect("a directory");
    let (connection, tier) = served(dir.path());
    let (first, second) = (create(&tier, 1), create(&tier, 2));
    first.write_at(b"1", 0).expect("write");
    second.write_at(b"2", 0).expect("write");
    // The data server was started anew, and the connection has not heard of it.
    connection.restart_unheard(server(dir.path(), "boot 1"));
    let other = tier.open(ObjectId(2)).expect("open");
    assert_eq!(read(&*first), b"1");
    assert_eq!(read(&*second), b"2");
    assert_eq!(read(&*other), b"2");
}

#[test]
fn many_that_begin_at_once_have_one_session() {
    let dir = tempfile::tempdir().expect("a directory");
    for round in 0..20 {
        let connection = Breaking::new(server(dir.path(), "boot 1"));
        let barrier = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    barrier.wait();
                    let begin = ObjectCall::Begin {
                        instance: INSTANCE,
                        epoch: 1,
                    };
                    assert!(
                        connection
                            .call(Request::Object(begin), &[], &mut [])
                            .is_ok()
                    );
                });
            }
        });
        let ask = Request::Object(ObjectCall::Space(forebay_types::TierId(0)));
        let answer = connection.call(ask, &[], &mut []);
        assert!(answer.is_ok(), "round {round}: {:?}", answer.err());
    }
}

/// An empty file on a PFS with the name of one that is being made, as it is told to a data server.
fn outside(pfs: &Path, generation: u64) -> (Outside, std::path::PathBuf) {
    let generation = forebay_types::Generation(generation);
    let name = PfsTree::temporary_name(INSTANCE, ObjectId(1), generation);
    std::fs::create_dir_all(pfs.join("dir")).expect("mkdir");
    let file = pfs.join("dir").join(std::ffi::OsStr::from_bytes(&name));
    std::fs::write(&file, b"").expect("create");
    let meta = std::fs::metadata(&file).expect("stat");
    let to = Outside {
        path: [b"dir/", &name[..]].concat(),
        ino: meta.ino(),
        owner: (meta.uid(), meta.gid()),
        ahead_bytes: 32 << 20,
        from_media: false,
    };
    (to, file)
}

#[test]
fn a_data_server_that_lets_nobody_begin_is_away() {
    let dir = tempfile::tempdir().expect("a directory");
    let (connection, tier) = served(dir.path());
    let object = create(&tier, 1);
    object.write_at(b"some", 0).expect("write");
    let broken = |_| Err(std::io::Error::from_raw_os_error(libc::EIO));
    let broken = DataServer::new("boot 1".into(), Vec::new(), Box::new(broken), None);
    connection.begin(broken);
    assert_eq!(errno(object.sync(false)), Some(AWAY));
    assert_eq!(errno(tier.open(ObjectId(1))), Some(AWAY));
    assert_eq!(errno(tier.remove(ObjectId(1))), Some(AWAY));
    assert!(!tier.is_answering());
    restart(&connection, dir.path(), "boot 1");
    assert_eq!(read(&*object), b"some");
    assert!(tier.is_answering());
}

#[test]
fn what_a_start_has_refused_is_looked_at_again_once_it_is_something_else() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let connection = Breaking::new(server(dirs[0].path(), "boot 1"));
    let tiers = RemoteTiers::new(connection.clone(), Claim::new(INSTANCE, 1));
    tiers.find("server-2").expect("tiers");
    tiers.refuse();
    assert!(!tiers.is_to_be_looked_at());
    restart(&connection, dirs[0].path(), "boot 1");
    assert!(!tiers.is_to_be_looked_at());
    restart(&connection, dirs[1].path(), "boot 1");
    assert!(tiers.is_to_be_looked_at());
}

#[test]
fn an_object_is_copied_where_it_is() {
    let (dirs, connection, tier) = served_with_pfs();
    let pfs = dirs[1].path();
    let object = create(&tier, 1);
    // With a hole, and of more blocks than one.
    let data: Vec<u8> = (0..5_000_000u32).map(|at| (at % 251) as u8).collect();
    object.write_at(&data, 0).expect("write");
    object.write_at(b"the end", 9_000_000).expect("write");
    let (to, file) = outside(pfs, 1);
    let moved = AtomicU64::new(0);
    let count = |bytes, _| {
        moved.fetch_add(bytes, Ordering::Relaxed);
    };
    let control = CopyControl {
        moved: &count,
        ..CopyControl::NONE
    };
    let elsewhere = tier.copies_out().expect("elsewhere");
    let before = connection.calls.lock().len();
    let report = elsewhere
        .copy_out(ObjectId(1), &to, &control)
        .expect("copied");
    assert!(
        connection.calls.lock().len() - before < 10,
        "a few messages"
    );
    let expected = forebay_tiers::sums(&*object, 9_000_007, &|| false).expect("sums");
    assert_eq!(report.sums, expected);
    assert_eq!(report.data_bytes, moved.load(Ordering::Relaxed));
    let copied = std::fs::read(&file).expect("read");
    assert_eq!(copied.len(), 9_000_007);
    assert!(copied.starts_with(&data) && copied.ends_with(b"the end"));
}

#[test]
fn a_copy_goes_no_further_than_it_is_let_and_ends_with_its_session() {
    let (dirs, connection, tier) = served_with_pfs();
    let pfs = dirs[1].path();
    let object = create(&tier, 1);
    object.write_at(&vec![7; 40 << 20], 0).expect("write");
    let elsewhere = tier.copies_out().expect("elsewhere");
    // Told to stop, when it has moved what it was let.
    let (to, file) = outside(pfs, 1);
    let to = Outside {
        ahead_bytes: 1 << 20,
        ..to
    };
    let calls = AtomicU64::new(0);
    let stop = || calls.fetch_add(1, Ordering::Relaxed) > 0;
    let control = CopyControl {
        stop: &stop,
        moved: &|_, _| (),
    };
    let stopped = elsewhere.copy_out(ObjectId(1), &to, &control);
    assert!(
        matches!(stopped, Err(OutsideError::Copy(CopyError::Stopped))),
        "{stopped:?}"
    );
    let made = std::fs::metadata(&file).expect("stat").len();
    assert!((1 << 20..3 << 20).contains(&made), "{made}");
    // Its session ends: what is made is of no use, and grows no more.
    let (to, file) = outside(pfs, 2);
    let server = connection.server.read().clone();
    let breaks = |_, _| connection.begin(server.clone());
    let control = CopyControl {
        moved: &breaks,
        ..CopyControl::NONE
    };
    let lost = elsewhere.copy_out(ObjectId(1), &to, &control);
    assert!(
        matches!(&lost, Err(OutsideError::Copy(CopyError::Source(error))) if Errno::of(error) == AWAY),
        "{lost:?}"
    );
    let made = std::fs::metadata(&file).expect("stat").len();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(std::fs::metadata(&file).expect("stat").len(), made);
    assert!(made < 40 << 20, "{made}");
    // The next one is whole.
    let (to, file) = outside(pfs, 3);
    elsewhere
        .copy_out(ObjectId(1), &to, &CopyControl::NONE)
        .expect("copied");
    assert_eq!(std::fs::read(&file).expect("read"), vec![7; 40 << 20]);
}

#[test]
fn a_copy_goes_to_no_other_file() {
    let (dirs, _, tier) = served_with_pfs();
    let pfs = dirs[1].path();
    let object = create(&tier, 1);
    object.write_at(b"content", 0).expect("write");
    let elsewhere = tier.copies_out().expect("elsewhere");
    let refused = |to: &Outside| match elsewhere.copy_out(ObjectId(1), to, &CopyControl::NONE) {
        Err(OutsideError::Unreached(error)) => Errno::of(&error),
        other => panic!("{other:?}"),
    };
    let (to, file) = outside(pfs, 1);
    let other_ino = Outside {
        ino: to.ino + 1,
        ..to.clone()
    };
    assert_eq!(refused(&other_ino), Errno::ESTALE);
    let missing = Outside {
        path: [b"no/", &to.path[4..]].concat(),
        ..to.clone()
    };
    assert_eq!(refused(&missing), Errno::ENOENT);
    let above = Outside {
        path: [b"../", &to.path[4..]].concat(),
        ..to.clone()
    };
    assert_eq!(refused(&above), Errno::EINVAL);
    std::fs::write(pfs.join("dir/theirs"), b"").expect("write");
    let theirs = Outside {
        path: b"dir/theirs".to_vec(),
        ..to.clone()
    };
    assert_eq!(refused(&theirs), Errno::EPERM);
    std::fs::write(&file, b"not empty").expect("write");
    assert_eq!(refused(&to), Errno::ESTALE);
    assert_eq!(std::fs::read(&file).expect("read"), b"not empty");
    // A node without a PFS.
    let dir = tempfile::tempdir().expect("a directory");
    let (_, tier) = served(dir.path());
    let _object = create(&tier, 1);
    let (to, _) = outside(pfs, 2);
    let elsewhere = tier.copies_out().expect("elsewhere");
    let none = elsewhere.copy_out(ObjectId(1), &to, &CopyControl::NONE);
    assert!(matches!(none, Err(OutsideError::Unreached(_))), "{none:?}");
}
