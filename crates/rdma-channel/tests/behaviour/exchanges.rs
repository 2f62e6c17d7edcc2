//! A message and its answer in one call: the order of the posts, and the receive after a failure.
#![allow(unsafe_code)]

use std::mem::swap;
use std::thread;
use std::time::Duration;

use crate::common::provider::{HONEST_POSTS, POST, Post, at_next_poll, faulty, honest};
use crate::common::{
    DEFERRED, DRAIN, HELD, Pair, WIRE, answer, must_end, open, short, wait_in_vain,
};
use rdma_channel::{Channel, CloseReason, Operation, TransportError, prelude::*};
use rdma_mem::{Errno, GatherList, ScatterElement, ScatterList};
use rdma_qp::{MaxRnrRetries, PostErrorKind, ReceiveWorkRequest, SendWorkRequest, WorkErrorCode};

/// Devices that complete blocking calls by themselves.
const LIVELY: [&str; 3] = ["soft0", DEFERRED, WIRE];

/// A channel that is connected to itself, and whose send fails if it finds no receive.
fn impatient_loop(device: &str) -> Channel {
    let pd = open(device).allocate_pd().unwrap();
    let retries = MaxRnrRetries::limited(0).unwrap();
    let channel = pd.create_channel().max_rnr_retries(retries).build().unwrap();
    let endpoint = channel.endpoint();
    channel.handshake(endpoint).unwrap()
}

/// Checks that the requests of a closed channel have ended: messages of the peer arrive nowhere.
fn assert_memory_stays(pair: &mut Pair, memory: &[u8], was: u8) {
    pair.provoke();
    assert!(
        memory.iter().all(|&byte| byte == was),
        "something was written after the call: {memory:?}"
    );
}

#[test]
fn the_receive_is_posted_before_the_send() {
    for device in ["soft0", DEFERRED, WIRE] {
        let mut channel = impatient_loop(device);
        let pd = channel.pd().clone();
        let (mut from, mut into) =
            (pd.allocate_region(8).unwrap(), pd.allocate_region(16).unwrap());
        from.fill(3);
        assert_eq!(channel.exchange_from(&from, &mut into).unwrap(), 8, "{device}");
        assert_eq!(into[..8], [3; 8]);
        assert_eq!(channel.exchange_inline(b"four", &mut into).unwrap(), 4, "{device}");
        assert_eq!(into[..4], *b"four");
        let (list, mut room) =
            (GatherList::from([from.as_slice()]), ScatterList::from([into.as_slice_mut()]));
        let send = SendWorkRequest::from_list(&list).with_immediate(7);
        let receive = ReceiveWorkRequest::from_list(&mut room);
        let received = channel.within(Duration::MAX).exchange(send, receive).unwrap();
        assert_eq!((received.immediate_data(), received.scattered_bytes()), (Some(7), Some(8)));
    }
}

#[test]
fn both_ends_of_a_conversation_exchange() {
    for device in LIVELY {
        let Pair { mut here, mut there, pd, .. } = Pair::with(device, |builder| builder);
        thread::scope(|threads| {
            threads.spawn(|| {
                let pd = there.pd().clone();
                let [mut one, mut other] = [(); 2].map(|()| pd.allocate_region(8).unwrap());
                let mut length = there.receive_into(&mut one).unwrap();
                while length > 0 {
                    one[..length].iter_mut().for_each(|byte| *byte += 1);
                    let answer = one.get_ref(0, length).unwrap();
                    length = there.exchange_from(answer, &mut other).unwrap();
                    swap(&mut one, &mut other);
                }
            });
            let (mut question, mut answer) =
                (pd.allocate_region(8).unwrap(), pd.allocate_region(8).unwrap());
            for round in 1..50 {
                let length = usize::from(round) % 8 + 1;
                question[..length].fill(round);
                let asked = question.get_ref(0, length).unwrap();
                assert_eq!(here.exchange_from(asked, &mut answer).unwrap(), length, "{device}");
                assert!(answer[..length].iter().all(|&byte| byte == round + 1), "{device}");
            }
            here.send_inline(b"").unwrap();
        });
        assert!(here.closed().is_none() && there.closed().is_none());
    }
}

#[test]
fn a_send_that_cannot_be_posted_leaves_the_channel_without_a_receive() {
    for device in ["soft0", DEFERRED] {
        let mut pair = Pair::with(device, |builder| builder);
        let (mut into, long) = (pair.memory(8, 1), [0; 4096]);
        let error = pair.here.exchange_inline(&long, &mut into).unwrap_err();
        let TransportError::PostError(refused) = error else { panic!("{error}") };
        assert_eq!(refused.kind(), PostErrorKind::TooMuchInline);
        let foreign = open(device).allocate_pd().unwrap().allocate_region(8).unwrap();
        let error = pair.here.exchange_from(&foreign, &mut into).unwrap_err();
        let TransportError::PostError(refused) = error else { panic!("{error}") };
        assert_eq!((refused.kind(), refused.posted()), (PostErrorKind::WrongDomain, 0));
        assert!(pair.here.closed().is_none());
        // The peer's next message goes into the next receive, since there is no earlier one.
        let mut next = pair.memory(8, 2);
        thread::scope(|threads| {
            threads.spawn(|| pair.there.send_inline(b"next").unwrap());
            assert_eq!(pair.here.receive_into(&mut next).unwrap(), 4);
        });
        assert_eq!((&next[..4], &into[..]), (&b"next"[..], &[1; 8][..]), "{device}");
    }
}

#[test]
fn a_send_that_the_device_refuses_closes_the_channel_and_ends_its_receive() {
    for device in ["soft0", DEFERRED, HELD] {
        for (post, operation) in [
            (Post::Refused(Errno::EIO), None),
            (Post::Doubtful, Some(Operation::Send)),
            (Post::DoubtfulAndRefused, Some(Operation::Send)),
        ] {
            let mut pair = Pair::on(&faulty(device), short);
            let (from, mut into) = (pair.memory(8, 5), pair.memory(8, 1));
            HONEST_POSTS.set(1); // the post of the receive
            POST.set(post);
            let error = pair.here.exchange_from(&from, &mut into).unwrap_err();
            honest();
            let TransportError::PostError(refused) = error else { panic!("{error}") };
            assert_eq!(refused.operation, Operation::Send, "{device} {post:?}");
            let reason = pair.here.closed().unwrap();
            match operation {
                None => assert_eq!(reason, CloseReason::Refused { operation: Operation::Send }),
                Some(operation) => assert_eq!(reason, CloseReason::Doubtful { operation }),
            }
            assert_memory_stays(&mut pair, &into, 1);
            let again = pair.here.exchange_from(&from, &mut into).unwrap_err();
            assert!(matches!(again, TransportError::Closed { .. }), "{again}");
        }
    }
}

#[test]
fn a_receive_that_is_refused_sends_nothing() {
    let mut pair = Pair::on(&faulty("soft0"), short);
    let (from, mut into) = (pair.memory(8, 5), pair.memory(8, 1));
    POST.set(Post::Refused(Errno::EIO));
    let error = pair.here.exchange_from(&from, &mut into).unwrap_err();
    honest();
    let TransportError::PostError(refused) = error else { panic!("{error}") };
    assert_eq!(refused.operation, Operation::Receive);
    assert!(pair.here.closed().is_none(), "nothing was posted");
    let mut room = pair.there.pd().allocate_region(8).unwrap();
    let arrived = pair.there.within(DRAIN).receive_into(&mut room).unwrap_err();
    assert!(matches!(arrived, TransportError::Timeout { .. }), "{arrived}");
}

#[test]
fn an_answer_that_does_not_come_in_time_closes_the_channel() {
    for device in LIVELY {
        let mut pair = Pair::with(device, |builder| builder.drain_timeout(DRAIN));
        let (from, mut into) = (pair.memory(8, 5), pair.memory(8, 1));
        let mut room = [ScatterElement::from(pair.board.element(0..8).unwrap())];
        // SAFETY: SAFETY.md F8: the region is shared, and lives as long as the channel.
        drop(unsafe { pair.there.receive_unpolled(ReceiveWorkRequest::new(&mut room)) }.unwrap());
        let error = pair.here.within(DRAIN).exchange_from(&from, &mut into).unwrap_err();
        assert!(
            matches!(error, TransportError::Timeout { timeout: DRAIN, .. }),
            "{device}: {error}"
        );
        assert!(matches!(pair.here.closed(), Some(CloseReason::Timeout { .. })), "{device}");
        assert_memory_stays(&mut pair, &into, 1);
    }
}

#[test]
fn a_message_that_is_not_received_ends_by_the_limit_of_a_send() {
    for device in ["soft0", DEFERRED, HELD] {
        let mut pair = Pair::new(device); // sends have a short limit, receives none
        let (from, mut into) = (pair.memory(8, 5), pair.memory(8, 1));
        let probe = (pair.device, pair.here.qpn().unwrap());
        let error = pair.here.exchange_from(&from, &mut into).unwrap_err();
        let is_it = matches!(
            error,
            TransportError::Timeout { operation: Operation::Send, timeout: DRAIN, .. }
        );
        assert!(is_it, "{device}: {error}");
        let reason = CloseReason::Timeout { operation: Operation::Send };
        assert_eq!(pair.here.closed(), Some(reason), "{device}");
        assert_eq!(probe.0.in_flight(probe.1), 0, "{device}: requests are still in flight");
        assert_memory_stays(&mut pair, &into, 1);
    }
}

#[test]
fn an_answer_that_does_not_fit_is_the_failure_of_the_receive() {
    for device in LIVELY {
        let mut pair = Pair::with(device, |builder| builder);
        let (from, mut into) = (pair.memory(8, 5), pair.memory(8, 1));
        let Pair { here, there, .. } = &mut pair;
        thread::scope(|threads| {
            threads.spawn(|| {
                let mut room = there.pd().allocate_region(16).unwrap();
                there.receive_into(&mut room).unwrap();
                assert!(there.send_from(&room).is_err(), "16 bytes into 8");
            });
            let error = here.exchange_from(&from, &mut into).unwrap_err();
            let TransportError::WorkError(failed) = error else { panic!("{error}") };
            assert_eq!(failed.operation, Operation::Receive, "{device}");
            assert_eq!(failed.error.code(), WorkErrorCode::LocalLengthError, "{device}");
        });
        assert!(matches!(here.closed(), Some(CloseReason::Work { .. })), "{device}");
    }
}

/// On a device that does nothing by itself, the send is in flight when the message fails the receive.
#[test]
fn a_send_that_was_flushed_by_the_failure_of_its_receive_does_not_hide_it() {
    must_end(|| {
        let mut pair = Pair::on(&faulty(HELD), |builder| builder);
        let (from, mut into) = (pair.memory(8, 5), pair.memory(8, 1));
        let (device, there) = (pair.device, pair.there);
        let own = pair.here.qpn().unwrap();
        at_next_poll(move || {
            assert_eq!(device.in_flight(own), 1, "the send is held");
            answer(&there, &pair.board); // 64 bytes into 8
            assert!(device.release(there.qpn().unwrap(), u32::MAX) > 0);
        });
        let error = pair.here.exchange_from(&from, &mut into).unwrap_err();
        let TransportError::WorkError(failed) = error else { panic!("{error}") };
        assert_eq!(failed.operation, Operation::Receive);
        assert_eq!(failed.error.code(), WorkErrorCode::LocalLengthError);
    });
}

#[test]
fn a_full_queue_is_waited_for_before_anything_is_posted() {
    let mut pair = Pair::with("soft0", |builder| short(builder).max_recv_wr(1));
    let (from, mut into) = (pair.memory(8, 5), pair.memory(8, 1));
    // SAFETY: SAFETY.md F8: the request has no memory.
    drop(unsafe { pair.here.receive_unpolled(ReceiveWorkRequest::only_immediate()) }.unwrap());
    let error = pair.here.exchange_from(&from, &mut into).unwrap_err();
    assert!(matches!(error, TransportError::WouldBlock), "receives have no limit: {error}");
    assert!(pair.here.closed().is_none(), "nothing was posted");
    let error = pair.here.within(DRAIN).exchange_from(&from, &mut into).unwrap_err();
    assert!(
        matches!(error, TransportError::Timeout { operation: Operation::Receive, .. }),
        "{error}"
    );
    assert!(matches!(pair.here.closed(), Some(CloseReason::Timeout { .. })));
    wait_in_vain();
    assert_eq!(into[..], [1; 8]);
}
