//! Actions that may help after an error.

use rdma_sys::Errno;

use super::Error;
use super::verb::VerbError;

/// The action that may help after an error. Every error of the control path and of channels returns
/// its action from `recovery()`; the error's message has the details.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Recovery {
    /// The failed call changed nothing, and may succeed later.
    Retry,
    /// The connection, or a lease that used it, has ended. Try a new one.
    Reconnect,
    /// This process lacks a permission that an administrator has to grant.
    Permission,
    /// A local resource is exhausted: memory, files, device objects, or locked memory. Release
    /// some, or request less.
    Resource,
    /// The call cannot succeed as it is: change the program, or the options on this side or the
    /// peer's.
    Programming,
}

impl Recovery {
    /// Returns the action for this error number from a call to the kernel or a provider.
    #[must_use]
    pub const fn of_errno(errno: Errno) -> Self {
        match errno {
            Errno::EAGAIN | Errno::EINTR | Errno::EBUSY | Errno::ETIMEDOUT => Self::Retry,
            Errno::EACCES | Errno::EPERM => Self::Permission,
            Errno::ENOMEM | Errno::ENOSPC | Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS => {
                Self::Resource
            }
            _ => Self::Programming,
        }
    }
}

impl VerbError {
    /// Returns the action that may help after this error.
    ///
    /// ```
    /// use rdma_mem::{Errno, Recovery, VerbError};
    ///
    /// let error = VerbError::new("ibv_reg_mr", Errno::ENOMEM);
    /// assert_eq!(error.recovery(), Recovery::Resource);
    /// ```
    #[must_use]
    pub const fn recovery(&self) -> Recovery {
        Recovery::of_errno(self.errno)
    }
}

impl Error {
    /// Returns the action that may help after this error.
    #[must_use]
    pub const fn recovery(&self) -> Recovery {
        match self {
            Self::Verb(error) => error.recovery(),
            Self::OutOfMemory { .. } | Self::PoolLimit { .. } => Recovery::Resource,
            Self::UnknownDevice(_)
            | Self::NoDevice { .. }
            | Self::UnknownProvider(_)
            | Self::Forked(_)
            | Self::Unsupported(_)
            | Self::Access(_)
            | Self::NoWindows { .. }
            | Self::NoAtomics { .. }
            | Self::EmptyRegion
            | Self::Alignment { .. }
            | Self::PageOffset { .. }
            | Self::Environment { .. }
            | Self::StillUsed { .. } => Recovery::Programming,
        }
    }
}
