//! What becomes of operations on rented memory.

use std::error::Error;
use std::fmt;

use rdma_connect::TransportError;
use rdma_qp::WorkSuccess;

use super::in_flight::InFlight;

/// An operation that is over, with its memory.
#[derive(Debug)]
#[non_exhaustive]
pub struct Finished<B> {
    /// The memory that it had rented.
    pub buf: B,
    /// How it ended.
    pub result: Result<WorkSuccess, TransportError>,
}

impl<B> Finished<B> {
    /// The memory, and how it succeeded.
    ///
    /// # Errors
    /// How it failed: then the memory is not seen before the scope has ended.
    #[inline(always)]
    pub fn ok(self) -> Result<(B, WorkSuccess), TransportError> {
        let Self { buf, result } = self;
        result.map(|success| (buf, success))
    }
}

/// How far an operation on rented memory is.
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
///             Progress::Pending(handle) => handle, // something else can be done now
///             Progress::Dead(late) => break Err(late.error),
///         };
///         if looks == 0 {
///             s.send_inline(b"hello")?;
///         }
///         looks += 1;
///     }
/// });
/// assert!(looks.unwrap() > 0); // nothing had been sent at the first look
/// # Ok::<(), TransportError>(())
/// ```
#[must_use = "the memory comes back from it"]
#[derive(Debug)]
#[allow(clippy::exhaustive_enums)] // there is no fourth way, and the compiler reports a match that lacks one
pub enum Progress<'scope, B> {
    /// The operation is over.
    Done(Finished<B>),
    /// The operation is in flight: poll the handle again.
    Pending(InFlight<'scope, B>),
    /// The completion queue has failed: polling again cannot help.
    Dead(Late<'scope, B>),
}

/// An operation that is not known to be over, and why it is not waited for any longer.
///
/// A `Late` is no [`Error`], which would have to own what is in it; `?` makes a [`TransportError`]
/// of it, or a boxed error.
///
/// # Examples
/// A handle whose wait ran out is asked again:
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
///     let (_, message) = handle.done(Duration::from_secs(10))?; // `?` of a `Late`
///     Ok::<_, TransportError>(message.scattered_bytes())
/// });
/// assert_eq!(length.unwrap(), Some(5));
/// # Ok::<(), TransportError>(())
/// ```
#[non_exhaustive]
pub struct Late<'scope, B> {
    /// What is in flight, with its memory, which the device may use.
    pub handle: InFlight<'scope, B>,
    /// [`TransportError::Timeout`]: ask again. All else, and asking again is in vain: the scope gives the memory back
    /// when it ends. [`TransportError::PollError`] is how the completion queue has failed, and
    /// [`TransportError::Closed`] that this is a forked child.
    pub error: TransportError,
}

/// A request that was not posted, with its memory.
///
/// As [`Late`], it is no [`Error`].
// Its memory is where that of an `InFlight` is, so that it stays in registers until it is known which of them a post gives.
#[repr(C)]
pub struct Refused<B> {
    /// The memory that it would have rented. `None` if the provider did not say whether it had posted the
    /// request: then the memory stays with the scope.
    pub buf: Option<B>,
    /// Why it was not posted.
    pub error: TransportError,
}

/// What carries memory that is borrowed: as an [`Error`] it could not be boxed, and only what is none can be made one.
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
