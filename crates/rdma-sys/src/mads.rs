//! Queue pair 1 of a port, through which ports exchange management datagrams (MADs).

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd};

use crate::errno::Errno;
use crate::generated::verbs::ibv_context;
use crate::table::Verbs;

/// The functions of a provider that lets programs use queue pair 1; see
/// [`Verbs::mads`](Verbs#structfield.mads).
///
/// libibverbs has no such functions, because the kernel owns queue pair 1 of a NIC. A provider sets
/// them if its ports exchange datagrams with other hosts, and no kernel owns their queue pair 1.
#[derive(Clone, Copy, Debug)]
pub struct Mads {
    /// Returns a descriptor, or -1 with `errno`. [`Verbs::open_mads`] states the contract.
    pub open: unsafe extern "C" fn(context: *mut ibv_context) -> c_int,
    /// Stores a GID and returns 0, or returns an error number. [`Verbs::mad_source`] states the
    /// contract.
    pub source: unsafe extern "C" fn(
        context: *mut ibv_context,
        destination: *const [u8; 16],
        source: *mut [u8; 16],
    ) -> c_int,
    /// Returns 0 or an error number. [`Verbs::send_mad`] states the contract.
    pub send: unsafe extern "C" fn(context: *mut ibv_context, mad: *const AddressedMad) -> c_int,
    /// The clock of devices that do not follow the system's.
    pub clock: Option<MadClock>,
}

/// The clock of devices in simulated networks, which programs use for the timers of their
/// datagrams.
#[derive(Clone, Copy, Debug)]
pub struct MadClock {
    /// Returns the time in nanoseconds, or 0 if the device follows the system's clock.
    /// [`Verbs::mad_time`] states the contract.
    pub time: unsafe extern "C" fn(context: *mut ibv_context) -> u64,
    /// Returns 0 or an error number. [`Verbs::set_mad_alarm`] states the contract.
    pub set_alarm: unsafe extern "C" fn(context: *mut ibv_context, at: u64) -> c_int,
    /// Returns 1, or 0 if nothing happens until then. [`Verbs::pass_mad_time`] states the contract.
    pub pass_time: unsafe extern "C" fn(context: *mut ibv_context, until: u64) -> c_int,
}

/// A management datagram from queue pair 1 of one port to that of another.
///
/// # Examples
/// ```
/// use rdma_sys::AddressedMad;
///
/// let mad = AddressedMad { source: [1; 16], destination: [2; 16], mad: [3; 256] };
/// let bytes = mad.to_bytes();
/// assert_eq!((bytes[0], bytes[16], bytes[32]), (1, 2, 3));
/// assert_eq!(AddressedMad::from_bytes(&bytes), mad);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct AddressedMad {
    /// The GID of the sending port.
    pub source: [u8; 16],
    /// The GID of the receiving port.
    pub destination: [u8; 16],
    /// The datagram's payload.
    pub mad: [u8; 256],
}

impl AddressedMad {
    /// The length of a message that is read from the file of [`Verbs::open_mads`].
    pub const LEN: usize = 288;

    /// Returns the bytes of a message: the two GIDs and the payload.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let (gids, mad) = bytes.split_at_mut(32);
        let (source, destination) = gids.split_at_mut(16);
        source.copy_from_slice(&self.source);
        destination.copy_from_slice(&self.destination);
        mad.copy_from_slice(&self.mad);
        bytes
    }

    /// Reads the bytes of a message.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let mut read = Self { source: [0; 16], destination: [0; 16], mad: [0; 256] };
        let (gids, mad) = bytes.split_at(32);
        let (source, destination) = gids.split_at(16);
        read.source.copy_from_slice(source);
        read.destination.copy_from_slice(destination);
        read.mad.copy_from_slice(mad);
        read
    }
}

impl Verbs {
    /// Opens queue pair 1 of a device for this process, and returns a non-blocking file from which
    /// its datagrams are read.
    ///
    /// Each read returns one message of [`AddressedMad::LEN`] bytes. The provider has checked the
    /// packet's Q_Key, partition and length, and that queue pair 1 sent it. The source in the message
    /// is that of the packet. Messages that the program does not read in time are lost. If the
    /// function is called again, only the newest file receives later messages.
    ///
    /// A message of another length is no datagram. It only makes the file readable when the time of
    /// [`set_mad_alarm`](Self::set_mad_alarm) has come.
    ///
    /// # Errors
    /// [`Errno::EOPNOTSUPP`] if the device exchanges no datagrams with other hosts.
    /// [`Errno::EMFILE`] and other errors of the system.
    ///
    /// # Safety
    /// `context` is a live context from this table.
    pub unsafe fn open_mads(&self, context: *mut ibv_context) -> Result<OwnedFd, Errno> {
        let mads = self.mads.ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: the context belongs to this table (SAFETY.md F2).
        let file = Errno::check_minus_one(unsafe { (mads.open)(context) })?;
        // SAFETY: the function returned a new descriptor, which nothing else owns (SAFETY.md F2).
        Ok(unsafe { OwnedFd::from_raw_fd(file) })
    }

    /// Returns the GID from which datagrams to this destination are sent.
    ///
    /// # Errors
    /// [`Errno::EOPNOTSUPP`] if the device exchanges no datagrams with other hosts, or has no address
    /// of the destination's IP version. [`Errno::EHOSTUNREACH`] if the host has no route.
    ///
    /// # Safety
    /// `context` is a live context from this table.
    pub unsafe fn mad_source(
        &self,
        context: *mut ibv_context,
        destination: [u8; 16],
    ) -> Result<[u8; 16], Errno> {
        let mads = self.mads.ok_or(Errno::EOPNOTSUPP)?;
        let mut source = [0; 16];
        // SAFETY: the context belongs to this table, and both GIDs live until the call returns
        // (SAFETY.md F1, F2).
        let returned = unsafe { (mads.source)(context, &raw const destination, &raw mut source) };
        Errno::check(returned).map(|()| source)
    }

    /// Sends a datagram from queue pair 1 of a port. Never waits. Like any datagram, it can be lost.
    ///
    /// # Errors
    /// [`Errno::EOPNOTSUPP`] if the device exchanges no datagrams with other hosts.
    /// [`Errno::EINVAL`] if the source is not an address at which the device listens.
    ///
    /// # Safety
    /// `context` is a live context from this table.
    pub unsafe fn send_mad(
        &self,
        context: *mut ibv_context,
        mad: &AddressedMad,
    ) -> Result<(), Errno> {
        let mads = self.mads.ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: the context belongs to this table, and the datagram lives until the call returns
        // (SAFETY.md F1, F2).
        Errno::check(unsafe { (mads.send)(context, mad) })
    }

    /// Returns the time of a device in nanoseconds, which a program uses for the timers of its
    /// datagrams. Returns `None` if the device follows the system's clock. The time of a
    /// simulated network is virtual.
    ///
    /// # Safety
    /// `context` is a live context from this table.
    #[must_use]
    pub unsafe fn mad_time(&self, context: *mut ibv_context) -> Option<u64> {
        let clock = self.mads?.clock?;
        // SAFETY: the context belongs to this table (SAFETY.md F2).
        Some(unsafe { (clock.time)(context) }).filter(|time| *time != 0)
    }

    /// Makes the file of [`open_mads`](Self::open_mads) readable at a time of the device's clock. If an
    /// earlier alarm is set, it stays set instead of this one.
    ///
    /// # Errors
    /// [`Errno::EOPNOTSUPP`] if the device follows the system's clock. [`Errno::EINVAL`] if queue pair 1 is
    /// not open.
    ///
    /// # Safety
    /// `context` is a live context from this table.
    pub unsafe fn set_mad_alarm(&self, context: *mut ibv_context, at: u64) -> Result<(), Errno> {
        let clock = self.mads.and_then(|mads| mads.clock).ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: the context belongs to this table (SAFETY.md F2).
        Errno::check(unsafe { (clock.set_alarm)(context, at) })
    }

    /// Lets the time of a device pass until the next event on its network, such as the arrival of a
    /// packet, but not beyond `until`. Returns true if there was an event. Otherwise, the time is then
    /// `until`, unless that is [`u64::MAX`].
    ///
    /// Returns false if the device follows the system's clock.
    ///
    /// # Safety
    /// `context` is a live context from this table.
    #[must_use]
    pub unsafe fn pass_mad_time(&self, context: *mut ibv_context, until: u64) -> bool {
        let Some(clock) = self.mads.and_then(|mads| mads.clock) else { return false };
        // SAFETY: the context belongs to this table (SAFETY.md F2).
        unsafe { (clock.pass_time)(context, until) != 0 }
    }
}
