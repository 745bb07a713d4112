//! For how long something was copied, whoever copied it.

/// Copies side by side count once, and waits between them not at all: what the PFS gives is what
/// came while it was asked for something.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Busy {
    copies: u32,
    /// When the first of those that go on began, seconds.
    since_s: f64,
    sum_s: f64,
}

impl Busy {
    /// A copy begins.
    pub fn begin(&mut self, now_s: f64) {
        if self.copies == 0 {
            self.since_s = now_s;
        }
        self.copies += 1;
    }

    /// A copy has ended, or failed.
    pub fn end(&mut self, now_s: f64) {
        self.copies = self.copies.saturating_sub(1);
        if self.copies == 0 {
            // Who looks at the clock first need not be the first to come here.
            self.sum_s += (now_s - self.since_s).max(0.0);
        }
    }

    /// All but what goes on, seconds.
    pub fn sum_s(&self) -> f64 {
        self.sum_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_side_by_side_count_once_and_waits_do_not() {
        let mut busy = Busy::default();
        busy.begin(10.0);
        busy.begin(11.0);
        busy.end(12.0);
        assert_eq!(busy.sum_s(), 0.0);
        busy.end(14.0);
        assert_eq!(busy.sum_s(), 4.0);
        // There was no room for an hour.
        busy.begin(3614.0);
        busy.end(3615.0);
        assert_eq!(busy.sum_s(), 5.0);
        busy.begin(3620.0);
        busy.end(3619.0);
        assert_eq!(busy.sum_s(), 5.0);
    }
}
