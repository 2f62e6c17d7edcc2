//! The start of a connection to another process, in which that process requests and receives the ring.

use rustix::io::{Errno, Result};

use super::socket::{receive_request, send_ring};
use crate::link::descriptor::Descriptor;
use crate::sync::{AtomicBool, Mutex, Ordering, locked_for_calls};

#[derive(Debug)]
pub(super) struct Handshake {
    /// Whether the other process has requested the ring.
    requested: AtomicBool,
    complete: AtomicBool,
    /// The file of the ring, until it is sent.
    ring: Mutex<Option<Descriptor>>,
}

impl Handshake {
    pub(super) fn new(ring: Descriptor) -> Self {
        let (requested, complete) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { requested, complete, ring: Mutex::new(Some(ring)) }
    }

    /// Returns true if the other process has requested the ring.
    pub(super) fn has_begun(&self) -> bool {
        self.requested.load(Ordering::Acquire)
    }

    /// Returns true if the ring was sent, so that the other process can be notified. When the other process receives
    /// the ring, it finds everything that was written before.
    pub(super) fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire)
    }

    /// Receives the other process's request for the ring.
    pub(super) fn receive_request(&self, connection: &Descriptor) -> Result<()> {
        receive_request(connection)?;
        self.requested.store(true, Ordering::Release);
        Ok(())
    }

    /// Sends the ring if it was requested. Returns false if the system cannot send it now. The caller holds the lock
    /// under which the ring is written, so that no notification arrives before the ring.
    ///
    /// # Errors
    /// Fails if the other process has exited.
    pub(super) fn answer(&self, connection: &Descriptor) -> Result<bool> {
        if self.is_complete() || !self.has_begun() {
            return Ok(true);
        }
        let mut ring = locked_for_calls(&self.ring);
        let Some(file) = &*ring else { return Ok(true) };
        match send_ring(connection, file) {
            Ok(()) => {
                *ring = None;
                self.complete.store(true, Ordering::Release);
                Ok(true)
            }
            // This user has too many file descriptors in flight (sent, but not yet received), or the system is low on
            // memory.
            Err(Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM | Errno::AGAIN | Errno::INTR) => {
                Ok(false)
            }
            Err(errno) => Err(errno),
        }
    }
}
