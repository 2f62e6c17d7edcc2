//! An operation from its start to its result.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use rdma_connect::messaging::{Body, Content, MessageError, Start, Ticket};
use tokio::task::coop::consume_budget;

use super::mailbox::Mailbox;
use crate::message::session::Session;

/// Starts an operation and waits for its result. Calls `started` after the start. If the future is dropped, the
/// operation is cancelled if nothing was sent, and continues otherwise.
pub(super) async fn run(
    session: &Arc<Session<Mailbox>>,
    start: Start,
    mut content: Content<'_>,
    started: impl FnOnce(),
) -> Result<Body, MessageError> {
    // Without a budget, a task whose messages are always sent at once would starve other tasks.
    consume_budget().await;
    let begin = poll_fn(|cx| {
        session.poll_with(cx, |state, waker| state.poll_start((start, &mut content), waker))
    });
    let mut running = Running { session, ticket: Some(begin.await?) };
    started();
    poll_fn(|cx| running.poll(cx)).await
}

/// An operation that has begun.
struct Running<'s> {
    session: &'s Arc<Session<Mailbox>>,
    /// `None` once the result was taken, because another operation may have the ticket then.
    ticket: Option<Ticket>,
}

impl Running<'_> {
    fn poll(&mut self, cx: &Context<'_>) -> Poll<Result<Body, MessageError>> {
        let Some(ticket) = self.ticket else { unreachable!("polled after it was ready") };
        let polled = self
            .session
            .poll_with(cx, |state, waker| state.protocol.shared.poll_result(ticket, waker));
        if polled.is_ready() {
            self.ticket = None;
        }
        polled
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
