//! Several requests with one doorbell, in each form.
#![allow(unsafe_code)]
#![allow(clippy::cast_possible_truncation)]

use std::time::Duration;

use crate::common::provider::{DOORBELLS, faulty};
use crate::common::{Pair, must_end};
use rdma_channel::{Channel, ScopeError, TransportError, prelude::*};
use rdma_mem::{AccessFlags, ProtectionDomain, ScatterList};
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest, WcOpcode, WriteWorkRequest};

const SECONDS: Duration = Duration::from_secs(25);

fn domain() -> ProtectionDomain {
    rdma_soft::install();
    rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap()
}

fn looped(pd: &ProtectionDomain) -> Channel {
    let prepared = pd.create_channel().build().unwrap();
    let endpoint = prepared.endpoint();
    prepared.handshake(endpoint).unwrap()
}

fn numbers<const N: usize>() -> [SendWorkRequest<'static, 'static>; N] {
    std::array::from_fn(|i| SendWorkRequest::only_immediate(i as u32))
}

#[test]
fn a_blocking_batch_returns_its_results_in_order() {
    let pd = domain();
    let mut channel = looped(&pd);
    let shared = AccessFlags::new().with_local_write().with_remote_write();
    let board = pd.allocate_shared_region(64, shared).unwrap();
    let source = pd.allocate_region(64).unwrap();
    let element = [source.as_slice().gather_element()];
    let write = WriteWorkRequest::new(&element, board.remote());
    let done = channel.batch([write.into(), write.into(), write.signaled(false).into()]).unwrap();
    assert_eq!(done.map(|success| success.opcode()), [WcOpcode::RDMA_WRITE; 3]);
}

#[test]
fn each_request_of_a_mixed_batch_keeps_its_operation() {
    let pd = domain();
    let mut channel = looped(&pd);
    let shared = AccessFlags::new().with_local_write().with_remote_write();
    let (board, source) =
        (pd.allocate_shared_region(64, shared).unwrap(), pd.allocate_region(64).unwrap());
    let element = [source.as_slice().gather_element()];
    let write = || WriteWorkRequest::new(&element, board.remote());
    let done = channel.scope(|s| {
        s.post_receive(ReceiveWorkRequest::only_immediate())?;
        let mixed = [write().into(), SendWorkRequest::only_immediate(1).into(), write().into()];
        let posted = s.post_batch(mixed)?;
        let names = posted.each_ref().map(|handle| handle.operation().to_string());
        assert_eq!(names, ["RDMA write", "send", "RDMA write"]);
        posted
            .iter()
            .map(|handle| Ok(handle.wait(SECONDS)?.opcode()))
            .collect::<Result<Vec<_>, _>>()
    });
    let opcodes = done.map_err(|error: ScopeError| error.to_string()).unwrap();
    assert_eq!(opcodes, [WcOpcode::RDMA_WRITE, WcOpcode::SEND, WcOpcode::RDMA_WRITE]);
}

#[test]
fn unsignaled_requests_of_a_batch_are_done_with_its_last() {
    let pd = domain();
    let mut channel = looped(&pd);
    channel
        .scope(|s| {
            let received =
                s.post_receive_batch(numbers::<4>().map(|_| ReceiveWorkRequest::only_immediate()))?;
            let sent = s.post_batch(numbers::<4>().map(|send| send.signaled(false).into()))?;
            for (i, handle) in received.iter().enumerate() {
                assert_eq!(handle.wait(SECONDS)?.immediate_data(), Some(i as u32));
            }
            for handle in &sent {
                assert_eq!(handle.wait(SECONDS)?.opcode(), WcOpcode::SEND);
            }
            Ok::<_, TransportError>(())
        })
        .unwrap();
    assert!(channel.closed().is_none());
}

#[test]
fn a_batch_that_is_larger_than_the_queue_is_refused_before_anything_is_posted() {
    let mut channel = looped(&domain());
    let error = channel.batch(numbers::<17>().map(Into::into)).unwrap_err();
    assert!(
        matches!(error, TransportError::BatchTooLarge { requests: 17, capacity: 16 }),
        "{error}"
    );
    assert!(channel.closed().is_none());
    let received = channel.scope(|s| {
        s.post_receive(ReceiveWorkRequest::only_immediate())?;
        s.post_batch(numbers::<1>().map(Into::into))?;
        Ok::<_, TransportError>(())
    });
    received.unwrap();
}

#[test]
fn a_batch_with_one_bad_request_posts_none() {
    let pd = domain();
    let mut channel = looped(&pd);
    let other = domain();
    let (mut own, mut foreign) =
        (pd.allocate_region(8).unwrap(), other.allocate_region(8).unwrap());
    let mut lists =
        [&mut own, &mut foreign].map(|region| ScatterList::from([region.as_slice_mut()]));
    let result = channel.scope(|s| {
        s.post_receive_batch(lists.each_mut().map(ReceiveWorkRequest::from_list)).map(drop)
    });
    let Err(ScopeError::ClosureError(TransportError::PostError(error))) = result else {
        panic!("{result:?}");
    };
    assert_eq!((error.posted(), error.refused()), (0, 1));
    assert!(channel.closed().is_none());
}

#[test]
fn a_batch_waits_for_room_for_all_of_it() {
    let mut channel = looped(&domain());
    channel
        .scope(|s| {
            for _ in 0..20 {
                let rooms = s.post_receive_batch(
                    numbers::<5>().map(|_| ReceiveWorkRequest::only_immediate()),
                )?;
                drop(s.post_batch(numbers::<5>().map(Into::into))?);
                for room in rooms {
                    room.wait(SECONDS)?;
                }
            }
            Ok::<_, TransportError>(())
        })
        .unwrap();
}

#[test]
fn completed_receives_of_a_batch_do_not_complete_an_earlier_unsignaled_send() {
    let pd = domain();
    let prepare = || pd.create_channel().build().unwrap();
    let (here, there) = (prepare(), prepare());
    let (here_end, there_end) = (here.endpoint(), there.endpoint());
    let (mut here, mut there) =
        (here.handshake(there_end).unwrap(), there.handshake(here_end).unwrap());
    let access = AccessFlags::new().with_local_write().with_remote_write();
    let board = pd.allocate_shared_region(8, access).unwrap();
    let source = pd.allocate_region(8).unwrap();
    let element = [source.as_slice().gather_element()];
    here.scope(|s| {
        let silent = WriteWorkRequest::new(&element, board.remote()).signaled(false);
        let silent = s.post_write(silent)?;
        let [room] = s.post_receive_batch([ReceiveWorkRequest::only_immediate()])?;
        there.send(SendWorkRequest::only_immediate(7))?;
        room.wait(SECONDS)?;
        assert!(silent.poll().is_none(), "no completion of its own queue has come");
        s.post_write(WriteWorkRequest::new(&element, board.remote()))?.wait(SECONDS)?;
        assert!(silent.poll().is_some_and(|result| result.is_ok()));
        Ok::<_, TransportError>(())
    })
    .unwrap();
}

#[test]
fn a_refused_batch_leaves_requests_in_flight_alone() {
    let pd = domain();
    let mut channel = looped(&pd);
    let receive = ReceiveWorkRequest::only_immediate();
    // SAFETY: SAFETY.md F21: the request has no memory.
    let handle = unsafe { channel.receive_unpolled(receive) }.unwrap();
    drop(handle);
    let start = std::time::Instant::now();
    let error = channel.batch(numbers::<17>().map(Into::into)).unwrap_err();
    assert!(matches!(error, TransportError::BatchTooLarge { .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(25), "it waits for the receive");
    assert!(channel.closed().is_none());
    channel.send(SendWorkRequest::only_immediate(1)).unwrap();
}

/// Counts the calls of the provider to post.
fn doorbells<T>(run: impl FnOnce() -> T) -> (u32, T) {
    DOORBELLS.set(0);
    let value = run();
    (DOORBELLS.get(), value)
}

fn rooms<const N: usize>() -> [ReceiveWorkRequest<'static, 'static>; N] {
    std::array::from_fn(|_| ReceiveWorkRequest::only_immediate())
}

/// Makes the other end send this number of messages, which arrive when there are receives for them.
fn answer(there: &Channel, count: u32) {
    for number in 0..count {
        // SAFETY: SAFETY.md F21: the request has no memory.
        drop(unsafe { there.send_unpolled(SendWorkRequest::only_immediate(number)) }.unwrap());
    }
}

#[test]
fn a_batch_rings_one_doorbell_in_each_form() {
    must_end(|| {
        let Pair { mut here, there, board, pd, .. } = Pair::on(&faulty("soft0"), |builder| builder);
        let memory = pd.allocate_region(32).unwrap();
        let remote = board.remote();
        let element = [memory.get_ref(0, 8).unwrap().gather_element()];
        let write = WriteWorkRequest::new(&element, remote);

        let requests = [write.into(), write.into(), write.into()];
        let (rung, done) = doorbells(|| here.batch(requests));
        assert_eq!((rung, done.unwrap().len()), (1, 3));
        let (rung, done) = doorbells(|| here.within(SECONDS).batch([write.into(), write.into()]));
        assert_eq!((rung, done.unwrap().len()), (1, 2));
        here.scope(|s| {
            let (rung, writes) = doorbells(|| s.post_batch([write.into(), write.into()]));
            assert_eq!(rung, 1);
            writes?.iter().try_for_each(|write| write.wait(SECONDS).map(drop))?;
            let (rung, writes) = doorbells(|| s.post_batch_of([write.into(), write.into()]));
            assert_eq!(rung, 1);
            writes?.iter().try_for_each(|write| write.wait(SECONDS).map(drop))?;
            let (rung, received) = doorbells(|| s.post_receive_batch(rooms::<2>()));
            assert_eq!(rung, 1);
            answer(&there, 2);
            received?.iter().try_for_each(|room| room.wait(SECONDS).map(drop))
        })
        .unwrap();
        assert_eq!((here.closed(), here.stray_completions()), (None, 0));
    });
}

#[test]
fn a_batch_of_any_length_is_posted_in_order() {
    let mut channel = looped(&domain());
    for length in [0, 1, 5, 16] {
        channel
            .scope(|s| {
                let rooms =
                    (0..length).map(|_| s.post_receive(ReceiveWorkRequest::only_immediate()));
                let rooms = rooms.collect::<Result<Vec<_>, _>>()?;
                let sends = (0..length).map(|n| SendWorkRequest::only_immediate(n).into());
                let sent = s.post_batch_of(sends)?;
                assert_eq!(sent.len(), length as usize);
                for (n, room) in (0..).zip(&rooms) {
                    assert_eq!(room.wait(SECONDS)?.immediate_data(), Some(n));
                }
                sent.iter().try_for_each(|handle| handle.wait(SECONDS).map(drop))
            })
            .unwrap();
    }
    let many = (0..17).map(|n| SendWorkRequest::only_immediate(n).into());
    let error = channel.scope(|s| s.post_batch_of(many).map(drop)).unwrap_err();
    assert!(
        matches!(
            error,
            ScopeError::ClosureError(TransportError::BatchTooLarge { requests: 17, capacity: 16 })
        ),
        "{error}"
    );
    assert!(channel.closed().is_none());
}

#[test]
fn a_blocking_batch_ends_within_its_limit() {
    must_end(|| {
        let mut pair = Pair::new("soft0");
        {
            let Pair { here, there, .. } = &mut pair;
            let sent = there.scope(|s| {
                s.post_receive_batch(rooms::<3>())?;
                here.within(SECONDS).batch(numbers::<3>().map(Into::into))
            });
            assert_eq!(sent.unwrap().map(|success| success.opcode()), [WcOpcode::SEND; 3]);
        }
        let limit = Duration::from_millis(10);
        let error = pair.here.within(limit).batch(numbers::<3>().map(Into::into)).unwrap_err();
        assert!(
            matches!(error, TransportError::Timeout { timeout, .. } if timeout == limit),
            "{error}"
        );
        assert!(pair.here.closed().is_some());
    });
}
