//! Which blocks of an open file's content were compared with what is on record.

use std::sync::Arc;

use forebay_namespace::File;
use forebay_tiers::{ObjectStat, Sums};
use forebay_types::Generation;
use parking_lot::{Mutex, MutexGuard};

/// So many blocks of a file are compared at a time; of one block, once.
const TURNS: usize = 8;

/// The blocks of an open file's content, and which of them were compared.
pub struct Blocks {
    /// The file.
    pub file: Arc<File>,
    /// Of the content that the checksums are of.
    pub generation: Generation,
    /// What is on record.
    pub sums: Sums,
    /// The object when it was opened.
    pub before: ObjectStat,
    compared: Mutex<Compared>,
    turns: [Mutex<()>; TURNS],
}

struct Compared {
    is_compared: Vec<bool>,
    left: usize,
}

impl Blocks {
    /// None of them is compared.
    pub fn new(file: Arc<File>, generation: Generation, sums: Sums, before: ObjectStat) -> Blocks {
        let count = sums.blocks();
        Blocks {
            file,
            generation,
            sums,
            before,
            compared: Mutex::new(Compared {
                is_compared: vec![false; count],
                left: count,
            }),
            turns: Default::default(),
        }
    }

    /// Nobody else compares this block as long as it is held.
    pub fn turn(&self, block: usize) -> MutexGuard<'_, ()> {
        self.turns[block % TURNS].lock()
    }

    /// Whether it needs no comparison any more.
    pub fn is_compared(&self, block: usize) -> bool {
        self.compared.lock().is_compared[block]
    }

    /// A block was compared. Whether it was the last one.
    pub fn note(&self, block: usize) -> bool {
        let mut compared = self.compared.lock();
        if !std::mem::replace(&mut compared.is_compared[block], true) {
            compared.left -= 1;
        }
        compared.left == 0
    }
}
