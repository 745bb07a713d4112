//! Who holds a store, and how far it has come.

use std::io::Read;

use crate::Error;

/// The form of everything that a remote store holds beside keys and values.
const FORMAT: u8 = 1;
const HOLDER_BYTES: usize = 16;
const MARK_BYTES: usize = 1 + HOLDER_BYTES + 8 + 8;

/// A value in the store that each group of commits compares and replaces in one step. So a group
/// takes effect only after the one before it, only once, and only while nobody else holds the
/// store.
///
/// 1. `holder` is drawn anew whenever the store is opened.
/// 2. `incarnation` is raised whenever the holder connects anew: what it sent before, and the
///    network or the server may still have, then takes no effect any more.
/// 3. `number` is raised by each group. It is never set back, whoever holds the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) holder: [u8; HOLDER_BYTES],
    pub(crate) incarnation: u64,
    pub(crate) number: u64,
}

impl Mark {
    /// Of a holder that opens a store in which `number` groups have taken effect.
    pub(crate) fn draw(number: u64) -> Result<Mark, Error> {
        let mut holder = [0; HOLDER_BYTES];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut holder)?;
        Ok(Mark {
            holder,
            incarnation: 0,
            number,
        })
    }

    /// What the next group sets.
    pub(crate) fn next(self) -> Mark {
        Mark {
            number: self.number + 1,
            ..self
        }
    }

    pub(crate) fn encode(&self) -> [u8; MARK_BYTES] {
        let mut bytes = [FORMAT; MARK_BYTES];
        bytes[1..17].copy_from_slice(&self.holder);
        bytes[17..25].copy_from_slice(&self.incarnation.to_be_bytes());
        bytes[25..].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Mark, Error> {
        let (Some(&FORMAT), Ok(bytes)) = (bytes.first(), <[u8; MARK_BYTES]>::try_from(bytes))
        else {
            let first = bytes.first().map(u8::to_string);
            return Err(Error::Version {
                found: first.unwrap_or_else(|| "unknown".into()),
            });
        };
        let number = |from: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[from..from + 8]);
            u64::from_be_bytes(eight)
        };
        let mut holder = [0; HOLDER_BYTES];
        holder.copy_from_slice(&bytes[1..17]);
        Ok(Mark {
            holder,
            incarnation: number(17),
            number: number(25),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_written_and_another_form_refused() -> Result<(), Error> {
        let mark = Mark {
            incarnation: 3,
            ..Mark::draw(7)?
        };
        assert_eq!(Mark::decode(&mark.encode())?, mark);
        assert_ne!(Mark::draw(7)?.holder, mark.holder);
        assert_eq!(mark.next().number, 8);
        let mut other = mark.encode();
        other[0] = 2;
        for bytes in [&other[..], b"", &mark.encode()[1..]] {
            assert!(matches!(Mark::decode(bytes), Err(Error::Version { .. })));
        }
        Ok(())
    }
}
