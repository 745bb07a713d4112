//! What `tiers` and `wire` call the same thing.

use forebay_tiers::{Allocate, ObjectStat, Seek, Space, WriteBack};
use forebay_wire::{DirtyPages, ObjectFacts, ObjectReply, SeekWhat, SpaceChange};

pub(crate) fn facts(stat: &ObjectStat) -> ObjectFacts {
    ObjectFacts {
        size: stat.size,
        allocated_bytes: stat.allocated_bytes,
        atime: stat.atime,
        mtime: stat.mtime,
        is_removed: stat.is_removed,
    }
}

pub(crate) fn stat(facts: &ObjectFacts) -> ObjectStat {
    ObjectStat {
        size: facts.size,
        allocated_bytes: facts.allocated_bytes,
        atime: facts.atime,
        mtime: facts.mtime,
        is_removed: facts.is_removed,
    }
}

pub(crate) fn change(mode: Allocate) -> SpaceChange {
    match mode {
        Allocate::Reserve => SpaceChange::Reserve,
        Allocate::Extend => SpaceChange::Allocate,
        Allocate::PunchHole => SpaceChange::PunchHole,
        Allocate::ZeroRange => SpaceChange::ZeroRange,
        Allocate::ZeroRangeKeepSize => SpaceChange::ZeroRangeKeepSize,
    }
}

pub(crate) fn allocation(change: SpaceChange) -> Allocate {
    match change {
        SpaceChange::Reserve => Allocate::Reserve,
        SpaceChange::Allocate => Allocate::Extend,
        SpaceChange::PunchHole => Allocate::PunchHole,
        SpaceChange::ZeroRange => Allocate::ZeroRange,
        SpaceChange::ZeroRangeKeepSize => Allocate::ZeroRangeKeepSize,
    }
}

pub(crate) fn what(seek: Seek) -> SeekWhat {
    match seek {
        Seek::Data => SeekWhat::Data,
        Seek::Hole => SeekWhat::Hole,
    }
}

pub(crate) fn seek(what: SeekWhat) -> Seek {
    match what {
        SeekWhat::Data => Seek::Data,
        SeekWhat::Hole => Seek::Hole,
    }
}

pub(crate) fn pages(what: WriteBack) -> DirtyPages {
    match what {
        WriteBack::Start => DirtyPages::Start,
        WriteBack::Wait => DirtyPages::Wait,
        WriteBack::Finish => DirtyPages::Finish,
    }
}

pub(crate) fn write_back(what: DirtyPages) -> WriteBack {
    match what {
        DirtyPages::Start => WriteBack::Start,
        DirtyPages::Wait => WriteBack::Wait,
        DirtyPages::Finish => WriteBack::Finish,
    }
}

pub(crate) fn space(space: &Space) -> ObjectReply {
    ObjectReply::Space {
        total_bytes: space.total_bytes,
        free_bytes: space.free_bytes,
        lent_bytes: space.lent_bytes,
    }
}
