//! Whether the PFS answers, judged by how long a question to it has been open.
//!
//! A dead server of a PFS does not fail: every call on it blocks. A slow one does the same for a
//! while. So an open question means nothing at first. Then it means that nobody should start to
//! wait who need not. Only in the end it means an error.

/// When an open question begins to mean something.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Patience {
    /// From here on the PFS counts as silent: what is known without it is answered without it.
    /// Seconds.
    pub silent_after_s: f64,
    /// From here on requests that need it fail. Seconds, not below `silent_after_s`.
    pub give_up_after_s: f64,
}

/// Above the pauses of a busy machine and of a PFS that flushes, below what a person takes for
/// dead.
const SILENT_AFTER_S: f64 = 3.0;

impl Patience {
    /// Requests wait for a silent PFS until `give_up_after_s`, which is at least a tenth of a
    /// second.
    pub fn new(give_up_after_s: f64) -> Patience {
        let give_up_after_s = give_up_after_s.max(0.1);
        Patience {
            silent_after_s: SILENT_AFTER_S.min(give_up_after_s / 2.0),
            give_up_after_s,
        }
    }
}

/// What is thought of the PFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Health {
    /// It answers.
    Answering,
    /// It has not answered lately: wait for it only where there is no other way.
    Silent,
    /// It has not answered for so long that nobody waits any more.
    GivenUp,
}

/// What an open question means: `open_s` is for how long it has been asked, `None` if there is
/// none.
pub fn judge(open_s: Option<f64>, patience: &Patience) -> Health {
    match open_s {
        Some(open_s) if open_s >= patience.give_up_after_s => Health::GivenUp,
        Some(open_s) if open_s >= patience.silent_after_s => Health::Silent,
        _ => Health::Answering,
    }
}

/// Seconds until the judgement on the same question becomes another; `None` if it never does.
pub fn next_change_s(open_s: f64, patience: &Patience) -> Option<f64> {
    [patience.silent_after_s, patience.give_up_after_s]
        .into_iter()
        .find(|at| *at > open_s)
        .map(|at| at - open_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_means_more_the_longer_it_is_open() {
        let patience = Patience::new(30.0);
        assert_eq!(judge(None, &patience), Health::Answering);
        assert_eq!(judge(Some(0.0), &patience), Health::Answering);
        assert_eq!(judge(Some(2.9), &patience), Health::Answering);
        assert_eq!(judge(Some(3.0), &patience), Health::Silent);
        assert_eq!(judge(Some(29.9), &patience), Health::Silent);
        assert_eq!(judge(Some(30.0), &patience), Health::GivenUp);
        assert!(Health::Answering < Health::Silent && Health::Silent < Health::GivenUp);
    }

    #[test]
    fn silence_comes_before_giving_up_however_short_the_limit_is() {
        for limit_s in [0.0, 0.2, 1.0, 4.0, 600.0] {
            let patience = Patience::new(limit_s);
            assert!(patience.silent_after_s < patience.give_up_after_s);
            assert!(patience.silent_after_s > 0.0);
        }
    }

    #[test]
    fn the_next_change_is_the_next_threshold() {
        let patience = Patience::new(10.0);
        assert_eq!(next_change_s(0.0, &patience), Some(3.0));
        assert_eq!(next_change_s(4.0, &patience), Some(6.0));
        assert_eq!(next_change_s(10.0, &patience), None);
    }
}
