//! A small file system of its own, to be filled up, made read-only or shut down.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::fs::StatVfsMountFlags;
use rustix::mount::{MountFlags, UnmountFlags, unmount};

use crate::process::run_bounded;

const LIMIT: Duration = Duration::from_secs(30);

/// `EXT4_IOC_SHUTDOWN`: `_IOR('X', 125, __u32)`.
const IOC_SHUTDOWN: libc::Ioctl = 0x8004_587d_u32 as libc::Ioctl;
/// Do not flush the log: what a power cut leaves.
const SHUTDOWN_NO_LOG_FLUSH: u32 = 2;

const PAGE_BYTES: u64 = 4096;

/// A mounted loop file system; unmounted on drop. Needs root.
pub struct LoopFs {
    image: PathBuf,
    kind: &'static str,
    point: PathBuf,
    /// Where the memory is mounted that its image is in, if it is.
    memory: Option<PathBuf>,
}

impl LoopFs {
    /// Makes one in `folder`, mounted on `point`, which exists.
    pub fn new(folder: &Path, point: &Path, size_bytes: u64) -> LoopFs {
        LoopFs::of_kind("ext4", folder, point, size_bytes)
    }

    /// A disk that has less room than it says: what goes beyond `backed_bytes` is taken by the page
    /// cache and fails when it is written back. A loop device takes a request that its file could
    /// do in part for done: so each request is one page.
    pub fn thin(folder: &Path, point: &Path, size_bytes: u64, backed_bytes: u64) -> LoopFs {
        let memory = folder.join("thin");
        std::fs::create_dir(&memory).expect("mkdir");
        let options = std::ffi::CString::new(format!("size={backed_bytes}")).expect("options");
        rustix::mount::mount(
            "thin",
            &memory,
            "tmpfs",
            MountFlags::empty(),
            options.as_c_str(),
        )
        .expect("mount of memory");
        let block = format!("{PAGE_BYTES}");
        let mut disk = LoopFs::made("ext4", &memory, point, size_bytes, &["-b", &block]);
        disk.memory = Some(memory);
        disk.limit_requests();
        disk
    }

    fn limit_requests(&self) {
        let stat = rustix::fs::stat(&self.point).expect("stat");
        let (major, minor) = (
            rustix::fs::major(stat.st_dev),
            rustix::fs::minor(stat.st_dev),
        );
        let limit = format!("/sys/dev/block/{major}:{minor}/queue/max_sectors_kb");
        std::fs::write(limit, format!("{}", PAGE_BYTES / 1024)).expect("limit of requests");
    }

    /// An `ext4` one goes on without a journal: what is lost to it does not make it read-only.
    pub fn drop_journal(&self) {
        crate::wait_until("nobody uses the loop file system", || {
            unmount(&self.point, UnmountFlags::empty()).is_ok()
        });
        let mut tune = Command::new("tune2fs");
        run_bounded(tune.args(["-O", "^has_journal"]).arg(&self.image), LIMIT).ok();
        self.mount();
    }

    /// A thin one has so much room from now on.
    pub fn back(&self, backed_bytes: u64) {
        let memory = self.memory.as_ref().expect("a thin disk");
        let how = format!("remount,size={backed_bytes}");
        let mut mount = Command::new("mount");
        run_bounded(mount.args(["-o", &how]).arg(memory), LIMIT).ok();
    }

    /// The same of the kind `ext4`, `xfs` or `btrfs`; XFS takes 300 MiB at least, Btrfs 128 MiB.
    pub fn of_kind(kind: &'static str, folder: &Path, point: &Path, size_bytes: u64) -> LoopFs {
        LoopFs::made(kind, folder, point, size_bytes, &[])
    }

    fn made(
        kind: &'static str,
        folder: &Path,
        point: &Path,
        size_bytes: u64,
        how: &[&str],
    ) -> LoopFs {
        let name = point.file_name().expect("a name").to_string_lossy();
        let image = folder.join(format!("{name}.img"));
        let file = std::fs::File::create(&image).expect("image");
        file.set_len(size_bytes).expect("image size");
        let mut make = Command::new(format!("mkfs.{kind}"));
        match kind {
            "xfs" | "btrfs" => make.args(["-q", "-K"]),
            _ => make.args(["-q", "-F", "-m", "0", "-E", "nodiscard", "-N", "1024"]),
        };
        make.args(how).arg(&image);
        run_bounded(&mut make, LIMIT).ok();
        let fs = LoopFs {
            image,
            kind,
            point: point.to_path_buf(),
            memory: None,
        };
        fs.mount();
        // The others have none.
        let _ = std::fs::remove_dir(fs.point.join("lost+found"));
        fs
    }

    /// Mounts it (again).
    pub fn mount(&self) {
        let mut mount = Command::new("mount");
        mount
            .args(["-t", self.kind, "-o", "loop"])
            .args([&self.image, &self.point]);
        run_bounded(&mut mount, LIMIT).ok();
        if self.memory.is_some() {
            self.limit_requests();
        }
    }

    /// What a machine finds after its power was cut, once nobody uses the file system any more: it
    /// was shut down before.
    pub fn power_on(&self) {
        crate::wait_until("nobody uses the loop file system", || {
            unmount(&self.point, UnmountFlags::empty()).is_ok()
        });
        self.mount();
    }

    /// Takes the mount away, at once if need be.
    pub fn unmount(&self) {
        unmount(&self.point, UnmountFlags::DETACH).expect("unmount");
    }

    /// Changes the flags of a file that is in it, as `+i`.
    pub fn chattr(&self, change: &str, file: &Path) {
        run_bounded(Command::new("chattr").arg(change).arg(file), LIMIT).ok();
    }

    /// Makes it read-only or writable again; its users keep their open files. Nobody may have a
    /// file open for writing at this moment, so it is tried for a while.
    pub fn read_only(&self, read_only: bool) {
        let how = if read_only {
            "remount,ro"
        } else {
            "remount,rw"
        };
        crate::wait_until("remount of the loop file system", || {
            let mut mount = Command::new("mount");
            mount.args(["-o", how]).arg(&self.point);
            run_bounded(&mut mount, LIMIT).code == 0
        });
        let fs = rustix::fs::statvfs(&self.point).expect("statvfs");
        assert_eq!(fs.f_flag.contains(StatVfsMountFlags::RDONLY), read_only);
    }

    /// Takes all space but about `left_bytes` with a file outside of `except`.
    pub fn fill(&self, left_bytes: u64) -> PathBuf {
        let path = self.point.join("ballast");
        let file = std::fs::File::create(&path).expect("ballast");
        let fs = rustix::fs::statvfs(&self.point).expect("statvfs");
        let free = fs.f_bavail * fs.f_frsize;
        let mut take = free.saturating_sub(left_bytes);
        // The file system needs some blocks of its own for so many.
        let flags = rustix::fs::FallocateFlags::empty();
        while rustix::fs::fallocate(&file, flags, 0, take).is_err() {
            take = take.checked_sub(64 << 10).expect("ballast");
        }
        if left_bytes == 0 {
            // The rest, block by block, until there is no space left.
            let block = [0; 4096];
            while std::os::unix::fs::FileExt::write_at(&file, &block, take).is_ok() {
                take += block.len() as u64;
            }
        }
        path
    }

    /// Ends it as a dead device does: every access fails from now on.
    pub fn shut_down(&self) {
        let folder = std::fs::File::open(&self.point).expect("root of the loop file system");
        // SAFETY: the descriptor is open and the argument is a valid pointer to the u32 that this
        // request reads.
        let result =
            unsafe { libc::ioctl(folder.as_raw_fd(), IOC_SHUTDOWN, &SHUTDOWN_NO_LOG_FLUSH) };
        assert_eq!(result, 0, "shutdown: {}", std::io::Error::last_os_error());
    }
}

impl Drop for LoopFs {
    fn drop(&mut self) {
        // It may be unmounted already; the image goes with its folder.
        let _ = unmount(&self.point, UnmountFlags::DETACH);
        if let Some(memory) = &self.memory {
            let _ = unmount(memory, UnmountFlags::DETACH);
        }
    }
}
