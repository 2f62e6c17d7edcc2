//! Posting, which waits while a queue is full.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use rdma_channel::TransportError;
use tokio::sync::futures::OwnedNotified;

use super::failed::Failed;
use super::kinds::Kind;
use super::posted::Posted;
use crate::buffer::held::Held;
use crate::buffer::held::sealed::Loan;
use crate::ledger::post::Request;
use crate::link::Link;

/// What was not posted.
pub(crate) struct NotPosted<'c> {
    pub(crate) link: Link<'c>,
    pub(crate) held: Held,
    pub(crate) error: TransportError,
}

/// Posts a request, if there is a slot for it.
#[inline]
#[allow(clippy::result_large_err)] // it is the operation itself
pub(crate) fn post_now<'c, K: Kind>(
    link: Link<'c>,
    held: Held,
    request: Request,
) -> Result<Posted<'c, K>, NotPosted<'c>> {
    if let Err(error) = link.prepare(&request) {
        return Err(NotPosted { link, held, error });
    }
    let mut table = link.ledger.lock();
    let place = table.at(link.place);
    let posted = place.post(link.place, &request, held);
    let is_in_doubt = place.is_in_doubt();
    drop(table);
    if is_in_doubt {
        end_doubt(&link);
    }
    match posted {
        Ok(id) => Ok(Posted::new(link, id)),
        Err((held, error)) => Err(NotPosted { link, held, error }),
    }
}

/// Ends the connection of a request that may have been posted or not. If that fails, its operations end with it.
#[cold]
fn end_doubt(link: &Link<'_>) {
    if let Some(reason) = link.ledger.lock().at(link.place).closed()
        && let Err(error) = link.ledger.close(link.place, reason)
    {
        tracing::error!(%error, "the queue pair of a request in doubt could not be destroyed");
    }
}

pin_project! {
    /// [Posts](super::Op::post) an operation: ready when its request is with the device.
    #[must_use = "nothing is posted before it is awaited"]
    pub struct Post<'c, K: Kind> {
        #[pin]
        waits: Option<OwnedNotified>,
        // It is counted among those who wait for a slot.
        has_queued: bool,
        request: Request,
        // Until it is posted.
        unposted: Option<(Link<'c>, Held)>,
        kind: std::marker::PhantomData<fn() -> K>,
    }

    impl<'c, K: Kind> PinnedDrop for Post<'c, K> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            if let (true, Some((link, _))) = (*this.has_queued, &*this.unposted)
                && link.pd.context().check_process().is_ok()
            {
                link.ledger.lock().at(link.place).note_waiting(this.request.side(), false);
            }
            // A wake-up that it has had goes to the next one.
            this.waits.set(None);
        }
    }
}

impl<'c, K: Kind> Post<'c, K> {
    #[inline]
    pub(crate) fn new(link: Link<'c>, memory: K::Memory, request: Request) -> Self {
        let unposted = Some((link, memory.into_held()));
        Self { waits: None, has_queued: false, request, unposted, kind: std::marker::PhantomData }
    }
}

impl<'c, K: Kind> Future for Post<'c, K> {
    type Output = Result<Posted<'c, K>, Failed<K::Memory>>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let mut has_looked = false;
        let side = this.request.side();
        loop {
            let Some((link, held)) = this.unposted.take() else {
                unreachable!("polled after it was ready")
            };
            let not_posted = match post_now(link, held, *this.request) {
                Ok(posted) => {
                    if std::mem::take(this.has_queued) {
                        let link = posted.link();
                        link.ledger.lock().at(link.place).note_waiting(side, false);
                    }
                    this.waits.set(None);
                    return Poll::Ready(Ok(posted));
                }
                Err(not_posted) => not_posted,
            };
            let NotPosted { link, held, error } = not_posted;
            if !matches!(error, TransportError::WouldBlock) {
                if std::mem::take(this.has_queued) {
                    link.ledger.lock().at(link.place).note_waiting(side, false);
                    // Its wake-up was for a slot that it has not taken.
                    link.rooms.of(side).notify_one();
                }
                this.waits.set(None);
                return Poll::Ready(Err(Failed::new::<K>(held, error)));
            }
            let (ledger, rooms, place) =
                (Arc::clone(&link.ledger), Arc::clone(&link.rooms), link.place);
            *this.unposted = Some((link, held));
            // What has completed makes room. If the completion queue has failed, the next look says so.
            if !std::mem::replace(&mut has_looked, true) {
                let _ = ledger.progress();
                continue;
            }
            if this.waits.is_none() {
                if !std::mem::replace(this.has_queued, true) {
                    ledger.lock().at(place).note_waiting(side, true);
                }
                this.waits.set(Some(Arc::clone(rooms.of(side)).notified_owned()));
                if let Some(waits) = this.waits.as_mut().as_pin_mut() {
                    // In the queue from here on. A slot that was freed before is found by one more look.
                    waits.enable();
                }
                continue;
            }
            if let Some(waits) = this.waits.as_mut().as_pin_mut() {
                ready!(waits.poll(cx));
            }
            this.waits.set(None);
        }
    }
}

impl<K: Kind> fmt::Debug for Post<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Post").field(&self.request).finish()
    }
}
