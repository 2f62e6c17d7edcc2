//! Traffic on each software device: the contents and the completions.

#![allow(unsafe_code)]

use crate::common::{DEVICES, pair, pair_with};
use rdma_mem::{GatherElement, GatherList, ScatterElement};
use rdma_qp::{
    QpState, ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WcOpcode, WriteWorkRequest,
};

#[test]
fn a_message_arrives_with_its_number_in_host_order() {
    for device in DEVICES {
        let (a, b) = pair(device);
        b.board.write(100, &[0xee; 20]).unwrap();
        let (head, tail) = (b.board.element(100..103).unwrap(), b.board.element(110..120).unwrap());
        let mut room = [ScatterElement::from(head), ScatterElement::from(tail)];
        // SAFETY: SAFETY.md F8: shared regions, which outlive the completions below.
        unsafe { b.qp.post_receive(ReceiveWorkRequest::new(&mut room), 7) }.unwrap();
        a.board.write(0, b"hello").unwrap();
        let data = [GatherElement::from(a.board.element(0..5).unwrap())];
        let request = SendWorkRequest::new(&data).with_immediate(0x0102_0304);
        // SAFETY: SAFETY.md F8: as above.
        unsafe { a.qp.post_send(request, 8) }.unwrap();

        let sent = a.next();
        assert_eq!((sent.wr_id(), sent.qpn()), (8, a.qp.qpn()));
        let success = sent.result().unwrap();
        assert_eq!((success.opcode(), success.is_receive()), (WcOpcode::SEND, false));
        assert_eq!((success.immediate_data(), success.scattered_bytes()), (None, None));

        let received = b.next();
        assert_eq!((received.wr_id(), received.qpn()), (7, b.qp.qpn()));
        let success = received.result().unwrap();
        assert_eq!(success.opcode(), WcOpcode::RECV);
        assert_eq!(success.immediate_data(), Some(0x0102_0304));
        assert_eq!(success.scattered_bytes(), Some(5));
        assert_eq!((&b.read(100), &b.read(110)), (b"hel", b"lo"));
        assert_eq!(b.read(112), [0xee; 8], "what did not arrive is as it was");
    }
}

#[test]
fn a_write_changes_its_target_and_nothing_else() {
    for device in DEVICES {
        let (a, b) = pair(device);
        a.board.write(0, b"0123456789").unwrap();
        let element = |range| GatherElement::from(a.board.element(range).unwrap());
        let data = [element(5..10), element(0..2)];
        let remote = b.board.remote().slice(100..110).unwrap();
        // SAFETY: SAFETY.md F8: shared regions, which outlive the completion below.
        unsafe { a.qp.post_write(WriteWorkRequest::new(&data, remote), 1) }.unwrap();
        assert_eq!(a.next().result().unwrap().opcode(), WcOpcode::RDMA_WRITE);
        assert_eq!(&b.read(99), b"\x005678901\0\0");
        assert!(b.is_idle(), "the peer notices nothing");
    }
}

#[test]
fn a_write_with_a_number_takes_a_receive() {
    for device in DEVICES {
        let (a, b) = pair(device);
        for id in [1, 2] {
            // SAFETY: SAFETY.md F8: no memory.
            unsafe { b.qp.post_receive(ReceiveWorkRequest::only_immediate(), id) }.unwrap();
        }
        let data = [GatherElement::from(a.board.element(0..64).unwrap())];
        let request = WriteWorkRequest::new(&data, b.board.remote()).with_immediate(11);
        // SAFETY: SAFETY.md F8: shared regions, which outlive the completions below.
        unsafe { a.qp.post_write(request, 3) }.unwrap();
        // SAFETY: SAFETY.md F8: no memory.
        unsafe { a.qp.post_write(WriteWorkRequest::only_immediate(12), 4) }.unwrap();
        for (id, immediate, bytes) in [(1, 11, 64), (2, 12, 0)] {
            let arrived = b.next();
            let success = arrived.result().unwrap();
            assert_eq!((arrived.wr_id(), success.immediate_data()), (id, Some(immediate)));
            assert_eq!(success.opcode(), WcOpcode::RECV_RDMA_WITH_IMM);
            assert_eq!(success.scattered_bytes(), Some(bytes));
        }
        assert_eq!([a.next().wr_id(), a.next().wr_id()], [3, 4]);
    }
}

#[test]
fn a_read_fetches_from_the_peer() {
    for device in DEVICES {
        let (a, b) = pair(device);
        b.board.write(200, b"from the peer").unwrap();
        let mut region = a.pd.allocate_region(64).unwrap();
        {
            let mut room = region.get_mut(1, 13).unwrap();
            let remote = b.board.remote().sub_region(200).unwrap();
            let mut elements = [room.scatter_element()];
            // SAFETY: SAFETY.md F8: the region is not used elsewhere until the completion below.
            unsafe { a.qp.post_read(ReadWorkRequest::new(&mut elements, remote), 5) }.unwrap();
            let success = a.next().result().unwrap();
            let bytes = success.byte_len();
            assert_eq!((success.opcode(), bytes), (WcOpcode::RDMA_READ, Some(13)));
        }
        assert_eq!(&region[..15], b"\0from the peer\0");
    }
}

#[test]
fn a_batch_is_done_in_order_and_only_the_signaled_complete() {
    for device in DEVICES {
        let (a, b) = pair(device);
        let regions: Vec<_> = (0..8_u8)
            .map(|n| {
                let mut region = a.pd.allocate_region(8).unwrap();
                region.fill(n + 1);
                region
            })
            .collect();
        let elements: Vec<_> =
            regions.iter().map(|r| [r.get_ref(0, 8).unwrap().gather_element()]).collect();
        let remote = b.board.remote();
        let mut batch: Vec<_> = (0..8)
            .map(|n| {
                // Each begins in the middle of the previous one.
                let remote = remote.sub_region(n * 4).unwrap();
                let request = WriteWorkRequest::new(&elements[n], remote).signaled(n % 4 == 3);
                request.with_id(n as u64)
            })
            .collect();
        // SAFETY: SAFETY.md F8: the regions are not used elsewhere until the last completion.
        unsafe { a.qp.post_batch(&mut batch) }.unwrap();
        assert_eq!([a.next().wr_id(), a.next().wr_id()], [3, 7]);
        assert!(a.is_idle());
        let expected: Vec<_> = (1..=8).flat_map(|n| [n; 4]).collect();
        assert_eq!(b.read::<32>(0).as_slice(), expected);
    }
}

#[test]
fn every_form_of_posting_does_the_same() {
    for device in DEVICES {
        let (a, b) = pair(device);
        let mut source = a.pd.allocate_region(8).unwrap();
        for (form, value) in (0..5).zip(1_u64..) {
            source.copy_from_slice(&value.to_ne_bytes());
            let list = GatherList::from([source.as_slice()]);
            let write = WriteWorkRequest::from_list(&list, b.board.remote());
            let (qp, mut batch) = (&a.qp, [write.with_id(value)]);
            let receive = ReceiveWorkRequest::only_immediate;
            let mut receives = [receive().with_id(value)];
            let posted = match form {
                // SAFETY: SAFETY.md F8: the region is not written until the completion below.
                0 => unsafe { qp.post(write, value) },
                // SAFETY: SAFETY.md F8: the region is not written until the completion below.
                1 => unsafe { qp.post_raw(write, value) },
                // SAFETY: SAFETY.md F8: the region is not written until the completion below.
                2 => unsafe { qp.post_write(write, value) },
                // SAFETY: SAFETY.md F8: the region is not written until the completion below.
                3 => unsafe { qp.post_batch(&mut batch) },
                // SAFETY: SAFETY.md F8: the region is not written until the completion below.
                _ => unsafe { qp.post_batch_raw(&mut batch) },
            };
            posted.unwrap();
            let done = a.next();
            assert_eq!((done.wr_id(), done.result().is_ok()), (value, true));
            assert_eq!(b.read(0), value.to_ne_bytes());

            let posted = match form {
                // SAFETY: SAFETY.md F8: no memory.
                0 => unsafe { b.qp.post(receive(), value) },
                // SAFETY: SAFETY.md F8: no memory.
                1 => unsafe { b.qp.post_raw(receive(), value) },
                // SAFETY: SAFETY.md F8: no memory.
                2 => unsafe { b.qp.post_receive(receive(), value) },
                // SAFETY: SAFETY.md F8: no memory.
                3 => unsafe { b.qp.post_receive_batch(&mut receives) },
                // SAFETY: SAFETY.md F8: no memory.
                _ => unsafe { b.qp.post_receive_batch_raw(&mut receives) },
            };
            posted.unwrap();
            // SAFETY: SAFETY.md F8: no memory.
            unsafe { qp.post(SendWorkRequest::only_immediate(7), value) }.unwrap();
            assert_eq!((b.next().wr_id(), a.next().wr_id()), (value, value));
        }
    }
}

#[test]
fn receives_are_posted_in_batches_and_an_empty_batch_is_nothing() {
    let (a, b) = pair("soft0");
    let mut batch = [1, 2, 3].map(|id| ReceiveWorkRequest::only_immediate().with_id(id));
    // SAFETY: SAFETY.md F8: no memory.
    unsafe { b.qp.post_receive_batch(&mut batch) }.unwrap();
    // SAFETY: SAFETY.md F8: no memory.
    unsafe { b.qp.post_receive_batch(&mut []) }.unwrap();
    // SAFETY: SAFETY.md F8: no memory.
    unsafe { a.qp.post_batch(&mut []) }.unwrap();
    let mut sends = [7, 8, 9].map(|n| SendWorkRequest::only_immediate(n).with_id(n.into()));
    // SAFETY: SAFETY.md F8: no memory.
    unsafe { a.qp.post_batch(&mut sends) }.unwrap();
    for (id, immediate) in [(1, 7), (2, 8), (3, 9)] {
        let arrived = b.next();
        let success = arrived.result().unwrap();
        assert_eq!((arrived.wr_id(), success.immediate_data()), (id, Some(immediate)));
    }
}

#[test]
fn both_ends_know_each_other() {
    for device in DEVICES {
        let (a, b) = pair_with(device, |builder| builder.max_rd_atomic(3).max_send_wr(20));
        for (own, peer) in [(&a.qp, &b.qp), (&b.qp, &a.qp)] {
            assert_eq!(own.state().unwrap(), QpState::RTS);
            let (told, attributes) = (own.peer().unwrap(), own.query().unwrap());
            assert_eq!((told.peer_qpn, attributes.peer_qpn), (peer.qpn(), peer.qpn()));
            let peers = peer.peer().unwrap();
            assert_eq!((told.send_psn, told.mtu), (peers.recv_psn, peers.mtu));
            assert_eq!((told.max_rd_atomic, told.max_dest_rd_atomic), (3, 3));
            assert_eq!((attributes.max_rd_atomic, attributes.mtu), (3, Some(told.mtu)));
            assert_eq!(
                attributes.access & crate::common::everything(),
                crate::common::everything()
            );
            assert_eq!(told.route.is_some(), device != "softib0");
            assert!(own.capabilities().max_send_wr >= 20);
            assert_eq!(attributes.capabilities, own.capabilities());
        }
    }
}

#[test]
fn an_endpoint_survives_the_way_to_the_peer() {
    for device in DEVICES {
        let (pd, cq) = crate::common::parts(device);
        let builder = rdma_qp::QueuePair::builder(&pd).send_cq(&cq).recv_cq(&cq);
        let endpoint = builder.build().unwrap().endpoint();
        let bytes = endpoint.to_bytes();
        assert_eq!(rdma_qp::QueuePairEndpoint::from_bytes(&bytes), Ok(endpoint));
        assert_eq!(endpoint.lid().is_unicast(), device == "softib0");
        if device != "softib0" {
            assert_eq!(endpoint.gids().len(), 4, "without the address of `lo`");
            let best = endpoint.gids()[0];
            assert!(best.gid.is_ipv4_mapped() && best.gid_type == rdma_mem::GidType::ROCE_V2);
        }
    }
}
