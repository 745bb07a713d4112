//! For every failpoint the workloads that hit it.

use forebay_types::failpoint::Point;

use crate::model::Op::{self, *};
use crate::model::{Model, Tree, versions};

/// What the burst buffer has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tiers {
    /// Flash.
    Flash,
    /// So little flash that files of [`LARGE`] go to the overflow.
    Tiny,
    /// Memory and flash.
    Memory,
    /// The same, and the memory is borrowed.
    Lent,
}

/// What is done before the kill, and where.
#[derive(Clone, Debug)]
pub struct Workload {
    pub tiers: Tiers,
    /// Before the point is armed.
    pub before: Vec<Op>,
    /// What hits the point, or, with `first`, the work that ends there.
    pub ops: Vec<Op>,
    /// A first process is killed here; the point itself is hit by the next start.
    pub first: Option<Point>,
    /// An outsider has taken a name of ours.
    pub conflict: bool,
}

const SMALL: usize = 5000;
const LARGE: usize = 3 << 20;

fn w(path: &'static str, version: u8) -> Op {
    Write(path, version, SMALL)
}

fn work(before: impl Into<Vec<Op>>, ops: impl Into<Vec<Op>>) -> Workload {
    Workload {
        tiers: Tiers::Flash,
        before: before.into(),
        ops: ops.into(),
        first: None,
        conflict: false,
    }
}

impl Workload {
    fn on(self, tiers: Tiers) -> Workload {
        Workload { tiers, ..self }
    }

    fn after(self, first: Point) -> Workload {
        let first = Some(first);
        Workload { first, ..self }
    }
}

impl Workload {
    /// The tree in the end, if it has versions; they are committed by then.
    pub fn published(&self) -> Option<Tree> {
        let mut model = Model::default();
        let ops = self.before.iter().chain(&self.ops);
        ops.for_each(|op| model.apply(op));
        let tree = model.tree();
        (!versions(&tree).is_empty()).then_some(tree)
    }
}

/// Files `a`: clean, dirty over an older version on the PFS, dirty and new.
fn states_of_a() -> [Vec<Op>; 3] {
    [
        vec![w("a", 1), Drain],
        vec![w("a", 1), Drain, w("a", 2)],
        vec![w("a", 1)],
    ]
}

/// One workload for each of these states before it.
fn in_each(states: impl IntoIterator<Item = Vec<Op>>, ops: &[Op]) -> Vec<Workload> {
    let of = |before| work(before, ops);
    states.into_iter().map(of).collect()
}

fn unlinks() -> Vec<Workload> {
    let mut all = in_each(states_of_a(), &[Unlink("a")]);
    all.extend(unlinks_of_one());
    all
}

/// Before a rename over what only the PFS has.
fn states_of_replaced() -> [Vec<Op>; 2] {
    [
        vec![Outside("b", 3, SMALL), w("a", 1)],
        vec![w("b", 3), Drain, Release("b"), w("a", 1)],
    ]
}

/// Renames over what somebody reads on the PFS.
fn renames_over_open() -> Vec<Workload> {
    in_each(states_of_replaced(), &[RenameOverOpen("a", "b")])
}

/// Renames over what somebody begins to read there.
fn renames_over_opening() -> Vec<Workload> {
    in_each(states_of_replaced(), &[RenameOverOpening("a", "b")])
}

/// Of several names.
fn unlinks_of_one() -> Vec<Workload> {
    let links = vec![w("a", 1), Link("a", "b"), Drain];
    let mut all = Vec::new();
    for name in ["a", "b"] {
        let dirty = [links.clone(), vec![w("a", 2)]].concat();
        all.extend(in_each([links.clone(), dirty], &[Unlink(name)]));
    }
    all
}

/// First names, of what is in one place and of what has a copy on flash, and of what had to move.
fn firsts() -> Vec<Workload> {
    vec![
        work([], [Unnamed("a", 1, SMALL)]),
        work([Mkdir("d")], [Unnamed("d/a", 1, SMALL)]).on(Tiers::Memory),
        work([], [Unnamed("a", 1, LARGE)]).on(Tiers::Tiny),
    ]
}

/// Of what the PFS has.
fn links() -> Vec<Workload> {
    in_each(states_of_a()[..2].to_vec(), &[Link("a", "b")])
}

fn buffer_renames() -> Vec<Workload> {
    let over = [
        vec![],
        vec![w("b", 3), Drain],
        vec![w("b", 3), Drain, w("b", 4)],
        vec![w("b", 3)],
        vec![Outside("b", 3, SMALL)],
    ];
    let then = |b: Vec<Op>| [b, vec![w("a", 1)]].concat();
    in_each(over.map(then), &[Rename("a", "b")])
}

/// The new name is one of several links, or the old one is.
fn parting_renames() -> Vec<Workload> {
    let states = [
        vec![w("b", 3), Link("b", "c"), Drain, w("a", 1)],
        vec![w("b", 3), Link("b", "c"), Drain, w("b", 4), w("a", 1)],
        vec![w("b", 3), Drain, w("a", 1), Link("a", "c")],
    ];
    in_each(states, &[Rename("a", "b")])
}

fn pfs_renames() -> Vec<Workload> {
    let over = [
        vec![],
        vec![w("b", 3), Drain],
        vec![w("b", 3), Drain, w("b", 4)],
        vec![w("b", 3), Link("b", "c"), Drain, w("b", 4)],
    ];
    let mut all = Vec::new();
    for a in [vec![w("a", 1), Drain], vec![w("a", 1), Drain, w("a", 2)]] {
        // What is drained for one is not dirtied by it for the other.
        let then = |b: Vec<Op>| [a.clone(), b].concat();
        let dirty = a.len() > 2;
        let over = over
            .iter()
            .filter(|b| !dirty || !b.contains(&Drain))
            .cloned();
        all.extend(in_each(over.map(then), &[Rename("a", "b")]));
    }
    all.push(work(
        [w("a", 1), w("b", 3), Drain, w("a", 2), w("b", 4)],
        [Rename("a", "b")],
    ));
    all.push(work([w("a", 1), Drain, w("b", 3)], [Rename("a", "b")]));
    all.push(work(
        [Outside("a", 1, SMALL), w("b", 3), Drain, w("b", 4)],
        [Rename("a", "b")],
    ));
    all.push(work([Mkdir("d"), w("d/a", 1)], [Rename("d", "e")]));
    all.push(work(
        [Mkdir("d"), w("d/a", 1), Drain, w("d/a", 2), Mkdir("e")],
        [Rename("d", "e")],
    ));
    all
}

fn exchanges() -> Vec<Workload> {
    let states = [
        vec![w("a", 1), w("b", 3), Drain],
        vec![w("a", 1), w("b", 3), Drain, w("a", 2)],
        vec![w("a", 1), w("b", 3), Drain, w("a", 2), w("b", 4)],
        vec![w("b", 3), Drain, w("a", 1)],
        vec![w("b", 3), Drain, w("b", 4), w("a", 1)],
        vec![w("a", 1), Drain, w("b", 3)],
        vec![Outside("b", 3, SMALL), w("a", 1)],
    ];
    let mut all = in_each(states, &[Exchange("a", "b")]);
    all.push(work(
        [Mkdir("d"), Mkdir("e"), w("d/a", 1), w("e/b", 3)],
        [Exchange("d", "e")],
    ));
    all
}

/// What is done to undrained content whose checksum is on record.
fn of_sealed(ops: &[Op]) -> Vec<Workload> {
    in_each([vec![w("a", 1), Sealed]], ops)
}

fn first_changes() -> Vec<Workload> {
    let states = [vec![w("a", 1), Drain], vec![w("a", 1), Sealed]];
    in_each(states, &[w("a", 2)])
}

fn truncations() -> Vec<Workload> {
    let op = [Truncate("a", 10)];
    each([in_each(states_of_a(), &op), of_sealed(&op)])
}

/// It happens by itself, some time after the operations.
fn seals() -> Vec<Workload> {
    let states = [vec![], vec![w("a", 1), Drain], vec![w("a", 1), Sealed]];
    let mut all = in_each(states, &[w("a", 2)]);
    all.extend(of_sealed(&[Truncate("a", 10)]));
    all.extend(in_each(
        [vec![]],
        &[WriteFsync("a", 2, SMALL), Rename("a", "b")],
    ));
    all
}

/// Of a drained file that is damaged.
fn mended_reads() -> Vec<Workload> {
    let state = vec![Write("a", 1, LARGE), Drain];
    in_each([state], &[Flip("a"), Read("a")])
}

fn demotions() -> Vec<Workload> {
    let states = [
        vec![w("a", 1)],
        vec![w("a", 1), Drain, w("a", 2)],
        vec![w("a", 1), Sealed],
    ];
    in_each(states, &[Drain])
}

fn linked_demotions() -> Vec<Workload> {
    let states = [
        vec![w("a", 1), Link("a", "b")],
        vec![w("a", 1), Link("a", "b"), Drain, w("b", 2)],
    ];
    in_each(states, &[Drain])
}

fn conflicts() -> Vec<Workload> {
    let states = [
        vec![w("a", 1), Outside("a", 9, SMALL)],
        vec![w("a", 1), Drain, w("a", 2), Outside("a", 9, SMALL + 1)],
    ];
    let mut all = in_each(states, &[Drain]);
    all.iter_mut().for_each(|work| work.conflict = true);
    all
}

/// An outsider comes between the look and the exchange: what came out is theirs.
fn swapped_conflicts() -> Vec<Workload> {
    let state = vec![
        w("a", 1),
        Drain,
        w("a", 2),
        OutsideAtLook("a", 9, SMALL + 1),
    ];
    let mut all = in_each([state], &[Drain]);
    all.iter_mut().for_each(|work| work.conflict = true);
    all
}

/// A version, not drained, drained in part, as a whole, and changed after that.
fn states_of_v() -> [Vec<Op>; 4] {
    let (dir, a, b) = (Mkdir("v1"), w("v1/a", 1), w("v1/b", 2));
    let deep = [Mkdir("v1/d"), w("v1/d/c", 3)];
    let all = [vec![dir.clone(), a.clone(), b.clone()], deep.to_vec()].concat();
    [
        all.clone(),
        vec![dir, a, Drain, b],
        [all.clone(), vec![Drain]].concat(),
        [all, vec![Drain, w("v1/b", 4)]].concat(),
    ]
}

fn new_versions() -> Vec<Workload> {
    vec![
        work([], [Mkdir("v1")]),
        work([Mkdir("d")], [Mkdir("d/v1")]),
        work([Mkdir("d"), Mkdir("d/v1")], [Mkdir("d/v2")]),
    ]
}

fn commits() -> Vec<Workload> {
    let mut all = in_each(states_of_v(), &[Commit("v1")]);
    all.push(work(
        [Mkdir("d"), Mkdir("d/v1"), w("d/v1/a", 1)],
        [Commit("d/v1")],
    ));
    let [undrained, ..] = states_of_v();
    let taken = [undrained.clone(), vec![OutsideDir("v1")]].concat();
    all.push(work(taken, [CommitBeside("v1")]));
    all.push(work(undrained, [Commit("v1")]).on(Tiers::Memory));
    all
}

fn overflows() -> Vec<Workload> {
    let large = |version| Write("a", version, LARGE);
    let states = [vec![large(1)], vec![w("a", 1), Drain, large(2)]];
    let all = in_each(states, &[Drain]).into_iter();
    all.map(|work| work.on(Tiers::Tiny)).collect()
}

fn moves() -> Vec<Workload> {
    let fsynced = WriteFsync("a", 1, SMALL);
    vec![
        // A close: memory to flash.
        work([], [fsynced.clone()]).on(Tiers::Memory),
        // A file that outgrows its tier: to the overflow.
        work([], [Write("a", 1, LARGE)]).on(Tiers::Tiny),
    ]
}

fn prefetches() -> Vec<Workload> {
    let fsynced = WriteFsync("a", 1, SMALL);
    vec![work([fsynced, Drain], [Prefetch("a")]).on(Tiers::Memory)]
}

/// More than what is left then: undrained, clean beside undrained, changed since a drain.
fn lends() -> Vec<Workload> {
    let [a, b] = ["a", "b"].map(|path| Write(path, 1, LARGE));
    let states = [
        vec![a.clone(), b.clone()],
        vec![a.clone(), Drain, b.clone()],
        vec![a, b, Drain, Write("a", 2, LARGE), Write("b", 2, LARGE)],
    ];
    let all = in_each(states, &[Lend]).into_iter();
    all.map(|work| work.on(Tiers::Lent)).collect()
}

fn stops() -> Vec<Workload> {
    let states = [vec![w("a", 1)], vec![w("a", 1), Drain]];
    let all = in_each(states, &[Stop]).into_iter();
    all.map(|work| work.on(Tiers::Memory)).collect()
}

fn starts() -> Vec<Workload> {
    vec![work([w("a", 1), Drain, w("b", 2)], [Die])]
}

fn unsettled() -> Vec<Workload> {
    let after = |point: Point, of: Vec<Workload>| of.into_iter().map(move |w| w.after(point));
    let renames = after(Point::RenamePfs, pfs_renames());
    let exchanges = after(Point::ExchangePfs, exchanges());
    let links = after(Point::LinkPfs, links());
    let unlinks = after(Point::UnlinkPfs, unlinks_of_one());
    let parted = after(Point::RenameParted, parting_renames());
    let one_each = [
        renames.take(4).collect::<Vec<_>>(),
        exchanges.take(2).collect(),
    ];
    let few = [
        links.collect::<Vec<_>>(),
        unlinks.collect(),
        parted.collect(),
    ];
    one_each.into_iter().chain(few).flatten().collect()
}

fn each(lists: impl IntoIterator<Item = Vec<Workload>>) -> Vec<Workload> {
    lists.into_iter().flatten().collect()
}

/// The workloads that hit a point; at least one.
#[allow(clippy::too_many_lines, reason = "a list: one entry for each point")]
pub fn workloads(point: Point) -> Vec<Workload> {
    let large = || vec![work([], [Write("a", 1, LARGE)]).on(Tiers::Tiny)];
    match point {
        Point::CreateObject | Point::CreateDirs | Point::CreateNamed => each([
            vec![work([], [w("a", 1)])],
            vec![work([Mkdir("d")], [w("d/a", 1)])],
        ]),
        Point::LinkCarried => firsts(),
        Point::DeferredRecord => vec![work([], [w("a", 1)])],
        Point::ChangeRecorded => first_changes(),
        Point::TruncateObject => truncations(),
        Point::UnlinkIntent => unlinks_of_one(),
        Point::OlderGoing => each([
            in_each(states_of_a()[1..2].to_vec(), &[Unlink("a")]),
            renames_over_opening(),
        ]),
        Point::OlderGone => renames_over_opening(),
        Point::RenameStable => buffer_renames(),
        Point::RenameNamed => each([
            buffer_renames(),
            renames_over_open(),
            renames_over_opening(),
        ]),
        Point::UnlinkPfs | Point::UnlinkRecord => unlinks(),
        Point::RmdirPfs => vec![work([Mkdir("d"), w("d/a", 1), Unlink("d/a")], [Rmdir("d")])],
        Point::GarbageObjects => vec![work([w("a", 1)], [Unlink("a")])],
        Point::SetattrPfs => vec![work([w("a", 1), Drain], [Chmod("a", 0o604)])],
        Point::SetattrRecord => in_each(states_of_a(), &[Chmod("a", 0o604)]),
        Point::XattrPfs => vec![work([w("a", 1), Drain], [Xattr("a", 7)])],
        Point::LinkIntent | Point::LinkPfs => links(),
        Point::LinkRecord => each([in_each(states_of_a(), &[Link("a", "b")]), firsts()]),
        Point::RenameBuffer => each([buffer_renames(), parting_renames()]),
        Point::RenameParted | Point::RenamePartedRecord => {
            each([parting_renames(), renames_over_open()])
        }
        Point::RenameIntent | Point::RenamePfs | Point::RenameRecord => pfs_renames(),
        Point::ExchangeIntent | Point::ExchangePfs | Point::ExchangeRecord => exchanges(),
        Point::DemoteTemporary
        | Point::DemoteNoted
        | Point::DemoteCopied
        | Point::DemoteAttributes
        | Point::DemoteFlushed
        | Point::DemoteVerified
        | Point::DemoteRecords
        | Point::DemoteDir
        | Point::DemoteConfirmed => demotions(),
        Point::DemotePlaced | Point::DemoteLinks => each([demotions(), linked_demotions()]),
        Point::DemoteLooked => each([demotions()[1..2].to_vec(), linked_demotions()[1..].to_vec()]),
        Point::DemoteSwapped => each([
            demotions()[1..2].to_vec(),
            linked_demotions()[1..].to_vec(),
            swapped_conflicts(),
        ]),
        Point::DemoteLinked => linked_demotions(),
        Point::DemoteGivenUp => vec![work([Write("a", 1, LARGE)], [DrainRacing("a")])],
        Point::ConflictPlaced | Point::ConflictYielded => conflicts(),
        Point::VersionMade | Point::VersionRecorded => new_versions(),
        Point::VersionRenamed => in_each(states_of_v(), &[Rename("v1", "v2")]),
        Point::VersionOrdered
        | Point::VersionFlushed
        | Point::VersionNamed
        | Point::VersionDurable
        | Point::VersionPublished => commits(),
        Point::SettleVersion => {
            let all = commits().into_iter();
            all.map(|work| work.after(Point::VersionNamed)).collect()
        }
        Point::OverflowMade => large(),
        Point::OverflowNoted
        | Point::OverflowPlain
        | Point::OverflowRecords
        | Point::OverflowPlaced
        | Point::OverflowSettled => overflows(),
        Point::SealFlushed | Point::SealRecord => seals(),
        Point::BlockRewritten => mended_reads(),
        Point::EvictRecord => vec![work([w("a", 1), Drain], [Release("a")])],
        Point::StageObject | Point::StageRecord => each([
            vec![work([Outside("a", 1, SMALL)], [StageIn("a")])],
            vec![work([Outside("a", 1, SMALL)], [w("a", 2)])],
        ]),
        Point::StageCopied => vec![work([Outside("a", 1, SMALL)], [StageIn("a")])],
        Point::MoveObject | Point::MoveCopied | Point::MoveRecord | Point::MoveRemoved => each([
            moves(),
            prefetches(),
            stops()[..1].to_vec(),
            lends()[..1].to_vec(),
        ]),
        Point::MoveFlushed => each([moves(), lends()[..1].to_vec()]),
        Point::LendLowered => lends(),
        // Where something is clean, that is enough.
        Point::LendMoved => vec![lends().swap_remove(0), lends().swap_remove(2)],
        Point::ShadowObject | Point::ShadowCopied | Point::ShadowFlushed => {
            vec![work([], [WriteFsync("a", 1, SMALL)]).on(Tiers::Memory)]
        }
        Point::FsyncRecord => vec![
            work([], [WriteFsync("a", 1, SMALL)]),
            work([], [WriteFsync("a", 1, SMALL)]).on(Tiers::Memory),
        ],
        Point::ShadowDropped => vec![work([], [WriteDrain("a", 1, SMALL)]).on(Tiers::Memory)],
        Point::StartLoaded | Point::StartFacts | Point::RecoverFile => starts(),
        Point::SettleLooked | Point::SettleRecord => unsettled(),
        Point::SettleTemporary | Point::SettleDemotion => each(
            [Point::DemoteNoted, Point::DemotePlaced]
                .map(|first| demotions().into_iter().map(|w| w.after(first)).collect()),
        ),
        Point::RecoverAdopted => vec![work([], [w("a", 1)]).after(Point::CreateNamed)],
        Point::RecoverOrphan => vec![
            stops().swap_remove(0).after(Point::MoveFlushed),
            work([Outside("a", 1, SMALL)], [StageIn("a")]).after(Point::StageCopied),
        ],
        Point::SettleBeside => {
            let all = conflicts().into_iter();
            all.map(|work| work.after(Point::ConflictPlaced)).collect()
        }
        Point::RecoverSwept => vec![work([w("a", 1)], [Drain]).after(Point::DemoteTemporary)],
        Point::StopThreads | Point::StopMoved | Point::StopSynced => stops(),
        // Of a node that goes: `tests/replica.rs`.
        Point::PromoteRecord | Point::LeftRemoved => Vec::new(),
        Point::FsckQuarantined
        | Point::FsckIdentified
        | Point::FsckRecordKept
        | Point::FsckGarbage
        | Point::FsckCopied
        | Point::FsckNamed
        | Point::FsckRemoved => Vec::new(),
    }
}
