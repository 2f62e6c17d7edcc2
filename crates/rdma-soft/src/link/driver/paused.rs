//! Sockets whose events are disabled for a while.

use rustix::event::epoll;
use rustix::io::Errno;

use super::{Driver, Token};
use crate::link::descriptor::Descriptor;
use crate::sync::{AtomicBool, Ordering};

/// Whether the events of a socket are [paused](Driver::pause).
#[derive(Debug, Default)]
pub(in crate::link) struct Paused(AtomicBool);

impl Driver {
    /// Disables all events of a socket, including its end, until the caller or another thread [resumes](Self::resume) them.
    pub(in crate::link) fn pause(&self, socket: &Descriptor, paused: &Paused) {
        self.disable_events(socket);
        // Last, because another thread may resume the events meanwhile, before they are disabled.
        paused.0.store(true, Ordering::Release);
    }

    /// Enables the events of a socket if they are paused. Returns false if that must be attempted again later, for lack of
    /// memory.
    #[inline]
    #[must_use]
    pub(in crate::link) fn resume(
        &self,
        token: Token,
        socket: &Descriptor,
        paused: &Paused,
    ) -> bool {
        let is_paused = paused.0.load(Ordering::Relaxed) && paused.0.swap(false, Ordering::Acquire);
        !is_paused || self.enable_events(token, socket, paused)
    }

    #[cold]
    fn enable_events(&self, token: Token, socket: &Descriptor, paused: &Paused) -> bool {
        let (Ok(events), Ok(descriptor)) = (self.events.get(), socket.get()) else { return true };
        let added = epoll::add(events, descriptor, token.data(), epoll::EventFlags::IN);
        // Another thread may have closed the socket just before. Its end would then be reported again and again.
        if self.at(token).is_none() {
            self.disable_events(socket);
            return true;
        }
        let has_failed = matches!(added, Err(Errno::NOMEM | Errno::NOSPC));
        if has_failed {
            paused.0.store(true, Ordering::Release);
        }
        !has_failed
    }
}
