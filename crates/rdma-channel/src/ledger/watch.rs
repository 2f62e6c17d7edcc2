//! Watching a stream to the peer, which ends when the peer is gone.

use std::cell::Cell;
#[cfg(feature = "cm")]
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_connect::{CloseReason, Farewell, KeepAlive, Until};
#[cfg(feature = "cm")]
use rdma_connect::{ConnectError, cm};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

/// A channel's stream to its peer, which is kept until the channel is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    stream: Arc<OwnedFd>,
    /// `None` if only the peer watches the stream.
    limit: Option<Duration>,
    origin: Origin,
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

/// The origin of a stream.
#[derive(Debug)]
enum Origin {
    /// The rendezvous. Both ends send a farewell before they close the stream.
    Rendezvous,
    /// The program.
    Program,
    /// A connection by rdma_cm. The stream is the connection's file. The ID is taken when the watch is dropped.
    #[cfg(feature = "cm")]
    Cm(Option<rdma_cm::ConnectionId>),
}

/// The minimum time between two checks of the stream by a channel that does not sleep.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

impl Watch {
    /// Keeps the stream of a rendezvous, and watches it if there is a limit.
    pub(crate) fn of_rendezvous(stream: &Arc<OwnedFd>, limit: Option<Duration>) -> Self {
        Self::new(stream, limit, Origin::Rendezvous)
    }

    /// Watches a stream that belongs to the program.
    pub(crate) fn of_program(stream: &Arc<OwnedFd>, limit: Duration) -> Self {
        Self::new(stream, Some(limit), Origin::Program)
    }

    /// Keeps a connection by rdma_cm, and watches it if there is a limit.
    ///
    /// # Errors
    /// [`ConnectError::Io`] if the process cannot open the connection's file.
    #[cfg(feature = "cm")]
    pub(crate) fn of_cm(
        id: rdma_cm::ConnectionId,
        address: SocketAddr,
        limit: Option<Duration>,
    ) -> Result<Self, ConnectError> {
        let failed = |error| cm::failed(error, || format!("watching the connection to {address}"));
        let file = id.file().map_err(failed)?;
        Ok(Self::new(&file, limit, Origin::Cm(Some(id))))
    }

    fn new(stream: &Arc<OwnedFd>, limit: Option<Duration>, origin: Origin) -> Self {
        if let Some(limit) = limit {
            KeepAlive::within(limit).set(stream);
        }
        Self {
            stream: Arc::clone(stream),
            limit,
            origin,
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

    /// Returns the stream for a thread that waits without the ledger, and the events to poll it for.
    pub(crate) fn shared_stream(&self) -> (Arc<OwnedFd>, PollFlags) {
        (Arc::clone(&self.stream), self.events())
    }

    pub(crate) fn stream(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Returns the events to poll the stream for. Bytes that arrive on a stream of TCP cause no wake-up. Messages of
    /// rdma_cm do, because no other thread may process them.
    const fn events(&self) -> PollFlags {
        match self.origin {
            Origin::Rendezvous | Origin::Program => PollFlags::RDHUP,
            #[cfg(feature = "cm")]
            Origin::Cm(_) => PollFlags::RDHUP.union(PollFlags::IN),
        }
    }

    /// Returns the stream and the events to poll it for.
    pub(crate) fn file(&self) -> PollFd<'_> {
        PollFd::from_borrowed_fd(self.stream(), self.events())
    }

    /// Records the result of a poll. Returns true if the peer is gone.
    pub(crate) fn note(&self, polled: &PollFd<'_>) -> bool {
        let end = self.events() | PollFlags::HUP | PollFlags::ERR;
        if polled.revents().intersects(end) && self.gone().is_none() {
            let limit = self.limit.unwrap_or_default();
            let ended = match &self.origin {
                Origin::Rendezvous => Some(end_of(&self.stream, true, limit)),
                Origin::Program => Some(end_of(&self.stream, false, limit)),
                #[cfg(feature = "cm")]
                Origin::Cm(id) => {
                    let id = id.as_ref();
                    id.and_then(|id| Some(cm::gone(&id.wait(Duration::ZERO).ok()?, id.context())))
                }
            };
            if let Some((reason, farewell)) = ended {
                self.gone.set(Some(reason));
                self.farewell.set(farewell);
            }
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
        let until = Until::after(Instant::now(), limit);
        loop {
            let left = until.left(Instant::now());
            let mut files = [self.file()];
            let is_ready =
                matches!(poll(&mut files, Timespec::try_from(left).ok().as_ref()), Ok(1..));
            if !is_ready || self.note(&files[0]) || left.is_zero() {
                return;
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let is_open = self.process == process::id() && self.gone().is_none();
        match &mut self.origin {
            Origin::Rendezvous if is_open => {
                send_farewell(&self.stream, &self.own_farewell.get());
            }
            #[cfg(feature = "cm")]
            Origin::Cm(id) if is_open => {
                let farewell = self.own_farewell.get().to_frame();
                // If this fails, the ID is dropped, which disconnects, too.
                let _ = id.take().map(|id| id.disconnect(&farewell));
            }
            _ => {}
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
