//! What a target tells of its way through an input, so that the harness can keep inputs that take
//! another.

use std::cell::RefCell;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Of one input; more tell nothing more.
const NOTES_MAX: usize = 64;

thread_local! {
    static NOTES: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// The input has come by here: the kind of an answer, a variant of a message.
pub fn note(what: impl Hash) {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    NOTES.with_borrow_mut(|notes| {
        if notes.len() < NOTES_MAX {
            notes.push(hasher.finish());
        }
    });
}

/// Notes an error by its words, without the numbers and quotations in it.
pub fn note_words(error: impl std::fmt::Display) {
    let text = error.to_string();
    let words = text
        .split_whitespace()
        .filter(|word| word.bytes().all(|b| b.is_ascii_alphabetic()));
    note(words.collect::<Vec<_>>());
}

/// What was noted since the last call.
pub(crate) fn taken() -> Vec<u64> {
    NOTES.take()
}
