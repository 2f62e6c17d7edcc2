//! The options of a channel builder reach the queue pair.

use rdma_channel::prelude::*;
use rdma_mem::AccessFlags;
use rdma_qp::{
    AckTimeout, GidChoice, MaxAckRetries, MaxRnrRetries, MaximumTransferUnit, MinRnrTimer,
    PacketSequenceNumber,
};

use crate::common::open;

#[test]
fn each_attribute_of_the_queue_pair_is_the_requested_one() {
    let pd = open("soft0").allocate_pd().unwrap();
    let (psn, mtu) = (PacketSequenceNumber::masked(5), MaximumTransferUnit::MTU512);
    let (timeout, retries) = (AckTimeout::limited(9).unwrap(), MaxAckRetries::limited(3).unwrap());
    let (rnr_retries, timer) =
        (MaxRnrRetries::limited(2).unwrap(), MinRnrTimer::from_code(7).unwrap());
    let access = AccessFlags::new().with_local_write().with_remote_read();
    let builder = pd.create_channel().access(access).port(1).mtu(mtu).send_psn(psn).recv_psn(psn);
    let builder =
        builder.ack_timeout(timeout).max_ack_retries(retries).max_rnr_retries(rnr_retries);
    let prepared = builder.min_rnr_timer(timer).pkey_index(0).max_send_sge(3).build().unwrap();
    let endpoint = prepared.endpoint();
    let found = prepared.handshake(endpoint).unwrap().query().unwrap();
    assert_eq!((found.mtu, found.send_psn, found.recv_psn), (Some(mtu), psn, psn));
    assert_eq!((found.ack_timeout, found.max_ack_retries), (timeout, retries));
    assert_eq!((found.max_rnr_retries, found.min_rnr_timer), (rnr_retries, timer));
    assert_eq!((found.access, found.capabilities.max_send_sge), (access, 3));
    // If both belong to one channel, one limits the other.
    let builders =
        [pd.create_channel().max_rd_atomic(3), pd.create_channel().max_dest_rd_atomic(3)];
    let [own, peers] = builders.map(|builder| {
        let prepared = builder.build().unwrap();
        let endpoint = prepared.endpoint();
        prepared.handshake(endpoint).unwrap().query().unwrap()
    });
    assert_eq!((own.max_rd_atomic, peers.max_dest_rd_atomic), (3, 3));
}

#[test]
fn the_chosen_gid_is_in_the_endpoint() {
    let pd = open("soft0").allocate_pd().unwrap();
    let table = pd.context().gid_table().unwrap();
    for entry in &table {
        let index = u8::try_from(entry.index).unwrap();
        let chosen = pd.create_channel().gid_choice(GidChoice::Index(index)).build().unwrap();
        let by_index = pd.create_channel().gid_index(index).build().unwrap();
        for prepared in [chosen, by_index] {
            let gids = prepared.endpoint().gids().iter().map(|gid| gid.gid).collect::<Vec<_>>();
            assert_eq!(gids, [entry.gid], "{index}");
        }
    }
    assert!(table.len() > 1);
}
