//! The part of a checkpoint version that one burst-buffer node holds, and its bytes.

use forebay_policy::demotion::Candidate;

/// Place in [`Parts`].
pub(super) type PartId = u32;

/// Where a part stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Its application writes it.
    Writing,
    /// Written; waits for its demotion.
    Dirty,
    /// Being copied to the PFS.
    Demoting,
    /// On the PFS, too.
    Clean,
    /// A second copy that is whole: its first one is the one that is demoted.
    Second,
    /// Whole, and on its way from memory to where a copy is filled for it.
    Moving,
}

/// What a part is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Role {
    /// What the application wrote.
    #[default]
    First,
    /// Its second copy, while it is not drained.
    Second,
    /// A copy of a drained part, for restarts.
    Restart,
    /// What has arrived of a part that moves; takes its place, and its role, once it is whole.
    Moved,
}

/// `evicted ≤ demoted ≤ written ≤ size`, always.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub app: u32,
    pub node: u32,
    pub version: u64,
    /// Which part of the version.
    pub slot: u32,
    pub role: Role,
    /// No second holder had room: its fsync drains it.
    pub is_drained_by_fsync: bool,
    pub outdated: bool,
    pub state: State,
    /// Size of the part when all of it is written.
    pub size: u64,
    pub written: u64,
    /// Of the written bytes, those that are on the PFS.
    pub demoted: u64,
    /// Of the demoted bytes, those that are no longer in the burst buffer.
    pub evicted: u64,
    pub arrived_s: f64,
    pub accessed_s: f64,
    pub closed_s: f64,
}

impl Part {
    /// Bytes that are only in the burst buffer.
    pub fn dirty(&self) -> u64 {
        self.written - self.demoted
    }

    /// Bytes that are in the burst buffer and on the PFS.
    pub fn clean(&self) -> u64 {
        self.demoted - self.evicted
    }

    /// Bytes in the burst buffer.
    pub fn resident(&self) -> u64 {
        self.written - self.evicted
    }

    /// Whether a restart finds all of the part in the burst buffer.
    pub fn is_whole(&self) -> bool {
        self.evicted == 0 && self.written == self.size && self.state != State::Writing
    }

    /// Whether all of it is on the PFS, and it is complete.
    pub fn is_drained(&self) -> bool {
        match self.state {
            State::Clean => true,
            State::Moving => self.dirty() == 0,
            State::Writing | State::Dirty | State::Demoting | State::Second => false,
        }
    }

    /// Whether it is a second copy that could take the place of its first one.
    pub fn is_second(&self) -> bool {
        self.role == Role::Second && matches!(self.state, State::Second | State::Moving)
    }

    /// The part as the policy sees it.
    pub fn candidate(&self, id: PartId, mtbf_s: f64) -> Candidate {
        Candidate {
            id: u64::from(id),
            application: u64::from(self.app),
            version: Some(self.version),
            outdated: self.outdated,
            mtbf_s,
            arrived_at_s: self.arrived_s,
            accessed_at_s: self.accessed_s,
            closed_at_s: self.closed_s,
            closed_to_open_s: 1.0,
            open_to_close_s: 1.0,
            bytes: self.resident(),
            in_use: false,
        }
    }
}

/// All parts; places are used again.
#[derive(Debug, Default)]
pub(super) struct Parts {
    all: Vec<Part>,
    free: Vec<PartId>,
}

impl Parts {
    pub fn add(&mut self, part: Part) -> PartId {
        match self.free.pop() {
            Some(id) => {
                self.all[id as usize] = part;
                id
            }
            None => {
                self.all.push(part);
                (self.all.len() - 1) as PartId
            }
        }
    }

    pub fn remove(&mut self, id: PartId) {
        self.free.push(id);
    }
}

impl std::ops::Index<PartId> for Parts {
    type Output = Part;
    fn index(&self, id: PartId) -> &Part {
        &self.all[id as usize]
    }
}

impl std::ops::IndexMut<PartId> for Parts {
    fn index_mut(&mut self, id: PartId) -> &mut Part {
        &mut self.all[id as usize]
    }
}
