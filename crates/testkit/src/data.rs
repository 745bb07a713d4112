//! Content that can be made anywhere and recognised again.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes made at a time.
const STEP_BYTES: usize = 1 << 20;

/// Content of any length: every eight bytes tell their position and which content it is, so that
/// a shifted, mixed or missing part shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Which content.
    pub id: u64,
    /// Length in bytes.
    pub len_bytes: usize,
}

/// Content number `id` of a length.
pub fn pattern(id: u64, len_bytes: usize) -> Pattern {
    Pattern { id, len_bytes }
}

impl Pattern {
    /// The bytes of the part that begins at `from`, a multiple of eight.
    fn part(self, from: usize) -> Vec<u8> {
        let end = self.len_bytes.min(from + STEP_BYTES);
        let words = (end - from).div_ceil(8);
        let mut bytes = Vec::with_capacity(words * 8);
        for word in 0..words {
            let position = (from / 8 + word) as u64;
            let value = (position ^ self.id.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            bytes.extend_from_slice(&value.to_le_bytes());
        }
        bytes.truncate(end - from);
        bytes
    }

    /// All of it; for small ones.
    pub fn bytes(self) -> Vec<u8> {
        let parts = (0..self.len_bytes).step_by(STEP_BYTES);
        parts.flat_map(|from| self.part(from)).collect()
    }

    /// Writes it from the file's position on, in requests of a MiB.
    #[track_caller]
    pub fn write(self, mut to: impl Write) {
        for from in (0..self.len_bytes).step_by(STEP_BYTES) {
            to.write_all(&self.part(from)).expect("write");
        }
    }

    /// What is wrong with a file that should hold it: the first difference, or nothing.
    pub fn difference(self, path: &Path) -> Option<String> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) => return Some(format!("{}: {error}", path.display())),
        };
        let len = file.metadata().map_or(0, |m| m.len());
        if len != self.len_bytes as u64 {
            return Some(format!(
                "{}: {len} bytes instead of {}",
                path.display(),
                self.len_bytes
            ));
        }
        let mut found = vec![0; STEP_BYTES];
        for from in (0..self.len_bytes).step_by(STEP_BYTES) {
            let expected = self.part(from);
            let found = &mut found[..expected.len()];
            if let Err(error) = file.read_exact_at(found, from as u64) {
                return Some(format!("{} at {from}: {error}", path.display()));
            }
            if let Some(at) = (0..expected.len()).find(|&i| found[i] != expected[i]) {
                return Some(format!(
                    "{}: other content at {}",
                    path.display(),
                    from + at
                ));
            }
        }
        None
    }

    /// Panics unless a file holds exactly this.
    #[track_caller]
    pub fn assert_in(self, path: &Path) {
        if let Some(difference) = self.difference(path) {
            panic!("{difference} (content {})", self.id);
        }
    }
}

/// Makes a file with this content, or gives it to an existing one; closed afterwards.
#[track_caller]
pub fn write_file(path: &Path, content: Pattern) {
    let file = File::create(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    content.write(&file);
}

/// Reads a whole file by a handle that is open already.
#[track_caller]
pub fn read_all_at(file: &File) -> Vec<u8> {
    let len = file.metadata().expect("metadata").len() as usize;
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, 0).expect("read");
    bytes
}
