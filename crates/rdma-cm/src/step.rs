//! The result of an event for a connection.

use crate::error::Error;
use crate::event::Event;

/// The state of a connection after an event: a later state `N`, or the same state `S`.
///
/// # Examples
/// One thread serves both ends of a connection by their events.
/// ```
/// use std::time::Duration;
/// use rdma_cm::{EventChannel, EventKind, Listener, Step};
/// use rdma_qp::{CompletionQueue, prelude::*};
///
/// rdma_soft::install();
/// let channel = EventChannel::open(&rdma_mem::open_device("soft0")?)?;
/// let cq = CompletionQueue::create(channel.context(), 16)?;
/// let pd = channel.context().allocate_pd()?;
/// let new = || pd.create_qp().send_cq(&cq).recv_cq(&cq).build();
///
/// let listener = Listener::bind(&channel, "localhost:0")?;
/// let resolved = channel.resolve(listener.local_address())?;
/// let mut connecting = Some(resolved.connect(new()?, b"")?);
/// let (mut accepted, mut active, mut passive) = (None, None, None);
/// while passive.is_none() {
///     let event = channel.next(Some(Duration::from_secs(10)))?.expect("an event");
///     match event.kind() {
///         EventKind::ConnectRequest => {
///             let request = listener.request(event).expect("the only listener");
///             accepted = Some(request.prepare(new()?)?.accept(b"")?);
///         }
///         EventKind::ConnectResponse => {
///             if let Some(Step::Next(replied)) = connecting.take().map(|it| it.advance(event)) {
///                 active = Some(replied.establish()?);
///             }
///         }
///         EventKind::Established => {
///             if let Some(Step::Next(connection)) = accepted.take().map(|it| it.advance(event)) {
///                 passive = Some(connection);
///             }
///         }
///         _ => return Err(event.end().expect("the reason").clone().into()),
///     }
/// }
/// assert!(active.is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "it contains the connection, which ends when it is dropped"]
#[non_exhaustive]
pub enum Step<S, N> {
    /// The event moved the connection to its next state.
    Next(N),
    /// The event belongs to another connection. Both are unchanged.
    Same(S, Event),
    /// The connection was not established. Its queue pair was destroyed.
    Failed(Error),
}
