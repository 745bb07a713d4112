//! FUSE capabilities and limits that are asked of the kernel when a mount begins.

use std::io;

use forebay_client::Client;
use forebay_types::{Errno, Ino, limits};
use fuser::{InitFlags, KernelConfig};

/// Requests that the kernel keeps in flight for readahead and the like; its default of 16 is low.
const BACKGROUND_MAX: u16 = 64;

/// Asks for everything but passthrough. `direct`: files are read and written without the kernel's
/// pages, but may be mapped all the same.
pub(crate) fn wish(client: &Client, config: &mut KernelConfig, direct: bool) -> io::Result<()> {
    // Where others use the server: files are mapped beside direct reads, and it keeps locks.
    let shared = InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP
        | InitFlags::FUSE_POSIX_LOCKS
        | InitFlags::FUSE_FLOCK_LOCKS;
    let shared = direct.then_some(shared);
    // Each is of use where the kernel has it, and none is needed.
    for wish in [
        InitFlags::FUSE_PARALLEL_DIROPS,
        InitFlags::FUSE_AUTO_INVAL_DATA,
        InitFlags::FUSE_ASYNC_DIO,
        InitFlags::FUSE_CACHE_SYMLINKS,
        InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        // A file handle (`name_to_handle_at`) would find its file only as long as the kernel knows
        // the file. So no handles are given.
        InitFlags::FUSE_NO_EXPORT_SUPPORT,
    ]
    .into_iter()
    .chain(shared.into_iter().flat_map(|flags| flags.iter()))
    {
        if let Err(missing) = config.add_capabilities(wish) {
            tracing::debug!("the kernel does not offer {missing:?}");
        }
    }
    // The kernel checks access control lists where the PFS has them. Then Forebay applies the
    // umask.
    let lists = client.get_xattr(Ino::ROOT, b"system.posix_acl_access", 0);
    if lists != Err(Errno::EOPNOTSUPP) {
        let wish = InitFlags::FUSE_POSIX_ACL | InitFlags::FUSE_DONT_MASK;
        if let Err(missing) = config.add_capabilities(wish) {
            tracing::info!("access control lists are not checked: no {missing:?}");
        }
    }
    let refused = |what: &str| io::Error::other(format!("{what} is refused"));
    config
        .set_max_write(limits::IO_BYTES_MAX as u32)
        .map_err(|_| refused("max_write"))?;
    // The kernel may want less, and says how much. This can only lower what it reads ahead: see
    // `readahead`.
    if let Err(most) = config.set_max_readahead(limits::IO_BYTES_MAX as u32) {
        config
            .set_max_readahead(most)
            .map_err(|_| refused("max_readahead"))?;
    }
    config
        .set_max_background(BACKGROUND_MAX)
        .map_err(|_| refused("max_background"))?;
    Ok(())
}
