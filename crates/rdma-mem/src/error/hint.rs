//! The usual causes of failing verbs.

use std::borrow::Cow;

use rdma_sys::Errno;

/// Why a device could not be listed or opened.
pub(crate) fn open(errno: Errno) -> Option<Cow<'static, str>> {
    Some(Cow::Borrowed(match errno {
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
        Errno::EIO => "its provider cannot set it up, and may have said why on standard error",
        _ => return None,
    }))
}

/// Why memory could not be mapped.
pub(crate) fn map(call: &str, errno: Errno) -> Option<Cow<'static, str>> {
    Some(Cow::Borrowed(match (call, errno) {
        ("mmap", Errno::ENOMEM) => {
            "there are not enough free huge pages of this size: \
             /sys/kernel/mm/hugepages/hugepages-*kB/nr_hugepages sets them aside"
        }
        ("mmap", Errno::EINVAL) => "this machine has no huge pages of this size",
        (_, Errno::EMFILE | Errno::ENFILE) => "too many open files: raise `ulimit -n`",
        _ => return None,
    }))
}

/// Why an object could not be made: memory of the kernel or the device, or a size beyond its limits.
pub(crate) fn create(errno: Errno) -> Option<Cow<'static, str>> {
    Some(Cow::Borrowed(match errno {
        Errno::ENOMEM => {
            "the device has no more of them, or RLIMIT_MEMLOCK (`ulimit -l`) is reached: queues \
             lock memory too"
        }
        _ => return None,
    }))
}
