//! Points between the steps of every operation that has several: a test kills the process there,
//! one after the other, and looks at what a restart makes of it.
//!
//! A point is armed by [`arm_from_environment`] or, in tests, [`arm`]: the process gets `SIGKILL`
//! when it is hit for the n-th time, or the thread that hits it panics. Builds without debug
//! assertions have no points at all. `crates/server/tests/failpoints.rs` goes through
//! [`Point::ALL`]; a variant that nothing hits fails it.

/// The environment variable: `NAME`, `NAME:N` or `NAME:N:panic`, a variant of [`Point`] and a count
/// from 1.
pub const VARIABLE: &str = "FOREBAY_FAILPOINT";

macro_rules! points {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// Where a process may be killed. Each is named after what has just been done.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Point {
            $($(#[$doc])+ $name,)+
        }

        impl Point {
            /// All of them, in the order of their declaration.
            pub const ALL: &'static [Point] = &[$(Point::$name,)+];

            /// The name that [`VARIABLE`] takes.
            pub fn name(self) -> &'static str {
                match self {
                    $(Point::$name => stringify!($name),)+
                }
            }
        }
    };
}

points! {
    /// create: the object is there, empty, with its identity.
    CreateObject,
    /// create: the directories have records.
    CreateDirs,
    /// create: the name is taken in memory; nothing is on record.
    CreateNamed,
    /// A record that was put off is written.
    DeferredRecord,
    /// The first change of a clean file, or an open for unseen writing, is on record.
    ChangeRecorded,
    /// truncate of a closed file: its object has the new size, its record has not.
    TruncateObject,
    /// unlink of one of several names: the intent is on record.
    UnlinkIntent,
    /// unlink of an older version, which a newer one in the buffer would have replaced: the record
    /// says that it goes.
    OlderGoing,
    /// unlink of an older version that somebody has open, after a rename over it: the PFS has lost
    /// it.
    OlderGone,
    /// rename: what gets the name survives where it must; nothing is changed.
    RenameStable,
    /// A file has taken the name of another one, which is still on the PFS.
    RenameNamed,
    /// unlink: the PFS has lost the name.
    UnlinkPfs,
    /// unlink: the record says so.
    UnlinkRecord,
    /// rmdir: the PFS has lost the directory.
    RmdirPfs,
    /// Objects without a name are removed; they are still on record as garbage.
    GarbageObjects,
    /// setattr of a clean file: the PFS has the new attributes.
    SetattrPfs,
    /// setattr: the record has them.
    SetattrRecord,
    /// setxattr of a clean file: the PFS has the new attribute.
    XattrPfs,
    /// link of a file without a name: its object carries the name, and is on record as garbage.
    LinkCarried,
    /// link: the intent is on record.
    LinkIntent,
    /// link: the PFS has the new name.
    LinkPfs,
    /// link: the record has it.
    LinkRecord,
    /// rename of what is only in the buffer: the record has the new name.
    RenameBuffer,
    /// rename: what the PFS had under the new name is unlinked, because it is one of several links.
    RenameParted,
    /// rename: the record of the file that moved says so, the other's does not.
    RenamePartedRecord,
    /// rename on the PFS: the intent is on record.
    RenameIntent,
    /// rename on the PFS: done there.
    RenamePfs,
    /// rename on the PFS: the records say so.
    RenameRecord,
    /// exchange: the intent is on record.
    ExchangeIntent,
    /// exchange: done on the PFS.
    ExchangePfs,
    /// exchange: the records say so.
    ExchangeRecord,
    /// demotion: the temporary file is there.
    DemoteTemporary,
    /// demotion: it is on record.
    DemoteNoted,
    /// demotion: the content is copied.
    DemoteCopied,
    /// demotion: the copy has its attributes.
    DemoteAttributes,
    /// demotion: the copy is flushed.
    DemoteFlushed,
    /// demotion: the copy was read back and compared.
    DemoteVerified,
    /// demotion: the records are flushed.
    DemoteRecords,
    /// demotion: the copy has its name.
    DemotePlaced,
    /// demotion: what the copy replaces was looked at; they are about to exchange their names.
    DemoteLooked,
    /// demotion: the copy and what it replaces have exchanged their names.
    DemoteSwapped,
    /// demotion: a further name is linked, under a temporary one where it replaces something.
    DemoteLinked,
    /// demotion: all names are there.
    DemoteLinks,
    /// demotion: the directory is flushed.
    DemoteDir,
    /// demotion: the record says clean.
    DemoteConfirmed,
    /// demotion given up: the temporary file is gone.
    DemoteGivenUp,
    /// demotion: an outsider has the name; our version is beside it.
    ConflictPlaced,
    /// demotion: the record of the file whose name an outsider has is gone.
    ConflictYielded,
    /// version: its hidden directory is made.
    VersionMade,
    /// version: it is on record.
    VersionRecorded,
    /// version: it has another name, and so says its record.
    VersionRenamed,
    /// version: the order to publish it is on record.
    VersionOrdered,
    /// publication: the PFS is flushed.
    VersionFlushed,
    /// publication: the version has its name.
    VersionNamed,
    /// publication: the name is flushed.
    VersionDurable,
    /// publication: the record is gone.
    VersionPublished,
    /// start: a version that a crash has left between its two names is settled.
    SettleVersion,
    /// overflow: its directory is made.
    OverflowMade,
    /// demotion out of the overflow: the object is on record as the temporary file.
    OverflowNoted,
    /// demotion out of the overflow: the object has the file's attributes and no identity any more.
    OverflowPlain,
    /// demotion out of the overflow: the records are flushed.
    OverflowRecords,
    /// demotion out of the overflow: the object has its name.
    OverflowPlaced,
    /// demotion out of the overflow: the record says clean.
    OverflowSettled,
    /// seal: the undrained content was read and is flushed.
    SealFlushed,
    /// seal: its checksum is on record.
    SealRecord,
    /// damage in a file that is open: a part of it is written again from what the PFS has.
    BlockRewritten,
    /// eviction: the record is gone.
    EvictRecord,
    /// stage-in: the object is made.
    StageObject,
    /// stage-in: the content is copied.
    StageCopied,
    /// stage-in: the record is written.
    StageRecord,
    /// move between tiers: the new object is made.
    MoveObject,
    /// move between tiers: the content is copied.
    MoveCopied,
    /// move between tiers: the copy is flushed.
    MoveFlushed,
    /// move between tiers: the record names the new tier.
    MoveRecord,
    /// move between tiers: the old object is removed.
    MoveRemoved,
    /// fsync of a file in memory: its copy on flash is made.
    ShadowObject,
    /// fsync of a file in memory: the content is copied.
    ShadowCopied,
    /// fsync of a file in memory: the copy is flushed.
    ShadowFlushed,
    /// fsync: the record is flushed.
    FsyncRecord,
    /// node lost: the record says that the second copy of a file is the file.
    PromoteRecord,
    /// node back: what was left there of a file is gone.
    LeftRemoved,
    /// close of a drained file that was fsynced: the record knows its copy on flash no more.
    ShadowDropped,
    /// start: the records are loaded.
    StartLoaded,
    /// start: the facts about the instance are written, the tiers open.
    StartFacts,
    /// start: an interrupted rename, exchange or link was looked at; its record is still there.
    SettleLooked,
    /// start: an interrupted rename, exchange or link is settled.
    SettleRecord,
    /// start: the temporary file of an interrupted demotion is gone.
    SettleTemporary,
    /// start: a demotion that ended beside an outsider's file is settled.
    SettleBeside,
    /// start: an interrupted demotion is settled.
    SettleDemotion,
    /// start: a file is taken over.
    RecoverFile,
    /// start: an object without a record is adopted.
    RecoverAdopted,
    /// start: an object that belongs to nobody is removed.
    RecoverOrphan,
    /// start: a directory is swept of unfinished copies.
    RecoverSwept,
    /// fsck: an object that is not trusted lies aside.
    FsckQuarantined,
    /// fsck: an object carries its identity again.
    FsckIdentified,
    /// fsck: the bytes of a record that does not decode are kept.
    FsckRecordKept,
    /// fsck: an object that was to go is gone.
    FsckGarbage,
    /// fsck: data without a place is copied to the PFS, under a temporary name.
    FsckCopied,
    /// fsck: the copy has its name.
    FsckNamed,
    /// fsck: the object of which that is a copy is gone.
    FsckRemoved,
    /// memory is given back: the tier may hold less, and nothing has left yet.
    LendLowered,
    /// memory is given back: a file has moved to flash.
    LendMoved,
    /// stop: all threads have ended.
    StopThreads,
    /// stop: memory is left.
    StopMoved,
    /// stop: totals and records are on stable storage.
    StopSynced,
}

/// What [`VARIABLE`] holds is no point, or this build has none.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FailpointError {
    /// Not `NAME`, `NAME:N` or `NAME:N:panic`.
    #[error("{VARIABLE}: '{0}' names no failpoint")]
    Unknown(String),
    /// A build without debug assertions.
    #[error("{VARIABLE} is set, but this build has no failpoints")]
    NotBuilt,
}

/// What ends when a point is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Ends {
    /// The process, by SIGKILL.
    Process,
    /// The thread, by a panic.
    Thread,
}

/// The point, count and end that a text names.
fn parse(text: &str) -> Result<(Point, u64, Ends), FailpointError> {
    let unknown = || FailpointError::Unknown(text.to_string());
    let (text_of_point, ends) = match text.strip_suffix(":panic") {
        Some(rest) => (rest, Ends::Thread),
        None => (text, Ends::Process),
    };
    let (name, nth) = match text_of_point.split_once(':') {
        Some((name, nth)) => (
            name,
            nth.parse().ok().filter(|&n| n > 0).ok_or_else(unknown)?,
        ),
        None => (text_of_point, 1),
    };
    let point = Point::ALL.iter().find(|point| point.name() == name);
    Ok((*point.ok_or_else(unknown)?, nth, ends))
}

/// Arms what [`VARIABLE`] names; nothing where it is not set or empty.
pub fn arm_from_environment() -> Result<(), FailpointError> {
    let text = match std::env::var(VARIABLE) {
        Ok(text) if !text.is_empty() => text,
        _ => return Ok(()),
    };
    if !cfg!(debug_assertions) {
        return Err(FailpointError::NotBuilt);
    }
    let (point, nth, ends) = parse(&text)?;
    arm(point, nth, ends);
    Ok(())
}

#[cfg(debug_assertions)]
mod armed {
    use std::cell::Cell;
    use std::sync::RwLock;
    use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

    /// Place of the armed point in [`super::Point::ALL`], plus one; 0: none.
    pub static POINT: AtomicUsize = AtomicUsize::new(0);
    /// Hits until the kill.
    pub static LEFT: AtomicU64 = AtomicU64::new(0);
    /// Whether only the thread ends.
    pub static PANICS: AtomicBool = AtomicBool::new(false);

    type Act = Box<dyn FnOnce()>;
    type ActOfAll = Box<dyn Fn() + Send + Sync>;

    thread_local! {
        /// What this thread does at a point.
        pub static HERE: Cell<Option<(super::Point, Act)>> = const { Cell::new(None) };
    }
    /// What every thread does at its points.
    pub static EVERYWHERE: RwLock<Vec<(super::Point, ActOfAll)>> = RwLock::new(Vec::new());
}

/// From now on the `nth` hit (from 1) of `point` ends this process, or the thread. Nothing in
/// builds without debug assertions.
#[cfg_attr(not(debug_assertions), expect(unused_variables))]
pub fn arm(point: Point, nth: u64, ends: Ends) {
    #[cfg(debug_assertions)]
    {
        use std::sync::atomic::Ordering;
        armed::PANICS.store(ends == Ends::Thread, Ordering::SeqCst);
        armed::LEFT.store(nth, Ordering::SeqCst);
        armed::POINT.store(point as usize + 1, Ordering::SeqCst);
    }
}

/// When the calling thread comes to `point` next, it does `act` there: what another thread might do
/// just then. For tests. Nothing in builds without debug assertions.
#[cfg_attr(not(debug_assertions), expect(unused_variables))]
pub fn meanwhile(point: Point, act: impl FnOnce() + 'static) {
    #[cfg(debug_assertions)]
    armed::HERE.set(Some((point, Box::new(act))));
}

/// From now on every thread does `act` whenever it comes to `point`: what somebody else might do
/// between two steps of threads that a test does not know. Nothing in builds without debug
/// assertions.
#[cfg_attr(not(debug_assertions), expect(unused_variables))]
pub fn always(point: Point, act: impl Fn() + Send + Sync + 'static) {
    #[cfg(debug_assertions)]
    {
        let acts = armed::EVERYWHERE.write();
        // A test that has failed within an act has failed already.
        let mut acts = acts.unwrap_or_else(std::sync::PoisonError::into_inner);
        acts.push((point, Box::new(act)));
    }
}

/// Says that the process is at this point.
#[inline]
#[cfg_attr(not(debug_assertions), expect(unused_variables))]
pub fn hit(point: Point) {
    #[cfg(debug_assertions)]
    {
        use std::sync::atomic::Ordering;
        if armed::POINT.load(Ordering::Relaxed) == point as usize + 1
            && armed::LEFT.fetch_sub(1, Ordering::SeqCst) == 1
        {
            assert!(
                !armed::PANICS.load(Ordering::SeqCst),
                "failpoint {}",
                point.name()
            );
            // SAFETY: getpid and kill take and give plain numbers.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            loop {
                std::thread::park();
            }
        }
        match armed::HERE.take() {
            Some((here, act)) if here == point => act(),
            other => armed::HERE.set(other),
        }
        let acts = armed::EVERYWHERE.read();
        for (_, act) in acts
            .iter()
            .flat_map(|acts| acts.iter())
            .filter(|(at, _)| *at == point)
        {
            act();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed() {
        let process = |point, nth| Ok((point, nth, Ends::Process));
        assert_eq!(parse("CreateObject"), process(Point::CreateObject, 1));
        assert_eq!(parse("StopSynced:7"), process(Point::StopSynced, 7));
        assert_eq!(
            parse("StopSynced:7:panic"),
            Ok((Point::StopSynced, 7, Ends::Thread))
        );
        for wrong in [
            "",
            "Nothing",
            "CreateObject:",
            "CreateObject:0",
            ":1",
            ":panic",
        ] {
            assert_eq!(parse(wrong), Err(FailpointError::Unknown(wrong.into())));
        }
    }

    #[test]
    #[cfg(debug_assertions)]
    fn a_thread_does_what_it_is_told_at_its_point_once() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicU64, Ordering};
        let done = Arc::new(AtomicU64::new(0));
        let acts = done.clone();
        meanwhile(Point::MoveCopied, move || {
            acts.fetch_add(1, Ordering::Relaxed);
        });
        hit(Point::MoveFlushed);
        let elsewhere = std::thread::spawn(|| hit(Point::MoveCopied));
        elsewhere.join().expect("no panic there");
        assert_eq!(done.load(Ordering::Relaxed), 0);
        hit(Point::MoveCopied);
        hit(Point::MoveCopied);
        assert_eq!(done.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn places_and_values_agree() {
        for (at, point) in Point::ALL.iter().enumerate() {
            assert_eq!(*point as usize, at, "{}", point.name());
        }
    }
}
