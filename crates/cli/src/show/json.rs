//! JSON for programs. A path is a string. Where its bytes are not UTF-8 the string has U+FFFD in
//! their place. A second field with `_base16` appended to its name then holds the exact bytes.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use forebay_types::Errno;
use forebay_wire::control::PathFailure;
use serde_json::{Map, Value, json};

use crate::exit::Failure;
use crate::paths::Refused;
use crate::{mounts, out};

/// Adds a path.
pub fn insert_path(object: &mut Map<String, Value>, key: &str, path: &[u8]) {
    object.insert(
        key.into(),
        String::from_utf8_lossy(path).into_owned().into(),
    );
    if std::str::from_utf8(path).is_err() {
        let base16: String = path.iter().map(|byte| format!("{byte:02x}")).collect();
        object.insert(format!("{key}_base16"), base16.into());
    }
}

/// A list of `{"path", "errno", "error"}`: what lies outside, as it was named, and what failed
/// below the mount.
pub fn failures(mount: &Path, refused: &[Refused], failures: &[PathFailure]) -> Value {
    let outside = refused.iter().map(self::refused);
    let inside = failures.iter().map(|one| failed(mount, one));
    outside.chain(inside).collect()
}

fn failure(path: &[u8], errno: Errno, reason: &str) -> Value {
    let mut object = Map::new();
    insert_path(&mut object, "path", path);
    object.insert("errno".into(), name_of(errno));
    let reason = match reason {
        "" => errno.message(),
        _ => reason.to_string(),
    };
    object.insert("error".into(), reason.into());
    Value::Object(object)
}

/// The name of an error number; the number where it has none.
fn name_of(errno: Errno) -> Value {
    errno.name().map_or(Value::from(errno.0), Value::from)
}

/// A list of `{"path"}`.
pub fn path_list(mount: &Path, relative: &[Vec<u8>]) -> Value {
    let one = |path: &Vec<u8>| {
        let mut object = Map::new();
        insert_path(&mut object, "path", &mounts::in_mount(mount, path));
        Value::Object(object)
    };
    relative.iter().map(one).collect()
}

/// Seconds from milliseconds.
pub fn seconds(ms: u64) -> Value {
    json!(ms as f64 / 1e3)
}

/// Prints a value on one line.
pub fn print_line(value: &Value) {
    out::print(&format!("{value}\n"));
}

/// Prints the failure of a command as a line of its own for a program, and passes it on.
pub fn tell(failure: Failure) -> Failure {
    let errno = failure.errno.map(name_of);
    print_line(&json!({"fatal": {"errno": errno, "error": failure.message}}));
    failure
}

/// One path that leads nowhere.
pub fn refused(one: &Refused) -> Value {
    failure(one.path.as_os_str().as_bytes(), one.errno, &one.why)
}

/// One path that failed below the mount.
pub fn failed(mount: &Path, one: &PathFailure) -> Value {
    failure(&mounts::in_mount(mount, &one.path), one.errno, &one.reason)
}

/// Prints a value and a newline.
pub fn print(value: &Value) {
    out::print(&format!("{value:#}\n"));
}

#[cfg(test)]
mod tests {
    use forebay_types::Errno;

    use super::*;

    #[test]
    fn odd_paths_keep_their_bytes() {
        let mut object = Map::new();
        insert_path(&mut object, "path", b"/bb/ok");
        assert_eq!(Value::Object(object), json!({"path": "/bb/ok"}));
        let mut object = Map::new();
        insert_path(&mut object, "path", b"/\xff");
        assert_eq!(
            Value::Object(object),
            json!({"path": "/\u{fffd}", "path_base16": "2fff"})
        );
    }

    #[test]
    fn failures_say_why() {
        let failure = PathFailure {
            path: b"a".to_vec(),
            errno: Errno::EDQUOT,
            reason: String::new(),
        };
        let expected =
            json!([{"path": "/bb/a", "errno": "EDQUOT", "error": "Disk quota exceeded"}]);
        assert_eq!(failures(Path::new("/bb"), &[], &[failure]), expected);
    }
}
