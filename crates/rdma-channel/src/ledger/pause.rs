//! The pause after an empty poll: spin, yield, or sleep.

use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
use std::time::Duration;

use rdma_connect::{CloseReason, Operation, TransportError};
use rdma_qp::{CompletionChannel, QueuePair};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::Ledger;
use super::watch::Watch;
use crate::channel::waiting::{Armed, Waitable};
use crate::deadline::{Bound, Deadline, Next};

impl Ledger {
    /// Pauses after an empty poll, before the caller polls again. Returns true if the deadline has passed.
    ///
    /// # Errors
    /// Returns an error if no completion can arrive any longer. Either this is a forked child, the completion queue has
    /// failed, or the peer of a watched stream is gone. In the last case, the error names `awaited`. All connections
    /// are closed.
    #[cold]
    #[inline(never)]
    pub(crate) fn pause(
        &self,
        deadline: &mut Deadline,
        awaited: Operation,
    ) -> Result<bool, TransportError> {
        let watch = self.watch.as_deref().filter(|watch| watch.is_watched());
        self.pause_until(deadline, self.limits.bound, watch.map(|watch| (watch, awaited)))
    }

    /// Like [`pause`](Self::pause), while requests are flushed. Flushing has its own time limit and does not involve
    /// the peer, so this ignores the scope's deadline and the watched stream.
    pub(super) fn pause_flush(&self, deadline: &mut Deadline) -> Result<bool, TransportError> {
        self.pause_until(deadline, None, None)
    }

    /// Like [`pause`](Self::pause), with an explicit bound. If the peer is watched, `watched` contains the watch and
    /// the awaited operation.
    fn pause_until(
        &self,
        deadline: &mut Deadline,
        bound: Option<Bound>,
        watched: Option<(&Watch, Operation)>,
    ) -> Result<bool, TransportError> {
        match deadline.next(self.limits.wait, bound) {
            Next::Poll => Ok(false),
            Next::End => Ok(true),
            Next::Rest(left) => {
                self.check_process()?;
                if let Some((watch, awaited)) = watched
                    && let Some(reason) = watch.gone()
                {
                    if self.has_settled(watch) {
                        return Err(self.peer_gone(awaited, reason));
                    }
                    return Ok(false);
                }
                self.rest(left, watched.map(|(watch, _)| watch))?;
                Ok(false)
            }
        }
    }

    /// Returns true if the peer is gone, and the caller has polled the completions of everything that it sent before.
    /// Otherwise, the caller polls again.
    pub(crate) fn is_peer_gone(&self) -> bool {
        let watch = self.watch.as_deref().filter(|watch| watch.gone().is_some());
        watch.is_some_and(|watch| self.has_settled(watch))
    }

    /// Returns true if polls have found the completions of everything that the peer sent before it left. Otherwise,
    /// they do after this call.
    fn has_settled(&self, watch: &Watch) -> bool {
        let has_settled = watch.settle();
        if !has_settled {
            // The device may have acknowledged a message whose completion it has not added yet. A query waits for the
            // device, and the caller polls again. If the query fails, the caller polls all the same.
            let _ = self.only().qp().map(QueuePair::query);
        }
        has_settled
    }

    /// Checks the watched stream, if there is one, without waiting.
    pub(crate) fn check_peer(&self) {
        let watch = self.watch.as_deref().filter(|watch| watch.is_watched());
        watch.into_iter().for_each(Watch::check_periodically);
    }

    /// Receives the event of a completion channel that is readable.
    pub(crate) fn take_event(&self) {
        if let Some(events) = self.cq.channel()
            && let Ok(Some(_)) = events.try_get_event()
        {
            self.events_requested.set(0);
        }
    }

    /// Closes all connections, because the stream to the peer has ended, and the completion queue was empty after that.
    #[cold]
    fn peer_gone(&self, operation: Operation, reason: CloseReason) -> TransportError {
        self.queues.iter().for_each(|one| one.close(reason));
        TransportError::PeerGone { operation, reason, peer: self.only().peer }
    }

    /// Sleeps until something completes, for at most `left`. May return early, and may have polled completions by then.
    ///
    /// A failure to sleep does not make requests fail, because polls still find their completions. In that case, the
    /// thread yields instead of sleeping.
    fn rest(&self, left: Option<Duration>, watch: Option<&Watch>) -> Result<(), TransportError> {
        let Some(events) = self.cq.channel() else {
            watch.into_iter().for_each(Watch::check_periodically);
            thread::yield_now();
            return Ok(());
        };
        let asked = self.request_event(events).is_ok();
        let waited = self.poll_any()? || asked && self.sleep(events, left, watch);
        if !waited {
            watch.into_iter().for_each(Watch::check_periodically);
            thread::yield_now();
        }
        Ok(())
    }

    /// Requests an event for the next completion. Pending events are received first, so that they do not accumulate.
    fn request_event(&self, events: &CompletionChannel) -> Result<(), rdma_qp::Error> {
        if self.events_requested.get() > 0 {
            while is_readable(events) && events.try_get_event()?.is_some() {}
        }
        self.cq.req_notify(false)?;
        self.events_requested.set(self.events_requested.get() + 1);
        Ok(())
    }

    /// Polls completions that arrived before the event was requested and therefore cause no event. Returns true if
    /// there were any, whether or not they matched a request.
    pub(super) fn poll_any(&self) -> Result<bool, TransportError> {
        match self.cq.poll_into(&*self.polled) {
            Ok(polled) => {
                self.note_completions(polled);
                Ok(polled > 0)
            }
            Err(error) => Err(self.poll_failed(error)),
        }
    }

    /// Sleeps until an event arrives, the peer is gone, a signal arrives, or the time expires. Receives the event.
    /// Returns true unless the sleep failed.
    fn sleep(
        &self,
        events: &CompletionChannel,
        left: Option<Duration>,
        watch: Option<&Watch>,
    ) -> bool {
        // If the limit is longer than the kernel can represent, there is no limit.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        // Without a watch, only the first file is polled.
        let mut files = [
            PollFd::new(events, PollFlags::IN),
            watch.map_or(PollFd::new(events, PollFlags::empty()), Watch::file),
        ];
        let files = &mut files[..1 + usize::from(watch.is_some())];
        let awake = poll(files, left.as_ref());
        let gone = watch.is_some_and(|watch| awake.is_ok() && watch.note(&files[1]));
        match awake {
            Ok(0) | Err(Errno::INTR) => true,
            Ok(_) if files[0].revents().contains(PollFlags::IN) => {
                let taken = events.try_get_event();
                if let Ok(Some(_)) = taken {
                    self.events_requested.set(0);
                }
                taken.is_ok()
            }
            Ok(_) | Err(_) => gone,
        }
    }

    /// Prepares for a wait in the program's own event loop.
    #[cold]
    #[inline(never)]
    pub(crate) fn arm(&self) -> Result<Armed, TransportError> {
        self.check_process()?;
        let Some(events) = self.cq.channel() else {
            self.poll_any()?;
            return Ok(Armed::Ready);
        };
        self.request_event(events)?;
        let any = self.poll_any()?;
        Ok(if self.take_unreported() || any { Armed::Ready } else { Armed::Sleep })
    }

    /// Returns the file that becomes readable after [`arm`](Self::arm); `None` if the channel spins.
    pub(crate) fn waitable(&self) -> Option<Waitable<'_>> {
        self.cq.channel().map(|events| Waitable(events.as_fd()))
    }

    /// Returns the stream that is watched, if any.
    pub(crate) fn watched_stream(&self) -> Option<BorrowedFd<'_>> {
        let watch = self.watch.as_deref().filter(|watch| watch.is_watched())?;
        Some(watch.stream())
    }

    /// Marks the completed requests that neither a handle nor an earlier call has reported. Returns true if there are
    /// any. A poll for another handle may have found their completions, so no event will arrive for them.
    fn take_unreported(&self) -> bool {
        if self.unreleased.get() == self.unclaimed.get() {
            return false;
        }
        let mut any = false;
        for slot in self.queues.slots().iter().filter(|slot| slot.state().is_unreported()) {
            slot.set(slot.state().arm_reported());
            any = true;
        }
        any
    }
}

/// Returns true if an event may be available. Without this check, the thread could block on a file that the program has
/// made blocking through a duplicate descriptor.
fn is_readable(events: &CompletionChannel) -> bool {
    let mut files = [PollFd::new(events, PollFlags::IN)];
    matches!(poll(&mut files, Some(&Timespec::default())), Ok(1..))
}
