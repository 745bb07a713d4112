use std::time::Duration;

use super::*;

const LIMIT: Duration = Duration::from_secs(30);
const LEN: usize = 1 << 20;

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 7 % 251) as u8).collect()
}

/// What a read of a file with this content gives.
fn reads(content: Vec<u8>) -> Arc<ReadPiece> {
    Arc::new(move |_, at, into| {
        let rest = content.get(at..).unwrap_or_default();
        let bytes = rest.len().min(into.len());
        into[..bytes].copy_from_slice(&rest[..bytes]);
        Ok(bytes)
    })
}

#[test]
fn pieces_make_up_the_whole() {
    let pieces = Pieces::default();
    for (length, asked, parts) in [
        (LEN, LEN, 4),
        (LEN, LEN, 7),
        (LEN, LEN, 1),
        (LEN + 5, LEN + 5, 8),
        (LEN / 2 + 3, LEN, 4),
        (LEN / 4, LEN, 4),
        (0, LEN, 4),
        (LEN, 10, 4),
    ] {
        let whole = content(length);
        let mut into = vec![0xee; asked];
        let read = pieces.read(parts, &mut into, reads(whole.clone()));
        assert_eq!(read, Ok(length.min(asked)), "{length} {asked} {parts}");
        assert_eq!(into[..length.min(asked)], whole[..length.min(asked)]);
    }
}

/// Waits until so many are in it at once; false if they do not come.
#[derive(Default)]
struct Meeting {
    here: Mutex<usize>,
    more: Condvar,
}

impl Meeting {
    fn join(&self, wanted: usize) -> bool {
        let mut here = self.here.lock();
        *here += 1;
        self.more.notify_all();
        while *here < wanted {
            if self.more.wait_for(&mut here, LIMIT).timed_out() {
                return *here >= wanted;
            }
        }
        true
    }
}

#[test]
fn all_pieces_are_under_way_at_once_each_on_its_own_link() {
    let pieces = Pieces::default();
    for round in 0..3 {
        let meeting = Meeting::default();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let read: Arc<ReadPiece> = {
            let seen = seen.clone();
            Arc::new(move |number, at, into| {
                seen.lock().push((number, at, into.len()));
                match meeting.join(4) {
                    true => Ok(into.len()),
                    false => Err(Errno::EIO),
                }
            })
        };
        assert_eq!(pieces.read(4, &mut vec![0; LEN], read), Ok(LEN), "{round}");
        seen.lock().sort_unstable();
        let expected: Vec<_> = (0..4).map(|n| (n, n * LEN / 4, LEN / 4)).collect();
        assert_eq!(*seen.lock(), expected);
    }
    assert!(
        pieces.shared.queue.lock().helpers <= 9,
        "threads are used again"
    );
}

#[test]
fn an_error_is_the_whole_reads_unless_the_file_ends_before() {
    let pieces = Pieces::default();
    let outcome = |second: Result<usize, Errno>| {
        let read: Arc<ReadPiece> = Arc::new(move |number, _, into| match number {
            0 => Ok(into.len()),
            1 => second,
            _ => Err(Errno::EIO),
        });
        pieces.read(4, &mut vec![0; LEN], read)
    };
    assert_eq!(outcome(Err(Errno::ESTALE)), Err(Errno::ESTALE));
    assert_eq!(outcome(Ok(LEN / 4)), Err(Errno::EIO));
    assert_eq!(outcome(Ok(7)), Ok(LEN / 4 + 7));
}

#[test]
fn what_no_helper_begins_the_caller_reads() {
    let pieces = Pieces::default();
    // Nobody can be started any more.
    pieces.shared.queue.lock().helpers = HELPERS_MAX;
    let me = std::thread::current().id();
    let read: Arc<ReadPiece> = Arc::new(move |_, _, into| {
        assert_eq!(std::thread::current().id(), me);
        into.fill(7);
        Ok(into.len())
    });
    let mut into = vec![0; LEN];
    assert_eq!(pieces.read(4, &mut into, read), Ok(LEN));
    assert!(into.iter().all(|byte| *byte == 7));
}

#[test]
fn helpers_end_with_it() {
    let pieces = Pieces::default();
    let read = reads(content(LEN));
    assert_eq!(pieces.read(4, &mut vec![0; LEN], read), Ok(LEN));
    let shared = Arc::downgrade(&pieces.shared);
    drop(pieces);
    let end = std::time::Instant::now() + LIMIT;
    while shared.strong_count() > 0 && std::time::Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(shared.strong_count(), 0, "a helper is left");
}

#[test]
fn reads_are_counted_while_they_are_under_way() {
    let pieces = Pieces::default();
    let (first, one) = pieces.enter();
    let (second, two) = pieces.enter();
    assert_eq!((one, two), (1, 2));
    drop(first);
    assert_eq!(pieces.enter().1, 2);
    drop(second);
    assert_eq!(pieces.enter().1, 1);
}
