//! A peer that fails, or does not answer, loses only its own connection, and in time.
#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rdma_channel::{
    CloseReason, MultiChannel, Operation, PeerReadWorkRequest, PeerReceiveWorkRequest,
    PeerRemoteMemoryRegion, PeerSendWorkRequest, PeerWriteWorkRequest, ScopeError, TransportError,
};
use rdma_mem::{GatherElement, OwnedRegion, RemoteMemoryRegion};
use rdma_qp::{SendWorkRequest, WorkErrorCode, WorkSuccess, WriteWorkRequest};
use test_support::rig::until;

use crate::common::provider::{at_next_poll, faulty};
use crate::common::stuck::Handles;
use crate::multi_channel::{
    DEVICES, DRAIN, HELD, LATE, SECONDS, Star, everything, failed, must_end,
};

const LIMIT: Duration = Duration::from_millis(60);
const RECEIVE: CloseReason = CloseReason::Timeout { operation: Operation::Receive };

/// Receives from these peers into as many parts of the memory.
fn gather(
    center: &mut MultiChannel,
    memory: &mut OwnedRegion,
    peers: &[usize],
) -> Result<Vec<WorkSuccess>, TransportError> {
    let (head, rest) = memory.as_slice_mut().split_at(8);
    let (middle, tail) = rest.split_at(8);
    let mut rooms = [head, middle, tail];
    let mut rooms: Vec<_> = rooms.iter_mut().map(|room| [room.scatter_element()]).collect();
    let requests = peers.iter().zip(&mut rooms);
    let requests = requests.map(|(&peer, room)| PeerReceiveWorkRequest::new(peer, room));
    center.within(LIMIT).gather_receive(requests)
}

/// Makes a peer send eight bytes; they are lost if the connection is closed.
fn send_word(star: &Star, peer: usize) {
    let data = [star.boards[peer].element(0..8).unwrap().into()];
    // SAFETY: SAFETY.md F8: the region is shared, and lives as long as the channels.
    drop(unsafe { star.peers[peer].send_unpolled(SendWorkRequest::new(&data)) }.unwrap());
    star.releases()();
}

/// A closure that returns when the messages of peers 0 and 2 have arrived. It runs once the receives are posted. On a
/// device that holds requests, it releases them.
fn arrives(star: &Star) -> impl FnOnce() + use<> {
    let (releases, device) = (star.releases(), star.device);
    let peers = [0, 2].map(|peer| star.peers[peer].qpn().unwrap());
    move || {
        releases();
        until("the messages arrive", || peers.iter().all(|&peer| device.in_flight(peer) == 0));
    }
}

#[test]
fn a_peer_that_does_not_answer_loses_only_its_own_connection() {
    for device in DEVICES.into_iter().chain([HELD]) {
        must_end(move || {
            let mut star = Star::on(&faulty(device), |builder| builder);
            let mut memory = star.pd.allocate_region(24).unwrap();
            [0, 2].into_iter().for_each(|peer| {
                star.boards[peer].write(0, &[7; 8]).unwrap();
                send_word(&star, peer);
            });
            let arrive = arrives(&star);
            let begin = Instant::now();
            let center = &mut star.center;
            at_next_poll(arrive);
            let outcome = gather(center, &mut memory, &[2, 1, 0]);
            assert!(begin.elapsed() >= LIMIT);
            let (peers, error) = failed(outcome.unwrap_err());
            let late = matches!(error, TransportError::Timeout { operation: Operation::Receive, timeout, .. }
                if timeout == LIMIT);
            assert!(late && peers == [1], "{device}: {peers:?} {error}");
            assert_eq!((star.open(), star.center.closed(1).unwrap()), (vec![0, 2], Some(RECEIVE)));
            assert_eq!(&memory[..8], [7; 8]);
            memory.fill(0);
            star.boards[1].write(0, &[9; 8]).unwrap();
            send_word(&star, 1);
            assert_eq!(*memory, [0; 24], "written after it was returned");

            let error = gather(&mut star.center, &mut memory, &[0, 1]).unwrap_err();
            assert!(matches!(error, TransportError::Closed { reason: RECEIVE, .. }), "{error}");
            [0, 2].into_iter().for_each(|peer| send_word(&star, peer));
            at_next_poll(arrives(&star));
            assert_eq!(gather(&mut star.center, &mut memory, &[0, 2]).unwrap().len(), 2);
        });
    }
}

#[test]
fn requests_posted_before_a_refused_one_end_too() {
    for device in DEVICES.into_iter().chain([HELD]) {
        must_end(move || {
            let mut star = Star::with(device, |builder| builder.max_recv_wr(1));
            let mut memory = star.pd.allocate_region(24).unwrap();
            let begin = Instant::now();
            let (head, rest) = memory.as_slice_mut().split_at(8);
            let mut rooms = [[head], [rest]];
            let [first, second] = &mut rooms;
            let (mut first, mut second) =
                ([first[0].scatter_element()], [second[0].scatter_element()]);
            // No limit applies by default: a receive has none.
            let error = star.center.gather_receive([
                PeerReceiveWorkRequest::new(0, &mut first),
                PeerReceiveWorkRequest::new(1, &mut second),
                PeerReceiveWorkRequest::only_immediate(1),
            ]);
            assert!(matches!(error, Err(TransportError::WouldBlock)), "{error:?}");
            assert!(begin.elapsed() >= DRAIN);
            assert_eq!(star.open(), [2]);
            assert_eq!(star.center.closed(1).unwrap(), Some(RECEIVE));
            memory.fill(7);
            [0, 1].into_iter().for_each(|peer| send_word(&star, peer));
            assert_eq!(*memory, [7; 24], "written after it was returned");
        });
    }
}

#[test]
fn requests_that_the_device_holds_back_are_ended() {
    must_end(|| {
        let mut star = Star::new(HELD);
        let data = star.pd.allocate_region(8).unwrap();
        let element = [data.as_slice().gather_element()];
        let remotes = [0, 1, 2].map(|peer| star.remote(peer));
        let writes = remotes.map(|remote| PeerWriteWorkRequest::new(&element, remote));
        let error = star.center.within(LIMIT).scatter_write(writes).unwrap_err();
        assert_eq!(failed(error).0, [0, 1, 2]);
        assert_eq!((star.in_flight(), star.open().len()), (0, 0));
    });
}

#[test]
fn each_collective_has_a_limit() {
    for which in 0..5 {
        must_end(move || {
            let mut star = Star::new(HELD);
            let remotes = [0, 1, 2].map(|peer| star.remote(peer));
            let (center, begin) = (&mut star.center, Instant::now());
            let outcome = match which {
                0 => center.within(LIMIT).scatter_send(
                    [0, 1, 2].map(|peer| PeerSendWorkRequest::only_immediate(peer, 1)),
                ),
                1 => center
                    .within(LIMIT)
                    .scatter_write(remotes.map(|remote| PeerWriteWorkRequest::new(&[], remote))),
                2 => center
                    .within(LIMIT)
                    .gather_receive([0, 1, 2].map(PeerReceiveWorkRequest::only_immediate)),
                3 => {
                    let reads =
                        remotes.into_iter().map(|from| PeerReadWorkRequest::new(&mut [], from));
                    center.within(LIMIT).gather_read(reads)
                }
                _ => {
                    let message = SendWorkRequest::only_immediate(1);
                    center.within(LIMIT).multicast_send([0, 1, 2], message)
                }
            };
            assert!(begin.elapsed() >= LIMIT);
            let (peers, error) = failed(outcome.unwrap_err());
            let late = matches!(error, TransportError::Timeout { timeout: LIMIT, .. });
            assert!(late && peers == [0, 1, 2], "{which}: {peers:?} {error}");
            assert_eq!((star.in_flight(), star.open().len()), (0, 0));
        });
    }
}

#[test]
fn a_request_that_fails_closes_the_connection_to_its_peer() {
    for device in DEVICES {
        let mut star = Star::new(device);
        let data = star.pd.allocate_region(8).unwrap();
        let element = [data.as_slice().gather_element()];
        let board = star.remote(1).remote();
        let wrong = RemoteMemoryRegion::new(board.address(), 8, !board.rkey().get());
        let remotes = [star.remote(2), PeerRemoteMemoryRegion::new(1, wrong), star.remote(0)];
        star.boards.iter().for_each(|board| board.write(0, &[1; 8]).unwrap());
        let writes = remotes.map(|remote| PeerWriteWorkRequest::new(&element, remote));
        let (peers, error) = failed(star.center.scatter_write(writes).unwrap_err());
        let TransportError::WorkError(work) = error else { panic!("{error}") };
        assert_eq!((peers, work.code()), (vec![1], WorkErrorCode::RemoteAccessError));
        assert_eq!(star.open(), [0, 2]);
        let mut word = [9; 8];
        star.boards[0].read(0, &mut word).unwrap();
        assert_eq!(word, [0; 8], "written although it is later in the list");
    }
}

#[test]
fn giving_up_a_request_does_not_affect_other_peers() {
    must_end(|| {
        let mut star = Star::new(HELD);
        star.expect_number(0);
        // SAFETY: SAFETY.md F8: the requests have no memory, here and below.
        drop(
            unsafe { star.center.send_unpolled(PeerSendWorkRequest::only_immediate(0, 1)) }
                .unwrap(),
        );
        assert_eq!(star.device.in_flight(star.qpns[0]), 1);
        let room = PeerReceiveWorkRequest::only_immediate(1);
        let error = star.center.within(LIMIT).receive(room).unwrap_err();
        assert!(matches!(error, TransportError::Timeout { .. }), "{error}");
        assert_eq!(star.device.in_flight(star.qpns[0]), 1, "it is still in flight");
        assert_eq!(star.open(), [0, 2]);
        let rooms = [1, 2].map(PeerReceiveWorkRequest::only_immediate);
        assert!(star.center.within(LIMIT).gather_receive(rooms).is_err());
        let rooms = [2].map(PeerReceiveWorkRequest::only_immediate);
        assert_eq!(failed(star.center.within(LIMIT).gather_receive(rooms).unwrap_err()).0, [2]);
        assert_eq!(star.open(), [0]);
        assert_eq!(star.device.release(star.qpns[0], u32::MAX), 1);
        let done = star.center.scope(|_| Ok::<_, TransportError>(()));
        assert!(done.is_ok() && star.open() == [0], "its completion was lost");
        let room = PeerReceiveWorkRequest::only_immediate(0);
        assert!(star.center.within(LIMIT).receive(room).is_err());
        assert_eq!(star.center.stray_completions(), 0, "its completion matched no request");
    });
}

#[test]
fn a_limit_for_several_peers_ends_with_the_value_of_within() {
    must_end(|| {
        let mut star = Star::with(HELD, |builder| builder.receive_timeout(2 * LIMIT));
        let limit_of = |error| match error {
            TransportError::Timeout { timeout, .. } => timeout,
            error => panic!("{error}"),
        };
        let room = PeerReceiveWorkRequest::only_immediate(0);
        assert_eq!(limit_of(star.center.within(LIMIT).receive(room).unwrap_err()), LIMIT);
        let rooms = [1].map(PeerReceiveWorkRequest::only_immediate);
        let error = star.center.within(LIMIT).gather_receive(rooms).unwrap_err();
        assert_eq!(limit_of(failed(error).1), LIMIT);
        drop(star.center.within(LIMIT));
        let rooms = [2].map(PeerReceiveWorkRequest::only_immediate);
        let error = star.center.gather_receive(rooms).unwrap_err();
        assert_eq!(limit_of(failed(error).1), 2 * LIMIT);
    });
}

#[test]
fn a_scope_ends_requests_that_one_peer_does_not_answer() {
    for device in DEVICES {
        must_end(move || {
            let mut star = Star::new(device);
            [0, 2].into_iter().for_each(|peer| star.send_number(peer, 1));
            let left = star.center.scope(|s| {
                let rooms = [0, 1, 2].map(PeerReceiveWorkRequest::only_immediate);
                s.post_gather_receive(rooms).map(drop)
            });
            let Err(ScopeError::AutoPollError(errors)) = left else { panic!("{left:?}") };
            assert_eq!(errors.iter().map(|error| error.peer).collect::<Vec<_>>(), [Some(1)]);
            assert_eq!(star.open(), [0, 2]);
        });
    }
}

#[test]
fn requests_before_a_refused_one_belong_to_the_scope() {
    must_end(|| {
        let mut star = Star::with(HELD, |builder| builder.max_recv_wr(1));
        let left: Result<(), ScopeError<TransportError>> = star.center.scope(|s| {
            let rooms = [0, 1, 1].map(PeerReceiveWorkRequest::only_immediate);
            s.post_gather_receive(rooms).map(drop)
        });
        let refused = matches!(left, Err(ScopeError::ClosureError(TransportError::WouldBlock)));
        assert!(refused && star.open() == [2], "{left:?}");
    });
}

#[test]
fn an_iterator_that_panics_has_posted_nothing() {
    let mut star = Star::new(HELD);
    let requests = (0..3).map(|peer| match peer {
        2 => panic!("no request"),
        peer => PeerSendWorkRequest::only_immediate(peer, 1),
    });
    let panicked = catch_unwind(AssertUnwindSafe(|| star.center.scatter_send(requests)));
    assert!(panicked.is_err());
    assert_eq!((star.in_flight(), star.open().len()), (0, 3));
}

#[test]
fn a_peer_that_is_gone_is_detected_in_time() {
    for device in DEVICES {
        must_end(move || {
            let mut star = Star::new(device);
            star.expect_number(0);
            star.expect_number(2);
            drop(star.peers.remove(1));
            let sends = [1, 0, 2].map(|peer| PeerSendWorkRequest::only_immediate(peer, 1));
            let (peers, _) = failed(star.center.within(SECONDS).scatter_send(sends).unwrap_err());
            assert_eq!((peers, star.open()), (vec![1], vec![0, 2]));
        });
    }
}

#[test]
fn a_scope_that_closes_its_channels_flushes_all_connections() {
    for device in LATE {
        must_end(move || {
            let mut star = Star::with(device, |builder| builder.drain_timeout(2 * SECONDS));
            let mut stuck = star.stuck();
            let (soft, qpns) = (star.device, star.qpns.clone());
            let begin = Instant::now();
            let left = star.center.scope(|s| {
                for (peer, stuck) in stuck.iter_mut().enumerate().take(2) {
                    stuck.post_to(peer, s, Handles::Forgotten)?;
                }
                let under_way: Vec<_> = qpns.iter().map(|&qpn| soft.in_flight(qpn)).collect();
                assert_eq!(under_way, [2, 2, 0]);
                s.close();
                Ok::<(), TransportError>(())
            });
            assert!(left.is_ok() && begin.elapsed() < SECONDS, "{left:?}");
            let closed = [0, 1, 2].map(|peer| star.center.closed(peer).unwrap());
            assert_eq!(closed, [Some(CloseReason::Asked); 3], "an idle connection is closed, too");
            star.assert_given_back(stuck);
        });
    }
}

/// They belong to a connection that has gone, with all requests in flight.
#[test]
fn handles_dropped_earlier_do_not_count_in_a_later_manual_scope() {
    must_end(|| {
        let mut star = Star::new("soft0");
        // SAFETY: SAFETY.md F8: the request has no memory.
        let unpolled =
            unsafe { star.center.receive_unpolled(PeerReceiveWorkRequest::only_immediate(0)) };
        drop(unpolled.unwrap());
        let receives = [PeerReceiveWorkRequest::only_immediate(0)];
        star.center.within(LIMIT).gather_receive(receives).unwrap_err();
        assert_eq!(star.open(), [1, 2]);
        let remote = star.remote(1);
        let left = catch_unwind(AssertUnwindSafe(|| {
            star.center.manual_scope(|s| {
                let write = s.post_write(PeerWriteWorkRequest::new(&[], remote))?;
                write.wait(SECONDS)?;
                #[allow(clippy::mem_forget)] // it has reported its result
                std::mem::forget(write);
                Ok::<(), TransportError>(())
            })
        }));
        assert!(matches!(left, Ok(Ok(()))), "all its handles were polled");
    });
}

#[test]
fn connections_that_signal_all_requests_stay_open_when_the_last_of_a_scope_was_unsignaled() {
    must_end(|| {
        let mut star = Star::on(&faulty(HELD), |builder| builder.sq_sig_all(true));
        let data = star.pd.allocate_region(8).unwrap();
        let (remote, releases) = (star.remote(1), star.releases());
        let left = star.center.scope(|s| {
            drop(
                s.to(remote.peer())?
                    .write_from_with(data.as_slice(), remote.remote(), |w| w.signaled(false))?,
            );
            // When the scope has polled twice, it is waiting.
            at_next_poll(move || at_next_poll(move || at_next_poll(releases)));
            Ok::<(), TransportError>(())
        });
        left.unwrap();
        assert_eq!((star.open(), star.in_flight()), (vec![0, 1, 2], 0));
    });
}

/// The requests were posted before another one was refused.
#[test]
fn a_manual_scope_ignores_requests_without_handles() {
    must_end(|| {
        let mut star = Star::with("soft0", |builder| builder.max_send_wr(2).max_recv_wr(2));
        for peer in [0, 1, 1] {
            star.expect_number(peer);
        }
        star.center
            .manual_scope(|s| {
                let send = |peer| PeerSendWorkRequest::only_immediate(peer, 1);
                let error = s.post_batch([0, 1, 1, 1].map(|peer| send(peer).into())).unwrap_err();
                assert!(matches!(error, TransportError::BatchTooLarge { .. }), "{error}");
                let room = [2; 3].map(PeerReceiveWorkRequest::only_immediate);
                let error = s.post_gather_receive(room).unwrap_err();
                assert!(matches!(error, TransportError::WouldBlock), "{error}");
                s.close();
                Ok::<_, TransportError>(())
            })
            .unwrap();
    });
}

/// A batch ends only its own requests: another peer's receive stays posted.
#[test]
fn a_batch_that_fails_leaves_other_connections_as_they_are() {
    must_end(|| {
        for device in ["soft0", HELD] {
            let mut star = Star::new(device);
            // SAFETY: SAFETY.md F8: the request has no memory.
            drop(
                unsafe { star.center.receive_unpolled(PeerReceiveWorkRequest::only_immediate(2)) }
                    .unwrap(),
            );
            let nowhere = RemoteMemoryRegion::new(0, 8, 1);
            let element = [star.pd.allocate_shared_region(8, everything(&star.pd)).unwrap()];
            let elements = [GatherElement::from(element[0].element(0..8).unwrap())];
            let write = WriteWorkRequest::new(&elements, nowhere);
            let writes = [PeerWriteWorkRequest::from_wr(0, write).into()];
            let limit = if device == HELD { Duration::from_millis(5) } else { SECONDS };
            let error = star.center.within(limit).batch(writes).unwrap_err();
            let TransportError::Collective(errors) = error else { panic!("{error}") };
            assert_eq!(errors.iter().map(|error| error.peer).collect::<Vec<_>>(), [Some(0)]);
            assert_eq!(star.open(), [1, 2], "on {device}");
            let too_many = (0..17).map(|_| PeerSendWorkRequest::only_immediate(1, 1).into());
            let error = star.center.batch(too_many).unwrap_err();
            assert!(matches!(error, TransportError::BatchTooLarge { .. }), "{error}");
            assert_eq!(star.open(), [1, 2], "on {device}");
        }
    });
}
