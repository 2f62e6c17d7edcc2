//! One peer that is gone or silent, among others that work.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rdma_channel::{
    CloseReason, MultiChannelBuilder, Operation, PeerReadWorkRequest, PeerSendWorkRequest,
    PeerWriteWorkRequest, ScopeError, TransportError,
};
use rdma_mem::{GatherList, OwnedRegion, ScatterList};
use rdma_qp::{AckTimeout, MaxAckRetries, ReceiveWorkRequest, SendWorkRequest, WorkErrorCode};

use crate::common::provider::{at_next_poll, faulty};
use crate::multi_channel::{DEVICES, HELD, SECONDS, Star, expect_number, failed, must_end};

const LIMIT: Duration = Duration::from_millis(60);

/// Sets a short time for a peer that does not answer, and enough time for the others.
fn impatient(builder: MultiChannelBuilder<'_>) -> MultiChannelBuilder<'_> {
    let builder = builder.ack_timeout(AckTimeout::limited(10).unwrap()); // 4 ms
    builder.max_ack_retries(MaxAckRetries::limited(1).unwrap()).drain_timeout(SECONDS)
}

fn is_gone(error: &TransportError) -> bool {
    matches!(error, TransportError::WorkError(error) if error.code() == WorkErrorCode::RetryExceededError)
}

#[test]
fn a_lost_peer_does_not_affect_the_others() {
    for device in DEVICES {
        for asked in [true, false] {
            must_end(move || {
                let mut star = Star::with(device, impatient);
                let data = star.pd.allocate_region(8).unwrap();
                let mut room = star.pd.allocate_region(8).unwrap();
                let (soft, qpns) = (star.device, star.qpns.clone());
                let gone = star.peers.remove(1);
                let peers = [&star.peers[0], &star.peers[1]];
                let expect = || peers.into_iter().for_each(expect_number);
                let begin = Instant::now();
                let left = star.center.scope(|s| {
                    // No receives are posted for them yet.
                    let sent =
                        s.post_multicast_send([0, 1, 2], SendWorkRequest::only_immediate(1))?;
                    let behind = s.to(1)?.send_from(data.as_slice())?;
                    let received = s.to(1)?.receive_into(room.as_slice_mut())?;
                    let under_way: Vec<_> = qpns.iter().map(|&qpn| soft.in_flight(qpn)).collect();
                    assert_eq!(under_way, [1, 2, 1]);
                    gone.close().unwrap();
                    if asked {
                        assert!(is_gone(&sent[1].wait(SECONDS).unwrap_err()));
                        // Other requests to it are flushed.
                        assert!(behind.wait(SECONDS).unwrap().result.is_err());
                        assert!(received.wait(SECONDS).unwrap().result.is_err());
                        assert!(
                            sent[0].poll().is_none() && sent[2].poll().is_none(),
                            "they are still in flight"
                        );
                        expect();
                        for peer in [0, 2] {
                            sent[peer].wait(SECONDS)?;
                        }
                        let refused = s.to(1)?.send_from(data.as_slice()).unwrap_err().error;
                        assert!(matches!(
                            refused,
                            TransportError::Closed { reason: CloseReason::Work { .. }, .. }
                        ));
                    }
                    expect();
                    let again =
                        s.post_multicast_send([0, 2], SendWorkRequest::only_immediate(2))?;
                    if asked {
                        again.iter().try_for_each(|again| again.wait(SECONDS).map(drop))?;
                    } else {
                        expect();
                    }
                    Ok::<(), TransportError>(())
                });
                assert!(begin.elapsed() < SECONDS);
                match left {
                    Ok(()) => assert!(asked),
                    Err(ScopeError::AutoPollError(errors)) => {
                        assert!(!asked && is_gone(&errors[0].error), "{errors:?}");
                        assert_eq!(
                            errors.iter().filter_map(|error| error.peer).collect::<Vec<_>>(),
                            [1; 3]
                        );
                    }
                    Err(error) => panic!("{error}"),
                }
                assert_eq!(star.open(), [0, 2]);
                let closed = star.center.closed(1).unwrap();
                let first = matches!(closed, Some(CloseReason::Work { operation: Operation::Send, error })
                    if error.code() == WorkErrorCode::RetryExceededError);
                assert!(first, "{closed:?}");
                star.assert_usable(&[2, 0]);
            });
        }
    }
}

type Call = fn(&mut Star, &mut [OwnedRegion; 3]) -> Result<usize, TransportError>;

/// The order of the peers in the requests.
const ORDER: [usize; 3] = [2, 1, 0];

fn scatter_send(star: &mut Star, memory: &mut [OwnedRegion; 3]) -> Result<usize, TransportError> {
    let lists = memory.each_ref().map(|data| GatherList::from([data.as_slice()]));
    let sends = ORDER.iter().zip(&lists);
    let sends = sends.map(|(&peer, list)| PeerSendWorkRequest::new(peer, list.elements()));
    star.center.within(LIMIT).scatter_send(sends).map(|sent| sent.len())
}

fn multicast_send(star: &mut Star, memory: &mut [OwnedRegion; 3]) -> Result<usize, TransportError> {
    let list = GatherList::from([memory[0].as_slice()]);
    let request = SendWorkRequest::from_list(&list);
    star.center.within(LIMIT).multicast_send(ORDER, request).map(|sent| sent.len())
}

fn scatter_write(star: &mut Star, memory: &mut [OwnedRegion; 3]) -> Result<usize, TransportError> {
    let lists = memory.each_ref().map(|data| GatherList::from([data.as_slice()]));
    let remotes = ORDER.map(|peer| star.remote(peer));
    let writes = remotes.iter().zip(&lists);
    let writes = writes.map(|(&remote, list)| PeerWriteWorkRequest::new(list.elements(), remote));
    star.center.within(LIMIT).scatter_write(writes).map(|written| written.len())
}

fn gather_read(star: &mut Star, memory: &mut [OwnedRegion; 3]) -> Result<usize, TransportError> {
    let mut lists = memory.each_mut().map(|room| ScatterList::from([room.as_slice_mut()]));
    let remotes = ORDER.map(|peer| star.remote(peer));
    let reads = remotes.iter().zip(&mut lists);
    let reads = reads.map(|(&remote, list)| {
        let read = rdma_qp::ReadWorkRequest::from_list(list, remote.remote());
        PeerReadWorkRequest::from_wr(remote.peer(), read)
    });
    star.center.within(LIMIT).gather_read(reads).map(|read| read.len())
}

/// Makes a peer receive eight bytes onto its board, when they arrive.
fn expect_word(star: &Star, peer: usize) {
    let mut room = [star.boards[peer].element(0..8).unwrap().into()];
    // SAFETY: SAFETY.md F8: the region is shared, and lives as long as the channels.
    drop(unsafe { star.peers[peer].receive_unpolled(ReceiveWorkRequest::new(&mut room)) }.unwrap());
}

/// The device executes the requests of two of the peers, and none of the third.
#[test]
fn a_collective_with_a_silent_peer_ends_in_time_and_closes_that_connection() {
    let calls: [(Call, Operation); 4] = [
        (scatter_send, Operation::Send),
        (multicast_send, Operation::Send),
        (scatter_write, Operation::Write),
        (gather_read, Operation::Read),
    ];
    for (call, which) in calls {
        must_end(move || {
            let mut star = Star::on(&faulty(HELD), |builder| builder);
            star.boards.iter().for_each(|board| board.write(0, &[9; 64]).unwrap());
            let mut memory = [1, 2, 3].map(|byte| {
                let mut region = star.pd.allocate_region(8).unwrap();
                region.fill(byte);
                region
            });
            if which == Operation::Send {
                [0, 2].into_iter().for_each(|peer| expect_word(&star, peer));
            }
            let (soft, qpns) = (star.device, star.qpns.clone());
            let under_way = Rc::new(Cell::new([0; 3]));
            let seen = Rc::clone(&under_way);
            at_next_poll(move || {
                seen.set([0, 1, 2].map(|peer| soft.in_flight(qpns[peer])));
                [0, 2].into_iter().for_each(|peer| assert_eq!(soft.release(qpns[peer], 1), 1));
            });
            let begin = Instant::now();
            let error = call(&mut star, &mut memory).unwrap_err();
            let took = begin.elapsed();
            assert!(took >= LIMIT && took < SECONDS, "{took:?}");
            assert_eq!(under_way.get(), [1; 3], "a request has completed");
            let text = error.to_string();
            let (peers, error) = failed(error);
            let late = matches!(error, TransportError::Timeout { operation, timeout, .. }
                if operation == which && timeout == LIMIT);
            assert!(late && peers == [1] && text.contains("peer 1"), "{text}");
            let first = CloseReason::Timeout { operation: which };
            assert_eq!((star.open(), star.center.closed(1).unwrap()), (vec![0, 2], Some(first)));
            assert_eq!(star.in_flight(), 0);
            let told = star.center.send(PeerSendWorkRequest::only_immediate(1, 1));
            assert!(
                matches!(told, Err(TransportError::Closed { reason: why, .. }) if why == first),
                "{told:?}"
            );
            memory.iter_mut().for_each(|region| region.fill(7));
            expect_word(&star, 1);
            star.provoke();
            assert!(
                memory.iter().all(|region| **region == [7; 8]),
                "written after it was returned"
            );
            let mut word = [0; 8];
            star.boards[1].read(0, &mut word).unwrap();
            assert_eq!(word, [9; 8], "read after it was returned");
            star.assert_usable(&[0, 2]);
        });
    }
}
