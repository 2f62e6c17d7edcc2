//! Outcomes of operations on rented memory.

use std::error::Error;
use std::fmt;

use rdma_connect::TransportError;
use rdma_qp::WorkSuccess;

use super::in_flight::InFlight;

/// A completed operation, with its memory.
#[derive(Debug)]
#[non_exhaustive]
pub struct Finished<B> {
    /// The memory that the operation rented.
    pub buf: B,
    /// The result of the operation.
    pub result: Result<WorkSuccess, TransportError>,
}

impl<B> Finished<B> {
    /// Returns the memory and the completion of a successful operation.
    ///
    /// # Errors
    /// The error of the operation. The scope keeps the memory until the scope ends.
    #[inline(always)]
    pub fn ok(self) -> Result<(B, WorkSuccess), TransportError> {
        let Self { buf, result } = self;
        result.map(|success| (buf, success))
    }
}

/// The state of an operation on rented memory.
///
/// # Examples
/// ```
/// use rdma_channel::{Progress, TransportError, prelude::*};
///
/// # rdma_soft::install();
/// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// # let channel = pd.create_channel().max_inline_data(8).build()?;
/// # let endpoint = channel.endpoint();
/// # let mut channel = channel.handshake(endpoint)?; // to itself
/// let mut memory = pd.allocate_region(8)?;
/// let looks = channel.scope(|s| {
///     let (mut received, mut looks) = (s.receive_into(memory.as_slice_mut())?, 0);
///     loop {
///         received = match received.poll() {
///             Progress::Done(message) => {
///                 assert_eq!(message.ok()?.0[..5], *b"hello");
///                 break Ok(looks);
///             }
///             Progress::Pending(handle) => handle, // do other work now
///             Progress::Dead(late) => break Err(late.error),
///         };
///         if looks == 0 {
///             s.send_inline(b"hello")?;
///         }
///         looks += 1;
///     }
/// });
/// assert!(looks.unwrap() > 0); // the first poll came before the message
/// # Ok::<(), TransportError>(())
/// ```
#[must_use = "it returns the memory"]
#[derive(Debug)]
#[allow(clippy::exhaustive_enums)] // so that the compiler reports a match that lacks a case
pub enum Progress<'scope, B> {
    /// The operation has completed.
    Done(Finished<B>),
    /// The operation is still in flight: poll the handle again.
    Pending(InFlight<'scope, B>),
    /// The completion queue has failed, so polling again is useless.
    Dead(Late<'scope, B>),
}

/// An operation that may not have completed yet, with the reason why the wait for it ended.
///
/// A `Late` does not implement [`Error`], because it borrows its contents. `?` converts it to a [`TransportError`] or a
/// boxed error.
///
/// # Examples
/// Waiting again after a timeout:
/// ```
/// use std::time::Duration;
/// use rdma_channel::{Late, TransportError, prelude::*};
///
/// # rdma_soft::install();
/// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// # let channel = pd.create_channel().max_inline_data(8).build()?;
/// # let endpoint = channel.endpoint();
/// # let mut channel = channel.handshake(endpoint)?; // to itself
/// let mut memory = pd.allocate_region(8)?;
/// let length = channel.scope(|s| {
///     let received = s.receive_into(memory.as_slice_mut())?;
///     let handle = match received.wait(Duration::from_millis(20)) {
///         Err(Late { handle, error: TransportError::Timeout { .. }, .. }) => handle,
///         Err(late) => return Err(late.error),
///         Ok(_) => panic!("nothing was sent"),
///     };
///     s.send_inline(b"hello")?;
///     let (_, message) = handle.done(Duration::from_secs(10))?; // `?` converts a `Late`
///     Ok::<_, TransportError>(message.scattered_bytes())
/// });
/// assert_eq!(length.unwrap(), Some(5));
/// # Ok::<(), TransportError>(())
/// ```
#[non_exhaustive]
pub struct Late<'scope, B> {
    /// The handle of the operation, with the memory, which the device may still use.
    pub handle: InFlight<'scope, B>,
    /// The reason why the wait ended. After [`TransportError::Timeout`], the caller can wait again. After any other
    /// error, waiting is useless, and the memory is released when the scope ends. [`TransportError::PeerGone`] means
    /// that the peer is gone, [`TransportError::PollError`] that the completion queue has failed, and
    /// [`TransportError::Closed`] that this is a forked child.
    pub error: TransportError,
}

/// A request that was not posted, with its memory.
///
/// Like [`Late`], it does not implement [`Error`].
// `buf` has the same offset as in `InFlight`. The memory can therefore stay in registers until the post returns one of
// the two types.
#[repr(C)]
pub struct Refused<B> {
    /// The memory that the request would have rented. `None` if the provider may have posted the request. In that case,
    /// the scope keeps the memory.
    pub buf: Option<B>,
    /// The reason why the request was not posted.
    pub error: TransportError,
}

/// Implements `Display` and conversions for types that carry borrowed memory. These types do not implement [`Error`],
/// because an error that borrows cannot be boxed. An implementation would also conflict with the conversion to a boxed
/// error below.
macro_rules! errors_with_memory {
    ($($carrier:ident<$($life:lifetime,)? B>)+) => {$(
        impl<B> From<$carrier<$($life,)? B>> for TransportError {
            fn from(carrier: $carrier<$($life,)? B>) -> Self {
                carrier.error
            }
        }

        impl<B> From<$carrier<$($life,)? B>> for Box<dyn Error> {
            fn from(carrier: $carrier<$($life,)? B>) -> Self {
                carrier.error.into()
            }
        }

        impl<B> From<$carrier<$($life,)? B>> for Box<dyn Error + Send + Sync> {
            fn from(carrier: $carrier<$($life,)? B>) -> Self {
                carrier.error.into()
            }
        }

        impl<B> fmt::Display for $carrier<$($life,)? B> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.error.fmt(f)
            }
        }
    )+};
}

errors_with_memory!(Late<'_, B> Refused<B>);

impl<B> fmt::Debug for Late<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Late").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<B> fmt::Debug for Refused<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("error", &self.error).finish_non_exhaustive()
    }
}
