//! Providers that fail, lose completions or invent some, with requests in flight to several peers.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rdma_channel::{
    CloseReason, Operation, OperationError, PeerReadWorkRequest, PeerSendWorkRequest, Rejected,
    ScopeError, TransportError,
};
use rdma_mem::Errno;

use crate::common::provider::{
    DESTROYED, HONEST_POSTS, KEPT, POLL, POLLS, POST, Post, STAY, at_next_poll, edit, faulty,
    honest,
};
use crate::common::stuck::Handles;
use crate::multi_channel::{
    DEVICES, DRAIN, HELD, LATE, SECONDS, Star, expect_number, failed, must_end,
};

/// The limit of collectives: time for requests that can complete.
const LIMIT: Duration = Duration::from_millis(500);
const READ: CloseReason = CloseReason::Timeout { operation: Operation::Read };

fn star(device: &str) -> Star {
    Star::on(&faulty(device), |builder| builder)
}

/// Runs a scope with three requests to each of these peers, which do not complete, and `leave` at its end. Returns the
/// operations that the scope reports as lost.
fn leave(star: &mut Star, peers: &[usize], leave: impl FnOnce()) -> Vec<OperationError> {
    let mut stuck = star.stuck();
    let (soft, qpns) = (star.device, star.qpns.clone());
    let begin = Instant::now();
    let left = star.center.scope(|s| {
        for (peer, stuck) in stuck.iter_mut().enumerate().filter(|(peer, _)| peers.contains(peer)) {
            stuck.post_to(peer, s, [Handles::Dropped, Handles::Forgotten][peer % 2])?;
            assert_eq!(soft.in_flight(qpns[peer]), 2, "no request of the send queue has completed");
        }
        leave();
        Ok::<(), TransportError>(())
    });
    assert!(begin.elapsed() < SECONDS);
    let Err(ScopeError::AutoPollError(errors)) = left else { panic!("{left:?}") };
    let named: Vec<_> = errors.iter().map(|lost| lost.peer.unwrap()).collect();
    assert_eq!(named, peers.iter().flat_map(|&peer| [peer; 3]).collect::<Vec<_>>());
    let last = errors.last().unwrap();
    assert!(last.to_string().contains(&format!("peer {}", named.last().unwrap())), "{last}");
    star.assert_given_back(stuck);
    errors
}

fn is_lost(lost: &OperationError) -> bool {
    matches!(lost.error, TransportError::Lost { operation, .. } if operation == lost.operation)
}

/// H5: no result is known, so all queue pairs have to be destroyed.
#[test]
fn a_failed_completion_queue_loses_the_requests_in_flight_to_all_peers() {
    for device in LATE {
        must_end(move || {
            let mut star = star(device);
            let errors = leave(&mut star, &[0, 1, 2], || POLL.set(Some(-1)));
            assert!(errors.iter().all(is_lost), "{errors:?}");
            assert_eq!(DESTROYED.get(), 3);
            honest();
            for peer in 0..3 {
                assert_eq!(star.center.closed(peer).unwrap(), Some(CloseReason::Poll));
                let gone = star.center.state(peer);
                assert!(
                    matches!(gone, Err(TransportError::Closed { reason: CloseReason::Poll, .. })),
                    "{gone:?}"
                );
                let again = star.center.send(PeerSendWorkRequest::only_immediate(peer, 1));
                assert!(matches!(
                    again,
                    Err(TransportError::Closed { reason: CloseReason::Poll, .. })
                ));
            }
            star.center.close().map_err(TransportError::from).unwrap();
        });
    }
}

#[test]
fn a_poll_that_fails_once_ends_the_requests_in_flight_to_all_peers() {
    for device in LATE {
        must_end(move || {
            let mut star = star(device);
            let errors = leave(&mut star, &[0, 1, 2], || POLLS.set(1));
            let flushed = |lost: &OperationError| {
                matches!(lost.error, TransportError::Closed { reason: CloseReason::Poll, .. })
            };
            assert!(errors.iter().all(flushed), "{errors:?}");
            assert_eq!((DESTROYED.get(), star.open()), (0, vec![]));
        });
    }
}

/// Only queue pairs with memory of the caller are destroyed: the third could not be.
#[test]
fn queue_pairs_that_do_not_go_to_error_are_destroyed_and_an_idle_one_goes_on() {
    for device in LATE {
        must_end(move || {
            let mut star = star(device);
            let idle = star.qpns[2].get();
            let errors = leave(&mut star, &[0, 1], || {
                STAY.set(true);
                KEPT.set(Some(idle));
            });
            assert!(errors.iter().all(is_lost), "{errors:?}");
            assert_eq!((DESTROYED.get(), star.open()), (2, vec![2]));
            assert!(matches!(star.center.closed(0).unwrap(), Some(CloseReason::Timeout { .. })));
            honest();
            star.assert_usable(&[2]);
        });
    }
}

/// Reads a word of each of these peers, in that order. Returns the memory and the outcome.
fn gather(star: &mut Star, peers: [usize; 3]) -> ([u8; 24], Result<usize, TransportError>) {
    star.boards.iter().for_each(|board| board.write(0, &[9; 64]).unwrap());
    let mut memory = [1; 24];
    let remotes = peers.map(|peer| star.remote(peer));
    let region = star.pd.register_local_mr_slice(&memory).unwrap();
    let chunks = memory.chunks_mut(8);
    let mut rooms: Vec<_> = chunks.map(|room| [region.scatter_element(room)]).collect();
    let reads = rooms.iter_mut().zip(remotes);
    let reads = reads.map(|(room, from)| PeerReadWorkRequest::new(room, from));
    let outcome = star.center.within(LIMIT).gather_read(reads).map(|read| read.len());
    let read = memory;
    memory.fill(7);
    star.provoke();
    assert_eq!(memory, [7; 24], "written after it was returned");
    (read, outcome)
}

/// H5.
#[test]
fn a_collective_on_a_completion_queue_that_fails_ends_when_the_queue_pairs_are_gone() {
    must_end(|| {
        let mut star = star(HELD);
        let (soft, qpns) = (star.device, star.qpns.clone());
        let under_way = Rc::new(Cell::new(0));
        let seen = Rc::clone(&under_way);
        at_next_poll(move || {
            seen.set(qpns.iter().map(|&qpn| soft.in_flight(qpn)).sum());
            POLL.set(Some(-1));
        });
        let begin = Instant::now();
        let (read, outcome) = gather(&mut star, [2, 0, 1]);
        assert!(matches!(outcome, Err(TransportError::PollError(_))), "{outcome:?}");
        assert!(begin.elapsed() < SECONDS);
        assert_eq!((read, under_way.get(), DESTROYED.get()), ([1; 24], 3, 3));
        let closed = [0, 1, 2].map(|peer| star.center.closed(peer).unwrap());
        assert_eq!((closed, star.in_flight()), ([Some(CloseReason::Poll); 3], 0));
    });
}

/// Discards the completions of that peer's queue pair. Returns their number.
fn lose(star: &Star, peer: usize) -> Rc<Cell<u32>> {
    let lost = Rc::new(Cell::new(0));
    let (counted, qpn) = (Rc::clone(&lost), star.qpns[peer].get());
    edit(move |completion| {
        if completion.qp_num != qpn {
            return vec![completion];
        }
        counted.set(counted.get() + 1);
        Vec::new()
    });
    lost
}

#[test]
fn a_lost_completion_closes_only_its_connection() {
    for device in DEVICES.into_iter().chain([HELD]) {
        must_end(move || {
            let mut star = star(device);
            let lost = lose(&star, 1);
            star.boards.iter().for_each(|board| board.write(0, &[9; 64]).unwrap());
            let mut rooms = [1, 2, 3].map(|_| star.pd.allocate_region(8).unwrap());
            let [first, second, third] = &mut rooms;
            let remotes = [0, 1, 2].map(|peer| star.remote(peer));
            let (releases, soft, qpn) = (star.releases(), star.device, star.qpns[1]);
            let begin = Instant::now();
            let left = star.center.scope(|s| {
                let first = s
                    .to(remotes[0].peer())?
                    .read_into(first.as_slice_mut(), remotes[0].remote())?;
                let second = s
                    .to(remotes[1].peer())?
                    .read_into(second.as_slice_mut(), remotes[1].remote())?;
                let third = s
                    .to(remotes[2].peer())?
                    .read_into(third.as_slice_mut(), remotes[2].remote())?;
                releases();
                let first = first.wait(SECONDS).unwrap();
                third.wait(SECONDS).unwrap().result?;
                assert!(second.wait(DRAIN).is_err(), "it has a completion");
                assert_eq!(soft.in_flight(qpn), 0, "it was not executed");
                // Other connections still work.
                let again = s.to(remotes[0].peer())?.read_into(first.buf, remotes[0].remote())?;
                releases();
                again.wait(SECONDS).unwrap().result.map(drop)
            });
            assert!(begin.elapsed() < SECONDS);
            let Err(ScopeError::AutoPollError(errors)) = left else { panic!("{left:?}") };
            assert!(errors.iter().all(is_lost), "{errors:?}");
            assert_eq!(errors.iter().map(|lost| lost.peer).collect::<Vec<_>>(), [Some(1)]);
            assert_eq!((lost.get(), DESTROYED.get()), (1, 1));
            assert_eq!((star.open(), star.center.closed(1).unwrap()), (vec![0, 2], Some(READ)));
            rooms.iter_mut().for_each(|room| room.fill(7));
            star.provoke();
            assert!(rooms.iter().all(|room| **room == [7; 8]), "written after they were returned");
            star.assert_usable(&[0, 2]);
        });
    }
}

#[test]
fn a_collective_that_loses_a_completion_names_its_peer() {
    for device in DEVICES {
        must_end(move || {
            let mut star = star(device);
            let lost = lose(&star, 1);
            let begin = Instant::now();
            let (read, outcome) = gather(&mut star, [1, 2, 0]);
            assert!(begin.elapsed() >= LIMIT && begin.elapsed() < SECONDS);
            let (peers, error) = failed(outcome.unwrap_err());
            let told = matches!(error, TransportError::Lost { operation: Operation::Read, .. });
            assert!(told && peers == [1], "{peers:?} {error}");
            assert_eq!(read[8..], [9; 16]);
            assert_eq!((lost.get(), DESTROYED.get(), star.open()), (1, 1, vec![0, 2]));
            star.assert_usable(&[2, 0]);
        });
    }
}

#[test]
fn repeated_completions_do_not_reach_other_peers() {
    for device in DEVICES {
        must_end(move || {
            let mut star = Star::on(&faulty(device), |builder| builder.max_send_wr(1));
            edit(|completion| vec![completion; 3]);
            for _ in 0..10 {
                star.assert_usable(&[2, 0, 1]);
            }
            // The last repeated completions are not polled.
            assert!(star.center.stray_completions() >= 2 * 29, "{:?}", star.center);
            assert_eq!(star.open(), [0, 1, 2]);
        });
    }
}

/// The second of three requests is refused. If the device may hold it, it is ended, and the one before it gets its
/// time.
#[test]
fn a_collective_with_a_refused_request_ends_the_earlier_ones() {
    for device in ["soft0", HELD] {
        for post in [Post::Doubtful, Post::DoubtfulAndRefused, Post::Refused(Errno::EINVAL)] {
            must_end(move || {
                let mut star = star(device);
                let (soft, qpns) = (star.device, star.qpns.clone());
                let under_way = Rc::new(Cell::new(0));
                let seen = Rc::clone(&under_way);
                at_next_poll(move || seen.set(qpns.iter().map(|&qpn| soft.in_flight(qpn)).sum()));
                HONEST_POSTS.set(1);
                POST.set(post);
                let begin = Instant::now();
                let (read, outcome) = gather(&mut star, [2, 0, 1]);
                let Err(TransportError::PostError(refused)) = outcome else {
                    panic!("{outcome:?}")
                };
                assert!(begin.elapsed() < SECONDS);
                let unclear = post != Post::Refused(Errno::EINVAL);
                assert_eq!(refused.posted(), usize::from(unclear));
                if device == HELD {
                    assert_eq!(under_way.get(), 1 + usize::from(post == Post::Doubtful));
                } else {
                    assert_eq!(read[..8], [9; 8], "it has completed in time");
                }
                let doubtful = CloseReason::Doubtful { operation: Operation::Read };
                let closed = [0, 1, 2].map(|peer| star.center.closed(peer).unwrap());
                let late = (device == HELD).then_some(READ);
                // The working device has executed it at once, if it was posted.
                let open = !unclear || device != HELD && post == Post::Doubtful;
                assert_eq!(closed, [(!open).then_some(doubtful), None, late]);
                assert_eq!(star.in_flight(), 0);
                honest();
                star.assert_usable(&star.open());
            });
        }
    }
}

#[test]
fn channels_with_one_indestructible_queue_pair_are_returned() {
    must_end(|| {
        let star = star("soft0");
        KEPT.set(Some(star.qpns[1].get()));
        let Rejected { value: mut center, error, .. } = star.center.close().unwrap_err();
        assert!(error.to_string().contains("ibv_destroy_qp"), "{error}");
        let closed = [0, 1, 2].map(|peer| center.closed(peer).unwrap());
        assert_eq!(closed, [Some(CloseReason::Destroyed), None, None]);
        let again = center.send(PeerSendWorkRequest::only_immediate(0, 1));
        assert!(matches!(
            again,
            Err(TransportError::Closed { reason: CloseReason::Destroyed, .. })
        ));
        for peer in [1, 2] {
            expect_number(&star.peers[peer]);
            center.send(PeerSendWorkRequest::only_immediate(peer, 1)).unwrap();
        }
        KEPT.set(None);
        center.close().map_err(TransportError::from).unwrap();
        assert_eq!(DESTROYED.get(), 3);
    });
}
