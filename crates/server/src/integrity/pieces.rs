//! Content that is too large to be compared when it is opened: each piece is compared before anything of it is handed out for the
//! first time, and all of them before any of it changes. What is damaged is written again from what the PFS has, where that is good.

use std::sync::atomic::Ordering;

use forebay_policy::repair::{Knowledge, Remedy, remedy_in_use};
use forebay_tiers::Object;
use forebay_types::{Errno, SetTime, failpoint};

use crate::buffer::opens::{OpenFile, Target};
use crate::buffer::pieces::Pieces;
use crate::integrity::Integrity;
use crate::integrity::atrest::is_exhaustion;

/// One read from the PFS, bytes.
const MEND_STEP_BYTES: u64 = 1 << 20;

impl Integrity {
    /// Bytes of an open file are about to be handed out. `EIO` if they are damaged, and the PFS does not have them.
    pub fn compare_before_read(
        &self,
        open: &OpenFile,
        target: &Target,
        offset: u64,
        len: u64,
    ) -> Result<(), Errno> {
        let Some(pieces) = open.uncompared() else {
            return Ok(());
        };
        for piece in pieces.sums.pieces_of(offset, len) {
            self.compare_piece(open, target.object(), &pieces, piece)?;
        }
        Ok(())
    }

    /// The content of an open file is about to change: what is left of it gets a new checksum then, whatever it is.
    pub fn compare_before_change(&self, open: &OpenFile, target: &Target) -> Result<(), Errno> {
        // Every write asks.
        if open.uncompared().is_some() {
            self.compare_before_read(open, target, 0, u64::MAX)?;
            open.believe();
        }
        Ok(())
    }

    fn compare_piece(
        &self,
        open: &OpenFile,
        object: &dyn Object,
        pieces: &Pieces,
        piece: usize,
    ) -> Result<(), Errno> {
        if pieces.is_compared(piece) {
            return Ok(());
        }
        let _turn = pieces.turn(piece);
        if pieces.is_compared(piece) {
            return Ok(());
        }
        let at = pieces.sums.range(piece);
        let problem = match pieces
            .sums
            .is_good(object, piece, &|| self.base.is_ending())
        {
            Ok(true) => {
                self.piece_is_good(open, pieces, piece);
                return Ok(());
            }
            Ok(false) => format!("checksum mismatch in bytes {} to {}", at.start, at.end),
            Err(error) if is_exhaustion(&error) => return Err((&error).into()),
            Err(error) => format!("bytes {} to {} cannot be read: {error}", at.start, at.end),
        };
        // Whoever changes it has compared all of it before.
        if !open.is_uncompared(pieces) {
            return Ok(());
        }
        let path = pieces.file.path();
        if let Err(why) = self.mend_piece(object, pieces, piece) {
            tracing::debug!("{}: {problem}: {why}", path.escape_ascii());
            self.note_damage(&pieces.file, path, problem, Default::default());
            return Err(Errno::EIO);
        }
        let action = Remedy::Rewrite.describe();
        let reason = format!("found damaged at rest: {problem}; {action}");
        self.base.report(path, Errno::EIO, reason);
        self.at_rest.found.fetch_add(1, Ordering::Relaxed);
        self.piece_is_good(open, pieces, piece);
        Ok(())
    }

    fn piece_is_good(&self, open: &OpenFile, pieces: &Pieces, piece: usize) {
        self.at_rest.compared_pieces.fetch_add(1, Ordering::Relaxed);
        if pieces.note(piece) {
            let object = pieces.file.object;
            self.at_rest.seal(object, pieces.generation, &pieces.before);
            open.believe();
        }
    }

    /// Writes a piece again from what the PFS has, if that is what was published.
    fn mend_piece(&self, object: &dyn Object, pieces: &Pieces, piece: usize) -> Result<(), Errno> {
        let Pieces {
            file, sums, before, ..
        } = pieces;
        self.base.pulse().pass()?;
        let original = self.original(file)?;
        let stop = || self.base.is_ending();
        let known = Knowledge {
            clean: file.lock().residency.clean,
            original_good: sums.is_good(&original, piece, &stop)?,
            object_good: false,
        };
        if remedy_in_use(known) != Remedy::Rewrite {
            return Err(Errno::EIO);
        }
        let mut buffer = vec![0; MEND_STEP_BYTES as usize];
        let mut at = sums.range(piece);
        while at.start < at.end {
            let want = MEND_STEP_BYTES.min(at.end - at.start) as usize;
            let count = original.read_at(&mut buffer[..want], at.start)?;
            if count == 0 {
                return Err(Errno::EIO);
            }
            at.start += object.write_at(&buffer[..count], at.start)? as u64;
            failpoint::hit(failpoint::Point::PieceRewritten);
        }
        let times = |time| Some(SetTime::At(time));
        object.set_times(times(before.atime), times(before.mtime))?;
        match sums.is_good(object, piece, &stop)? {
            true => Ok(()),
            false => Err(Errno::EIO),
        }
    }
}
