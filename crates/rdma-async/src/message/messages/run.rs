//! An operation from its start to its result.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use rdma_connect::messaging::{self, Begun, Body, Content, MessageError, Start, Ticket, Waiting};
use tokio::task::coop::consume_budget;

use super::mailbox::Mailbox;
use crate::message::session::{Session, State};

/// Starts an operation and waits for its result. Calls `started` after the start. If the future is dropped, the
/// operation is cancelled if nothing was sent, and continues otherwise.
pub(super) async fn run(
    session: &Arc<Session<Mailbox>>,
    start: Start,
    content: Content<'_>,
    started: impl FnOnce(),
) -> Result<Body, MessageError> {
    let mut running = begin(session, start, content, started).await?;
    let result = poll_fn(|cx| running.poll(cx, messaging::Mailbox::poll_result)).await;
    running.ticket = None;
    result
}

/// Starts a message, and waits until its first frame was sent. If the future is dropped before, nothing is sent.
pub(super) async fn post(
    session: &Arc<Session<Mailbox>>,
    message: &[u8],
) -> Result<(), MessageError> {
    let mut running = begin(session, Start::Send, Content::Bytes(message), || ()).await?;
    let begun = poll_fn(|cx| running.poll(cx, messaging::Mailbox::poll_begun)).await;
    running.ticket = running.ticket.filter(|_| matches!(begun, Ok(true)));
    begun.map(drop)
}

async fn begin<'s>(
    session: &'s Arc<Session<Mailbox>>,
    start: Start,
    mut content: Content<'_>,
    started: impl FnOnce(),
) -> Result<Running<'s>, MessageError> {
    // Without a budget, a task whose messages are always sent at once would starve other tasks.
    consume_budget().await;
    let begun = wait(session, |state, task| state.poll_start((start, &mut content), task)).await;
    let Begun { ticket, copy, .. } = begun?;
    let running = Running { session, ticket: Some(ticket) };
    started();
    if let (Some(copy), Content::Bytes(bytes)) = (copy, content) {
        let copied = copy.of(bytes);
        session.with(|state| state.copied(ticket, copied));
    }
    Ok(running)
}

/// A task to register.
pub(super) type Task<'t> = (&'t mut Waiting, &'t mut Option<Waker>);

/// Waits for an event of the session. Several tasks may wait for the same one.
pub(super) async fn wait<R>(
    session: &Session<Mailbox>,
    mut work: impl FnMut(&mut State<Mailbox>, Task<'_>) -> Poll<R>,
) -> R {
    let mut waits = Waits { session, waiting: Waiting::default() };
    poll_fn(|cx| waits.poll(cx, &mut work)).await
}

/// A future that waits. Its waker is removed when it is dropped.
struct Waits<'s> {
    session: &'s Session<Mailbox>,
    waiting: Waiting,
}

impl Waits<'_> {
    fn poll<R>(
        &mut self,
        cx: &Context<'_>,
        mut work: impl FnMut(&mut State<Mailbox>, Task<'_>) -> Poll<R>,
    ) -> Poll<R> {
        self.session.poll_with(cx, |state, waker| {
            let polled = work(state, (&mut self.waiting, &mut *waker));
            if polled.is_ready() {
                *waker = state.protocol.shared.forget(&mut self.waiting, &mut state.woken);
                self.waiting = Waiting::default();
            }
            polled
        })
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if self.waiting.is_registered() && self.session.is_of_this_process() {
            let forget = |state: &mut State<Mailbox>| {
                state.protocol.shared.forget(&mut self.waiting, &mut state.woken)
            };
            drop(self.session.with(forget));
        }
    }
}

/// An operation that has begun.
struct Running<'s> {
    session: &'s Arc<Session<Mailbox>>,
    /// `None` once the result was taken, because another operation may have the ticket then.
    ticket: Option<Ticket>,
}

impl Running<'_> {
    fn poll<T>(
        &self,
        cx: &Context<'_>,
        poll: impl Fn(&mut messaging::Mailbox, Ticket, &mut Option<Waker>) -> Poll<T>,
    ) -> Poll<T> {
        let Some(ticket) = self.ticket else { unreachable!("polled after it was ready") };
        self.session.poll_with(cx, |state, waker| poll(&mut state.protocol.shared, ticket, waker))
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket
            && self.session.is_of_this_process()
        {
            drop(self.session.with(|state| state.protocol.shared.abandon(ticket)));
        }
    }
}
