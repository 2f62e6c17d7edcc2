//! Cases for `MultiChannel`: its peers do not affect each other.

use std::time::{Duration, Instant};

use rdma_channel::prelude::*;
use rdma_channel::{
    CloseReason, MultiChannel, Operation, PeerReadWorkRequest, PeerReceiveWorkRequest,
    PeerRemoteMemoryRegion, PeerSendWorkRequest, PeerWriteWorkRequest, ScopeError, TransportError,
};
use rdma_mem::{AccessFlags, ProtectionDomain};
use rdma_qp::{AckTimeout, MaxAckRetries, SendWorkRequest, WorkErrorCode};

use crate::case::cases;
use crate::device::Device;

cases![
    each_peer_gets_its_own_message,
    one_message_goes_to_several,
    what_is_scattered_is_gathered_again,
    a_peer_that_does_not_answer_a_scope_loses_its_connection_alone,
    a_receive_that_runs_out_closes_one_connection,
    a_peer_that_is_gone_fails_alone,
];

/// The limit for all waits; only a hanging case reaches it.
const BOUND: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(300);
const LATE: CloseReason = CloseReason::Timeout { operation: Operation::Receive };

fn domain(device: &Device) -> ProtectionDomain {
    rdma_mem::open_device(&**device).unwrap().allocate_pd().unwrap()
}

/// Three channels, each connected to itself.
fn looped(pd: &ProtectionDomain) -> MultiChannel {
    let prepared = pd.create_multi_channel().num_channels(3).drain_timeout(SHORT).build().unwrap();
    let endpoints = prepared.endpoints();
    prepared.handshake(endpoints).unwrap()
}

fn open(channels: &MultiChannel) -> Vec<usize> {
    (0..3).filter(|&peer| channels.closed(peer).unwrap().is_none()).collect()
}

/// Checks that exactly these channels are open, and that each of them still receives messages.
fn assert_open(channels: &mut MultiChannel, peers: &[usize]) {
    assert_eq!(open(channels), peers);
    let numbers = channels.scope(|s| {
        let rooms = peers.iter().map(|&peer| PeerReceiveWorkRequest::only_immediate(peer));
        let rooms = s.post_gather_receive(rooms)?;
        s.post_multicast_send(peers.iter().copied(), SendWorkRequest::only_immediate(3))?;
        rooms.iter().map(|room| Ok(room.wait(BOUND)?.immediate_data())).collect()
    });
    let numbers: Vec<_> = numbers.map_err(|error: ScopeError| error.to_string()).unwrap();
    assert_eq!(numbers, vec![Some(3); peers.len()]);
}

fn each_peer_gets_its_own_message(device: &Device) {
    let pd = domain(device);
    let mut channels = looped(&pd);
    let mut memory = [1, 2, 3, 0, 0, 0];
    let region = pd.register_local_mr_slice(&memory).unwrap();
    let (from, to) = memory.split_at_mut(3);
    let data: Vec<_> = from.chunks(1).map(|byte| [region.gather_element(byte)]).collect();
    let mut room: Vec<_> = to.chunks_mut(1).map(|byte| [region.scatter_element(byte)]).collect();
    channels
        .scope(|s| {
            let rooms = room.iter_mut().enumerate();
            let rooms = rooms.map(|(peer, room)| PeerReceiveWorkRequest::new(peer, room));
            s.post_gather_receive(rooms)?;
            let data = data.iter().enumerate();
            s.post_scatter_send(data.map(|(peer, data)| PeerSendWorkRequest::new(peer, data)))?;
            Ok::<(), TransportError>(())
        })
        .unwrap();
    assert_eq!(memory, [1, 2, 3, 1, 2, 3]);
    assert_open(&mut channels, &[0, 1, 2]);
}

fn one_message_goes_to_several(device: &Device) {
    let mut channels = looped(&domain(device));
    for peers in [[2, 0], [1, 2]] {
        let numbers = channels.scope(|s| {
            let rooms = s.post_gather_receive(peers.map(PeerReceiveWorkRequest::only_immediate))?;
            s.post_multicast_send(peers, SendWorkRequest::only_immediate(9))?;
            rooms.iter().map(|room| Ok(room.wait(BOUND)?.immediate_data())).collect()
        });
        let numbers: Vec<_> = numbers.map_err(|error: ScopeError| error.to_string()).unwrap();
        assert_eq!(numbers, [Some(9); 2]);
    }
    assert_open(&mut channels, &[0, 1, 2]);
}

fn what_is_scattered_is_gathered_again(device: &Device) {
    let pd = domain(device);
    let mut channels = looped(&pd);
    let access = AccessFlags::new().with_local_write().with_remote_read().with_remote_write();
    let board = pd.allocate_shared_region(24, access).unwrap();
    let part = |peer: usize| board.remote().slice(8 * peer..8 * peer + 8).unwrap();
    let remotes = [2, 0, 1].map(|peer| PeerRemoteMemoryRegion::new(peer, part(peer)));
    let mut memory: [u8; 24] = std::array::from_fn(|i| i as u8);
    let region = pd.register_local_mr_slice(&memory).unwrap();
    let data: Vec<_> = memory.chunks(8).map(|data| [region.gather_element(data)]).collect();
    let writes = data.iter().zip(remotes).map(|(data, to)| PeerWriteWorkRequest::new(data, to));
    assert_eq!(channels.scatter_write(writes).unwrap().len(), 3);
    memory.fill(0);
    let chunks = memory.chunks_mut(8);
    let mut room: Vec<_> = chunks.map(|room| [region.scatter_element(room)]).collect();
    let reads = room.iter_mut().zip(remotes);
    let reads = reads.map(|(room, from)| PeerReadWorkRequest::new(room, from));
    assert_eq!(channels.gather_read(reads).unwrap().len(), 3);
    assert_eq!(memory, std::array::from_fn::<_, 24, _>(|i| i as u8));
    assert_open(&mut channels, &[0, 1, 2]);
}

fn a_peer_that_does_not_answer_a_scope_loses_its_connection_alone(device: &Device) {
    let pd = domain(device);
    let mut channels = looped(&pd);
    let mut memory = [0; 3];
    let region = pd.register_local_mr_slice(&memory).unwrap();
    let mut room: Vec<_> =
        memory.chunks_mut(1).map(|byte| [region.scatter_element(byte)]).collect();
    let source = pd.allocate_region(1).unwrap();
    let start = Instant::now();
    let result = channels.scope(|s| {
        let rooms = room.iter_mut().enumerate();
        let rooms = rooms.map(|(peer, room)| PeerReceiveWorkRequest::new(peer, room));
        let rooms = s.post_gather_receive(rooms)?;
        assert!(rooms.iter().all(|room| room.poll().is_none()), "nothing was sent");
        let list = [source.as_slice().gather_element()];
        for sent in s.post_multicast_send([2, 0], SendWorkRequest::new(&list))? {
            sent.wait(BOUND)?;
        }
        // At the end of the scope, only peer 1 has received no message. The scope waits for peer 1
        // until the short drain timeout.
        for answered in [0, 2] {
            rooms[answered].wait(BOUND)?;
        }
        Ok::<(), TransportError>(())
    });
    assert!(start.elapsed() >= SHORT && start.elapsed() < BOUND);
    memory.fill(1); // `memory` is no longer borrowed
    let Err(ScopeError::AutoPollError(errors)) = result else { panic!("{result:?}") };
    assert_eq!(errors.iter().map(|error| error.peer).collect::<Vec<_>>(), [Some(1)], "{errors:?}");
    assert_eq!(channels.closed(1).unwrap(), Some(LATE));
    let error = channels.send(PeerSendWorkRequest::only_immediate(1, 1)).unwrap_err();
    assert!(matches!(error, TransportError::Closed { reason: LATE, .. }), "{error}");
    assert_open(&mut channels, &[0, 2]);
}

fn a_receive_that_runs_out_closes_one_connection(device: &Device) {
    let mut channels = looped(&domain(device));
    let start = Instant::now();
    let rooms = [1, 2].map(PeerReceiveWorkRequest::only_immediate);
    let error = channels.within(SHORT).gather_receive(rooms).unwrap_err();
    let TransportError::Collective(errors) = error else { panic!("{error}") };
    assert_eq!(errors.iter().map(|error| error.peer).collect::<Vec<_>>(), [Some(1), Some(2)]);
    let late = |error: &TransportError| matches!(error, TransportError::Timeout { .. });
    assert!(errors.iter().all(|failed| late(&failed.error)), "{errors:?}");
    assert!(start.elapsed() >= SHORT && start.elapsed() < BOUND);
    assert_open(&mut channels, &[0]);
}

fn a_peer_that_is_gone_fails_alone(device: &Device) {
    let pd = domain(device);
    // All attempts together take up to a second, so even on a busy machine the peers that still
    // exist answer in time.
    let (timeout, retries) = (AckTimeout::limited(16).unwrap(), MaxAckRetries::limited(3).unwrap());
    let center = pd.create_multi_channel().num_channels(3).ack_timeout(timeout);
    let center = center.max_ack_retries(retries).build().unwrap();
    let peers = [(); 3].map(|()| pd.create_channel().build().unwrap());
    let (ends, others) = (center.endpoints(), peers.each_ref().map(|peer| peer.endpoint()));
    let mut center = center.handshake(others).unwrap();
    let mut peers: Vec<_> =
        peers.into_iter().zip(ends).map(|(peer, end)| peer.handshake(end).unwrap()).collect();
    drop(peers.remove(1));
    let access = AccessFlags::new().with_local_write().with_remote_write();
    let board = pd.allocate_shared_region(8, access).unwrap();
    let source = pd.allocate_region(8).unwrap();
    let list = [source.as_slice().gather_element()];
    let writes = [2, 1, 0].map(|peer| PeerRemoteMemoryRegion::new(peer, board.remote()));
    let writes = writes.map(|remote| PeerWriteWorkRequest::new(&list, remote));
    let start = Instant::now();
    let error = center.within(BOUND).scatter_write(writes).unwrap_err();
    assert!(start.elapsed() < BOUND);
    let TransportError::Collective(errors) = error else { panic!("{error}") };
    assert_eq!(errors.iter().map(|error| error.peer).collect::<Vec<_>>(), [Some(1)]);
    let TransportError::WorkError(error) = errors[0].error else { panic!("{errors:?}") };
    assert_eq!(error.code(), WorkErrorCode::RetryExceededError);
    assert_eq!(open(&center), [0, 2]);
    let writes = [2, 0].map(|peer| PeerRemoteMemoryRegion::new(peer, board.remote()));
    let writes = writes.map(|remote| PeerWriteWorkRequest::new(&list, remote));
    assert_eq!(center.within(BOUND).scatter_write(writes).unwrap().len(), 2);
}
