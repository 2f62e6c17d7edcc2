//! The `tracing` events of channels: when they are closed, and why.
//!
//! These tests run in child processes. Otherwise a thread of another test without a subscriber may reach an event
//! first, and `tracing` would remember that the event is disabled.

use std::time::Duration;

use rdma_channel::{ScopeError, TransportError};
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};
use test_support::events::{self, Event};
use tracing::Level;

use crate::common::Pair;
use crate::common::child::must_live;

const SHORT: Duration = Duration::from_millis(20);
const ROOM: ReceiveWorkRequest<'static, 'static> = ReceiveWorkRequest::only_immediate();

/// Runs `work` and counts its events of this crate with this message, and with this reason if there is one.
fn says<T>(what: &'static str, reason: Option<&'static str>, work: impl FnOnce() -> T) -> (T, u32) {
    let is_it = move |event: &Event| {
        let reason_fits = reason
            .is_none_or(|reason| event.field("reason").is_some_and(|said| said.contains(reason)));
        event.target.starts_with("rdma_channel")
            && event.level == Level::DEBUG
            && event.field("message") == Some(what)
            && event.field("channel").is_some_and(|channel| channel.contains("QPN"))
            && reason_fits
    };
    events::count(is_it, work)
}

/// It is emitted once, by the call, and not again when the channel is dropped.
#[test]
fn a_call_that_closes_its_channel_emits_the_reason() {
    must_live("endings::said::a_call_that_closes_its_channel_emits_the_reason", |_| {
        let Pair { mut here, .. } = Pair::new("soft0");
        let closed = Some("a receive did not complete in time");
        let (_, said) = says("channel closed", closed, || here.within(SHORT).receive(ROOM));
        assert_eq!(said, 1);
        let ((), said) = says("channel closed", None, || {
            here.send(SendWorkRequest::only_immediate(1)).unwrap_err();
            drop(here);
        });
        assert_eq!(said, 0);
    });
}

#[test]
fn a_failed_scope_emits_why_its_channel_is_closed() {
    must_live("endings::said::a_failed_scope_emits_why_its_channel_is_closed", |_| {
        let Pair { mut here, .. } = Pair::new("soft0");
        let closed = Some("a receive did not complete in time");
        let (left, said) = says("channel closed", closed, || {
            here.scope(|s| s.post_receive(ROOM)?.wait(SHORT).map(drop))
        });
        assert!(matches!(left, Err(ScopeError::ClosureError(TransportError::Timeout { .. }))));
        assert_eq!(said, 1);
    });
}

#[test]
fn a_working_channel_emits_nothing_before_it_is_dropped() {
    must_live("endings::said::a_working_channel_emits_nothing_before_it_is_dropped", |_| {
        let Pair { mut here, mut there, .. } = Pair::new("soft0");
        let ((), said) = says("channel dropped", None, || {
            here.scope(|s| {
                let received = s.post_receive(ROOM)?;
                there.send(SendWorkRequest::only_immediate(1))?;
                received.spin_poll()?;
                s.close();
                Ok::<(), TransportError>(())
            })
            .unwrap();
        });
        assert_eq!(said, 0);
        assert_eq!(says("channel dropped", None, || drop(there)).1, 1);
        let asked = Some("this end has closed it");
        assert_eq!(says("channel closed", asked, || drop(here)).1, 1);
    });
}
