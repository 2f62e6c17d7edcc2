//! Long messages, which one end lends and the other one fetches.

use rdma_channel::BufferPool;
use rdma_channel::message::{Messages, Options};
use test_support::events::{Event, Hears};
use test_support::program::in_own_process;

use rdma_message::frame::{Body, Remote, Role};

use super::ends::{frame, open};
use super::rig::{Rig, once};
use crate::common::everything;

/// Runs in its own process, because `tracing` remembers that an event had no subscriber.
#[test]
fn a_receiver_without_memory_fetches_the_message_later() {
    let name = "message::offers::a_receiver_without_memory_fetches_the_message_later";
    in_own_process(name, || once(fetched_later));
}

/// The subscriber raises the limit of the receiver's pool when it receives the report.
fn fetched_later(rig: Rig) {
    let (victim, mut peer) = rig.channels(Options::new());
    let scarce = BufferPool::new(&rig.pd);
    let victim = Messages::new(victim, &scarce, Options::new()).unwrap();
    scarce.set_limit(4 << 20);
    let lent = rig.pd.allocate_shared_region(8 << 20, everything(&rig.pd)).unwrap();
    open(&rig, &mut peer);
    let remote = lent.remote();
    let source = Remote { va: remote.address(), rkey: remote.rkey() };
    let offer = Body::Offer { role: Role::Message, length: 8 << 20, source };
    peer.send_from(&frame(&rig, offer)).unwrap();
    let hears = Hears(move |event: Event| {
        if event.target.starts_with("rdma_connect::messaging") {
            scarce.set_limit(usize::MAX);
        }
    });
    let received = tracing::subscriber::with_default(hears, || victim.receive());
    assert_eq!(received.unwrap().unwrap().len(), 8 << 20);
}
