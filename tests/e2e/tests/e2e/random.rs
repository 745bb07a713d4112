//! Random operations on a mount against a reference model in memory, with an outsider who changes
//! other files on the PFS meanwhile.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebay_testkit::{
    Cluster, Model, Name, Seed, pattern, settle_for_revalidation, snapshot, write_file,
};
use rand::Rng;
use rand::rngs::StdRng;

/// How long one run goes on.
const FOR: Duration = Duration::from_secs(5);
/// Operations that a failed run shows.
const HISTORY: usize = 200;
/// Largest offset that is written to.
const OFFSET_MAX: usize = 300_000;

/// The tree under test and what it should be.
struct Twin {
    cluster: Cluster,
    model: Model,
    rng: StdRng,
    /// What was done, to be printed when it goes wrong.
    log: Vec<String>,
}

/// Outcome as the model gives it.
fn errno(result: io::Result<()>) -> Result<(), i32> {
    result.map_err(|error| error.raw_os_error().unwrap_or(-1))
}

impl Twin {
    /// A path below `t`: few names, so that they meet.
    fn name(&mut self) -> Name {
        let depth = self.rng.random_range(1..=3);
        let mut name = vec!["t".to_string()];
        for _ in 0..depth {
            let letter = ["a", "b", "c", "d"][self.rng.random_range(0..4)];
            name.push(letter.to_string());
        }
        name
    }

    fn path(&self, name: &Name) -> PathBuf {
        self.cluster.mnt(name.join("/"))
    }

    fn data(&mut self) -> Vec<u8> {
        let len = self.rng.random_range(1..50_000);
        pattern(self.rng.random(), len).bytes()
    }

    /// Both must have come to the same.
    #[track_caller]
    fn same(&mut self, what: String, real: io::Result<()>, expected: Result<(), i32>) {
        let real = errno(real);
        self.log.push(format!("{what} -> {real:?}"));
        assert_eq!(real, expected, "{what} after\n{}", self.history());
    }

    fn history(&self) -> String {
        let from = self.log.len().saturating_sub(HISTORY);
        self.log[from..].join("\n")
    }

    fn create(&mut self) {
        let (name, data) = (self.name(), self.data());
        let real = fs::write(self.path(&name), &data);
        let mut expected = self.model.create(&name);
        if expected.is_ok() {
            expected = self.model.write(&name, 0, &data);
        }
        self.same(format!("create {name:?} {}", data.len()), real, expected);
    }

    fn write(&mut self) {
        let (name, data) = (self.name(), self.data());
        let offset = self.rng.random_range(0..OFFSET_MAX);
        let open = OpenOptions::new().write(true).open(self.path(&name));
        let real = open.and_then(|file| file.write_all_at(&data, offset as u64));
        let expected = self.model.write(&name, offset, &data);
        self.same(
            format!("write {name:?} {offset}+{}", data.len()),
            real,
            expected,
        );
    }

    fn truncate(&mut self) {
        let name = self.name();
        let len = self.rng.random_range(0..OFFSET_MAX) * self.rng.random_range(0..2);
        let real = truncate_path(&self.path(&name), len);
        let expected = self.model.truncate(&name, len);
        self.same(format!("truncate {name:?} {len}"), real, expected);
    }

    fn rename(&mut self) {
        let (from, to) = (self.name(), self.name());
        let real = fs::rename(self.path(&from), self.path(&to));
        let expected = self.model.rename(&from, &to);
        self.same(format!("rename {from:?} {to:?}"), real, expected);
    }

    fn link(&mut self) {
        let (from, to) = (self.name(), self.name());
        let real = fs::hard_link(self.path(&from), self.path(&to));
        let expected = self.model.link(&from, &to);
        self.same(format!("link {from:?} {to:?}"), real, expected);
    }

    fn remove(&mut self) {
        let name = self.name();
        let path = self.path(&name);
        match self.rng.random_range(0..3) {
            0 => {
                let (real, expected) = (fs::remove_dir(&path), self.model.rmdir(&name));
                self.same(format!("rmdir {name:?}"), real, expected);
            }
            _ => {
                let (real, expected) = (fs::remove_file(&path), self.model.unlink(&name));
                self.same(format!("unlink {name:?}"), real, expected);
            }
        }
    }

    fn mkdir(&mut self) {
        let name = self.name();
        let real = fs::create_dir(self.path(&name));
        let expected = self.model.mkdir(&name);
        self.same(format!("mkdir {name:?}"), real, expected);
    }

    fn read(&mut self) {
        let name = self.name();
        let real = fs::read(self.path(&name));
        let found = real
            .as_ref()
            .map(Vec::as_slice)
            .map_err(|e| e.raw_os_error().unwrap_or(-1));
        let same = found == self.model.read(&name);
        assert!(
            same,
            "read {name:?}: other content after\n{}",
            self.history()
        );
    }

    /// A movement changes nothing that can be seen; whether it succeeds depends on what is there.
    fn movement(&mut self) {
        let command = ["stage-in", "stage-out", "release", "prefetch"][self.rng.random_range(0..4)];
        let name = self.name();
        let mut args = vec![command];
        if command == "stage-out" && self.rng.random() {
            args.push("--wait");
        }
        let output = self.cluster.on_path(&args, name.join("/"));
        self.log
            .push(format!("{command} {name:?} -> {}", output.code));
        assert!(
            matches!(output.code, 0 | 1 | 3),
            "{output:?} after\n{}",
            self.history()
        );
    }

    /// Somebody else works on the PFS, elsewhere.
    fn outsider(&mut self) {
        let path = self
            .cluster
            .pfs(format!("outside/{}", self.rng.random_range(0..5)));
        let id = self.rng.random_range(0..1000);
        match self.rng.random_range(0..3) {
            // Not being there is as good.
            0 => drop(fs::remove_file(&path)),
            1 => write_file(&path, pattern(id, 10_000)),
            _ => drop(fs::rename(&path, self.cluster.pfs("outside/other"))),
        }
    }

    fn step(&mut self) {
        match self.rng.random_range(0..100) {
            0..20 => self.create(),
            20..38 => self.write(),
            38..44 => self.truncate(),
            44..54 => self.rename(),
            54..62 => self.remove(),
            62..70 => self.mkdir(),
            70..76 => self.link(),
            76..90 => self.read(),
            90..94 => self.movement(),
            94..98 => self.outsider(),
            _ => std::thread::sleep(Duration::from_millis(self.rng.random_range(0..120))),
        }
    }

    /// All that the mount or the PFS shows, and all that it should.
    #[track_caller]
    fn compare(&self, root: PathBuf, what: &str) {
        let found = snapshot(&root.join("t"));
        let expected = self.model.expected(0o755, 0o644);
        let names = |tree: &std::collections::BTreeMap<Vec<u8>, _>| -> Vec<String> {
            tree.keys()
                .map(|name| String::from_utf8_lossy(name).into_owned())
                .collect()
        };
        let expected: std::collections::BTreeMap<_, _> = expected
            .into_iter()
            .filter_map(|(name, entry)| Some((name.strip_prefix(b"t/")?.to_vec(), entry)))
            .collect();
        assert_eq!(
            names(&found),
            names(&expected),
            "{what} after\n{}",
            self.history()
        );
        for (name, entry) in &expected {
            let name_shown = String::from_utf8_lossy(name);
            assert!(
                found[name] == *entry,
                "{what}: {name_shown} after\n{}",
                self.history()
            );
        }
    }
}

pub fn truncate_path(path: &std::path::Path, len: usize) -> io::Result<()> {
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes())?;
    // SAFETY: the path is a valid string that ends with NUL.
    match unsafe { libc::truncate(path.as_ptr(), len as libc::off_t) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn run(builder: forebay_testkit::Builder, what: &'static str) {
    let seed = Seed::new(what);
    let cluster = builder.up();
    for name in ["t", "outside"] {
        fs::create_dir(cluster.pfs(name)).expect("mkdir");
        fs::set_permissions(cluster.pfs(name), PermissionsExt::from_mode(0o755)).expect("chmod");
    }
    settle_for_revalidation();
    let (mut model, rng) = (Model::default(), seed.rng());
    model.mkdir(&vec!["t".into()]).expect("root");
    let mut twin = Twin {
        cluster,
        model,
        rng,
        log: Vec::new(),
    };
    let begun = Instant::now();
    while begun.elapsed() < FOR {
        twin.step();
    }
    twin.compare(twin.cluster.mnt(""), "the mount");
    twin.cluster.restart();
    twin.compare(twin.cluster.mnt(""), "the mount after kill -9");
    twin.cluster.drain("t");
    twin.compare(twin.cluster.pfs(""), "the PFS");
    twin.compare(twin.cluster.mnt(""), "the drained mount");
    let outside = twin.cluster.mnt("outside");
    settle_for_revalidation();
    assert!(snapshot(&outside) == snapshot(&twin.cluster.pfs("outside")));
}

#[test]
fn random_operations_agree_with_a_model() {
    run(Cluster::builder().eager(), "random operations");
}

#[test]
fn random_operations_agree_with_a_model_in_a_small_buffer_without_passthrough() {
    let builder = Cluster::builder().dram("8MiB").ssd("8MiB").eager();
    run(
        builder.flag("--no-passthrough"),
        "random operations in a small buffer",
    );
}
