//! In virtual time, nothing arrives while a thread sleeps in the kernel: all messages arrive before.

use std::time::Duration;

use rdma_channel::{Channel, TransportError, prelude::*};
use rdma_mem::{AccessFlags, GatherList, open_device};
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest, WriteWorkRequest};
use rdma_soft::{Builder, LinkModel, Network};

use crate::common::must_end;
use crate::sleeping::{SECONDS, SLEEPING};

#[test]
fn a_channel_of_a_simulated_network_waits_like_any_other() {
    for wait in SLEEPING {
        must_end(move || {
            let network = Network::simulated(3);
            let far_away = LinkModel::new().latency(Duration::from_micros(200)).loss(0.02);
            network.set_all_links(far_away);
            let names = [format!("asleep-near-{wait:?}"), format!("asleep-far-{wait:?}")];
            let prepare = |name: &String| {
                Builder::new(name).network(&network).install().unwrap();
                let pd = open_device(name).unwrap().allocate_pd().unwrap();
                let prepared = pd.create_channel().wait(wait).build().unwrap();
                (pd, prepared)
            };
            let [(pd, near), (far_pd, far)] = names.each_ref().map(prepare);
            let (near_end, far_end) = (near.endpoint(), far.endpoint());
            let mut near = near.handshake(far_end).unwrap();
            let mut far: Channel = far.handshake(near_end).unwrap();
            let access = AccessFlags::new().with_local_write().with_remote_write();
            let board = far_pd.allocate_shared_region(8, access).unwrap();
            let data = pd.allocate_region(8).unwrap();
            let list = GatherList::from([data.as_slice()]);
            far.scope(|s| {
                let received = s.post_receive(ReceiveWorkRequest::only_immediate())?;
                for _ in 0..10 {
                    near.write(WriteWorkRequest::from_list(&list, board.remote()))?;
                }
                near.scope(|t| t.post_send(SendWorkRequest::only_immediate(6)).map(drop)).unwrap();
                assert_eq!(received.wait(SECONDS)?.immediate_data(), Some(6));
                Ok::<(), TransportError>(())
            })
            .unwrap();
            assert!(network.now() >= 10 * Duration::from_micros(400));
        });
    }
}
