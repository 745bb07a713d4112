//! Which pieces of an open file's content were compared with what is on record.

use std::sync::Arc;

use forebay_namespace::File;
use forebay_tiers::{ObjectStat, Sums};
use forebay_types::Generation;
use parking_lot::{Mutex, MutexGuard};

/// So many pieces of a file are compared at a time; of one piece, once.
const TURNS: usize = 8;

/// The pieces of an open file's content, and which of them were compared.
pub struct Pieces {
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

impl Pieces {
    /// None of them is compared.
    pub fn new(file: Arc<File>, generation: Generation, sums: Sums, before: ObjectStat) -> Pieces {
        let count = sums.pieces();
        Pieces {
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

    /// Nobody else compares this piece as long as it is held.
    pub fn turn(&self, piece: usize) -> MutexGuard<'_, ()> {
        self.turns[piece % TURNS].lock()
    }

    /// Whether it needs no comparison any more.
    pub fn is_compared(&self, piece: usize) -> bool {
        self.compared.lock().is_compared[piece]
    }

    /// A piece was compared. Whether it was the last one.
    pub fn note(&self, piece: usize) -> bool {
        let mut compared = self.compared.lock();
        if !std::mem::replace(&mut compared.is_compared[piece], true) {
            compared.left -= 1;
        }
        compared.left == 0
    }
}
