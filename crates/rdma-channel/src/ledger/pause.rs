//! What is between two polls of which the first has found nothing: nothing, a yield of the processor, or sleep.

use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use rdma_connect::{CloseReason, Operation, TransportError};
use rdma_qp::CompletionChannel;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::Ledger;
use super::watch::Watch;
use crate::channel::waiting::{Armed, Waitable};
use crate::deadline::{Bound, Deadline, Next};

impl Ledger {
    /// To be called after each empty poll, by whoever polls again then. Whether the deadline has passed.
    ///
    /// # Errors
    /// If nothing will ever come: in a forked child, if the completion queue has failed, or if the peer of a watched
    /// stream is gone, which the error says of this operation. Then all connections are closed.
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

    /// The same while requests are flushed, which the device does by itself: without a bound, whether the peer is there
    /// or not.
    pub(super) fn pause_flush(&self, deadline: &mut Deadline) -> Result<bool, TransportError> {
        self.pause_until(deadline, None, None)
    }

    /// The same with that bound, or none, and for an operation of a peer that is watched, or none.
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
                    return Err(self.peer_gone(awaited, reason));
                }
                self.rest(left, watched.map(|(watch, _)| watch))?;
                Ok(false)
            }
        }
    }

    /// The stream to the peer has ended, and the completion queue was empty after that.
    #[cold]
    fn peer_gone(&self, operation: Operation, reason: CloseReason) -> TransportError {
        self.queues.iter().for_each(|one| one.close(reason));
        TransportError::PeerGone { operation, reason, peer: self.only().peer }
    }

    /// Sleeps until something completes, or for so long. It may wake early, and has then taken completions, or not.
    ///
    /// A failure to sleep says nothing of requests, whose completions are polled as well without: so it only costs the
    /// sleep.
    fn rest(&self, left: Option<Duration>, watch: Option<&Watch>) -> Result<(), TransportError> {
        let Some(events) = self.cq.channel() else {
            watch.into_iter().for_each(Watch::look_now_and_then);
            thread::yield_now();
            return Ok(());
        };
        let asked = self.ask_for_event(events).is_ok();
        let goes_on = self.takes_any()? || asked && self.sleep(events, left, watch);
        if !goes_on {
            watch.into_iter().for_each(Watch::look_now_and_then);
            thread::yield_now();
        }
        Ok(())
    }

    /// Asks for an event at the next completion. Those that were asked for before are taken first, so that they do not
    /// accumulate.
    fn ask_for_event(&self, events: &CompletionChannel) -> Result<(), rdma_qp::Error> {
        if self.events_asked.get() > 0 {
            while is_readable(events) && events.try_get_event()?.is_some() {}
        }
        self.cq.req_notify(false)?;
        self.events_asked.set(self.events_asked.get() + 1);
        Ok(())
    }

    /// Takes what came before the event was asked for, and makes none. Whether there was any, be it of a request or not.
    pub(super) fn takes_any(&self) -> Result<bool, TransportError> {
        match self.cq.poll_into(&*self.polled) {
            Ok(polled) => {
                self.note_completions(polled);
                Ok(polled > 0)
            }
            Err(error) => Err(self.poll_failed(error)),
        }
    }

    /// Whether it could: until there is an event, which it takes, or the peer is gone, or a signal, or the time is over.
    fn sleep(
        &self,
        events: &CompletionChannel,
        left: Option<Duration>,
        watch: Option<&Watch>,
    ) -> bool {
        // Without a limit, if it is longer than the kernel can count.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        // Without a watch, the first alone.
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
                    self.events_asked.set(0);
                }
                taken.is_ok()
            }
            Ok(_) | Err(_) => gone,
        }
    }

    /// Prepares for a sleep of the program's own.
    #[cold]
    #[inline(never)]
    pub(crate) fn arm(&self) -> Result<Armed, TransportError> {
        self.check_process()?;
        let Some(events) = self.cq.channel() else {
            self.takes_any()?;
            return Ok(Armed::Ready);
        };
        self.ask_for_event(events)?;
        let any = self.takes_any()?;
        Ok(if self.tell() || any { Armed::Ready } else { Armed::Sleep })
    }

    /// What is readable after that, unless polls alone are to find completions.
    pub(crate) fn waitable(&self) -> Option<Waitable<'_>> {
        self.cq.channel().map(|events| Waitable(events.as_fd()))
    }

    /// Whether a handle has something to report that nobody was told of before: it may be done since another handle was
    /// asked, without an event to come.
    fn tell(&self) -> bool {
        if self.counts.unreleased() == self.unasked.get() {
            return false;
        }
        let mut any = false;
        for slot in self.queues.slots().iter().filter(|slot| slot.state().is_news()) {
            slot.set(slot.state().told());
            any = true;
        }
        any
    }
}

/// Whether there may be an event. Who has made the file blocking, by a duplicate, waits for none that is not there.
fn is_readable(events: &CompletionChannel) -> bool {
    let mut files = [PollFd::new(events, PollFlags::IN)];
    matches!(poll(&mut files, Some(&Timespec::default())), Ok(1..))
}
