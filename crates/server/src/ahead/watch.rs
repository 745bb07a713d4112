//! The thread that hears of opens, and sees what follows.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_namespace::Dir;
use forebay_policy::ahead::{Reason, Worth};

use super::Ahead;
use super::kept::SAVE_EVERY;
use super::readers::{Folder, Listed, OPENS_MIN};
use crate::buffer::guesses::{Opened, Watched};

/// It looks again after so long, also where nobody opens anything: there may be room again.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// It looks for runs that are due after so long.
const TEND: Duration = Duration::from_millis(250);
/// A folder in which nothing happens for so long is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// After all of a folder has come in, it is not listed again for so long.
const ALL_CAME: Duration = Duration::from_secs(60);
/// A folder whose guesses were in vain is left alone for so long.
const LEFT_ALONE: Duration = Duration::from_secs(600);
/// Folders that are remembered.
const FOLDERS_MAX: usize = 1024;

/// Hears of opens until the end.
pub fn run(ahead: &Arc<Ahead>) {
    let (mut tidied, mut tended) = (Instant::now(), Instant::now());
    let mut saved = Instant::now();
    while !ahead.base.is_ending() {
        let opens = ahead.buffer.guesses().take_opens(LOOK_AGAIN);
        ahead.hear(opens);
        ahead.take_in_waste();
        if ahead.share() > 0.0 && tended.elapsed() >= TEND {
            tended = Instant::now();
            ahead.restore_runs();
            ahead.learn_from_here();
            ahead.tend_runs(ahead.now_s());
            if saved.elapsed() >= SAVE_EVERY {
                saved = Instant::now();
                ahead.save_runs();
            }
        }
        ahead.bring_some();
        if tidied.elapsed() > LOOK_AGAIN {
            tidied = Instant::now();
            ahead.tidy();
        }
    }
}

impl Ahead {
    /// Takes in what was opened.
    pub(super) fn hear(self: &Arc<Self>, opens: VecDeque<Opened>) {
        for opened in opens {
            match opened {
                Opened::OnPfs {
                    dir,
                    name,
                    bytes,
                    at,
                } => {
                    self.opened_on_pfs(&dir, &name);
                    if let Some(bytes) = bytes.filter(|_| self.share() > 0.0) {
                        self.opened_in_run(&dir, &name, bytes, at);
                    }
                }
                Opened::Watched(watched) => self.opened_here(&watched),
            }
        }
    }

    fn opened_here(&self, watched: &Watched) {
        for place in &watched.places {
            let reading = self.readings.lock().get(&place.reader).cloned();
            if let Some(reading) = reading {
                reading.opened(place.index, self.now_s());
            }
        }
        if let Some((reader, bytes)) = watched.guessed
            && !self.hit_of_run(reader, bytes)
        {
            let mut folders = self.folders.lock();
            if let Some(folder) = folders.values_mut().find(|folder| folder.was_for(reader)) {
                folder.worth.hit_bytes += bytes;
            }
        }
    }

    fn opened_on_pfs(self: &Arc<Self>, dir: &Arc<Dir>, name: &[u8]) {
        let now_s = self.now_s();
        let readings = self.readings.lock().of_folder(dir.key);
        for reading in readings {
            if let Some(index) = reading.place_of(dir, name) {
                reading.opened(index, now_s);
            }
        }
        if self.share() > 0.0 {
            self.learn(dir, name);
        }
    }

    /// Learns from an open in a folder, and begins to bring in what follows.
    fn learn(self: &Arc<Self>, dir: &Arc<Dir>, name: &[u8]) {
        let mut folders = self.folders.lock();
        if folders.len() >= FOLDERS_MAX && !folders.contains_key(&dir.key) {
            let idle = folders
                .iter()
                .filter(|(_, folder)| folder.reading.is_none());
            let Some(oldest) = idle
                .min_by_key(|(_, folder)| folder.last)
                .map(|(key, _)| *key)
            else {
                return;
            };
            folders.remove(&oldest);
        }
        let is_to_be_listed = folders
            .get(&dir.key)
            .is_some_and(|folder| folder.listed.is_none() && folder.first.len() + 1 >= OPENS_MIN);
        let files = |folder: &Folder| folder.listed.as_ref().map_or(0, Listed::len);
        let others = match is_to_be_listed {
            true => folders.values().map(files).sum(),
            false => 0,
        };
        let folder = folders.entry(dir.key).or_insert_with(Folder::new);
        folder.last = Instant::now();
        if folder
            .left_alone_until
            .is_some_and(|until| Instant::now() < until)
        {
            return;
        }
        let reason = match &mut folder.listed {
            Some(listed) => listed.opened(name),
            None => {
                folder.first.push(name.to_vec());
                if folder.first.len() < OPENS_MIN {
                    return;
                }
                let Some(mut listed) = self.list(dir, others) else {
                    folder.left_alone_until = Some(Instant::now() + LEFT_ALONE);
                    return;
                };
                let first = std::mem::take(&mut folder.first);
                let said = first.iter().map(|name| listed.opened(name)).last();
                folder.listed = Some(listed);
                said.flatten()
            }
        };
        let (Some(reason), Some(listed)) = (reason, &folder.listed) else {
            return;
        };
        let current = folder.reading.and_then(|id| {
            let reading = self.readings.lock().get(&id).cloned();
            reading.map(|reading| (id, reading))
        });
        match current {
            // A streak that goes on, or the whole folder already.
            Some((_, reading)) if reading.reason() == Reason::Epoch || reason != Reason::Epoch => {}
            Some((id, _)) => {
                self.end(id);
                folder.ended.push(id);
                folder.reading = Some(self.begin_folder(dir, reason, listed));
            }
            None => folder.reading = Some(self.begin_folder(dir, reason, listed)),
        }
        if let Some(id) = folder.reading
            && let Some(reading) = self.readings.lock().get(&id).cloned()
            && let Some(index) = reading.place_of(dir, name)
        {
            reading.opened(index, self.now_s());
        }
    }

    /// Folders whose guesses leave before anybody reads them are left alone.
    pub(super) fn take_in_waste(&self) {
        for (reader, bytes) in self.buffer.guesses().take_gone() {
            if self.waste_of_run(reader, bytes) {
                continue;
            }
            let mut folders = self.folders.lock();
            let Some(folder) = folders.values_mut().find(|folder| folder.was_for(reader)) else {
                continue;
            };
            folder.worth.wasted_bytes += bytes;
            if folder.worth.goes_on() {
                continue;
            }
            folder.left_alone_until = Some(Instant::now() + LEFT_ALONE);
            (folder.listed, folder.worth) = (None, Worth::default());
            if let Some(id) = folder.reading.take() {
                folder.ended.push(id);
                self.end(id);
            }
        }
    }

    /// Forgets folders in which nothing happens any more.
    fn tidy(&self) {
        let mut over = Vec::new();
        self.folders.lock().retain(|_, folder| {
            let is_idle = folder.last.elapsed() > FORGOTTEN_AFTER;
            let reading = folder.reading.and_then(|id| {
                let readings = self.readings.lock();
                readings.get(&id).cloned()
            });
            let is_idle = is_idle && reading.as_ref().is_none_or(|r| r.idle() > FORGOTTEN_AFTER);
            if is_idle {
                over.extend(folder.reading);
            } else if let Some(reading) = reading.filter(|reading| reading.is_over()) {
                // All of it is here or was read: what is opened on the PFS from now on is new.
                over.extend(folder.reading);
                folder.ended.extend(folder.reading.take());
                if reading.reason() == Reason::Epoch {
                    folder.listed = None;
                    folder.left_alone_until = Some(Instant::now() + ALL_CAME);
                }
            }
            !is_idle
        });
        over.into_iter().for_each(|id| self.end(id));
    }
}
