//! The program under test: `FOREBAY_BIN`, else built once beside the tests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

use serde_json::Value;

use crate::watchdog::bound_this_test;

/// The program.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    bound_this_test();
    PROGRAM.get_or_init(|| match std::env::var_os("FOREBAY_BIN") {
        Some(path) => std::fs::canonicalize(&path)
            .unwrap_or_else(|error| panic!("FOREBAY_BIN {}: {error}", path.display())),
        None => build("forebay"),
    })
}

/// The program without settings from the environment.
pub fn bare_command() -> Command {
    let mut command = Command::new(program());
    without_settings(&mut command);
    command
}

/// The same, with a hard limit of descriptors and without the right to raise it.
pub(crate) fn limited_command(most: u64) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", "-sys_resource", "prlimit"]);
    command
        .arg(format!("--nofile={most}:{most}"))
        .arg(program());
    without_settings(&mut command);
    command
}

/// Takes the program's settings out of a command's environment.
pub fn without_settings(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FOREBAY_") {
            command.env_remove(name);
        }
    }
    command
}

/// Another program of this repository, built once beside the tests.
pub(crate) fn helper(package: &'static str) -> PathBuf {
    static BUILT: Mutex<Vec<(&str, PathBuf)>> = Mutex::new(Vec::new());
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, path)) = built.iter().find(|(name, _)| *name == package) {
        return path.clone();
    }
    let path = build(package);
    built.push((package, path.clone()));
    path
}

/// Builds the program of a package of the same name with the profile and into the target directory
/// of this test.
fn build(package: &str) -> PathBuf {
    let test = std::env::current_exe().expect("path of the test");
    // TARGET/PROFILE/deps/TEST
    let target = test
        .ancestors()
        .nth(3)
        .expect("tests lie in a target directory");
    let mut command = Command::new(env!("CARGO"));
    command
        .args(["build", "--bin", package, "-p", package])
        .arg("--message-format=json")
        .arg("--target-dir")
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    let output = command.output().expect("cargo runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo build: {stderr}");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let executables = stdout.lines().filter_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        Some(PathBuf::from(message.get("executable")?.as_str()?))
    });
    let found = executables
        .into_iter()
        .find(|path| path.file_name().is_some_and(|name| name == package));
    found.expect("cargo says where the program is")
}

/// The program in a folder that every user can reach: a link to it, or a copy.
pub fn program_for_everybody(folder: &Path) -> PathBuf {
    let path = folder.join("forebay");
    if std::fs::hard_link(program(), &path).is_err() {
        std::fs::copy(program(), &path).expect("copy of the program");
    }
    path
}
