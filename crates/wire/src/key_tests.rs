use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("forebay-key-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).expect("mkdir");
        Folder(path)
    }

    fn file(&self, name: &str, text: &[u8], mode: u32) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("write");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("chmod");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).expect("remove");
    }
}

/// The line that a person sees.
fn refusal(path: &Path) -> String {
    let line = Key::read(path).expect_err("no key").to_string();
    assert!(!line.contains('\n'), "{line}");
    let path = path.display().to_string();
    line.strip_prefix(&format!("{path}: "))
        .expect("the path first")
        .replace(&path, "PATH")
}

fn line_of(digit: &str) -> Vec<u8> {
    format!("forebay-key-1 {}\n", digit.repeat(64)).into_bytes()
}

#[test]
fn what_was_made_is_read_again() {
    let folder = Folder::new("made");
    let path = folder.0.join("bb0.key");
    let made = Key::create(&path).expect("made");
    let meta = std::fs::metadata(&path).expect("metadata");
    assert_eq!(meta.mode() & 0o7777, 0o600);
    assert_eq!(Key::read(&path).expect("read").bytes(), made.bytes());
    let text = std::fs::read_to_string(&path).expect("text");
    let digits = text.strip_prefix("forebay-key-1 ").expect("the mark");
    let digits = digits.strip_suffix('\n').expect("one line");
    assert_eq!(digits.len(), 64);
    let first = u8::from_str_radix(&digits[..2], 16).expect("hexadecimal");
    let last = u8::from_str_radix(&digits[62..], 16).expect("hexadecimal");
    assert_eq!((first, last), (made.bytes()[0], made.bytes()[31]));
}

#[test]
fn keys_differ() {
    let [one, two] = [(); 2].map(|()| Key::generate().expect("random"));
    assert_ne!(one.bytes(), two.bytes());
    assert_ne!(one.bytes(), &[0; 32]);
}

#[test]
fn a_key_in_use_is_not_replaced() {
    let folder = Folder::new("replace");
    let path = folder.file("there", b"precious", 0o600);
    let error = Key::create(&path).expect_err("there is a file");
    assert!(matches!(error, KeyError::Exists(_)), "{error}");
    assert_eq!(std::fs::read(&path).expect("read"), b"precious");
    let dangling = folder.0.join("dangling");
    symlink(folder.0.join("nowhere"), &dangling).expect("symlink");
    let error = Key::create(&dangling).expect_err("there is a link");
    assert!(matches!(error, KeyError::Exists(_)), "{error}");
    assert!(!folder.0.join("nowhere").exists());
    let error = Key::create(&folder.0.join("none/key")).expect_err("no folder");
    let said = error.to_string();
    assert!(
        said.ends_with("cannot make the key file: No such file or directory"),
        "{said}"
    );
}

#[test]
fn nobody_else_may_use_it() {
    let folder = Folder::new("mode");
    for mode in [0o640, 0o604, 0o610, 0o601, 0o620, 0o602] {
        let path = folder.file("open", &line_of("a"), mode);
        assert_eq!(
            refusal(&path),
            format!(
                "others may use the key (mode {mode:04o}); chmod 600 PATH, and make a new one if \
                 somebody may have read it"
            )
        );
    }
    for mode in [0o400, 0o600, 0o700] {
        let path = folder.file("closed", &line_of("a"), mode);
        assert_eq!(Key::read(&path).expect("a key").bytes(), &[0xaa; 32]);
    }
    // A link to it is as good.
    let link = folder.0.join("link");
    symlink("closed", &link).expect("symlink");
    Key::read(&link).expect("a key");
}

#[test]
fn it_belongs_to_root_or_the_caller() {
    let folder = Folder::new("owner");
    let path = folder.file("key", &line_of("a"), 0o600);
    let meta = std::fs::metadata(&path).expect("metadata");
    let own = meta.uid();
    check(&path, &meta, own).expect("the caller's own");
    if own == 0 {
        check(&path, &meta, 1000).expect("root's is everybody's");
        std::os::unix::fs::chown(&path, Some(4711), None).expect("chown");
        assert_eq!(
            refusal(&path),
            "belongs to user 4711, and a key is taken from root or its own user only; chown root PATH"
        );
    } else {
        let error = check(&path, &meta, own + 1).expect_err("somebody else's");
        assert!(matches!(error, KeyError::Owner { .. }), "{error}");
    }
}

#[test]
fn what_is_no_key_is_refused() {
    let folder = Folder::new("content");
    let whole = line_of("a");
    let malformed = "is no key file (one line: forebay-key-1 and 64 hexadecimal digits); copy it \
                     again from a node that has it";
    let mut bad = vec![
        Vec::new(),
        whole[..whole.len() - 1].to_vec(),
        whole[1..].to_vec(),
        line_of("g"),
        line_of("A"),
        [&whole[..], b"\n"].concat(),
        whole.repeat(1000),
        whole
            .iter()
            .map(|&b| if b == b'1' { b'2' } else { b })
            .collect(),
    ];
    bad.push(format!("forebay-key-1 {}\n", "\u{e9}".repeat(32)).into_bytes());
    for text in bad {
        let path = folder.file("bad", &text, 0o600);
        assert_eq!(refusal(&path), malformed, "{text:?}");
    }
}

#[test]
fn what_is_no_file_is_refused_at_once() {
    let folder = Folder::new("kind");
    assert_eq!(
        refusal(&folder.0),
        "is not a regular file; name the key file itself"
    );
    let pipe = folder.0.join("pipe");
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, 0o600.into(), 0).expect("mkfifo");
    assert_eq!(
        refusal(&pipe),
        "is not a regular file; name the key file itself"
    );
    assert_eq!(
        refusal(&folder.0.join("none")),
        "there is no such key file; copy it from another node of the cluster, or make the first: \
         forebay keygen PATH"
    );
}

#[test]
fn it_is_not_printed() {
    let key = Key::from_bytes([0xab; 32]);
    assert_eq!(format!("{key:?}"), "Key(..)");
}

#[test]
fn it_is_wiped() {
    let mut bytes = [7; 5];
    wipe(&mut bytes);
    assert_eq!(bytes, [0; 5]);
}
