//! FUSE: whether something can be mounted, and what the kernel offers to who mounts.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::finding::{Finding, Grade};
use crate::up::resources::{check_fuse, may_mount};

/// `FUSE_INIT` of `linux/fuse.h`, and what stands before and in it, all little-endian words of 32
/// bits: len, opcode, ...; after 40 bytes major, minor, max_readahead, flags, flags2.
const OPCODE_INIT: u32 = 26;
const HEADER_BYTES: usize = 40;
/// `FUSE_INIT_EXT`: `flags2` is there.
const INIT_EXT: u64 = 1 << 30;
const PASSTHROUGH: u64 = 1 << 37;
const OVER_IO_URING: u64 = 1 << 41;
/// The kernel asks at once; it may be busy.
const PATIENCE_S: i64 = 5;
/// Smallest buffer with which /dev/fuse can be read.
const REQUEST_BYTES_MIN: usize = 8192;
/// Pages of the largest request that Forebay asks for: 1 MiB.
const PAGES_WANTED: u64 = 256;

/// What the kernel offers a FUSE file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Version of the protocol.
    pub version: (u32, u32),
    /// Flags of both words.
    pub flags: u64,
}

/// Everything about FUSE.
pub fn findings() -> Vec<Finding> {
    let mut findings = vec![judge_mounting()];
    let offer = may_mount().then(ask_kernel);
    findings.extend(judge_offer(offer.as_ref()));
    let pages = std::fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit");
    let pages = pages.ok().and_then(|text| text.trim().parse().ok());
    findings.extend(pages.map(judge_pages));
    findings
}

fn judge_mounting() -> Finding {
    match check_fuse() {
        Ok(()) if may_mount() => Finding::ok(
            "fuse",
            "/dev/fuse can be opened, and this process may mount",
        ),
        Ok(()) => Finding::ok(
            "fuse",
            "/dev/fuse can be opened, and fusermount3 mounts for users",
        ),
        Err(failure) => {
            let message = failure
                .message
                .strip_prefix("up: ")
                .unwrap_or(&failure.message);
            let (found, todo) = message.split_once("; ").unwrap_or((message, ""));
            Finding::new("fuse", Grade::Bad, found, todo)
        }
    }
}

fn judge_offer(offer: Option<&io::Result<Offer>>) -> Vec<Finding> {
    let (pass, ring) = ("fuse passthrough", "fuse over io_uring");
    let unused = "Forebay does not use it";
    match offer {
        None => vec![
            Finding::new(
                pass,
                Grade::Slow,
                "only root may (CAP_SYS_ADMIN): reads and writes go through the Forebay process",
                "start Forebay as root for files that the kernel reads and writes by itself",
            ),
            Finding::ok(
                ring,
                format!("not looked at, for this process may not mount; {unused}"),
            ),
        ],
        Some(Err(error)) => {
            let why = crate::exit::reason(error);
            let found = format!("not known: the kernel could not be asked: {why}");
            let todo = "`forebay status` of a running burst buffer says whether it is on";
            vec![Finding::new(pass, Grade::Note, found, todo)]
        }
        Some(Ok(offer)) => {
            let (major, minor) = offer.version;
            let offered = |flag| offer.flags & flag != 0;
            let protocol = format!("(protocol {major}.{minor})");
            let first = match offered(PASSTHROUGH) {
                true => Finding::ok(
                    pass,
                    format!("the kernel offers it {protocol}, and this process may use it"),
                ),
                false => Finding::new(
                    pass,
                    Grade::Slow,
                    format!(
                        "the kernel does not offer it {protocol}: reads and writes go through the Forebay process"
                    ),
                    "use Linux 6.9 or later with CONFIG_FUSE_PASSTHROUGH=y",
                ),
            };
            let second = match offered(OVER_IO_URING) {
                true => format!("the kernel offers it; {unused}"),
                false => format!("the kernel does not offer it; {unused}"),
            };
            vec![first, Finding::ok(ring, second)]
        }
    }
}

fn judge_pages(pages: u64) -> Finding {
    let found = format!("fs.fuse.max_pages_limit is {pages}");
    match pages >= PAGES_WANTED {
        true => Finding::ok("fuse requests", found),
        false => Finding::new(
            "fuse requests",
            Grade::Slow,
            format!("{found}: requests are smaller than 1 MiB"),
            format!("sysctl fs.fuse.max_pages_limit={PAGES_WANTED}"),
        ),
    }
}

/// Mounts a FUSE file system where nobody sees it, in a mount namespace of a thread of its own, and
/// reads what the kernel says first. All of it ends with the thread.
fn ask_kernel() -> io::Result<Offer> {
    let thread = std::thread::Builder::new().name("fb-probe".into());
    let asked = thread.spawn(ask_in_own_namespace)?;
    let gone = |_| io::Error::other("the thread that asked has died");
    asked.join().map_err(gone)?
}

fn ask_in_own_namespace() -> io::Result<Offer> {
    // SAFETY: of what could be unshared, only the table of descriptors is shared in memory, and it
    // is not named here. This thread has no business elsewhere, and ends.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS)? };
    let down = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", down)?;
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK);
    let mut device = options.open("/dev/fuse")?;
    let data = format!(
        "fd={},rootmode=40000,user_id={},group_id={}",
        device.as_raw_fd(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw()
    );
    let data = std::ffi::CString::new(data).map_err(io::Error::other)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    // Over /proc: it is there always, and nobody else sees it go.
    mount("forebay-doctor", "/proc", "fuse", flags, data.as_c_str())?;
    let mut ready = [PollFd::new(&device, PollFlags::IN)];
    let patience = rustix::time::Timespec {
        tv_sec: PATIENCE_S,
        tv_nsec: 0,
    };
    if poll(&mut ready, Some(&patience))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let mut request = vec![0; REQUEST_BYTES_MIN.max(HEADER_BYTES)];
    let len = device.read(&mut request)?;
    parse_init(&request[..len]).ok_or_else(|| io::Error::other("the first request is no FUSE_INIT"))
}

fn parse_init(request: &[u8]) -> Option<Offer> {
    let word = |at: usize| {
        let bytes = request.get(at..at + 4)?;
        Some(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    if word(4)? != OPCODE_INIT {
        return None;
    }
    let version = (word(HEADER_BYTES)?, word(HEADER_BYTES + 4)?);
    let mut flags = u64::from(word(HEADER_BYTES + 12)?);
    if flags & INIT_EXT != 0 {
        flags |= u64::from(word(HEADER_BYTES + 16)?) << 32;
    }
    Some(Offer { version, flags })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(flags: u32, flags2: u32) -> Vec<u8> {
        let mut words = [0u32; 15];
        (words[0], words[1]) = (60, OPCODE_INIT);
        (words[10], words[11], words[13], words[14]) = (7, 45, flags, flags2);
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn the_first_request_says_what_the_kernel_offers() {
        let offer = parse_init(&request(1 << 30, 1 << 5)).expect("an init");
        assert_eq!(offer.version, (7, 45));
        assert!(offer.flags & PASSTHROUGH != 0 && offer.flags & OVER_IO_URING == 0);
        // Without the extension the second word is not the kernel's.
        let old = parse_init(&request(0, 1 << 5)).expect("an init");
        assert_eq!(old.flags, 0);
        assert_eq!(parse_init(&request(0, 0)[..20]), None);
        let mut other = request(0, 0);
        other[4] = 1;
        assert_eq!(parse_init(&other), None);
    }

    #[test]
    fn what_was_not_asked_is_not_said() {
        let [pass, ring] = &judge_offer(None)[..] else {
            panic!("two findings");
        };
        assert_eq!((pass.grade, ring.grade), (Grade::Slow, Grade::Ok));
        assert!(ring.found.starts_with("not looked at"), "{ring:?}");
        let error = Err(io::Error::from_raw_os_error(libc::EPERM));
        assert!(judge_offer(Some(&error))[0].found.starts_with("not known"));
        let offer = |flags| {
            Ok(Offer {
                version: (7, 45),
                flags,
            })
        };
        let grade = |flags| judge_offer(Some(&offer(flags)))[0].grade;
        assert_eq!((grade(PASSTHROUGH), grade(0)), (Grade::Ok, Grade::Slow));
    }

    #[test]
    fn small_requests_are_slow() {
        assert_eq!(
            (judge_pages(256).grade, judge_pages(32).grade),
            (Grade::Ok, Grade::Slow)
        );
    }

    #[test]
    fn the_kernel_answers_who_may_mount() {
        let before = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        if let (true, Ok(offer)) = (may_mount(), ask_kernel()) {
            assert_eq!(offer.version.0, 7);
        }
        let after = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        assert_eq!(before.lines().count(), after.lines().count());
    }
}
