//! Hints for errors: the usual causes of verb failures.

use std::borrow::Cow;
use std::path::Path;

use rdma_sys::Errno;

/// The folder with the device files that libibverbs opens.
const FILES: &str = "/dev/infiniband";

/// Returns the usual cause of an error from listing or opening devices. `file` is the name of the
/// device's file in [`FILES`]; `None` when devices are listed.
pub(crate) fn open(errno: Errno, file: Option<&str>) -> Option<Cow<'static, str>> {
    let is_there = file.is_some_and(|file| Path::new(FILES).join(file).exists());
    open_with(errno, is_there)
}

fn open_with(errno: Errno, is_there: bool) -> Option<Cow<'static, str>> {
    Some(Cow::Borrowed(match errno {
        Errno::ENOENT
        | Errno::ENODEV
        | Errno::ENXIO
        | Errno::EINVAL
        | Errno::ENOTTY
        | Errno::EBADF
            if is_there =>
        {
            "its file in /dev/infiniband exists, but its provider refused it: check that the \
             user-space library (rdma-core) is as new as the kernel driver, and that the file \
             belongs to this device; `ibv_devinfo -v` shows what libibverbs finds"
        }
        Errno::EACCES | Errno::EPERM => {
            "no permission for /dev/infiniband: add the user to the group that owns uverbs*; in a \
             container, pass the devices through (docker run --device=/dev/infiniband)"
        }
        Errno::ENOENT | Errno::ENODEV | Errno::ENXIO => {
            "its file in /dev/infiniband is missing: load the kernel module ib_uverbs; in a \
             container, pass the devices through (docker run --device=/dev/infiniband)"
        }
        Errno::ENOSYS => "the kernel has no RDMA support, or its module ib_uverbs is not loaded",
        Errno::EMFILE | Errno::ENFILE => "too many open files: raise `ulimit -n`",
        Errno::EIO => {
            "its provider cannot set it up, and may have printed the reason to standard error"
        }
        _ => return None,
    }))
}

/// Returns the usual cause of an error from `call`, which maps memory.
pub(crate) fn map(call: &str, errno: Errno) -> Option<Cow<'static, str>> {
    Some(Cow::Borrowed(match (call, errno) {
        ("mmap", Errno::ENOMEM) => {
            "there are not enough free huge pages of this size: reserve more in \
             /sys/kernel/mm/hugepages/hugepages-*kB/nr_hugepages"
        }
        ("mmap", Errno::EINVAL) => "this machine has no huge pages of this size",
        (_, Errno::EMFILE | Errno::ENFILE) => "too many open files: raise `ulimit -n`",
        _ => return None,
    }))
}

/// Returns the usual cause of an error from creating an object. Only `ENOMEM` has one: a limit of
/// the device or the limit of locked memory is reached.
pub(crate) fn create(errno: Errno) -> Option<Cow<'static, str>> {
    Some(Cow::Borrowed(match errno {
        Errno::ENOMEM => {
            "the limit of the device is reached, or RLIMIT_MEMLOCK (`ulimit -l`) is reached: queues \
             lock memory too"
        }
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_there_is_not_called_missing() {
        for errno in [Errno::ENODEV, Errno::ENOENT, Errno::EINVAL, Errno::ENOTTY, Errno::EBADF] {
            let hint = open_with(errno, true).unwrap();
            assert!(hint.contains("exists") && hint.contains("refused"), "{errno}: {hint}");
        }
        assert!(open_with(Errno::ENODEV, false).unwrap().contains("is missing"));
        assert_eq!(open_with(Errno::EINVAL, false), None);
        assert!(open(Errno::ENODEV, Some("no-such-file")).unwrap().contains("is missing"));
    }
}
