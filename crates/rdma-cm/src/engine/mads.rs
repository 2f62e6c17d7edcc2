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
}

impl Mads {
    /// Opens queue pair 1. Returns `None` if the device reaches no other host.
    pub(super) fn open(context: &Context) -> Result<Option<Self>, Error> {
        let context = context.clone();
        // SAFETY: SAFETY.md F1, F2: the context is live and belongs to this table.
        match unsafe { context.verbs().open_mads(context.as_raw()) } {
            Ok(file) => Ok(Some(Self { context, file })),
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

    /// Returns the next MAD that has arrived.
    pub(super) fn receive(&self) -> Option<AddressedMad> {
        let mut message = [0; AddressedMad::LEN];
        let is_whole = read(&self.file, &mut message) == Ok(AddressedMad::LEN);
        is_whole.then(|| AddressedMad::from_bytes(&message))
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
