//! The secret that the nodes of a cluster have in common: how it is made, and the file it is in.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use forebay_types::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// First word of the file. Another number would be another kind of key.
const MARK: &[u8] = b"forebay-key-1 ";
/// Length of the whole file, bytes.
const FILE_BYTES: usize = MARK.len() + 2 * Key::BYTES + 1;
const DIGITS: &[u8; 16] = b"0123456789abcdef";
/// The permissions that a key file is made with.
const MODE: u32 = 0o600;
/// What may not be permitted to group and others: anything.
const OTHERS: u32 = 0o077;

/// A cluster's key: 256 random bits. Whoever has it is let in.
///
/// It is never printed, and overwritten when it goes. A copy that the compiler has made on the way
/// is not found by that: this is tidiness, no protection from who may read the process's memory.
#[derive(Clone)]
pub struct Key([u8; Key::BYTES]);

impl Key {
    /// Length, bytes.
    pub const BYTES: usize = 32;

    /// A new key from the kernel's random numbers. Waits while a machine that has just started
    /// has none.
    ///
    /// # Errors
    /// [`KeyError::NoRandom`]: the kernel gives none.
    pub fn generate() -> Result<Key, KeyError> {
        let mut key = Key([0; Key::BYTES]);
        let mut filled = 0;
        while filled < Key::BYTES {
            match getrandom(&mut key.0[filled..], GetRandomFlags::empty()) {
                Ok(bytes) => filled += bytes,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(KeyError::NoRandom(error.into())),
            }
        }
        Ok(key)
    }

    /// A key of bytes that are random already.
    pub fn from_bytes(bytes: [u8; Key::BYTES]) -> Key {
        Key(bytes)
    }

    /// The secret itself.
    pub fn bytes(&self) -> &[u8; Key::BYTES] {
        &self.0
    }

    /// Makes a key and the file it is kept in, which nobody but its owner may read. File and name
    /// are on stable storage when this returns.
    ///
    /// # Errors
    /// [`KeyError::Exists`] if there is anything under that name: a key in use is never replaced.
    /// [`KeyError::Io`] if the file cannot be written; then none is left.
    pub fn create(path: &Path) -> Result<Key, KeyError> {
        let key = Key::generate()?;
        let failed = |doing| move |source| KeyError::io(path, doing, source);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(MODE)
            .open(path)
            .map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => KeyError::Exists(path.into()),
                _ => KeyError::io(path, "make the key file", error),
            })?;
        let written = key
            .write(&file)
            .map_err(failed("write the key file"))
            .and_then(|()| sync_folder(path).map_err(failed("flush the folder of the key file")));
        if let Err(error) = written {
            // The name is ours. What is left of a key is in nobody's use, but would be in the way.
            return Err(match std::fs::remove_file(path) {
                Ok(()) => error,
                Err(source) => KeyError::Left {
                    path: path.into(),
                    why: Box::new(error),
                    source,
                },
            });
        }
        Ok(key)
    }

    /// Reads a key from its file. Permissions and content are of one descriptor, so nobody can put
    /// another file in between. Symbolic links are followed.
    ///
    /// # Errors
    /// The file is no regular file, belongs to somebody else than root or the caller, may be
    /// read or changed by others, or holds no key: see [`KeyError`].
    pub fn read(path: &Path) -> Result<Key, KeyError> {
        let file = OpenOptions::new()
            .read(true)
            // A pipe under that name would keep the caller waiting for a writer.
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path)
            .map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => KeyError::Missing(path.into()),
                _ => KeyError::io(path, "open the key file", error),
            })?;
        let meta = file
            .metadata()
            .map_err(|error| KeyError::io(path, "look at the key file", error))?;
        let caller = rustix::process::geteuid().as_raw();
        check(path, &meta, caller)?;
        // One more than there is in a key: what goes on is none, and is not read to its end.
        let mut text = Text([0; FILE_BYTES + 1]);
        let mut filled = 0;
        while filled < text.0.len() {
            match (&file).read(&mut text.0[filled..]) {
                Ok(0) => break,
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(KeyError::io(path, "read the key file", error)),
            }
        }
        Key::parse(&text.0[..filled]).ok_or_else(|| KeyError::Malformed(path.into()))
    }

    fn write(&self, mut file: &File) -> io::Result<()> {
        // The caller's umask may have taken the owner's own rights away.
        file.set_permissions(std::fs::Permissions::from_mode(MODE))?;
        let mut text = Text([0; FILE_BYTES + 1]);
        let (mark, rest) = text.0.split_at_mut(MARK.len());
        mark.copy_from_slice(MARK);
        for (pair, byte) in rest.chunks_exact_mut(2).zip(self.0) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        text.0[FILE_BYTES - 1] = b'\n';
        file.write_all(&text.0[..FILE_BYTES])?;
        file.sync_all()
    }

    fn parse(text: &[u8]) -> Option<Key> {
        let digits = text.strip_prefix(MARK)?.strip_suffix(b"\n")?;
        if digits.len() != 2 * Key::BYTES {
            return None;
        }
        let mut key = Key([0; Key::BYTES]);
        for (byte, pair) in key.0.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |digit| DIGITS.iter().position(|&one| one == digit);
            *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
        }
        Some(key)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

/// The text of a key file, which is as secret as the key.
struct Text([u8; FILE_BYTES + 1]);

impl Drop for Text {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

/// Without the look at them, the compiler leaves out zeros that nobody reads.
fn wipe(bytes: &mut [u8]) {
    bytes.fill(0);
    black_box(bytes);
}

/// A file that only root or the caller can have written, and only they can read.
fn check(path: &Path, meta: &std::fs::Metadata, caller: u32) -> Result<(), KeyError> {
    let path = || path.to_path_buf();
    if !meta.file_type().is_file() {
        return Err(KeyError::NoFile(path()));
    }
    if meta.uid() != 0 && meta.uid() != caller {
        return Err(KeyError::Owner {
            path: path(),
            uid: meta.uid(),
        });
    }
    // With an access control list the group's bits are the most that it grants to anybody.
    if meta.mode() & OTHERS != 0 {
        return Err(KeyError::Permissions {
            path: path(),
            mode: meta.mode() & 0o7777,
        });
    }
    Ok(())
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    File::open(folder)?.sync_all()
}

/// Why there is no key: one line that begins with the path and says what to do.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The kernel's random numbers cannot be had.
    #[error("the kernel gives no random numbers: {}", Errno::of(.0).message())]
    NoRandom(#[source] io::Error),
    /// There is something under the name of the new key.
    #[error("{}: exists, and a key is never replaced; choose another name", .0.display())]
    Exists(PathBuf),
    /// There is no such file.
    #[error(
        "{}: there is no such key file; copy it from another node of the cluster, or make the \
         first: forebay keygen {}", .0.display(), .0.display()
    )]
    Missing(PathBuf),
    /// Something else than a regular file.
    #[error("{}: is not a regular file; name the key file itself", .0.display())]
    NoFile(PathBuf),
    /// Somebody else could have put it there.
    #[error(
        "{}: belongs to user {uid}, and a key is taken from root or its own user only; \
         chown root {}", .path.display(), .path.display()
    )]
    Owner {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        uid: u32,
    },
    /// Others may read or change it.
    #[error(
        "{}: others may use the key (mode {mode:04o}); chmod 600 {}, and make a new one if \
         somebody may have read it", .path.display(), .path.display()
    )]
    Permissions {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Its content is no key.
    #[error(
        "{}: is no key file (one line: forebay-key-1 and 64 hexadecimal digits); copy it again \
         from a node that has it", .0.display()
    )]
    Malformed(PathBuf),
    /// A call failed.
    #[error("{}: cannot {doing}: {}", .path.display(), Errno::of(.source).message())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// The call's error.
        source: io::Error,
    },
    /// A key file could not be finished, and what there is of it could not be removed.
    #[error("{why}; what is left of it could not be removed: {}; rm {}",
        Errno::of(.source).message(), .path.display())]
    Left {
        /// The file.
        path: PathBuf,
        /// Why it is not whole.
        why: Box<KeyError>,
        /// Why it is still there.
        source: io::Error,
    },
}

impl KeyError {
    fn io(path: &Path, doing: &'static str, source: io::Error) -> KeyError {
        KeyError::Io {
            path: path.into(),
            doing,
            source,
        }
    }
}

#[cfg(test)]
#[path = "key_tests.rs"]
mod tests;
