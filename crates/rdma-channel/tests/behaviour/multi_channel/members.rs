//! Peers that are added and removed.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::mem;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rdma_channel::{
    ChannelBuilder, CloseReason, Error, Operation, PeerReadWorkRequest, PeerReceiveWorkRequest,
    PeerSendWorkRequest, PreparedPeer, ScopeError, TransportError, prelude::*,
};
use rdma_mem::{OwnedRegion, ScatterList};
use rdma_qp::{
    AckTimeout, MaxAckRetries, MaxRnrRetries, Qpn, ReadWorkRequest, ReceiveWorkRequest,
    SendWorkRequest,
};
use rdma_sys::ibv_wc;
use test_support::events::{self, Event};

use crate::common::child::must_live;
use crate::common::provider::{DESTROYED, ENDLESS, KEPT, POLL, STAY, edit, faulty, honest, invent};
use crate::common::stuck::Handles;
use crate::common::{DRAIN, HELD, LATE, WIRE, everything, must_end, open, wait_in_vain};
use crate::multi_channel::{DEVICES, SECONDS, Star};

impl Star {
    /// Adds a peer, and returns its index, which is one of the three.
    fn join(&mut self) -> usize {
        let forever = MaxRnrRetries::unlimited();
        let builder: ChannelBuilder<'_> = self.far.create_channel().max_rnr_retries(forever);
        let there = builder.access(everything(&self.far)).build().unwrap();
        let here = self.center.prepare().unwrap();
        let told = here.endpoint();
        let peer = self.center.add(here, there.endpoint()).unwrap();
        let attributes = self.center.peer(peer).unwrap().unwrap();
        assert_eq!(attributes.peer_qpn, there.endpoint().qpn());
        self.peers[peer] = there.handshake(told).unwrap();
        self.qpns[peer] = told.qpn();
        peer
    }

    /// Adds a peer, which has to get this index, and uses all peers.
    fn assert_replaced(&mut self, peer: usize) {
        assert_eq!(self.join(), peer);
        assert_eq!((self.open(), self.center.num_channels()), (vec![0, 1, 2], 3));
        self.assert_usable(&[0, 1, 2]);
    }

    fn assert_absent(&mut self, peer: usize) {
        assert!(self.center.peers().all(|there| there != peer));
        assert_eq!(self.center.closed(peer).unwrap(), Some(CloseReason::Absent));
        let sent = self.center.send(PeerSendWorkRequest::only_immediate(peer, 1));
        let (of_call, again) = (sent.unwrap_err(), self.center.remove(peer).unwrap_err());
        let of_peer = self.center.peer(peer).unwrap_err();
        let number = PeerSendWorkRequest::only_immediate(peer, 1);
        let in_scope = self.center.scope(|s| s.post_send(number).map(drop));
        let in_scope = in_scope.map_err(ScopeError::flatten).unwrap_err();
        for error in [of_call, of_peer, again, in_scope] {
            assert!(is_absent(&error), "{error}");
            assert!(error.to_string().contains("no peer has that index"), "{error}");
        }
    }

    /// Leaves requests of all kinds in flight on that peer's queue pair.
    fn leave_unpolled(&self, peer: usize, memory: &mut [OwnedRegion; 2]) {
        self.boards[peer].write(0, &[9; 64]).unwrap();
        let [room, read] = memory;
        let mut room = ScatterList::from([room.as_slice_mut()]);
        let mut read = ScatterList::from([read.as_slice_mut()]);
        let remote = self.boards[peer].remote().slice(0..64).unwrap();
        let receive = ReceiveWorkRequest::from_list(&mut room);
        let receive = PeerReceiveWorkRequest::from_wr(peer, receive);
        let read = ReadWorkRequest::from_list(&mut read, remote);
        let read = PeerReadWorkRequest::from_wr(peer, read);
        let number = || {
            let unsignaled = SendWorkRequest::only_immediate(1).signaled(false);
            PeerSendWorkRequest::from_wr(peer, unsignaled)
        };
        // SAFETY: SAFETY.md F8: the memory is not accessed before the peer was removed.
        let received = unsafe { self.center.receive_unpolled(receive) }.unwrap();
        // SAFETY: SAFETY.md F8: the request has no memory.
        let sent = unsafe { self.center.send_unpolled(number()) };
        // SAFETY: SAFETY.md F8: as above.
        let read = unsafe { self.center.read_unpolled(read) }.unwrap();
        // SAFETY: SAFETY.md F8: the request has no memory.
        let last = unsafe { self.center.send_unpolled(number()) };
        drop((received, sent.unwrap()));
        #[allow(clippy::mem_forget)] // the subject of this test
        mem::forget((read, last.unwrap()));
    }

    fn memory(&self) -> [OwnedRegion; 2] {
        [1, 2].map(|byte| {
            let mut region = self.pd.allocate_region(64).unwrap();
            region.fill(byte);
            region
        })
    }

    /// Checks that the memory stays unchanged, whatever the peers and the device do now.
    fn assert_left_alone(&self, mut memory: [OwnedRegion; 2]) {
        memory.iter_mut().for_each(|region| region.fill(7));
        self.provoke();
        for region in memory {
            assert_eq!(*region, [7; 64], "written after it was returned");
            region.close().unwrap();
        }
    }
}

fn is_absent(error: &TransportError) -> bool {
    matches!(error, TransportError::Closed { reason: CloseReason::Absent, peer: None, .. })
}

fn star(device: &str) -> Star {
    Star::on(&faulty(device), |builder| builder)
}

#[test]
fn the_next_peer_gets_the_lowest_free_index() {
    for device in ["soft0", "softib0", WIRE].into_iter().chain(LATE) {
        must_end(move || {
            let mut star = Star::new(device);
            star.assert_usable(&[0, 1, 2]);
            star.center.remove(1).unwrap();
            star.assert_absent(1);
            assert!(star.center.peers().eq([0, 2]) && star.center.num_channels() == 2);
            star.assert_usable(&[0, 2]);
            star.assert_replaced(1);
            star.center.remove(2).unwrap();
            star.center.remove(0).unwrap();
            star.assert_absent(0);
            star.assert_absent(2);
            star.assert_usable(&[1]);
            assert_eq!([star.join(), star.join()], [0, 2]);
            star.assert_usable(&[2, 1, 0]);
            assert_eq!(star.center.stray_completions(), 0);
            star.center.close().map_err(TransportError::from).unwrap();
        });
    }
}

#[test]
fn failed_peers_are_replaced_more_often_than_there_are_places() {
    for device in DEVICES {
        must_end(move || {
            let mut star = Star::with(device, |builder| {
                let builder = builder.ack_timeout(AckTimeout::limited(10).unwrap()); // 4 ms
                let retries = MaxAckRetries::limited(1).unwrap();
                // The smallest queues: each slot is used again.
                builder
                    .max_ack_retries(retries)
                    .drain_timeout(SECONDS)
                    .max_send_wr(2)
                    .max_recv_wr(1)
            });
            for round in 0..12 {
                let peer = round % 3;
                let gone = mem::replace(&mut star.peers[peer], {
                    let alone = star.far.create_channel().build().unwrap();
                    let end = alone.endpoint();
                    alone.handshake(end).unwrap()
                });
                gone.close().map_err(TransportError::from).unwrap();
                let sent = star.center.send(PeerSendWorkRequest::only_immediate(peer, 1));
                assert!(matches!(sent, Err(TransportError::WorkError(_))), "{sent:?}");
                let closed = star.center.closed(peer).unwrap();
                assert!(matches!(closed, Some(CloseReason::Work { .. })), "{closed:?}");
                let prepared = star.center.prepare().map(drop).unwrap_err();
                assert!(matches!(prepared, TransportError::TooManyPeers { most: 3, .. }));
                star.center.remove(peer).unwrap();
                star.assert_replaced(peer);
            }
        });
    }
}

#[test]
fn the_number_of_peers_stays_within_its_maximum() {
    let pd = open("soft0").allocate_pd().unwrap();
    let error = pd.create_multi_channel().num_channels(3).max_channels(2).build().unwrap_err();
    let named = matches!(error, Error::TooLarge { knob: "num_channels", value: 3, most: 2, .. });
    assert!(named, "{error}");
    let error = pd.create_multi_channel().max_channels(usize::MAX).build().unwrap_err();
    assert!(matches!(error, Error::TooLarge { knob: "max_channels", .. }), "{error}");

    let mut center =
        pd.create_multi_channel().max_channels(2).build().unwrap().handshake([]).unwrap();
    assert_eq!(center.num_channels(), 0);
    assert_eq!(format!("{center:?}"), "MultiChannel[absent, absent]");
    let too_many = |prepared: Result<PreparedPeer, TransportError>| {
        let error = prepared.unwrap_err();
        assert!(matches!(error, TransportError::TooManyPeers { most: 2, .. }), "{error}");
        assert!(error.to_string().contains("`max_channels`"), "{error}");
    };
    let first = center.prepare().unwrap();
    let second = center.prepare().unwrap();
    too_many(center.prepare());
    drop(first);
    let third = center.prepare().unwrap();
    too_many(center.prepare());
    // Prepared peers can move to other threads.
    let ends = std::thread::spawn(move || [second, third].map(|one| (one.endpoint(), one)));
    for (index, (end, prepared)) in ends.join().unwrap().into_iter().enumerate() {
        assert_eq!(center.add(prepared, end).unwrap(), index); // to itself
        too_many(center.prepare());
    }
    let error = center.remove(2).unwrap_err();
    assert!(matches!(error, TransportError::NoSuchPeer { peer: 2, count: 2 }), "{error}");
    assert!(center.peers().eq([0, 1]));
    assert!(center.scope(|s| Ok::<_, TransportError>(s.peers().eq([0, 1]))).unwrap());
    assert_eq!(center.scope(|s| Ok::<_, TransportError>(s.num_channels())).unwrap(), 2);
    center.remove(0).unwrap();
    let prepared = center.prepare().unwrap();
    center.close().map_err(TransportError::from).unwrap();
    drop(prepared);
    pd.close().map_err(|(_, error)| error).unwrap();
}

/// Its completions would go to the other channels.
#[test]
fn a_peer_that_other_channels_have_prepared_is_refused() {
    let [mut star, mut other] = [1, 2].map(|_| Star::new("soft0"));
    star.center.remove(1).unwrap();
    other.center.remove(1).unwrap();
    let foreign = other.center.prepare().unwrap();
    let end = foreign.endpoint();
    let error = star.center.add(foreign, end).unwrap_err();
    assert!(matches!(error, TransportError::ForeignPeer), "{error}");
    for mut star in [star, other] {
        star.assert_absent(1);
        star.assert_replaced(1);
    }
}

#[test]
fn a_peer_that_does_not_fit_is_not_added() {
    let mut star = Star::new("soft0");
    star.center.remove(0).unwrap();
    let link = open("softib0").allocate_pd().unwrap().create_channel().build().unwrap();
    let prepared = star.center.prepare().unwrap();
    let error = star.center.add(prepared, link.endpoint()).unwrap_err();
    assert!(matches!(&error, TransportError::IbvError(_)), "{error}");
    star.assert_absent(0);
    star.assert_replaced(0);
}

#[test]
fn requests_in_flight_of_a_removed_peer_are_ended() {
    for device in ["soft0"].into_iter().chain(LATE) {
        must_end(move || {
            let mut star = Star::new(device);
            let (mut others, mut memory) = (star.memory(), star.memory());
            star.leave_unpolled(0, &mut others);
            for round in 0..4 {
                let peer = 1 + round % 2;
                star.leave_unpolled(peer, &mut memory);
                let (before, qpn) = (star.device.in_flight(star.qpns[0]), star.qpns[peer]);
                assert!(before > 0 && star.device.in_flight(qpn) > 0);
                let begin = Instant::now();
                star.center.remove(peer).unwrap();
                assert!(begin.elapsed() < SECONDS);
                let now = [star.qpns[0], qpn].map(|qpn| star.device.in_flight(qpn));
                assert_eq!(now, [before, 0], "only that peer's requests are ended");
                for region in &mut memory {
                    region.fill(7);
                }
                assert_eq!(star.join(), peer);
                assert_eq!(star.open(), [0, 1, 2]);
                wait_in_vain();
                assert!(memory.iter().all(|region| **region == [7; 64]));
            }
            // The next scope ends the remaining requests of the first peer.
            star.assert_left_alone(memory);
            star.center.remove(0).unwrap();
            star.assert_left_alone(others);
            star.assert_replaced(0);
        });
    }
}

#[test]
fn a_removed_peer_is_no_peer_of_a_collective() {
    for device in DEVICES {
        let mut star = Star::new(device);
        star.center.remove(1).unwrap();
        let number = SendWorkRequest::only_immediate(5);
        let error = star.center.multicast_send([0, 1, 2], number).unwrap_err();
        assert!(is_absent(&error), "{error}");
        let rooms = [0, 1, 2].map(PeerReceiveWorkRequest::only_immediate);
        assert!(is_absent(&star.center.gather_receive(rooms).unwrap_err()));
        assert_eq!(star.in_flight(), 0, "nothing was posted");
        [0, 2].iter().for_each(|&peer| star.expect_number(peer));
        let there: Vec<_> = star.center.peers().collect();
        assert_eq!(star.center.multicast_send(there, number).unwrap().len(), 2);
        star.assert_replaced(1);
        (0..3).for_each(|peer| star.expect_number(peer));
        let there: Vec<_> = star.center.peers().collect();
        assert_eq!(star.center.multicast_send(there, number).unwrap().len(), 3);
    }
}

/// Keeps back the completions of this queue pair.
fn hold_back(qpn: Qpn) -> Rc<RefCell<Vec<ibv_wc>>> {
    let held = Rc::new(RefCell::new(Vec::new()));
    let (keep, qpn) = (Rc::clone(&held), qpn.get());
    edit(move |completion| {
        if completion.qp_num != qpn {
            return vec![completion];
        }
        keep.borrow_mut().push(completion);
        Vec::new()
    });
    held
}

#[test]
fn late_completions_of_a_removed_peer_do_not_reach_the_next_one() {
    for device in LATE {
        must_end(move || {
            let mut star = star(device);
            let held = hold_back(star.qpns[1]);
            let mut memory = star.memory();
            star.leave_unpolled(1, &mut memory);
            let begin = Instant::now();
            star.center.remove(1).unwrap();
            // It waits for the flushes until the limit.
            assert!(begin.elapsed() >= DRAIN && begin.elapsed() < SECONDS);
            assert_eq!(DESTROYED.get(), 1);
            star.assert_left_alone(memory);
            let late = held.take();
            assert!(late.len() >= 3, "{}", late.len());
            assert_eq!(star.join(), 1);
            let count = late.len() as u64;
            late.into_iter().for_each(invent);
            let waited = star.center.scope(|s| {
                let first = s.post_receive(PeerReceiveWorkRequest::only_immediate(1))?;
                let error = first.wait(Duration::from_millis(20)).unwrap_err();
                assert!(matches!(error, TransportError::Timeout { .. }), "{error}");
                // SAFETY: SAFETY.md F8: the request has no memory.
                drop(unsafe { star.peers[1].send_unpolled(SendWorkRequest::only_immediate(4)) }?);
                star.device.release(star.peers[1].qpn().unwrap(), u32::MAX);
                first.wait(SECONDS)
            });
            assert_eq!(waited.unwrap().immediate_data(), Some(4));
            assert_eq!(star.center.stray_completions(), count);
            honest();
            star.assert_usable(&[0, 1, 2]);
        });
    }
}

/// A marker after it finds no slot, so none of the results are known.
#[test]
fn the_last_unsignaled_request_of_a_removed_peer_is_forgotten() {
    must_end(|| {
        let mut star = Star::on(&faulty(HELD), |builder| builder.max_send_wr(4));
        edit(|_| Vec::new());
        for signaled in [true, true, true, false] {
            let number = SendWorkRequest::only_immediate(1).signaled(signaled);
            let number = PeerSendWorkRequest::from_wr(1, number);
            // SAFETY: SAFETY.md F8: the request has no memory.
            drop(unsafe { star.center.send_unpolled(number) }.unwrap());
        }
        star.center.remove(1).unwrap();
        honest();
        assert_eq!(star.join(), 1);
        for _ in 0..10 {
            (0..2).for_each(|_| star.expect_number(1));
            let releases = star.releases();
            let sent = star.center.scope(|s| {
                let post = |signaled| {
                    let number = SendWorkRequest::only_immediate(1).signaled(signaled);
                    s.post_send(PeerSendWorkRequest::from_wr(1, number))
                };
                let both = [post(false)?, post(true)?];
                releases();
                both.iter().try_for_each(|sent| sent.wait(SECONDS).map(drop))
            });
            sent.unwrap();
        }
    });
}

/// The remaining completions are polled, but a device that invents completions cannot prolong that.
#[test]
fn the_completion_queue_is_emptied_when_a_peer_is_removed() {
    must_end(|| {
        let mut star = star("soft0");
        edit(|completion| vec![completion; 5]);
        star.assert_usable(&[0, 1, 2]);
        let before = star.center.stray_completions();
        star.center.remove(1).unwrap();
        let emptied = star.center.stray_completions();
        assert!(emptied > before, "the last completions were not polled");
        honest();
        star.assert_replaced(1);
        assert_eq!(star.center.stray_completions(), emptied);
        ENDLESS.set(Some(ibv_wc { wr_id: 77, ..Default::default() }));
        star.center.remove(2).unwrap();
        ENDLESS.set(None);
        star.assert_replaced(2);
    });
}

#[test]
fn a_queue_pair_that_cannot_be_destroyed_keeps_its_place() {
    for device in ["soft0"].into_iter().chain(LATE) {
        for flushed in [true, false] {
            must_end(move || {
                let mut star = star(device);
                let mut memory = star.memory();
                star.leave_unpolled(1, &mut memory);
                KEPT.set(Some(star.qpns[1].get()));
                STAY.set(!flushed);
                for _ in 0..2 {
                    let error = star.center.remove(1).unwrap_err();
                    let TransportError::IbvError(error) = error else { panic!("{error}") };
                    assert!(error.to_string().contains("ibv_destroy_qp"), "{error}");
                    assert_eq!(star.center.closed(1).unwrap(), Some(CloseReason::Destroyed));
                    assert_eq!(star.device.in_flight(star.qpns[1]) == 0, flushed);
                    assert!(star.center.peers().eq([0, 1, 2]) && star.open() == [0, 2]);
                    let error = star.center.prepare().unwrap_err();
                    assert!(matches!(error, TransportError::TooManyPeers { .. }), "{error}");
                    let refused = star.center.send(PeerSendWorkRequest::only_immediate(1, 1));
                    let refused = refused.unwrap_err();
                    assert!(matches!(
                        refused,
                        TransportError::Closed { reason: CloseReason::Destroyed, .. }
                    ));
                }
                if flushed {
                    star.assert_usable(&[2, 0]);
                }
                star.center.remove(0).unwrap();
                assert_eq!(star.join(), 0, "it must not get the place that is taken");
                honest();
                star.center.remove(1).unwrap();
                assert_eq!(DESTROYED.get(), 2);
                star.assert_left_alone(memory);
                star.assert_replaced(1);
            });
        }
    }
}

/// Its requests were lost, and the scope has destroyed its queue pair.
#[test]
fn a_peer_whose_queue_pair_is_destroyed_already_can_be_replaced() {
    for device in LATE {
        must_end(move || {
            let mut star = star(device);
            let mut stuck = star.stuck();
            STAY.set(true);
            let left = star.center.scope(|s| stuck[1].post_to(1, s, Handles::Dropped));
            assert!(left.is_err() && DESTROYED.get() == 1);
            honest();
            let closed = star.center.closed(1).unwrap();
            assert!(
                matches!(closed, Some(CloseReason::Timeout { operation: Operation::Send })),
                "{closed:?}"
            );
            assert_eq!(star.center.num_channels(), 3, "it is closed, but not removed");
            star.center.remove(1).unwrap();
            star.assert_given_back(stuck);
            star.assert_replaced(1);
        });
    }
}

/// After a failure of the completion queue, all channels have to be created again.
#[test]
fn peers_of_a_failed_completion_queue_can_be_removed_and_the_next_one_fails() {
    must_end(|| {
        let mut star = star(HELD);
        let mut memory = star.memory();
        star.leave_unpolled(1, &mut memory);
        POLL.set(Some(-1));
        star.center.remove(1).unwrap();
        star.assert_left_alone(memory);
        let closed = [0, 2].map(|peer| star.center.closed(peer).unwrap());
        assert_eq!(closed, [Some(CloseReason::Poll); 2]);
        assert_eq!(star.join(), 1);
        let sent = star.center.send(PeerSendWorkRequest::only_immediate(1, 1)).unwrap_err();
        assert!(matches!(sent, TransportError::PollError(_)), "{sent}");
        assert_eq!(star.center.closed(1).unwrap(), Some(CloseReason::Poll));
    });
}

/// Each peer emits it in its place, and a place without a peer emits nothing. This test runs in a child process: if a
/// thread without a subscriber reached the event first, it would be disabled.
#[test]
fn each_peer_emits_why_its_connection_was_closed() {
    must_live("multi_channel::members::each_peer_emits_why_its_connection_was_closed", |device| {
        let mut star = Star::new(device);
        let receive = |star: &mut Star| {
            star.center.within(DRAIN).receive(PeerReceiveWorkRequest::only_immediate(1))
        };
        for _ in 0..3 {
            let is_it = |event: &Event| {
                event.target.starts_with("rdma_channel")
                    && event.field("message") == Some("channel closed")
            };
            let ((), said) = events::count(is_it, || {
                receive(&mut star).unwrap_err();
                star.center.remove(1).unwrap();
                receive(&mut star).unwrap_err();
                star.assert_replaced(1);
            });
            assert_eq!(said, 1);
        }
    });
}
