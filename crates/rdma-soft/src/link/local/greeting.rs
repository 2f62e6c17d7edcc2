//! The beginning of a connection to another process, which asks for the ring and receives it.

use rustix::io::{Errno, Result};

use super::socket::{hear_request, send_ring};
use crate::link::descriptor::Descriptor;
use crate::sync::{AtomicBool, Mutex, Ordering, locked_for_calls};

#[derive(Debug)]
pub(super) struct Greeting {
    /// Whether the other process has asked.
    asked: AtomicBool,
    over: AtomicBool,
    /// The file of the ring, until it was sent.
    ring: Mutex<Option<Descriptor>>,
}

impl Greeting {
    pub(super) fn new(ring: Descriptor) -> Self {
        let (asked, over) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { asked, over, ring: Mutex::new(Some(ring)) }
    }

    /// Returns true if the other process has asked.
    pub(super) fn has_begun(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    /// Returns true if the other process has the ring, and can be notified. It finds everything written earlier when it
    /// receives the ring.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Receives the request of the other process.
    pub(super) fn hear(&self, connection: &Descriptor) -> Result<()> {
        hear_request(connection)?;
        self.asked.store(true, Ordering::Release);
        Ok(())
    }

    /// Sends the ring if it was asked for. Returns false if the system cannot send it now. The caller holds the lock
    /// under which the ring is written, so that no notification comes before the ring.
    ///
    /// # Errors
    /// If the other process has ended.
    pub(super) fn answer(&self, connection: &Descriptor) -> Result<bool> {
        if self.is_over() || !self.has_begun() {
            return Ok(true);
        }
        let mut ring = locked_for_calls(&self.ring);
        let Some(file) = &*ring else { return Ok(true) };
        match send_ring(connection, file) {
            Ok(()) => {
                *ring = None;
                self.over.store(true, Ordering::Release);
                Ok(true)
            }
            // Too many files of this user are in flight to processes that have not received them yet, or memory is
            // short.
            Err(Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM | Errno::AGAIN | Errno::INTR) => {
                Ok(false)
            }
            Err(errno) => Err(errno),
        }
    }
}
