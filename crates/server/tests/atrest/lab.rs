//! A server with files on flash, and damage to them by hand.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_server::Settings;
use forebay_types::Ino;
use forebay_wire::control::{Control, ControlResponse, FsckReport, Movement, ScrubStatus};

use crate::common::{PATIENCE, Running, Scratch, settings};

/// Content of the drained file.
pub const CLEAN: &[u8] = b"what was drained and is on the PFS, too";
/// Content of the file that only the burst buffer has, as long as the other.
pub const DIRTY: &[u8] = b"what nobody but the burst buffer has yet";

/// What is done to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    Flip,
    Truncate,
    Lengthen,
    Remove,
    /// Exchanged with the object of the other file.
    Swap,
}

use Harm::{Flip, Lengthen, Remove, Swap, Truncate};

/// Seals at once; looks at nothing by itself.
pub fn sealing(settings: &mut Settings) {
    settings.scrub.enabled = true;
    settings.scrub.pass = Duration::from_secs(3600);
    settings.scrub.seal_after = Duration::ZERO;
    settings.scrub.calm = Duration::ZERO;
}

/// A running server with a drained and an undrained file on flash.
pub struct Lab {
    pub scratch: Scratch,
    pub settings: Settings,
    pub server: Running,
}

impl Lab {
    pub fn new(change: impl FnOnce(&mut Settings)) -> Lab {
        let scratch = Scratch::new();
        let mut settings = settings(scratch.path(), 64 << 20);
        settings.ssd.truncate(1);
        settings.demotion.idle = false;
        settings.demotion.start_fraction = 0.9;
        settings.scrub.enabled = false;
        change(&mut settings);
        let server = Running::start(&settings, false);
        let lab = Lab {
            scratch,
            settings,
            server,
        };
        lab.server.put(b"clean", CLEAN);
        lab.drain(b"clean");
        lab.server.put(b"dirty", DIRTY);
        lab
    }

    pub fn drain(&self, path: &[u8]) {
        let job = self.server.move_files(Movement::StageOut, path);
        assert_eq!(job.failed, 0, "{job:?}");
    }

    /// Starts it again, with everything it knew about what it has read forgotten.
    pub fn again(self, change: impl FnOnce(&mut Settings)) -> Lab {
        let Lab {
            scratch,
            mut settings,
            server,
        } = self;
        server.instance.stop();
        drop(server);
        change(&mut settings);
        let server = Running::start(&settings, false);
        Lab {
            scratch,
            settings,
            server,
        }
    }

    /// The object that holds this content.
    pub fn object(&self, content: &[u8]) -> PathBuf {
        let mut found = None;
        each_file(&self.scratch.path().join("ssd0/objects"), &mut |path| {
            if fs::read(path).expect("read") == content {
                found = Some(path.to_path_buf());
            }
        });
        found.expect("an object with this content")
    }

    pub fn harm(&self, harm: Harm, content: &[u8]) {
        let object = self.object(content);
        match harm {
            Flip => flip(&object, 7),
            Truncate => at_rest(&object, |file| file.set_len(9).expect("truncate")),
            Lengthen => at_rest(&object, |file| file.set_len(5000).expect("lengthen")),
            Remove => fs::remove_file(&object).expect("remove"),
            Swap => {
                let other = self.object(if content == CLEAN { DIRTY } else { CLEAN });
                let aside = other.with_extension("aside");
                for (from, to) in [(&object, &aside), (&other, &object), (&aside, &other)] {
                    fs::rename(from, to).expect("rename");
                }
            }
        }
    }

    pub fn state(&self, name: &[u8]) -> String {
        let entries = self.server.residency(name);
        entries[0].state.clone()
    }

    pub fn scrub(&self) -> ScrubStatus {
        self.server.status().scrub
    }

    /// Everything is checked, contents too, and mended where that is safe.
    pub fn fsck(&self) -> FsckReport {
        let order = Control::Fsck {
            dry_run: false,
            checksums: true,
        };
        match self.server.control(order) {
            Ok(ControlResponse::Fsck(report)) => report,
            other => panic!("fsck: {other:?}"),
        }
    }

    /// A file that the client remembers.
    pub fn known(&self, name: &[u8]) -> Ino {
        let found = self.server.client.lookup(Ino::ROOT, name, 0);
        found.expect("lookup").ino
    }

    /// Undrained data that is damaged: not put on the PFS, and kept.
    pub fn is_refused_by_a_drain(&self, what: &str) {
        let job = self.server.move_files(Movement::StageOut, b"dirty");
        assert_eq!(job.failed, 1, "{what}: {job:?}");
        assert!(!self.scratch.pfs().join("dirty").exists(), "{what}");
        assert_eq!(self.state(b"dirty"), "dirty", "{what}");
    }

    /// What `status` says of a file.
    pub fn error(&self, name: &[u8]) -> Option<String> {
        let errors = self.server.status().errors;
        let found = errors.into_iter().find(|e| e.path == name);
        found.map(|e| e.reason)
    }

    pub fn wait_for(&self, what: &str, mut is_so: impl FnMut(&Lab) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            let status = self.server.status();
            assert!(begun.elapsed() < PATIENCE, "{what}: {status:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A bit of the byte there is another.
pub fn flip(path: &Path, offset: u64) {
    at_rest(path, |file| {
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).expect("read");
        file.write_all_at(&[byte[0] ^ 4], offset).expect("write");
    });
}

/// Changes a file and leaves its times, as a medium does.
fn at_rest(path: &Path, change: impl FnOnce(&fs::File)) {
    let times = fs::metadata(path).expect("stat").modified().expect("mtime");
    let options = fs::File::options().read(true).write(true).open(path);
    let file = options.expect("open");
    change(&file);
    file.set_modified(times).expect("times");
}

pub fn each_file(dir: &Path, visit: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(dir).expect("directory") {
        let path = entry.expect("entry").path();
        match path.is_dir() {
            true => each_file(&path, visit),
            false => visit(&path),
        }
    }
}
