//! A stream to the peer that tells when the peer is gone.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::process;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_connect::{CloseReason, Farewell, KeepAlive};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};

/// The stream of a channel to its peer, which is kept as long as the channel.
#[derive(Debug)]
pub(crate) struct Watch {
    stream: Arc<OwnedFd>,
    /// `None` if only the peer watches it.
    limit: Option<Duration>,
    /// The stream is that of the rendezvous: both ends send a farewell before they close it.
    is_of_rendezvous: bool,
    /// A forked child has the same stream, and leaves it as it is.
    process: u32,
    looked: Cell<Option<Instant>>,
    gone: Cell<Option<CloseReason>>,
    /// The last word of this end, and that of the peer.
    last_word: Cell<Farewell>,
    farewell: Cell<Option<Farewell>>,
}

/// Between two looks of a channel that does not sleep.
const LOOKS: Duration = Duration::from_millis(1);

impl Watch {
    /// Keeps the stream of a rendezvous, and watches it if there is a limit.
    pub(crate) fn of_rendezvous(stream: &Arc<OwnedFd>, limit: Option<Duration>) -> Self {
        Self::new(stream, limit, true)
    }

    /// Watches a stream of the program's own.
    pub(crate) fn of_program(stream: &Arc<OwnedFd>, limit: Duration) -> Self {
        Self::new(stream, Some(limit), false)
    }

    fn new(stream: &Arc<OwnedFd>, limit: Option<Duration>, is_of_rendezvous: bool) -> Self {
        if let Some(limit) = limit {
            notice_silence(stream, limit);
        }
        Self {
            stream: Arc::clone(stream),
            limit,
            is_of_rendezvous,
            process: process::id(),
            looked: Cell::default(),
            gone: Cell::default(),
            last_word: Cell::new(Farewell::PLAIN),
            farewell: Cell::default(),
        }
    }

    pub(crate) const fn is_watched(&self) -> bool {
        self.limit.is_some()
    }

    /// How the peer has gone, if a look has found that.
    pub(crate) const fn gone(&self) -> Option<CloseReason> {
        self.gone.get()
    }

    /// The word with which the peer has gone.
    pub(crate) const fn farewell(&self) -> Option<Farewell> {
        self.farewell.get()
    }

    /// Has the stream end with this word.
    pub(crate) fn end_with(&self, last_word: Farewell) {
        self.last_word.set(last_word);
    }

    /// What to poll for. Bytes that come on the stream wake nobody.
    pub(crate) fn file(&self) -> PollFd<'_> {
        PollFd::from_borrowed_fd(self.stream.as_fd(), PollFlags::RDHUP)
    }

    /// Notes what a poll has found. Returns true if that is the end.
    pub(crate) fn note(&self, polled: &PollFd<'_>) -> bool {
        let end = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        if polled.revents().intersects(end) && self.gone().is_none() {
            let limit = self.limit.unwrap_or_default();
            let (reason, farewell) = end_of(&self.stream, self.is_of_rendezvous, limit);
            self.gone.set(Some(reason));
            self.farewell.set(farewell);
        }
        self.gone().is_some()
    }

    /// Looks without waiting, unless it was done just now.
    pub(crate) fn look_now_and_then(&self) {
        let now = Instant::now();
        if self.looked.get().is_some_and(|last| now.duration_since(last) < LOOKS) {
            return;
        }
        self.looked.set(Some(now));
        self.look(Duration::ZERO);
    }

    /// Looks for this long.
    pub(crate) fn look(&self, limit: Duration) {
        let mut files = [self.file()];
        let limit = Timespec::try_from(limit).ok();
        if let Ok(1..) = poll(&mut files, limit.as_ref()) {
            self.note(&files[0]);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.is_of_rendezvous && self.process == process::id() && self.gone().is_none() {
            say_farewell(&self.stream, &self.last_word.get());
        }
    }
}

/// How a stream has ended. What came on a stream of the program's own is the program's.
pub(crate) fn end_of(
    stream: &OwnedFd,
    is_of_rendezvous: bool,
    limit: Duration,
) -> (CloseReason, Option<Farewell>) {
    // One more byte, which would be something else.
    let mut bytes = [0; Farewell::FRAME + 1];
    let peek = if is_of_rendezvous { RecvFlags::empty() } else { RecvFlags::PEEK };
    match recv(stream, &mut bytes, RecvFlags::DONTWAIT | peek) {
        Ok((count, _)) => {
            let farewell = Farewell::from_frame(bytes.get(..count).unwrap_or_default());
            match farewell.filter(|_| is_of_rendezvous) {
                Some(farewell) => (CloseReason::Disconnected, Some(farewell)),
                None => (CloseReason::Died, None),
            }
        }
        Err(error) => (CloseReason::of_stream(Some(&error.into()), limit), None),
    }
}

/// Sends the word with which the program has ended this end, if the stream takes it at once. A peer that has gone does not
/// miss it.
pub(crate) fn say_farewell(stream: &OwnedFd, farewell: &Farewell) {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let _ = send(stream, &farewell.to_frame(), flags);
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
