//! What an instance that has died leaves on its node: mounts, memory, files that say who runs.

use std::path::{Path, PathBuf};

use forebay_types::format_size;

use crate::control::no_state_folder;
use crate::exit::{Explain, Failure};
use crate::instance::mount_table;
use crate::mounts::{self, MountEntry};
use crate::starter::Starter;
use crate::state::{self, Holder};
use crate::up;

/// Memory tiers below a state folder that hold files.
fn memory_in_use(state: &Path, table: &[MountEntry]) -> Vec<(PathBuf, u64)> {
    let memory = table
        .iter()
        .filter(|e| e.fs_type == "tmpfs" && e.point.starts_with(state));
    let used = memory.filter(|entry| has_files(&entry.point));
    used.map(|e| {
        (
            e.point.clone(),
            up::resources::used_bytes(&e.point).unwrap_or(0),
        )
    })
    .collect()
}

/// Bytes in memory tiers.
pub fn in_memory_bytes(state: &Path) -> u64 {
    let table = mounts::read().unwrap_or_default();
    memory_in_use(state, &table)
        .iter()
        .map(|(_, bytes)| bytes)
        .sum()
}

/// Unmounts what a dead instance has left mounted, and says so.
pub fn not_running(state: &Path) -> Failure {
    let what = state.display();
    match state::holder(state) {
        Ok(Some(Holder::Process(pid))) => {
            let pid = pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
            return Failure::fatal(format!(
                "{what}: its instance{pid} is starting or stopping; try again in a moment"
            ));
        }
        Ok(None) => return no_state_folder(state),
        Ok(Some(Holder::Nobody)) | Err(_) => {}
    }
    let mut line = match Starter::of(state) {
        Starter::Mount(point) => format!("{}: its mount process has died", point.display()),
        Starter::Server(_) => format!("{what}: its server is not running"),
        Starter::Up => format!("{what}: no burst buffer is running on it"),
    };
    match clean(state) {
        Ok(notes) => notes
            .iter()
            .for_each(|note| line.push_str(&format!("; {note}"))),
        Err(failure) => return failure,
    }
    Failure::fatal(line)
}

fn clean(state: &Path) -> Result<Vec<String>, Failure> {
    let mut notes = Vec::new();
    let _lock = up::lock(state)?;
    for entry in mounts::of_state(&mount_table()?, state) {
        let what = entry.point.display();
        mounts::detach(&entry.point)
            .explain(format_args!("{what}: cannot take away the dead mount"), "")?;
        notes.push(format!("its dead mount on {what} was taken away"));
    }
    let table = mount_table()?;
    let kept = memory_in_use(state, &table);
    for (point, bytes) in &kept {
        notes.push(format!(
            "{} of its data are in memory at {}: {} drains what the PFS does not have",
            format_size(*bytes),
            point.display(),
            Starter::of(state)
        ));
    }
    let memory = table
        .iter()
        .filter(|e| e.fs_type == "tmpfs" && e.point.starts_with(state));
    for entry in memory.filter(|entry| kept.iter().all(|(point, _)| *point != entry.point)) {
        if mounts::detach(&entry.point).is_ok() {
            notes.push(format!(
                "its empty memory tier at {} was given back",
                entry.point.display()
            ));
        }
    }
    // Where it was mounted stays: by that the next command knows what the folder is.
    for file in [state::PID, state::SOCKET] {
        // These files only repeat what the lock says. One that cannot be removed does no harm.
        let _ = std::fs::remove_file(state.join(file));
    }
    Ok(notes)
}

/// Whether anything but empty directories is below; what cannot be read counts as something.
fn has_files(folder: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return true;
    };
    entries.into_iter().any(
        |entry| match entry.and_then(|e| Ok((e.file_type()?, e.path()))) {
            Ok((kind, path)) => !kind.is_dir() || has_files(&path),
            Err(_) => true,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_a_dead_mount_is_still_one_of_a_mount() {
        let folder = tempfile::tempdir().expect("tempdir");
        let state = folder.path();
        std::fs::write(state.join(state::MOUNT), "/bb\n").expect("write");
        std::fs::write(state.join(state::PID), "1\n").expect("write");
        for _ in 0..2 {
            assert!(clean(state).is_ok());
            assert!(Starter::of(state).is_mount());
        }
        assert!(!state.join(state::PID).exists());
    }

    #[test]
    fn empty_folders_are_no_files() {
        let folder = tempfile::tempdir().expect("tempdir");
        std::fs::create_dir_all(folder.path().join("a/b")).expect("mkdir");
        assert!(!has_files(folder.path()));
        std::fs::write(folder.path().join("a/b/c"), "").expect("write");
        assert!(has_files(folder.path()));
    }
}
