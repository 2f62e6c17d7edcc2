//! Long messages, which one end lends and the other one fetches.

use std::thread;

use rdma_channel::BufferPool;
use rdma_channel::message::{MessageError, Messages, Options, SendError};
use test_support::events::{Event, Hears};
use test_support::program::in_own_process;

use rdma_mem::{Error, MemoryWindow, RemoteMemoryRegion, WindowType};
use rdma_message::frame::{Body, Frame, Remote, Role};

use super::ends::{frame, frame_after, open};
use super::rig::{Rig, bytes, on_each, once};
use crate::common::everything;

/// The send ends when the peer reports that it has fetched the message. A device without windows sends it in frames.
#[test]
fn a_long_message_is_offered_to_the_peer_which_reads_it() {
    on_each(|rig| {
        let region = rig.pd.allocate_region(64).unwrap();
        if let Err((_, Error::NoWindows { .. })) = MemoryWindow::allocate(region, WindowType::Two) {
            return;
        }
        let (victim, mut peer) = rig.channels(Options::new());
        let victim = Messages::new(victim, &rig.pool, Options::new()).unwrap();
        open(&rig, &mut peer);
        let mut message = rig.pool.allocate(300_000).unwrap();
        message.copy_from_slice(&bytes(300_000));
        thread::scope(|threads| {
            let sends = threads.spawn(|| victim.send_buffer(message).unwrap());
            let mut memory = rig.pool.allocate(4096).unwrap();
            let length = peer.receive_into(&mut memory).unwrap();
            let (offer, _) = Frame::decode(&memory[..length]).unwrap();
            let Body::Offer { length, source, .. } = offer.body else { panic!("{offer:?}") };
            let mut read = rig.pool.allocate(length as usize).unwrap();
            let lent = RemoteMemoryRegion::new(source.va, length as usize, source.rkey);
            peer.read_into(&mut read, lent).unwrap();
            assert!(*read == bytes(300_000)[..]);
            peer.send_from(&frame_after(&rig, 1, Body::Credit)).unwrap();
            sends.join().unwrap();
        });
    });
}

/// Both ends send as many messages as they have windows, and more.
#[test]
fn both_ends_lend_at_once() {
    on_each(|rig| {
        let options = Options::new().frame_bytes(1024).eager_bytes(1000).offer_bytes(100_000);
        let (one, other) = rig.messages(options);
        let lengths = (0..40).map(|number| 1000 + number % 3 * 20_000);
        let sends = |end: &Messages| {
            lengths.clone().for_each(|length| end.send(&bytes(length)).unwrap());
            end.finish().unwrap();
        };
        let receives = |end: &Messages| {
            for length in lengths.clone() {
                assert!(*end.receive().unwrap().unwrap() == bytes(length)[..], "{length}");
            }
            assert!(end.receive().unwrap().is_none());
        };
        thread::scope(|threads| {
            for end in [&one, &other] {
                threads.spawn(move || sends(end));
                threads.spawn(move || receives(end));
            }
        });
        drop((one, other));
        while rig.pool.usage().buffers > 0 {
            thread::yield_now();
        }
    });
}

/// Runs in its own process, because `tracing` remembers that an event had no subscriber.
#[test]
fn a_receiver_without_memory_fetches_the_message_later() {
    let name = "message::offers::a_receiver_without_memory_fetches_the_message_later";
    in_own_process(name, || once(fetched_later));
}

/// The subscriber raises the limit of the receiver's pool when it receives the report.
fn fetched_later(rig: Rig) {
    let (victim, mut peer) = rig.channels(Options::new());
    let scarce = BufferPool::new(&rig.pd);
    let victim = Messages::new(victim, &scarce, Options::new()).unwrap();
    scarce.set_limit(4 << 20);
    let lent = rig.pd.allocate_shared_region(8 << 20, everything(&rig.pd)).unwrap();
    open(&rig, &mut peer);
    let remote = lent.remote();
    let source = Remote { va: remote.address(), rkey: remote.rkey() };
    let offer = Body::Offer { role: Role::Message, length: 8 << 20, source };
    peer.send_from(&frame(&rig, offer)).unwrap();
    let hears = Hears(move |event: Event| {
        if event.target.starts_with("rdma_connect::messaging") {
            scarce.set_limit(usize::MAX);
        }
    });
    let received = tracing::subscriber::with_default(hears, || victim.receive());
    assert_eq!(received.unwrap().unwrap().len(), 8 << 20);
}

#[test]
fn a_message_beyond_the_limit_of_the_pool_of_the_peer_is_not_sent() {
    once(|rig| {
        let limit = 6 << 20;
        rig.pool.set_limit(limit);
        let (one, _other) = rig.messages(Options::new());
        let error = one.send(&bytes(limit + 1)).unwrap_err();
        let too_long = SendError::TooLong { length: limit + 1, limit: 6 << 20 };
        assert!(matches!(error, MessageError::NotSent(reason) if reason == too_long), "{error}");
    });
}

/// Messages use memory of the heap meanwhile.
#[test]
fn a_pool_that_could_not_grow_grows_for_later_messages() {
    once(|rig| {
        let (one, other) = rig.messages(Options::new().offer_bytes(0));
        let length = 100_000;
        let _all: Vec<_> = std::iter::from_fn(|| rig.pool.try_allocate(length).unwrap()).collect();
        let send = || {
            thread::scope(|threads| {
                threads.spawn(|| one.send(&bytes(length)).unwrap());
                assert!(*other.receive().unwrap().unwrap() == bytes(length)[..]);
            });
        };
        rig.pool.set_limit(rig.pool.usage().registered_bytes);
        (0..3).for_each(|_| send());
        assert_eq!(rig.pool.usage().regions, 1, "the limit refuses growth");
        rig.pool.set_limit(usize::MAX);
        while rig.pool.usage().regions == 1 {
            send();
        }
    });
}
