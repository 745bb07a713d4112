//! Files that a restart of the server has made stale, by name, for the log.

use forebay_types::Ino;

use crate::had::Had;

/// So many are named: a job may have thousands open.
const NAMED_MAX: usize = 10;

/// Files that cannot be open again.
#[derive(Default)]
pub(crate) struct Stale {
    named: Vec<String>,
    count: usize,
}

impl Stale {
    /// One more, by the name by which it was known before.
    pub(crate) fn add(&mut self, had: &Had, ino: Ino) {
        self.count += 1;
        if self.named.len() < NAMED_MAX {
            self.named.push(name(had, ino));
        }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// What the log says of them.
    pub(crate) fn lines(&self) -> Vec<String> {
        let named = self.named.iter();
        let mut lines: Vec<String> = named
            .map(|name| format!("stale after the server's restart: {name}"))
            .collect();
        let more = self.count - self.named.len();
        if more > 0 {
            lines.push(format!("stale after the server's restart: {more} more"));
        }
        lines
    }
}

/// The path below the mount. No session has this number, so that it is walked to the root.
fn name(had: &Had, ino: Ino) -> String {
    let Some((_, places)) = had.path(ino, u64::MAX) else {
        return format!("a file without a name (inode {})", ino.0);
    };
    let mut path = String::new();
    for step in &places {
        // No name may break a line of the log.
        path.push_str(&format!(
            "/{}",
            String::from_utf8_lossy(&step.name).escape_debug()
        ));
    }
    path
}
