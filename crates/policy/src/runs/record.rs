//! What is known of a folder's runs, on record: a start goes on with it.
//!
//! It is little-endian: a version, the path, the patterns with their files, and a hash of all that.
//! Whoever may have damaged it: what is read is what [`FolderRecord::encode`] has written, or
//! nothing.

use crate::series::hash_of;

use super::files::Files;
use super::pattern::{GAPS_MAX, PERIOD_MAX_S, PERIOD_MIN_S};
use super::{FILES_MAX, PATTERNS_MAX};

/// Most that the record of a folder takes; of one that would take more nothing is kept.
pub const RECORD_BYTES_MAX: usize = 1 << 20;
const FORMAT: u8 = 1;
const PATH_BYTES_MAX: usize = forebay_types::limits::PATH_BYTES_MAX;
const NAME_BYTES_MAX: usize = 255;
/// No clock shows more, seconds since 1970 (in the year 5138).
const TIME_MAX_S: f64 = 1e11;
const HASH_BYTES: usize = 8;

/// A file of a pattern.
#[derive(Clone, Debug, PartialEq)]
pub struct FileRecord {
    /// Its name.
    pub name: Vec<u8>,
    /// What it had, bytes.
    pub bytes: u64,
    /// Runs in a row that had it.
    pub runs: u32,
}

/// Runs of about the same files.
#[derive(Clone, Debug, PartialEq)]
pub struct PatternRecord {
    /// Start of the last one, seconds since 1970.
    pub last_start_s: f64,
    /// The last gaps that agree, seconds.
    pub gaps_s: Vec<f64>,
    /// Gaps in a row that agree with those before them.
    pub agreed: u32,
    /// A guess was in vain since one was right.
    pub is_doubted: bool,
    /// The last gap was none of them.
    pub was_odd: bool,
    /// Files of the last run, each once.
    pub files: Vec<FileRecord>,
}

/// Runs of one folder.
#[derive(Clone, Debug, PartialEq)]
pub struct FolderRecord {
    /// Its path from the root.
    pub path: Vec<u8>,
    /// Those that repeat.
    pub patterns: Vec<PatternRecord>,
}

impl FolderRecord {
    /// `None`: it takes more than [`RECORD_BYTES_MAX`], or says what no run is.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut out = vec![FORMAT];
        put_text(&mut out, &self.path);
        out.push(self.patterns.len() as u8);
        for pattern in &self.patterns {
            put_pattern(&mut out, pattern);
            if out.len() > RECORD_BYTES_MAX {
                return None;
            }
        }
        out.extend(hash_of(&out).to_le_bytes());
        let is_sound = out.len() <= RECORD_BYTES_MAX && self.is_sound();
        is_sound.then_some(out)
    }

    /// `None`: it is damaged, or of another version.
    pub fn decode(bytes: &[u8]) -> Option<FolderRecord> {
        if bytes.len() > RECORD_BYTES_MAX {
            return None;
        }
        let (content, hash) = bytes.split_at_checked(bytes.len().checked_sub(HASH_BYTES)?)?;
        if hash_of(content).to_le_bytes() != hash {
            return None;
        }
        let mut input = Input(content);
        if input.byte()? != FORMAT {
            return None;
        }
        let path = input.text()?;
        let count = usize::from(input.byte()?);
        if count > PATTERNS_MAX {
            return None;
        }
        let patterns: Option<Vec<_>> = (0..count).map(|_| input.pattern()).collect();
        let patterns = patterns?;
        let record = FolderRecord { path, patterns };
        (input.0.is_empty() && record.is_sound()).then_some(record)
    }

    fn is_sound(&self) -> bool {
        self.path.len() <= PATH_BYTES_MAX
            && self.patterns.len() <= PATTERNS_MAX
            && self.patterns.iter().all(PatternRecord::is_sound)
    }
}

impl PatternRecord {
    fn is_sound(&self) -> bool {
        let periods = PERIOD_MIN_S..=PERIOD_MAX_S;
        let gaps = 1..=GAPS_MAX;
        let is_file = |file: &FileRecord| (1..=NAME_BYTES_MAX).contains(&file.name.len());
        (0.0..=TIME_MAX_S).contains(&self.last_start_s)
            && gaps.contains(&self.gaps_s.len())
            && self.gaps_s.iter().all(|gap_s| periods.contains(gap_s))
            && self.files.len() <= FILES_MAX
            && self.files.iter().all(is_file)
            && Files::recorded(&self.files).len() == self.files.len()
    }
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u16).to_le_bytes());
    out.extend(text);
}

fn put_pattern(out: &mut Vec<u8>, pattern: &PatternRecord) {
    out.extend(pattern.last_start_s.to_le_bytes());
    out.push(pattern.gaps_s.len() as u8);
    (pattern.gaps_s.iter()).for_each(|gap_s| out.extend(gap_s.to_le_bytes()));
    out.extend(pattern.agreed.to_le_bytes());
    out.push(u8::from(pattern.is_doubted) | u8::from(pattern.was_odd) << 1);
    out.extend((pattern.files.len() as u16).to_le_bytes());
    for file in &pattern.files {
        put_text(out, &file.name);
        out.extend(file.bytes.to_le_bytes());
        out.extend(file.runs.to_le_bytes());
    }
}

/// What is left to be read.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    fn byte(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    /// A count is worth no memory until what it counts is there.
    fn count(&mut self) -> Option<usize> {
        self.array().map(u16::from_le_bytes).map(usize::from)
    }

    fn number(&mut self) -> Option<f64> {
        self.array().map(f64::from_le_bytes)
    }

    fn text(&mut self) -> Option<Vec<u8>> {
        let count = self.count()?;
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head.to_vec())
    }

    fn pattern(&mut self) -> Option<PatternRecord> {
        let last_start_s = self.number()?;
        let count = self.byte()?;
        let gaps_s: Option<Vec<f64>> = (0..count).map(|_| self.number()).collect();
        let gaps_s = gaps_s?;
        let agreed = self.array().map(u32::from_le_bytes)?;
        let flags = self.byte().filter(|flags| *flags < 4)?;
        let count = self.count().filter(|count| *count <= FILES_MAX)?;
        let files: Option<Vec<FileRecord>> = (0..count).map(|_| self.file()).collect();
        Some(PatternRecord {
            last_start_s,
            gaps_s,
            agreed,
            is_doubted: flags & 1 != 0,
            was_odd: flags & 2 != 0,
            files: files?,
        })
    }

    fn file(&mut self) -> Option<FileRecord> {
        Some(FileRecord {
            name: self.text()?,
            bytes: self.array().map(u64::from_le_bytes)?,
            runs: self.array().map(u32::from_le_bytes)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::{hash_set, vec};
    use proptest::prelude::*;

    use super::*;

    fn pattern() -> impl Strategy<Value = PatternRecord> {
        let numbers = (
            0.0..TIME_MAX_S,
            vec(PERIOD_MIN_S..PERIOD_MAX_S, 1..=GAPS_MAX),
        );
        let flags = (any::<u32>(), any::<bool>(), any::<bool>());
        let files = hash_set(vec(any::<u8>(), 1..=NAME_BYTES_MAX), 0..20);
        (numbers, flags, files, any::<(u64, u32)>()).prop_map(|(numbers, flags, names, file)| {
            let file = |name| FileRecord {
                name,
                bytes: file.0,
                runs: file.1,
            };
            PatternRecord {
                last_start_s: numbers.0,
                gaps_s: numbers.1,
                agreed: flags.0,
                is_doubted: flags.1,
                was_odd: flags.2,
                files: names.into_iter().map(file).collect(),
            }
        })
    }

    fn folder() -> impl Strategy<Value = FolderRecord> {
        let parts = (
            vec(any::<u8>(), 0..=PATH_BYTES_MAX),
            vec(pattern(), 0..=PATTERNS_MAX),
        );
        parts.prop_map(|(path, patterns)| FolderRecord { path, patterns })
    }

    /// With a hash that is right, as whoever damages it on purpose would.
    fn sealed(mut content: Vec<u8>) -> Vec<u8> {
        content.extend(hash_of(&content).to_le_bytes());
        content
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_is_encoded_is_decoded_and_no_damage_is(
            folder in folder(),
            at in any::<prop::sample::Index>(),
            bit in 0..8,
        ) {
            let bytes = folder.encode().expect("sound");
            prop_assert_eq!(FolderRecord::decode(&bytes), Some(folder));
            let mut damaged = bytes.clone();
            damaged[at.index(bytes.len())] ^= 1_u8 << bit;
            prop_assert_eq!(FolderRecord::decode(&damaged), None);
            prop_assert_eq!(FolderRecord::decode(&bytes[..at.index(bytes.len())]), None);
        }

        #[test]
        fn any_bytes_are_nothing_or_what_encodes_to_them(
            folder in folder(),
            changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            junk in vec(any::<u8>(), 0..40),
        ) {
            let mut content = folder.encode().expect("sound");
            content.truncate(content.len() - HASH_BYTES);
            for (at, byte) in changes {
                let at = at.index(content.len());
                content[at] = byte;
            }
            let junk = [vec![FORMAT], junk].concat();
            for bytes in [sealed(content), sealed(junk.clone()), junk] {
                if let Some(folder) = FolderRecord::decode(&bytes) {
                    prop_assert_eq!(folder.encode(), Some(bytes));
                }
            }
        }
    }

    #[test]
    fn what_is_too_much_or_no_run_is_not_on_record() {
        let file = |n: u32| FileRecord {
            name: format!("{n:0>250}").into_bytes(),
            bytes: 1,
            runs: 1,
        };
        let pattern = |count| PatternRecord {
            last_start_s: 1e9,
            gaps_s: vec![60.0],
            agreed: 1,
            is_doubted: false,
            was_odd: false,
            files: (0..count).map(file).collect(),
        };
        let encoded = |patterns| {
            let path = b"d".to_vec();
            FolderRecord { path, patterns }.encode()
        };
        let most = FILES_MAX as u32;
        assert!(encoded(vec![pattern(most - 200)]).is_some());
        assert!(encoded(vec![pattern(most); 4]).is_none());
        assert!(encoded(vec![pattern(1); PATTERNS_MAX + 1]).is_none());
        let wrong: [fn(&mut PatternRecord); 5] = [
            |p| p.gaps_s.clear(),
            |p| p.gaps_s = vec![f64::NAN],
            |p| p.last_start_s = f64::INFINITY,
            |p| p.files.push(p.files[0].clone()),
            |p| p.files[0].name.clear(),
        ];
        for change in wrong {
            let mut pattern = pattern(1);
            change(&mut pattern);
            assert!(encoded(vec![pattern]).is_none());
        }
    }
}
