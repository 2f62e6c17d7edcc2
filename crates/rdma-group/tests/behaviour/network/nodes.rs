//! Building nodes, and their operations.

use rdma_channel::{
    Error, PeerReadWorkRequest, PeerReceiveWorkRequest, PeerRemoteMemoryRegion,
    PeerSendWorkRequest, PeerWriteWorkRequest, ScopeError, SendWorkRequest,
};
use rdma_group::network::{BarrierAlgorithm, CreateNode as _, Exchanger, Node};
use rdma_mem::AccessFlags;

use super::nodes;
use crate::ranks::domain;

#[test]
fn a_rank_and_a_number_of_ranks_are_required() {
    let pd = domain();
    let error = Node::builder().pd(&pd).world_size(2).build().unwrap_err();
    assert!(matches!(error, Error::Missing { knob: "rank" }), "{error}");
    let error = pd.create_node().rank(0).build().unwrap_err();
    assert!(matches!(error, Error::Missing { knob: "world_size" }), "{error}");
    for size in [0, 3] {
        let error = pd.create_node().rank(3).world_size(size).build().unwrap_err();
        assert!(matches!(error, Error::TooLarge { knob: "rank", value: 3, .. }), "{error}");
    }
}

/// Each rank passes a byte to the next one, with each operation that blocks.
#[test]
fn a_node_has_the_operations_that_block() {
    let config = super::config(3);
    nodes(3, BarrierAlgorithm::BinaryTree, |mut node| {
        let (rank, pd) = (node.rank(), node.pd().clone());
        let [to, from] = [(rank + 1) % 3, (rank + 2) % 3];
        let access = AccessFlags::new().with_local_write().with_remote_write().with_remote_read();
        let shared = pd.allocate_shared_region(16, access).unwrap();
        // Rank 0 sends first, so that no two ranks wait for each other.
        let mut memory = [u8::try_from(rank).unwrap(), 9];
        let region = pd.register_local_mr_slice(&memory).unwrap();
        for collective in [false, true] {
            for step in 0..3 {
                let (data, buffer) = memory.split_at_mut(1);
                let data = [region.gather_element(data)];
                if step == rank {
                    let message = PeerSendWorkRequest::new(to, &data);
                    match collective {
                        false => drop(node.send(message).unwrap()),
                        true => drop(node.scatter_send([message]).unwrap()),
                    }
                } else if step == from {
                    let mut buffer = [region.scatter_element(buffer)];
                    let receive = PeerReceiveWorkRequest::new(from, &mut buffer);
                    match collective {
                        false => drop(node.receive(receive).unwrap()),
                        true => drop(node.gather_receive([receive]).unwrap()),
                    }
                    assert_eq!(usize::from(std::mem::replace(&mut memory[1], 9)), from);
                }
            }
        }
        // Rank 0 sends a number to all others.
        match rank {
            0 => drop(node.multicast_send([1, 2], SendWorkRequest::only_immediate(5)).unwrap()),
            _ => {
                let success = node.receive(PeerReceiveWorkRequest::only_immediate(0)).unwrap();
                assert_eq!(success.immediate_data(), Some(5));
            }
        }
        // Each rank sends the address of its memory to the others, writes to the next one, and reads it back.
        let own = shared.remote();
        let addresses =
            Exchanger::await_exchange_all(rank, &config, &own, &super::limits()).unwrap();
        let target = PeerRemoteMemoryRegion::new(to, addresses[to]);
        for collective in [false, true] {
            let (data, buffer) = memory.split_at_mut(1);
            let data = [region.gather_element(data)];
            let mut buffer = [region.scatter_element(buffer)];
            let write = PeerWriteWorkRequest::new(&data, target);
            let read = PeerReadWorkRequest::new(&mut buffer, target);
            match collective {
                false => {
                    node.write(write).unwrap();
                    node.read(read).unwrap();
                }
                true => {
                    node.scatter_write([write]).unwrap();
                    node.gather_read([read]).unwrap();
                }
            }
            assert_eq!(usize::from(std::mem::replace(&mut memory[1], 9)), rank);
        }
        node.barrier(&[0, 1, 2], super::LIMIT).unwrap();
        let mut byte = [9];
        shared.read(0, &mut byte).unwrap();
        assert_eq!(usize::from(byte[0]), from);
        node.barrier(&[0, 1, 2], super::LIMIT).unwrap();
        node.close().unwrap();
    });
}

#[test]
fn the_scope_of_a_node_has_the_operations_that_do_not_block() {
    nodes(1, BarrierAlgorithm::Dissemination, |mut node| {
        let pd = node.pd().clone();
        let access = AccessFlags::new().with_local_write().with_remote_write().with_remote_read();
        let shared = pd.allocate_shared_region(16, access).unwrap();
        let target = PeerRemoteMemoryRegion::new(0, shared.remote());
        let mut memory = [3, 3, 0, 0, 0, 0];
        let region = pd.register_local_mr_slice(&memory).unwrap();
        let (data, buffers) = memory.split_at_mut(2);
        let data = [region.gather_element(data)];
        let [a, b, c, d] = buffers else { panic!() };
        let element = |byte| [region.scatter_element(std::slice::from_mut(byte))];
        let [mut a, mut b, mut c, mut d] = [a, b, c, d].map(element);
        node.scope(|s| {
            s.post_receive(PeerReceiveWorkRequest::only_immediate(0))?;
            let receives = [PeerReceiveWorkRequest::only_immediate(0)];
            s.post_gather_receive(receives)?;
            let receives = [&mut a, &mut b].map(|buffer| PeerReceiveWorkRequest::new(0, buffer));
            s.post_gather_receive(receives)?;
            s.post_multicast_send([0, 0], SendWorkRequest::only_immediate(1))?;
            s.post_send(PeerSendWorkRequest::only_immediate(0, 2))?;
            s.post_scatter_send([PeerSendWorkRequest::only_immediate(0, 3)])?;
            s.post_write(PeerWriteWorkRequest::new(&data, target))?;
            s.post_scatter_write([PeerWriteWorkRequest::new(&data, target)])?;
            s.post_read(PeerReadWorkRequest::new(&mut c, target))?;
            s.post_gather_read([PeerReadWorkRequest::new(&mut d, target)])?;
            Ok::<_, ScopeError>(())
        })
        .unwrap();
        assert_eq!(memory, [3, 3, 0, 0, 3, 3]);
    });
}
