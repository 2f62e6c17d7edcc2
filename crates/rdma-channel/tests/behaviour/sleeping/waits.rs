//! All kinds of waits, in each mode: each wakes for its completion.

use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::thread;
use std::time::{Duration, Instant};

use rdma_channel::{
    Channel, MultiChannel, PeerReceiveWorkRequest, ScopeError, TransportError, Wait, prelude::*,
};
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};

use crate::common::{DRAIN, Pair, must_end, open};
use crate::sleeping::{SECONDS, SHORTLY, each, pair, sends_shortly};

const ROOM: ReceiveWorkRequest<'static, 'static> = ReceiveWorkRequest::only_immediate();

#[test]
fn a_blocking_receive_wakes_for_its_message() {
    each(|device, wait| {
        must_end(move || {
            let Pair { mut here, there, .. } = pair(device, wait);
            let sender = sends_shortly(there, 5);
            assert_eq!(here.within(SECONDS).receive(ROOM).unwrap().immediate_data(), Some(5));
            sender.join().unwrap();
            assert_eq!((here.closed(), here.stray_completions()), (None, 0));
        });
    });
}

/// Limits that no clock of the kernel can represent mean no limit.
#[test]
fn a_receive_with_an_unrepresentable_limit_has_none() {
    each(|device, wait| {
        let longest = [u64::MAX, i64::MAX.cast_unsigned(), 1 << 62].map(Duration::from_secs);
        for limit in longest.into_iter().chain([Duration::MAX, Duration::from_secs(1 << 40)]) {
            must_end(move || {
                let Pair { mut here, there, .. } = pair(device, wait);
                let sender = sends_shortly(there, 5);
                assert_eq!(here.within(limit).receive(ROOM).unwrap().immediate_data(), Some(5));
                sender.join().unwrap();
            });
        }
    });
}

#[test]
fn a_waiting_handle_wakes_for_its_completion() {
    each(|device, wait| {
        must_end(move || {
            let Pair { mut here, there, .. } = pair(device, wait);
            let sender = sends_shortly(there, 6);
            let number = here.scope(|s| {
                let (received, forgotten) = (s.post_receive(ROOM)?, s.post_receive(ROOM)?);
                #[allow(clippy::mem_forget)] // the subject of this test
                std::mem::forget(forgotten);
                let number = received.wait(SECONDS)?.immediate_data();
                let mut there = sender.join().unwrap();
                there.send(SendWorkRequest::only_immediate(7))?;
                Ok::<_, ScopeError>(number)
            });
            assert_eq!((number.unwrap(), here.closed()), (Some(6), None));
        });
    });
}

#[test]
fn a_post_that_waits_for_a_slot_wakes_for_it() {
    each(|device, wait| {
        must_end(move || {
            let Pair { mut here, mut there, .. } =
                Pair::with(device, |builder| builder.wait(wait).max_send_wr(1));
            // Until then the sends find no receive, and keep their slots.
            let receiver = thread::spawn(move || {
                thread::sleep(SHORTLY);
                [(); 3].map(|()| there.receive(ROOM).unwrap().immediate_data().unwrap())
            });
            here.scope(|s| {
                drop(s.post_send(SendWorkRequest::only_immediate(1))?);
                drop(s.post_send(SendWorkRequest::only_immediate(2))?);
                s.post_send(SendWorkRequest::only_immediate(3))?.wait(SECONDS).map(drop)
            })
            .unwrap();
            assert_eq!(receiver.join().unwrap(), [1, 2, 3]);
        });
    });
}

#[test]
fn the_end_of_a_scope_wakes_for_its_completions() {
    each(|device, wait| {
        must_end(move || {
            let Pair { mut here, there, .. } = pair(device, wait);
            let sender = sends_shortly(there, 8);
            here.scope(|s| s.post_receive(ROOM).map(drop)).unwrap();
            sender.join().unwrap();
            assert_eq!(here.closed(), None);
        });
    });
}

#[test]
fn the_end_of_a_panicking_scope_wakes_for_its_completions() {
    each(|device, wait| {
        must_end(move || {
            let mut pair = Pair::with(device, |builder| builder.wait(wait).drain_timeout(DRAIN));
            let (begin, mut room) = (Instant::now(), pair.memory(8, 1));
            let left = catch_unwind(AssertUnwindSafe(|| {
                pair.here.scope(|s| -> Result<(), TransportError> {
                    drop(s.receive_into(room.as_slice_mut())?);
                    panic_any(7)
                })
            }));
            assert_eq!(left.unwrap_err().downcast_ref(), Some(&7));
            assert!(begin.elapsed() >= DRAIN && pair.here.closed().is_some());
            room.close().unwrap();
        });
    });
}

/// Channels to three peers.
fn star(device: &str, wait: Wait) -> (MultiChannel, Vec<Channel>) {
    let pd = open(device).allocate_pd().unwrap();
    let center = pd.create_multi_channel().num_channels(3).wait(wait).build().unwrap();
    let peers: Vec<_> = (0..3).map(|_| pd.create_channel().wait(wait).build().unwrap()).collect();
    let ends = center.endpoints();
    let center = center.handshake(peers.iter().map(|peer| peer.endpoint())).unwrap();
    let peers = peers.into_iter().zip(ends).map(|(peer, end)| peer.handshake(end).unwrap());
    (center, peers.collect())
}

#[test]
fn waits_with_several_peers_wake_for_their_completions() {
    each(|device, wait| {
        must_end(move || {
            let (mut center, peers) = star(device, wait);
            let send = |peers: Vec<Channel>| -> Vec<Channel> {
                let senders = (0..).zip(peers).map(|(number, peer)| sends_shortly(peer, number));
                let senders: Vec<_> = senders.collect();
                senders.into_iter().map(|sender| sender.join().unwrap()).collect()
            };
            let sending = thread::spawn(move || send(send(send(peers))));
            let rooms = || (0..3).map(PeerReceiveWorkRequest::only_immediate);
            let received = center.within(SECONDS).gather_receive(rooms()).unwrap();
            let numbers: Vec<_> = received.iter().map(|done| done.immediate_data()).collect();
            assert_eq!(numbers, [0, 1, 2].map(Some));
            center
                .scope(|s| {
                    for received in s.post_gather_receive(rooms())? {
                        received.wait(SECONDS)?;
                    }
                    s.post_gather_receive(rooms()).map(drop)
                })
                .unwrap();
            sending.join().unwrap();
            assert!((0..3).all(|peer| center.closed(peer).unwrap().is_none()));
        });
    });
}
