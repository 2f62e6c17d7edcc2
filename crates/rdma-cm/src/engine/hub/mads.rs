//! Queue pair 1 of a device that reaches other hosts.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;

use rdma_mem::{Context, Gid};
use rdma_sys::{AddressedMad, Errno};
use rustix::io::read;

use crate::error::Error;

pub(super) struct Mads {
    context: Context,
    file: OwnedFd,
    /// Whether the device has a clock of its own: its network is simulated.
    has_clock: bool,
}

/// A message from queue pair 1.
#[expect(clippy::large_enum_variant, reason = "a message is passed on at once")]
pub(super) enum Message {
    Mad(AddressedMad),
    /// An alarm of the device's clock is due.
    Alarm,
}

impl Mads {
    /// Opens queue pair 1. Returns `None` if the device reaches no other host.
    pub(super) fn open(context: &Context) -> Result<Option<Self>, Error> {
        let context = context.clone();
        // SAFETY: SAFETY.md F1, F2: the context is live and belongs to this table.
        match unsafe { context.verbs().open_mads(context.as_raw()) } {
            Ok(file) => {
                let mut mads = Self { context, file, has_clock: true };
                mads.has_clock = mads.time().is_some();
                Ok(Some(mads))
            }
            Err(Errno::EOPNOTSUPP) => Ok(None),
            Err(errno) => {
                let errno = rustix::io::Errno::from_raw_os_error(errno.raw());
                Err(Error::system("open queue pair 1")(errno))
            }
        }
    }

    /// Returns the file that is readable when a MAD has arrived.
    pub(super) const fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Returns the next message that has arrived.
    pub(super) fn receive(&self) -> Option<Message> {
        let mut message = [0; AddressedMad::LEN];
        match read(&self.file, &mut message) {
            Ok(AddressedMad::LEN) => Some(Message::Mad(AddressedMad::from_bytes(&message))),
            Ok(1..) => Some(Message::Alarm),
            _ => None,
        }
    }

    /// Returns the time of the device's clock in nanoseconds, if it has one of its own.
    pub(super) fn time(&self) -> Option<u64> {
        let (verbs, raw) = (self.context.verbs(), self.context.as_raw());
        // SAFETY: SAFETY.md F1, F2: the context is live and belongs to this table.
        self.has_clock.then(|| unsafe { verbs.mad_time(raw) }).flatten()
    }

    /// Makes the file readable at a time of the device's clock.
    pub(super) fn set_alarm(&self, at: u64) {
        let (verbs, raw) = (self.context.verbs(), self.context.as_raw());
        // SAFETY: SAFETY.md F1, F2: the context is live and belongs to this table.
        let _ = unsafe { verbs.set_mad_alarm(raw, at) };
    }

    /// Lets the time of the device's clock pass until its next event, but not beyond `until`. Returns true if there was
    /// an event.
    pub(super) fn pass_time(&self, until: u64) -> bool {
        let (verbs, raw) = (self.context.verbs(), self.context.as_raw());
        // SAFETY: SAFETY.md F1, F2: the context is live and belongs to this table.
        unsafe { verbs.pass_mad_time(raw, until) }
    }

    /// Returns the local address from which MADs to an address are sent. Returns `None` if the device does not reach the
    /// address.
    pub(super) fn source_to(&self, destination: Gid) -> Option<Gid> {
        let (verbs, raw) = (self.context.verbs(), self.context.as_raw());
        // SAFETY: SAFETY.md F1, F2: the context is live and belongs to this table.
        let source = unsafe { verbs.mad_source(raw, destination.to_bytes()) };
        source.ok().map(Gid::from_bytes)
    }

    /// Sends a MAD. A MAD that the device does not accept is lost, and its sender repeats it.
    pub(super) fn send(&self, mad: &AddressedMad) {
        let (verbs, raw) = (self.context.verbs(), self.context.as_raw());
        // SAFETY: SAFETY.md F1, F2: the context is live and belongs to this table.
        let _ = unsafe { verbs.send_mad(raw, mad) };
    }
}
