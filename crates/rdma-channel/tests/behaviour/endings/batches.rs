//! Batches that do not complete, or are only partly posted.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rdma_channel::{Channel, CloseReason, Operation, ScopeError, TransportError};
use rdma_mem::{Errno, OwnedRegion, RemoteMemoryRegion, ScatterList};
use rdma_qp::{ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WriteWorkRequest};

use crate::common::provider::{DESTROYED, POLL, POST, Post, at_next_poll, faulty, honest};
use crate::common::{DRAIN, HELD, LATE, Pair, must_end, short};

type Call =
    fn(&mut Channel, &mut [OwnedRegion; 3], RemoteMemoryRegion) -> Result<(), TransportError>;

fn read(
    channel: &mut Channel,
    rooms: &mut [OwnedRegion; 3],
    remote: RemoteMemoryRegion,
) -> Result<(), TransportError> {
    let mut lists = rooms.each_mut().map(|room| ScatterList::from([room.as_slice_mut()]));
    let reads = lists.each_mut().map(|list| ReadWorkRequest::from_list(list, remote).into());
    channel.batch(reads).map(drop)
}

fn receive(
    channel: &mut Channel,
    rooms: &mut [OwnedRegion; 3],
    _: RemoteMemoryRegion,
) -> Result<(), TransportError> {
    let mut lists = rooms.each_mut().map(|room| ScatterList::from([room.as_slice_mut()]));
    let receives = lists.each_mut().map(ReceiveWorkRequest::from_list);
    let scope = channel.scope(|s| {
        s.post_receive_batch(receives)?.iter().try_for_each(|receive| receive.wait(DRAIN).map(drop))
    });
    scope.map_err(ScopeError::flatten)
}

/// Three requests with memory, and checks of their end.
struct Batch {
    pair: Pair,
    rooms: [OwnedRegion; 3],
    under_way: Rc<Cell<usize>>,
}

impl Batch {
    fn new(device: &str) -> Self {
        let pair = Pair::on(&faulty(device), short);
        pair.board.write(0, &[9; 4096]).unwrap();
        let rooms = [1, 2, 3].map(|byte| pair.memory(8, byte));
        Self { pair, rooms, under_way: Rc::default() }
    }

    /// Runs a batch, and `meanwhile` after it was posted.
    fn call(&mut self, call: Call, meanwhile: impl FnOnce() + 'static) -> TransportError {
        let (device, qpn) = (self.pair.device, self.pair.here.qpn().unwrap());
        let under_way = Rc::clone(&self.under_way);
        at_next_poll(move || {
            under_way.set(device.in_flight(qpn));
            meanwhile();
        });
        let remote = self.pair.board.remote().slice(0..8).unwrap();
        let begin = Instant::now();
        let error = call(&mut self.pair.here, &mut self.rooms, remote).unwrap_err();
        assert!(begin.elapsed() < Duration::from_secs(25));
        error
    }

    /// Checks that the channel was closed for this reason, and that the memory belongs to the caller, whatever the peer
    /// and the device do now.
    fn assert_given_back(mut self, first: CloseReason) {
        honest();
        assert_eq!((self.pair.here.closed(), self.pair.in_flight()), (Some(first), 0));
        let again = self.pair.here.batch([SendWorkRequest::only_immediate(1).into()]);
        assert!(
            matches!(again, Err(TransportError::Closed { reason: why, .. }) if why == first),
            "{again:?}"
        );
        self.rooms.iter_mut().for_each(|room| room.fill(7));
        (0..3).for_each(|_| self.pair.provoke());
        for room in self.rooms {
            assert_eq!(*room, [7; 8], "written after it was returned");
            room.close().unwrap();
        }
    }
}

#[test]
fn a_batch_that_times_out_returns_its_memory_and_closes_the_channel() {
    let calls: [(&str, Call, Operation, usize); 3] = [
        (HELD, read, Operation::Read, 3),
        (LATE[0], receive, Operation::Receive, 0),
        (LATE[1], receive, Operation::Receive, 0),
    ];
    for (device, call, operation, sends) in calls {
        must_end(move || {
            let mut batch = Batch::new(device);
            let error = batch.call(call, || {});
            let late = matches!(error, TransportError::Timeout { operation: which, timeout, .. }
                if which == operation && timeout == DRAIN);
            assert!(late, "{error}");
            assert_eq!(batch.under_way.get(), sends, "a request has completed");
            let untouched = batch.rooms.iter().map(|room| room[0]).collect::<Vec<_>>();
            assert_eq!(untouched, [1, 2, 3]);
            batch.assert_given_back(CloseReason::Timeout { operation });
        });
    }
}

/// The limit applies to the whole batch.
#[test]
fn a_batch_with_one_unfinished_request_times_out() {
    must_end(|| {
        let mut batch = Batch::new(HELD);
        let (device, qpn) = (batch.pair.device, batch.pair.here.qpn().unwrap());
        let error = batch.call(read, move || assert_eq!(device.release(qpn, 2), 2));
        assert!(matches!(error, TransportError::Timeout { .. }), "{error}");
        assert_eq!(batch.under_way.get(), 3);
        let read = batch.rooms.iter().map(|room| room[0]).collect::<Vec<_>>();
        assert_eq!(read, [9, 9, 3]);
        batch.assert_given_back(CloseReason::Timeout { operation: Operation::Read });
    });
}

/// H5.
#[test]
fn a_batch_on_a_failed_completion_queue_fails_after_the_queue_pair_is_destroyed() {
    for (device, call, sends) in [(HELD, read as Call, 3), (LATE[0], receive, 0)] {
        must_end(move || {
            let mut batch = Batch::new(device);
            let error = batch.call(call, || POLL.set(Some(-1)));
            assert!(matches!(error, TransportError::PollError(_)), "{error}");
            assert_eq!((batch.under_way.get(), DESTROYED.get()), (sends, 1));
            batch.assert_given_back(CloseReason::Poll);
        });
    }
}

#[test]
fn a_partly_posted_batch_ends_the_posted_part() {
    for (post, posted, under_way) in [
        (Post::Partly(1), 1, 1),
        (Post::Partly(2), 2, 2),
        (Post::Doubtful, 3, 3),
        (Post::DoubtfulAndRefused, 3, 0),
    ] {
        must_end(move || {
            let mut batch = Batch::new(HELD);
            POST.set(post);
            let error = batch.call(read, || {});
            let TransportError::PostError(refused) = &error else { panic!("{error}") };
            assert_eq!((refused.posted(), batch.under_way.get()), (posted, under_way));
            batch.assert_given_back(CloseReason::Timeout { operation: Operation::Read });
        });
    }
}

#[test]
fn a_partly_posted_batch_that_completes_in_time_leaves_the_channel_open() {
    must_end(|| {
        let mut batch = Batch::new("soft0");
        POST.set(Post::Partly(2));
        let error = batch.call(read, || {});
        assert!(matches!(&error, TransportError::PostError(refused) if refused.posted() == 2));
        let read = batch.rooms.iter().map(|room| room[0]).collect::<Vec<_>>();
        assert_eq!((read, batch.pair.here.closed()), (vec![9, 9, 3], None));
        POST.set(Post::Refused(Errno::EINVAL));
        let mut again = || {
            let remote = batch.pair.board.remote().slice(0..8).unwrap();
            self::read(&mut batch.pair.here, &mut batch.rooms, remote)
        };
        let error = again().unwrap_err();
        assert!(matches!(&error, TransportError::PostError(refused) if refused.posted() == 0));
        honest();
        // As many times as the depth of the queue: all slots are free again.
        (0..16).for_each(|_| again().unwrap());
    });
}

/// The caller has no handles for the posted part.
#[test]
fn a_manual_scope_ignores_requests_without_handles() {
    must_end(|| {
        let mut pair = Pair::on(&faulty("soft0"), |builder| builder);
        let data = pair.memory(8, 5);
        let remote = pair.board.remote();
        let refused = pair.here.manual_scope(|s| {
            POST.set(Post::Partly(2));
            let element = [data.as_slice().gather_element()];
            let write = || WriteWorkRequest::new(&element, remote).into();
            let refused = s.post_batch([write(), write(), write()]).map(drop);
            honest();
            Ok::<_, TransportError>(refused)
        });
        let refused = refused.unwrap().unwrap_err();
        assert!(matches!(&refused, TransportError::PostError(error) if error.posted() == 2));
        assert_eq!(pair.here.closed(), None);
    });
}
