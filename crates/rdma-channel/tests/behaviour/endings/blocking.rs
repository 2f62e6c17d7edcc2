//! Blocking calls that time out.

use std::thread;
use std::time::{Duration, Instant};

use rdma_channel::{Channel, CloseReason, Operation, TransportError};
use rdma_mem::{GatherList, OwnedRegion, RemoteMemoryRegion, ScatterList};
use rdma_qp::{
    AtomicWorkRequest, ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WorkSuccess,
    WriteWorkRequest,
};

use crate::common::provider::{at_next_poll, faulty};
use crate::common::{DRAIN, HELD, LATE, Pair, must_end, short};

type Outcome = Result<WorkSuccess, TransportError>;
type Call = fn(&mut Channel, &mut OwnedRegion, RemoteMemoryRegion) -> Outcome;

fn send(channel: &mut Channel, region: &mut OwnedRegion, _: RemoteMemoryRegion) -> Outcome {
    channel.send(SendWorkRequest::from_list(&GatherList::from([region.as_slice()])))
}

fn receive(channel: &mut Channel, region: &mut OwnedRegion, _: RemoteMemoryRegion) -> Outcome {
    let mut list = ScatterList::from([region.as_slice_mut()]);
    channel.within(DRAIN).receive(ReceiveWorkRequest::from_list(&mut list))
}

fn write(channel: &mut Channel, region: &mut OwnedRegion, remote: RemoteMemoryRegion) -> Outcome {
    let list = GatherList::from([region.as_slice()]);
    channel.write(WriteWorkRequest::from_list(&list, remote))
}

fn read(channel: &mut Channel, region: &mut OwnedRegion, remote: RemoteMemoryRegion) -> Outcome {
    let mut list = ScatterList::from([region.as_slice_mut()]);
    channel.read(ReadWorkRequest::from_list(&mut list, remote))
}

fn add(channel: &mut Channel, region: &mut OwnedRegion, remote: RemoteMemoryRegion) -> Outcome {
    let mut list = ScatterList::from([region.as_slice_mut()]);
    channel.atomic(AtomicWorkRequest::fetch_and_add(&mut list, remote, 1))
}

fn swap(channel: &mut Channel, region: &mut OwnedRegion, remote: RemoteMemoryRegion) -> Outcome {
    let mut list = ScatterList::from([region.as_slice_mut()]);
    channel.atomic(AtomicWorkRequest::compare_and_swap(&mut list, remote, 0, 1))
}

const CALLS: [(Call, Operation); 6] = [
    (send, Operation::Send),
    (receive, Operation::Receive),
    (write, Operation::Write),
    (read, Operation::Read),
    (add, Operation::Atomic),
    (swap, Operation::Atomic),
];

/// Checks a call that has timed out: it reports that, and so does each later one.
fn assert_timed_out(
    outcome: Outcome,
    operation: Operation,
    pair: &mut Pair,
    memory: &mut OwnedRegion,
) {
    let Err(error) = outcome else { panic!("done: {outcome:?}") };
    assert!(
        matches!(error, TransportError::Timeout { operation: which, timeout, .. }
            if which == operation && timeout == DRAIN),
        "{error}"
    );
    let first = CloseReason::Timeout { operation };
    assert_eq!(pair.here.closed(), Some(first));
    let remote = pair.board.remote().slice(0..8).unwrap();
    for (call, _) in CALLS {
        let error = call(&mut pair.here, memory, remote).unwrap_err();
        assert!(
            matches!(error, TransportError::Closed { reason: why, .. } if why == first),
            "{error}"
        );
    }
    assert_eq!(pair.in_flight(), 0, "requests are still in flight");
    memory.fill(7);
    pair.provoke();
    assert_eq!(**memory, [7; 8], "written after it was returned");
}

#[test]
fn a_call_that_times_out_returns_its_memory_and_closes_the_channel() {
    for (call, operation) in CALLS {
        must_end(move || {
            let mut pair = Pair::new(HELD);
            pair.board.write(0, &[9; 4096]).unwrap();
            let mut memory = pair.memory(8, 1);
            let remote = pair.board.remote().slice(0..8).unwrap();
            let begin = Instant::now();
            let outcome = call(&mut pair.here, &mut memory, remote);
            let took = begin.elapsed();
            assert!(took >= DRAIN && took < Duration::from_secs(25), "{took:?}");
            assert_timed_out(outcome, operation, &mut pair, &mut memory);
        });
    }
}

/// Makes each call with its own limit, where the builder has set none for it.
fn limited(which: usize, pair: &mut Pair, memory: &mut OwnedRegion) -> Result<(), TransportError> {
    let (channel, remote) = (&mut pair.here, pair.board.remote().slice(0..8).unwrap());
    let write = WriteWorkRequest::new(&[], remote);
    match which {
        0 => channel.within(DRAIN).send(SendWorkRequest::only_immediate(1)).map(drop),
        1 => channel.within(DRAIN).receive(ReceiveWorkRequest::only_immediate()).map(drop),
        2 => channel.within(DRAIN).write(write).map(drop),
        3 => channel.within(DRAIN).read(ReadWorkRequest::new(&mut [], remote)).map(drop),
        4 => {
            let mut list = ScatterList::from([memory.as_slice_mut()]);
            channel
                .within(DRAIN)
                .atomic(AtomicWorkRequest::compare_and_swap(&mut list, remote, 0, 1))
                .map(drop)
        }
        5 => {
            let mut list = ScatterList::from([memory.as_slice_mut()]);
            channel
                .within(DRAIN)
                .atomic(AtomicWorkRequest::fetch_and_add(&mut list, remote, 1))
                .map(drop)
        }
        _ => channel.within(DRAIN).batch([write.into(), write.into()]).map(drop),
    }
}

#[test]
fn a_call_can_have_a_limit_of_its_own() {
    for which in 0..7 {
        must_end(move || {
            let mut pair = Pair::with(HELD, |builder| builder);
            pair.board.write(0, &[9; 4096]).unwrap();
            let mut memory = pair.memory(8, 1);
            let begin = Instant::now();
            let error = limited(which, &mut pair, &mut memory).unwrap_err();
            let took = begin.elapsed();
            assert!(took >= DRAIN && took < Duration::from_secs(25), "{which}: {took:?}");
            assert!(
                matches!(error, TransportError::Timeout { timeout: DRAIN, .. }),
                "{which}: {error}"
            );
            assert!(matches!(pair.here.closed(), Some(CloseReason::Timeout { .. })));
            assert_eq!(pair.in_flight(), 0);
            memory.fill(7);
            pair.provoke();
            assert_eq!(*memory, [7; 8], "written after it was returned");
        });
    }
}

#[test]
fn a_message_without_a_partner_ends_in_time_on_a_device_that_runs() {
    for device in LATE {
        for (call, operation) in [CALLS[0], CALLS[1]] {
            must_end(move || {
                let mut pair = Pair::new(device);
                pair.board.write(0, &[9; 4096]).unwrap();
                let mut memory = pair.memory(8, 1);
                let remote = pair.board.remote().slice(0..8).unwrap();
                let outcome = call(&mut pair.here, &mut memory, remote);
                assert_timed_out(outcome, operation, &mut pair, &mut memory);
            });
        }
    }
}

#[test]
fn a_call_with_a_half_finished_copy_returns_its_memory() {
    must_end(|| {
        let mut pair = Pair::on(&faulty(HELD), short);
        pair.board.write(0, &[9; 4096]).unwrap();
        let mut memory = pair.memory(8, 1);
        let remote = pair.board.remote().slice(0..8).unwrap();
        let (soft, qpn) = (pair.device, pair.here.qpn().unwrap());
        // The first poll follows the post, and the time starts later.
        at_next_poll(move || assert!(soft.release_half(qpn)));
        let outcome = read(&mut pair.here, &mut memory, remote);
        assert!(matches!(outcome, Err(TransportError::Timeout { .. })), "{outcome:?}");
        assert_eq!(*memory, [9, 9, 9, 9, 1, 1, 1, 1], "half of the copy");
        memory.fill(7);
        pair.provoke();
        assert_eq!(*memory, [7; 8]);
    });
}

#[test]
fn a_limit_of_zero_polls_once() {
    for device in LATE {
        must_end(move || {
            let mut pair = Pair::new(device);
            let mut room = pair.memory(8, 1);
            let mut list = ScatterList::from([room.as_slice_mut()]);
            let request = ReceiveWorkRequest::from_list(&mut list);
            let outcome = pair.here.within(Duration::ZERO).receive(request);
            assert!(matches!(outcome, Err(TransportError::Timeout { .. })), "{outcome:?}");
            let outcome = pair.here.receive(ReceiveWorkRequest::only_immediate());
            assert!(matches!(outcome, Err(TransportError::Closed { .. })), "{outcome:?}");
        });
    }
}

#[test]
fn a_channel_that_timed_out_is_moved_and_dropped_like_any_other() {
    for device in LATE {
        must_end(move || {
            let mut pair = Pair::new(device);
            let mut memory = pair.memory(8, 1);
            let remote = pair.board.remote();
            receive(&mut pair.here, &mut memory, remote).unwrap_err();
            let channel = pair.here;
            thread::spawn(move || channel.close().map_err(TransportError::from))
                .join()
                .unwrap()
                .unwrap();
            memory.close().unwrap();
        });
    }
}
