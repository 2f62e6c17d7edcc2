//! Watching a stream to the peer, which ends when the peer is gone.

use std::cell::Cell;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_connect::{CloseReason, Farewell, KeepAlive};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, Shutdown, getpeername, recv, send, shutdown, sockopt};

/// A channel's stream to its peer, which is kept until the channel is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    stream: Arc<OwnedFd>,
    /// `None` if only the peer watches the stream.
    limit: Option<Duration>,
    /// Whether this is the stream of the rendezvous. If so, both ends send a farewell before they close it.
    is_of_rendezvous: bool,
    /// The process that created the watch. A forked child shares the stream and must not write to it.
    process: u32,
    last_check: Cell<Option<Instant>>,
    gone: Cell<Option<CloseReason>>,
    /// Whether polls now find the completions of everything that the peer sent before it left.
    is_settled: Cell<bool>,
    /// The farewell that this end will send.
    own_farewell: Cell<Farewell>,
    /// The farewell that the peer has sent, if any.
    farewell: Cell<Option<Farewell>>,
}

/// The minimum time between two checks of the stream by a channel that does not sleep.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

impl Watch {
    /// Keeps the stream of a rendezvous, and watches it if there is a limit.
    pub(crate) fn of_rendezvous(stream: &Arc<OwnedFd>, limit: Option<Duration>) -> Self {
        Self::new(stream, limit, true)
    }

    /// Watches a stream that belongs to the program.
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
            last_check: Cell::default(),
            gone: Cell::default(),
            is_settled: Cell::default(),
            own_farewell: Cell::new(Farewell::PLAIN),
            farewell: Cell::default(),
        }
    }

    pub(crate) const fn is_watched(&self) -> bool {
        self.limit.is_some()
    }

    /// Returns why the peer is gone, once a check has found that it is.
    pub(crate) const fn gone(&self) -> Option<CloseReason> {
        self.gone.get()
    }

    /// Records that polls now find the completions of everything that the peer sent before it left. Returns true if
    /// this was recorded earlier.
    pub(crate) fn settle(&self) -> bool {
        self.is_settled.replace(true)
    }

    /// Returns the peer's farewell, if the peer has sent one.
    pub(crate) const fn farewell(&self) -> Option<Farewell> {
        self.farewell.get()
    }

    /// Sets the farewell that is sent when the stream is closed.
    pub(crate) fn end_with(&self, own_farewell: Farewell) {
        self.own_farewell.set(own_farewell);
    }

    /// Returns the stream for a thread that waits without the ledger.
    pub(crate) fn shared_stream(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.stream)
    }

    /// Returns the address of the other end of a stream of a rendezvous.
    pub(crate) fn peer_addr(&self) -> Option<SocketAddr> {
        getpeername(&*self.stream).ok()??.try_into().ok().filter(|_| self.is_of_rendezvous)
    }

    pub(crate) fn stream(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Returns the stream and the events to poll it for. Bytes that arrive on the stream cause no wake-up.
    pub(crate) fn file(&self) -> PollFd<'_> {
        PollFd::from_borrowed_fd(self.stream(), PollFlags::RDHUP)
    }

    /// Records the result of a poll. Returns true if the stream has ended.
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

    /// Checks the stream without waiting, unless the last check was less than `CHECK_INTERVAL` ago.
    pub(crate) fn check_periodically(&self) {
        let now = Instant::now();
        if self.last_check.get().is_some_and(|last| now.duration_since(last) < CHECK_INTERVAL) {
            return;
        }
        self.last_check.set(Some(now));
        self.wait_for_end(Duration::ZERO);
    }

    /// Waits for at most `limit` for the stream to end.
    pub(crate) fn wait_for_end(&self, limit: Duration) {
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
            send_farewell(&self.stream, &self.own_farewell.get());
        }
    }
}

/// Returns why a stream ended, and the peer's farewell if there was one. Bytes on the program's own stream are left for
/// the program to read.
pub(crate) fn end_of(
    stream: &OwnedFd,
    is_of_rendezvous: bool,
    limit: Duration,
) -> (CloseReason, Option<Farewell>) {
    // One byte longer than a farewell, so that anything longer is detected.
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

/// Sends this end's farewell if that does not block, and ends the stream even if a forked child keeps a copy of its
/// descriptor. If this fails because the peer is gone, nothing is lost.
pub(crate) fn send_farewell(stream: &OwnedFd, farewell: &Farewell) {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let _ = send(stream, &farewell.to_frame(), flags);
    let _ = shutdown(stream, Shutdown::Write);
}

/// Makes the kernel end a TCP stream whose peer is silent for this long. Other streams reject the options. This does
/// not matter: they are local, so no remote machine can fall silent.
pub(crate) fn notice_silence(stream: &OwnedFd, limit: Duration) {
    let KeepAlive { interval, user_timeout_ms, .. } = KeepAlive::within(limit);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, interval);
    let _ = sockopt::set_tcp_keepintvl(stream, interval);
    let _ = sockopt::set_tcp_user_timeout(stream, user_timeout_ms);
}
