//! The usual causes of failed registrations.

use std::borrow::Cow;

use rdma_sys::Errno;
use rustix::process::{Resource, getrlimit};

use crate::device::context::Context;

/// Returns the usual cause of an error from registering `length` bytes.
pub(crate) fn register(
    context: &Context,
    errno: Errno,
    length: usize,
) -> Option<Cow<'static, str>> {
    Some(match errno {
        Errno::ENOMEM => Cow::Owned(locked_memory(context, length)),
        Errno::EAGAIN => Cow::Borrowed("the kernel is short of memory that it may lock; try again"),
        Errno::EFAULT => Cow::Borrowed(
            "a page of the range is not mapped, or is read-only where the device would write",
        ),
        Errno::EINVAL => Cow::Borrowed(
            "the device does not know one of the access flags, or the range wraps around",
        ),
        Errno::EOPNOTSUPP => Cow::Borrowed("the device does not support one of the access flags"),
        _ => return None,
    })
}

/// Returns the usual cause of an error from registering `length` bytes of a dma-buf.
pub(crate) fn register_dmabuf(
    context: &Context,
    errno: Errno,
    length: usize,
) -> Option<Cow<'static, str>> {
    Some(Cow::Borrowed(match errno {
        Errno::EBADF => "the file descriptor is not open",
        Errno::EACCES => "the file is not writable, but the access flags let the device write",
        Errno::EINVAL => {
            "the descriptor is not a dma-buf (a software device also accepts a memfd that is \
             sealed with F_SEAL_SHRINK), the range goes beyond its end, or an access flag is not \
             one of local write, remote read, remote write, remote atomic and relaxed ordering"
        }
        Errno::EOPNOTSUPP => {
            "the device's driver cannot use dma-bufs (rdma_rxe cannot), or the device cannot \
             reach this dma-buf"
        }
        _ => return register(context, errno, length),
    }))
}

fn locked_memory(context: &Context, length: usize) -> String {
    let now = match getrlimit(Resource::Memlock).current {
        Some(bytes) => format!("{bytes} bytes for the whole process"),
        None => "unlimited".to_owned(),
    };
    let device = match context.query_device() {
        Ok(device) => format!(
            " (max_mr_size {} bytes, max_mr {} regions, or a limit that it was configured with)",
            device.max_mr_size, device.max_mr
        ),
        Err(_) => String::new(),
    };
    format!(
        "the call locks {length} bytes in memory, and RLIMIT_MEMLOCK is {now}: raise it with \
         `ulimit -l unlimited`, in /etc/security/limits.conf, by LimitMEMLOCK=infinity (systemd) \
         or --ulimit memlock=-1 (containers); or it is the device's own limit{device}"
    )
}
