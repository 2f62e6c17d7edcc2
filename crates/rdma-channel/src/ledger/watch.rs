//! A stream to the peer that tells when the peer is gone.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_connect::KeepAlive;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

/// The stream of a channel to its peer, which is kept as long as the channel.
#[derive(Debug)]
pub(crate) struct Watch {
    stream: Arc<OwnedFd>,
    /// `None` if only the peer watches it.
    limit: Option<Duration>,
    looked: Cell<Option<Instant>>,
    is_gone: Cell<bool>,
}

/// Between two looks of a channel that does not sleep.
const LOOKS: Duration = Duration::from_millis(1);

impl Watch {
    /// Keeps the stream, and watches it if there is a limit.
    pub(crate) fn new(stream: &Arc<OwnedFd>, limit: Option<Duration>) -> Self {
        if let Some(limit) = limit {
            notice_silence(stream, limit);
        }
        Self {
            stream: Arc::clone(stream),
            limit,
            looked: Cell::default(),
            is_gone: Cell::default(),
        }
    }

    pub(crate) const fn limit(&self) -> Option<Duration> {
        self.limit
    }

    pub(crate) const fn is_watched(&self) -> bool {
        self.limit.is_some()
    }

    /// Whether a look has found its end.
    pub(crate) const fn is_gone(&self) -> bool {
        self.is_gone.get()
    }

    /// What to poll for. Bytes that come on the stream wake nobody.
    pub(crate) fn file(&self) -> PollFd<'_> {
        PollFd::from_borrowed_fd(self.stream.as_fd(), PollFlags::RDHUP)
    }

    /// Notes what a poll has found, and says whether that is the end.
    pub(crate) fn note(&self, polled: &PollFd<'_>) -> bool {
        let end = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        if polled.revents().intersects(end) {
            self.is_gone.set(true);
        }
        self.is_gone()
    }

    /// Looks without waiting, unless it was done just now.
    pub(crate) fn look_now_and_then(&self) {
        let now = Instant::now();
        if self.looked.get().is_some_and(|last| now.duration_since(last) < LOOKS) {
            return;
        }
        self.looked.set(Some(now));
        let mut files = [self.file()];
        if let Ok(1..) = poll(&mut files, Some(&Timespec::default())) {
            self.note(&files[0]);
        }
    }
}

/// Has the kernel end a TCP stream whose peer is silent for this long. Other streams refuse the options, and have no
/// machine at their other end that could be silent.
pub(crate) fn notice_silence(stream: &OwnedFd, limit: Duration) {
    let KeepAlive { interval, user_timeout_ms, .. } = KeepAlive::within(limit);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, interval);
    let _ = sockopt::set_tcp_keepintvl(stream, interval);
    let _ = sockopt::set_tcp_user_timeout(stream, user_timeout_ms);
}
