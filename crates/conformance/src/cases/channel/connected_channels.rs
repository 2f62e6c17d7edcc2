//! Cases for `rdma-channel`: memory is returned, and every operation completes.

use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::thread;
use std::time::{Duration, Instant};

use rdma_channel::prelude::*;
use rdma_channel::{
    Channel, ChannelBuilder, CloseReason, Operation, PendingWork, Progress, ScopeError,
    TransportError,
};
use rdma_mem::{
    AccessFlags, AtomicCapability, GatherList, ProtectionDomain, ScatterList, SharedRegion,
};
use rdma_qp::{
    AckTimeout, AtomicWorkRequest, MaxAckRetries, MaxRnrRetries, PostErrorKind, ReadWorkRequest,
    ReceiveWorkRequest, SendWorkRequest, WorkErrorCode, WriteWorkRequest,
};

use crate::case::cases;
use crate::device::Device;

cases![
    blocking_operations_move_bytes,
    blocking_atomics_count,
    what_was_fetched_has_a_length,
    a_channel_can_be_connected_to_itself,
    a_scope_ends_what_it_has_left,
    a_scope_with_an_unanswered_receive_ends_and_gives_its_memory_back,
    a_scope_left_by_an_error_ends_what_is_under_way,
    a_scope_left_by_a_panic_ends_what_is_under_way,
    a_post_that_is_refused_ends_those_before_it,
    a_manual_scope_that_was_not_asked_panics_when_all_has_ended,
    forgotten_handles_keep_no_scope_open,
    a_receive_that_runs_out_has_closed_its_channel,
    a_send_that_nobody_takes_runs_out,
    a_wait_that_runs_out_changes_nothing,
    a_peer_that_is_gone_fails_the_operation_and_closes_the_channel,
    a_scope_whose_peer_goes_away_ends_and_says_what_failed,
    a_refused_write_closes_the_channel_and_flushes_the_rest,
    a_ring_of_rented_buffers_goes_round_in_one_scope,
    a_full_send_queue_waits,
    a_full_receive_queue_would_block,
    unsignaled_requests_are_done_with_a_later_one,
    a_batch_is_done_in_order,
    inline_data_is_free_when_it_is_posted,
    a_channel_goes_to_another_thread,
];

/// The limit for all waits; only a hanging case reaches it.
const BOUND: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(300);

fn domain(device: &Device) -> ProtectionDomain {
    rdma_mem::open_device(&**device).unwrap().allocate_pd().unwrap()
}

fn looped(builder: ChannelBuilder<'_>) -> Channel {
    let prepared = builder.build().unwrap();
    let endpoint = prepared.endpoint();
    prepared.handshake(endpoint).unwrap()
}

fn pair(builder: ChannelBuilder<'_>) -> (Channel, Channel) {
    let (one, other) = (builder.clone().build().unwrap(), builder.build().unwrap());
    let (one_end, other_end) = (one.endpoint(), other.endpoint());
    (one.handshake(other_end).unwrap(), other.handshake(one_end).unwrap())
}

fn board(pd: &ProtectionDomain, length: usize) -> SharedRegion {
    let access = AccessFlags::new().with_local_write().with_remote_read().with_remote_write();
    pd.allocate_shared_region(length, access).unwrap()
}

fn text(board: &SharedRegion, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    board.read(0, &mut bytes).unwrap();
    bytes
}

fn blocking_operations_move_bytes(device: &Device) {
    let pd = domain(device);
    let (mut here, mut there) = pair(pd.create_channel());
    let mut room = pd.allocate_region(64).unwrap();
    let mut data = pd.allocate_region(5).unwrap();
    data.copy_from_slice(b"hello");
    let hello = GatherList::from([data.as_slice()]);
    let received = thread::scope(|threads| {
        let receiver = threads.spawn(|| {
            let mut list = ScatterList::from([room.as_slice_mut()]);
            there.receive(ReceiveWorkRequest::from_list(&mut list)).unwrap().scattered_bytes()
        });
        here.send(SendWorkRequest::from_list(&hello)).unwrap();
        receiver.join().unwrap()
    });
    assert_eq!((received, &room[..5]), (Some(5), &b"hello"[..]));

    let board = board(&pd, 5);
    here.write(WriteWorkRequest::from_list(&hello, board.remote())).unwrap();
    assert_eq!(text(&board, 5), b"hello");
    let mut back = pd.allocate_region(5).unwrap();
    let mut list = ScatterList::from([back.as_slice_mut()]);
    here.read(ReadWorkRequest::from_list(&mut list, board.remote())).unwrap();
    assert_eq!(*back, *b"hello");
    assert_eq!((here.closed(), there.closed()), (None, None));
}

fn blocking_atomics_count(device: &Device) {
    let pd = domain(device);
    let capability = pd.context().query_device().unwrap().atomic_capability;
    device.needs(capability != AtomicCapability::NONE, "the device has no atomics");
    let access = AccessFlags::new().with_local_write().with_remote_atomic();
    let mut channel = looped(pd.create_channel().access(access));
    let board = pd.allocate_shared_region(8, access).unwrap();
    let word = board.remote().typed::<u64>(0).unwrap();
    let mut before = pd.allocate_region(8).unwrap();
    for count in 0..3_u64 {
        let mut list = ScatterList::from([before.as_slice_mut()]);
        let done = channel.atomic(AtomicWorkRequest::fetch_and_add(&mut list, word, 1)).unwrap();
        assert_eq!(done.byte_len(), Some(8));
        assert_eq!(*before, count.to_ne_bytes());
    }
    let mut list = ScatterList::from([before.as_slice_mut()]);
    channel.atomic(AtomicWorkRequest::compare_and_swap(&mut list, word, 3, 7)).unwrap();
    assert_eq!(*before, 3_u64.to_ne_bytes());
    assert_eq!(text(&board, 8), 7_u64.to_ne_bytes());
}

fn what_was_fetched_has_a_length(device: &Device) {
    let pd = domain(device);
    let mut channel = looped(pd.create_channel());
    let (mut room, board) = (pd.allocate_region(5000).unwrap(), board(&pd, 5000));
    for length in [0, 1, 1025, 5000] {
        let mut list = ScatterList::from([room.get_mut(0, length).unwrap()]);
        let read = ReadWorkRequest::from_list(&mut list, board.remote());
        assert_eq!(channel.read(read).unwrap().byte_len(), Some(length));
    }
    channel
        .scope(|s| {
            let (one, rest) = room.as_slice_mut().split_at(16);
            let rented = s.read_into(one, board.remote())?;
            let mut list = ScatterList::from([rest]);
            let quiet = ReadWorkRequest::from_list(&mut list, board.remote()).signaled(false);
            let quiet = s.post_read(quiet)?;
            let written = s.post_write(WriteWorkRequest::new(&[], board.remote()))?;
            assert_eq!(rented.wait(BOUND).unwrap().result?.byte_len(), Some(16));
            assert_eq!(written.wait(BOUND)?.byte_len(), None);
            assert_eq!(
                quiet.wait(BOUND)?.byte_len(),
                None,
                "an unsignaled operation has no completion"
            );
            Ok::<_, TransportError>(())
        })
        .unwrap();
}

fn a_channel_can_be_connected_to_itself(device: &Device) {
    let mut channel = looped(domain(device).create_channel());
    let number = channel.scope(|s| {
        let received = s.post_receive(ReceiveWorkRequest::only_immediate())?;
        s.post_send(SendWorkRequest::only_immediate(7))?;
        received.spin_poll().map(|success| success.immediate_data())
    });
    assert_eq!(number.unwrap(), Some(7));
}

fn a_scope_ends_what_it_has_left(device: &Device) {
    let pd = domain(device);
    let mut channel = looped(pd.create_channel());
    let mut memory = [0; 8];
    let region = pd.register_local_mr_slice(&memory).unwrap();
    memory[..4].fill(8);
    channel
        .scope(|s| {
            let (from, to) = memory.split_at_mut(4);
            let mut room = [region.scatter_element(to)];
            s.post_receive(ReceiveWorkRequest::new(&mut room))?;
            s.post_send(SendWorkRequest::new(&[region.gather_element(from)]))?;
            Ok::<(), TransportError>(())
        })
        .unwrap();
    assert_eq!(memory, [8; 8]);
}

/// Returns a channel, and the result of a scope that `leave` leaves while a receive is in flight.
fn left_with_a_receive(
    device: &Device,
    leave: impl FnOnce(PendingWork<'_>) -> Result<(), TransportError>,
) -> (Channel, Result<(), ScopeError>) {
    let pd = domain(device);
    let mut channel = looped(pd.create_channel().drain_timeout(SHORT));
    let mut memory = [0; 8];
    let region = pd.register_local_mr_slice(&memory).unwrap();
    let start = Instant::now();
    let result = channel.scope(|s| {
        let mut room = [region.scatter_element(&mut memory)];
        let handle = s.post_receive(ReceiveWorkRequest::new(&mut room))?;
        assert!(handle.poll().is_none(), "the receive has not completed");
        leave(handle)
    });
    assert!(start.elapsed() < BOUND);
    memory.fill(1); // `memory` is no longer borrowed
    (channel, result)
}

fn expect_closed(channel: &mut Channel, reason: CloseReason) {
    assert_eq!(channel.closed(), Some(reason));
    match channel.send(SendWorkRequest::only_immediate(1)) {
        Err(TransportError::Closed { reason: why, .. }) => assert_eq!(why, reason),
        other => panic!("{other:?}"),
    }
}

const LATE: CloseReason = CloseReason::Timeout { operation: Operation::Receive };

fn a_scope_with_an_unanswered_receive_ends_and_gives_its_memory_back(device: &Device) {
    let (mut channel, result) = left_with_a_receive(device, |_| Ok(()));
    let Err(ScopeError::AutoPollError(errors)) = result else { panic!("{result:?}") };
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].operation, Operation::Receive);
    expect_closed(&mut channel, LATE);
}

fn a_scope_left_by_an_error_ends_what_is_under_way(device: &Device) {
    let late = |handle: PendingWork<'_>| handle.wait(Duration::ZERO).map(drop);
    let (mut channel, result) = left_with_a_receive(device, late);
    assert!(matches!(result, Err(ScopeError::ClosureError(TransportError::Timeout { .. }))));
    expect_closed(&mut channel, LATE);
}

fn a_scope_left_by_a_panic_ends_what_is_under_way(device: &Device) {
    let pd = domain(device);
    let mut channel = looped(pd.create_channel().drain_timeout(SHORT));
    let mut memory = [0; 8];
    let region = pd.register_local_mr_slice(&memory).unwrap();
    let start = Instant::now();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        channel.scope(|s| -> Result<(), TransportError> {
            let mut room = [region.scatter_element(&mut memory)];
            let handle = s.post_receive(ReceiveWorkRequest::new(&mut room))?;
            assert!(handle.poll().is_none(), "the receive has not completed");
            panic_any(42);
        })
    }));
    assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&42));
    assert!(start.elapsed() < BOUND);
    memory.fill(1);
    expect_closed(&mut channel, LATE);
}

/// The scope ends although the earlier receives never get a message.
fn a_post_that_is_refused_ends_those_before_it(device: &Device) {
    let pd = domain(device);
    let mut channel = looped(pd.create_channel().drain_timeout(SHORT));
    let mut memory = pd.allocate_region(16).unwrap();
    let (source, board) = (pd.allocate_region(8).unwrap(), board(&pd, 8));
    let too_short = board.remote().slice(0..7).unwrap();
    let start = Instant::now();
    let result = channel.scope(|s| {
        let (one, other) = memory.as_slice_mut().split_at(8);
        let handles = [s.receive_into(one)?, s.receive_into(other)?];
        let handles = handles.map(|handle| match handle.poll() {
            Progress::Pending(handle) => handle,
            other => panic!("the receive must be pending: {other:?}"),
        });
        let list = [source.as_slice().gather_element()];
        s.post_write(WriteWorkRequest::new(&list, too_short)).map(drop)?;
        panic!("the write was posted after {handles:?}");
        #[allow(unreachable_code)]
        Ok::<(), TransportError>(())
    });
    let Err(ScopeError::ClosureError(TransportError::PostError(error))) = result else {
        panic!("{result:?}")
    };
    assert_eq!(error.kind(), PostErrorKind::RemoteTooShort);
    assert!(start.elapsed() >= SHORT && start.elapsed() < BOUND);
    memory.fill(1);
    memory.close().unwrap();
    expect_closed(&mut channel, LATE);
}

fn a_manual_scope_that_was_not_asked_panics_when_all_has_ended(device: &Device) {
    let mut channel = looped(domain(device).create_channel().drain_timeout(SHORT));
    let start = Instant::now();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        channel.manual_scope(|s| s.post_receive(ReceiveWorkRequest::only_immediate()).map(drop))
    }));
    assert!(start.elapsed() >= SHORT && start.elapsed() < BOUND);
    let payload = panicked.unwrap_err();
    let text = payload.downcast_ref::<String>().unwrap();
    assert!(text.starts_with("1 operations of a manual scope were not polled"), "{text}");
    expect_closed(&mut channel, LATE);
}

fn forgotten_handles_keep_no_scope_open(device: &Device) {
    #[allow(clippy::mem_forget)] // the subject of the case
    let forget = |handle: PendingWork<'_>| {
        std::mem::forget(handle);
        Ok(())
    };
    let (mut channel, result) = left_with_a_receive(device, forget);
    assert!(matches!(result, Err(ScopeError::AutoPollError(errors)) if errors.len() == 1));
    expect_closed(&mut channel, LATE);
}

fn a_receive_that_runs_out_has_closed_its_channel(device: &Device) {
    let mut channel = looped(domain(device).create_channel().receive_timeout(SHORT));
    let start = Instant::now();
    let error = channel.receive(ReceiveWorkRequest::only_immediate()).unwrap_err();
    assert!(start.elapsed() >= SHORT && start.elapsed() < BOUND);
    assert!(matches!(error, TransportError::Timeout { operation: Operation::Receive, .. }));
    expect_closed(&mut channel, LATE);
}

fn a_send_that_nobody_takes_runs_out(device: &Device) {
    let builder = domain(device);
    let mut channel = looped(builder.create_channel().max_rnr_retries(MaxRnrRetries::unlimited()));
    let start = Instant::now();
    let error = channel.within(SHORT).send(SendWorkRequest::only_immediate(1)).unwrap_err();
    assert!(start.elapsed() < BOUND);
    assert!(matches!(error, TransportError::Timeout { operation: Operation::Send, .. }));
    expect_closed(&mut channel, CloseReason::Timeout { operation: Operation::Send });
}

fn a_wait_that_runs_out_changes_nothing(device: &Device) {
    let mut channel = looped(domain(device).create_channel());
    channel
        .scope(|s| {
            let received = s.post_receive(ReceiveWorkRequest::only_immediate())?;
            assert!(matches!(received.wait(SHORT), Err(TransportError::Timeout { .. })));
            s.post_send(SendWorkRequest::only_immediate(5))?;
            assert_eq!(received.wait(BOUND)?.immediate_data(), Some(5));
            Ok::<_, TransportError>(())
        })
        .unwrap();
    assert_eq!(channel.closed(), None);
}

fn a_peer_that_is_gone_fails_the_operation_and_closes_the_channel(device: &Device) {
    let pd = domain(device);
    let retries = MaxAckRetries::limited(1).unwrap();
    let builder = pd.create_channel().ack_timeout(AckTimeout::limited(14).unwrap());
    let (mut here, there) = pair(builder.max_ack_retries(retries));
    drop(there);
    let error = here.within(BOUND).send(SendWorkRequest::only_immediate(1)).unwrap_err();
    let TransportError::WorkError(error) = error else { panic!("{error:?}") };
    assert_eq!(error.code(), WorkErrorCode::RetryExceededError);
    expect_closed(&mut here, CloseReason::Work { operation: Operation::Send, error: *error });
}

fn a_scope_whose_peer_goes_away_ends_and_says_what_failed(device: &Device) {
    let pd = domain(device);
    let retries = MaxAckRetries::limited(1).unwrap();
    let builder = pd.create_channel().ack_timeout(AckTimeout::limited(14).unwrap());
    let (mut here, there) = pair(builder.max_ack_retries(retries).drain_timeout(BOUND));
    let start = Instant::now();
    let result = here.scope(|s| {
        let received = s.post_receive(ReceiveWorkRequest::only_immediate())?;
        let sent = s.post_send(SendWorkRequest::only_immediate(1))?;
        assert!(
            received.poll().is_none() && sent.poll().is_none(),
            "the message is not received yet"
        );
        drop(there);
        Ok::<_, TransportError>(())
    });
    assert!(start.elapsed() < BOUND, "the scope must not wait until its limit");
    let Err(ScopeError::AutoPollError(errors)) = result else { panic!("{result:?}") };
    let operations: Vec<_> = errors.iter().map(|failed| failed.operation).collect();
    assert_eq!(operations, [Operation::Send, Operation::Receive], "{errors:?}");
    let TransportError::WorkError(error) = errors[0].error else { panic!("{errors:?}") };
    assert_eq!(error.code(), WorkErrorCode::RetryExceededError);
    expect_closed(&mut here, CloseReason::Work { operation: Operation::Send, error: *error });
}

fn a_refused_write_closes_the_channel_and_flushes_the_rest(device: &Device) {
    let pd = domain(device);
    let mut channel = looped(pd.create_channel());
    let source = pd.allocate_region(8).unwrap();
    let board = board(&pd, 8);
    let remote = board.remote();
    let wrong = rdma_mem::RemoteMemoryRegion::new(
        remote.address(),
        8,
        rdma_types::Rkey::new(remote.rkey().get() ^ 0x5a_5a00),
    );
    let result = channel.scope(|s| {
        let list = [source.as_slice().gather_element()];
        let flushed = s.post_receive(ReceiveWorkRequest::only_immediate())?;
        let refused = s.post_write(WriteWorkRequest::new(&list, wrong))?;
        let Err(TransportError::WorkError(error)) = refused.spin_poll() else { panic!() };
        let refusal = match device.differs_by_packets("own-refusal-is-flushed") {
            true => WorkErrorCode::WorkRequestFlushError,
            false => WorkErrorCode::RemoteAccessError,
        };
        assert_eq!(error.code(), refusal);
        let Err(TransportError::WorkError(error)) = flushed.wait(BOUND) else { panic!() };
        assert_eq!(error.code(), WorkErrorCode::WorkRequestFlushError);
        s.post_send(SendWorkRequest::only_immediate(1)).map(drop)
    });
    let Err(ScopeError::ClosureError(TransportError::Closed { reason, .. })) = result else {
        panic!()
    };
    assert!(matches!(reason, CloseReason::Work { operation: Operation::Write, .. }), "{reason}");
    assert_eq!(text(&board, 8), [0; 8]);
}

fn a_ring_of_rented_buffers_goes_round_in_one_scope(device: &Device) {
    let pd = domain(device);
    let mut channel = looped(pd.create_channel());
    let (mut rooms, mut source) = (pd.allocate_region(16).unwrap(), pd.allocate_region(8).unwrap());
    let sum = channel.scope(|s| {
        let (one, other) = rooms.as_slice_mut().split_at(8);
        let mut ring =
            std::collections::VecDeque::from([s.receive_into(one)?, s.receive_into(other)?]);
        let (mut from, mut sum) = (source.as_slice_mut(), 0);
        for number in 0..40 {
            from.fill(number);
            let sent = s.send_from(from)?;
            let arrived = ring.pop_front().unwrap().wait(BOUND).unwrap();
            assert_eq!((arrived.result?.scattered_bytes(), arrived.buf[7]), (Some(8), number));
            sum += u32::from(arrived.buf[0]);
            ring.push_back(s.receive_into(arrived.buf)?);
            from = sent.wait(BOUND).unwrap().buf;
        }
        // The last two receives get messages too, so the scope ends without an error.
        s.post_batch([1, 2].map(|number| SendWorkRequest::only_immediate(number).into()))?;
        Ok::<_, TransportError>(sum)
    });
    assert_eq!(sum.unwrap(), (0..40).sum::<u32>());
    assert_eq!(channel.closed(), None);
}

fn a_full_send_queue_waits(device: &Device) {
    let pd = domain(device);
    let mut channel = looped(pd.create_channel().max_send_wr(4));
    let (source, board) = (pd.allocate_region(8).unwrap(), board(&pd, 8));
    channel
        .scope(|s| {
            let list = [source.as_slice().gather_element()];
            for _ in 0..40 {
                s.post_write(WriteWorkRequest::new(&list, board.remote()))?;
            }
            Ok::<_, TransportError>(())
        })
        .unwrap();
    assert_eq!(channel.closed(), None);
}

fn a_full_receive_queue_would_block(device: &Device) {
    let mut channel = looped(domain(device).create_channel().max_recv_wr(2));
    channel
        .scope(|s| {
            let receive = || s.post_receive(ReceiveWorkRequest::only_immediate());
            let rooms = [receive()?, receive()?];
            assert!(matches!(receive(), Err(TransportError::WouldBlock)));
            for (number, room) in (0..).zip(&rooms) {
                s.post_send(SendWorkRequest::only_immediate(number))?;
                assert_eq!(room.wait(BOUND)?.immediate_data(), Some(number));
            }
            Ok::<_, TransportError>(())
        })
        .unwrap();
}

fn unsignaled_requests_are_done_with_a_later_one(device: &Device) {
    let pd = domain(device);
    let mut channel = looped(pd.create_channel());
    let (source, board) = (pd.allocate_region(8).unwrap(), board(&pd, 8));
    channel
        .scope(|s| {
            let list = [source.as_slice().gather_element()];
            let write = WriteWorkRequest::new(&list, board.remote());
            for _ in 0..50 {
                s.post_write(write.signaled(false))?;
            }
            let early = s.post_write(write.signaled(false))?;
            s.post_write(write)?.wait(BOUND)?;
            assert!(early.poll().unwrap().is_ok());
            Ok::<_, TransportError>(())
        })
        .unwrap();
    assert_eq!(channel.closed(), None);
}

fn a_batch_is_done_in_order(device: &Device) {
    let mut channel = looped(domain(device).create_channel());
    let numbers = channel.scope(|s| {
        let rooms = [0; 5].map(|_| ReceiveWorkRequest::only_immediate());
        let rooms = s.post_receive_batch(rooms)?;
        s.post_batch([0, 1, 2, 3, 4].map(|number| SendWorkRequest::only_immediate(number).into()))?;
        rooms.iter().map(|room| Ok(room.wait(BOUND)?.immediate_data())).collect()
    });
    let numbers: Vec<_> = numbers.map_err(|error: ScopeError| error.to_string()).unwrap();
    assert_eq!(numbers, [0, 1, 2, 3, 4].map(Some));
}

fn inline_data_is_free_when_it_is_posted(device: &Device) {
    device.needs_inline(16);
    let pd = domain(device);
    let mut channel = looped(pd.create_channel().max_inline_data(16));
    let board = board(&pd, 24);
    let place = |at| board.remote().sub_region(at).unwrap();
    let mut room = pd.allocate_region(16).unwrap();
    let number = channel.scope(|s| {
        let (first, second) = room.as_slice_mut().split_at(8);
        let (_first, second) = (s.receive_into(first)?, s.receive_into(second)?);
        let mut bytes = [1; 8];
        s.send_inline(&bytes)?;
        bytes.fill(2);
        s.write_inline(&bytes, place(0))?;
        bytes.fill(3);
        {
            let data = [rdma_mem::InlineElement::new(&bytes)];
            let write = WriteWorkRequest::inline(&data, place(8));
            let send = SendWorkRequest::inline(&data).with_immediate(7);
            drop(s.post_batch([write.into(), send.into()])?);
        }
        bytes.fill(4);
        assert_eq!(std::hint::black_box(bytes), [4; 8]);
        Ok::<_, TransportError>(second.wait(BOUND).unwrap().result?.immediate_data())
    });
    assert_eq!(number.unwrap(), Some(7));
    assert_eq!(*room, [[1; 8], [3; 8]].concat());
    channel.write_inline(&[5; 8], place(16)).unwrap();
    assert_eq!(text(&board, 24), [[2; 8], [3; 8], [5; 8]].concat());
}

fn a_channel_goes_to_another_thread(device: &Device) {
    let (mut here, mut there) = pair(domain(device).create_channel());
    let answering = thread::spawn(move || {
        let asked = there.receive(ReceiveWorkRequest::only_immediate()).unwrap();
        let answer = asked.immediate_data().unwrap() + 1;
        there.send(SendWorkRequest::only_immediate(answer)).unwrap();
    });
    let answer = here.scope(|s| {
        let answer = s.post_receive(ReceiveWorkRequest::only_immediate())?;
        s.post_send(SendWorkRequest::only_immediate(41))?;
        answer.wait(BOUND)
    });
    assert_eq!(answer.unwrap().immediate_data(), Some(42));
    answering.join().unwrap();
}
