//! The `tracing` events of the control path.

use rdma_qp::{CompletionQueue, prelude::*};
use test_support::events;
use test_support::program::in_own_process;
use tracing::Level;

/// In a process of its own. Otherwise a thread of another test, which has no subscriber, may emit an event first, and
/// `tracing` then disables that event.
#[test]
fn opening_and_connecting_log_the_choices() {
    in_own_process("tracing::opening_and_connecting_log_the_choices", || {
        rdma_soft::install();
        let opened = |event: &events::Event| {
            event.target.starts_with("rdma_mem") && event.field("device") == Some("soft0")
        };
        let (context, count) = events::count(opened, || rdma_mem::open_device("soft0").unwrap());
        assert_eq!(count, 1);
        let cq = CompletionQueue::create(&context, 64).unwrap();
        let pd = context.allocate_pd().unwrap();
        let prepared = pd.create_qp().send_cq(&cq).recv_cq(&cq).build().unwrap();
        let own = prepared.endpoint();
        let gid = own.gids()[0].gid.to_string();
        let connected = move |event: &events::Event| {
            let names_gid = |field| event.field(field).is_some_and(|value| value.contains(&gid));
            let names_rule =
                event.field("attributes").is_some_and(|value| value.contains("gid_rule: Some("));
            event.level == Level::DEBUG
                && ["own", "peer", "attributes"].into_iter().all(names_gid)
                && names_rule
        };
        let (_qp, count) = events::count(connected, || prepared.handshake(own).unwrap());
        assert_eq!(count, 1, "the GIDs of both ends, the one that was taken, and why");
    });
}
