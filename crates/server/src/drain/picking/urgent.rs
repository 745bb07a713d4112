//! Files that somebody waits for, by line.

use std::collections::VecDeque;

use forebay_types::ObjectId;
use parking_lot::Mutex;

use super::Line;
use crate::buffer::queue::{BatchLimits, DrainQueue};

/// What the queue has handed out and no demoter has taken yet. Each file is sorted into its line
/// once, by whichever demoter meets it first: a line whose files stand behind many of other lines
/// does not look at those again and again.
pub(super) struct Urgent {
    lines: Mutex<Vec<VecDeque<ObjectId>>>,
}

impl Urgent {
    /// Nobody waits for anything.
    pub fn new(lines: usize) -> Urgent {
        Urgent {
            lines: Mutex::new(vec![VecDeque::new(); lines]),
        }
    }

    /// Takes the next files of a line, in the order in which they were asked for; they are on their
    /// way from here on.
    pub fn take(
        &self,
        queue: &DrainQueue,
        line: Line,
        limits: BatchLimits,
        line_of: impl Fn(ObjectId) -> Line,
        bytes_of: impl Fn(ObjectId) -> u64,
    ) -> Vec<ObjectId> {
        let mut lines = self.lines.lock();
        while lines[line.0].len() < limits.files {
            let some = queue.hand_out_urgent(limits.files.max(1));
            if some.is_empty() {
                break;
            }
            for object in some {
                lines[line_of(object).0].push_back(object);
            }
        }
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < limits.files && (batch.is_empty() || bytes < limits.bytes) {
            let Some(object) = lines[line.0].pop_front() else {
                break;
            };
            // It may have been moved to another node since.
            let now = line_of(object);
            if now == line {
                bytes += bytes_of(object);
                batch.push(object);
            } else {
                lines[now.0].push_back(object);
            }
        }
        queue.take_urgent(&batch);
        batch
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use forebay_types::ObjectId;

    use super::*;

    const LIMITS: BatchLimits = BatchLimits {
        files: 100,
        bytes: 1000,
    };

    fn queue_of(files: u64) -> DrainQueue {
        let queue = DrainQueue::new(Duration::from_secs(60));
        (0..files).for_each(|id| queue.add_urgent(ObjectId(id)));
        queue
    }

    fn ids(batch: &[ObjectId]) -> Vec<u64> {
        batch.iter().map(|object| object.0).collect()
    }

    #[test]
    fn a_hundred_thousand_urgent_files_cost_as_much_each_as_a_few() {
        const FILES: u64 = 100_000;
        let queue = queue_of(FILES);
        let urgent = Urgent::new(3);
        let looks = Cell::new(0);
        // One file in a thousand is of the second line, none of the third.
        let line_of = |object: ObjectId| {
            looks.set(looks.get() + 1);
            Line(usize::from(object.0 % 1000 == 999))
        };
        let take = |line| urgent.take(&queue, Line(line), LIMITS, line_of, |_| 1);
        let mut taken = [Vec::new(), Vec::new(), Vec::new()];
        let first = take(0);
        assert!(looks.get() <= 4 * LIMITS.files, "{} looks", looks.get());
        taken[0].extend(ids(&first));
        while queue.demand().is_urgent {
            for (line, taken) in taken.iter_mut().enumerate() {
                taken.extend(ids(&take(line)));
            }
        }
        let of_second: Vec<u64> = (999..FILES).step_by(1000).collect();
        assert_eq!(taken[1], of_second);
        assert_eq!(taken[0].len() + taken[1].len(), FILES as usize);
        assert!(taken[0].is_sorted() && taken[2].is_empty());
        assert_eq!(looks.get(), 2 * FILES as usize, "sorted once, taken once");
    }

    #[test]
    fn a_line_gets_its_file_behind_any_number_of_others() {
        let queue = queue_of(10_000);
        let urgent = Urgent::new(2);
        let line_of = |object: ObjectId| Line(usize::from(object.0 == 9_999));
        let batch = urgent.take(&queue, Line(1), LIMITS, line_of, |_| 1);
        assert_eq!(ids(&batch), [9_999]);
    }

    #[test]
    fn a_file_that_moves_to_another_node_changes_its_line() {
        let queue = queue_of(2);
        let urgent = Urgent::new(2);
        let sort = |_| Line(1);
        assert!(urgent.take(&queue, Line(0), LIMITS, sort, |_| 1).is_empty());
        let moved = |object: ObjectId| Line(usize::from(object.0 == 0));
        let take = |line| ids(&urgent.take(&queue, Line(line), LIMITS, moved, |_| 1));
        assert_eq!(take(1), [0]);
        assert_eq!(take(0), [1]);
        assert!(!queue.demand().is_urgent && queue.is_pressed());
    }

    #[test]
    fn an_urgent_batch_ends_with_the_file_that_reaches_its_bytes() {
        let queue = queue_of(5);
        let urgent = Urgent::new(1);
        let take = || ids(&urgent.take(&queue, Line::OWN, LIMITS, |_| Line::OWN, |_| 600));
        assert_eq!([take(), take(), take()], [vec![0, 1], vec![2, 3], vec![4]]);
    }
}
