//! Polls that fail or lie, and completion queues that cannot be armed.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Poll, Waker};

use rdma_async::{CloseReason, Driver, ManualDriver, TransportError};
use rdma_sys::{ibv_wc, ibv_wc_status};
use tokio::time::timeout;

use crate::common::kinds::{BYTES, Begun, Kind, Way};
use crate::common::provider::{ALWAYS, Call, Provider};
use crate::common::{Count, HANG, HELD, Pair, poll_for, poll_once, run};

/// The part of the program that notices the failure of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// A task that awaits an operation.
    Awaits,
    /// An operation that waits for a slot.
    WaitsForSlot,
    /// A task that has dropped an operation.
    Drops,
    /// The driver, woken by a completion.
    Driver,
    /// The program, which drives manually.
    Manual,
}

/// Outstanding operations, and the tasks that wait for them.
struct Outstanding {
    pair: Pair,
    provider: Arc<Provider>,
    manual: Option<ManualDriver>,
    operations: Vec<(Kind, Begun, Arc<Count>)>,
}

/// The number of buffers of dropped operations.
const DROPPED: usize = 1;

impl Outstanding {
    fn new(who: Who) -> Self {
        let this = Self::unarmed(who);
        // An operation of the other queue pair, in the same completion queue.
        let receive = this.pair.other.receive(this.pair.buffer(&[1; BYTES]));
        drop(receive.try_post().unwrap());
        this
    }

    /// Starts operations that do not arm the completion queue, because none of them was awaited or dropped.
    fn unarmed(who: Who) -> Self {
        let (pd, provider) = Provider::faulty(HELD);
        let (driver, manual) = match who {
            Who::Manual => {
                let (driver, manual) = Driver::manual(pd.context()).unwrap();
                (driver, Some(manual))
            }
            _ => (Driver::spawn(pd.context()).unwrap(), None),
        };
        let pair = Pair::of(driver, pd, |builder| builder.max_recv_wr(2));
        let kinds = [Kind::Receive, Kind::ReceiveImmediate, Kind::Write, Kind::FetchAdd];
        let operations =
            kinds.map(|kind| (kind, kind.begin(&pair, Way::Tried), Arc::default())).into();
        Self { pair, provider, manual, operations }
    }

    /// Lets all operations wait.
    fn sleep(&mut self) {
        for (kind, operation, count) in &mut self.operations {
            let waker = Waker::from(Arc::clone(count));
            assert!(poll_for(operation, &waker).is_pending(), "{kind:?}");
        }
    }

    async fn find_out(&mut self, who: Who) {
        let pair = &self.pair;
        match who {
            Who::Awaits => {
                assert!(poll_once(&mut self.operations[0].1).is_ready());
                drop(self.operations.remove(0));
            }
            Who::WaitsForSlot => {
                let waits = pair.one.receive(pair.buffer(&[2; BYTES])).await;
                let failed = waits.unwrap_err();
                assert!(is_closed(&failed.error, CloseReason::Poll), "{failed}");
                assert_eq!(*failed.memory.unwrap(), [2; BYTES]);
            }
            Who::Drops => drop(self.operations.remove(0)),
            Who::Driver => pair.release(1),
            Who::Manual => drop(self.manual.as_mut().unwrap().poll()),
        }
    }

    /// Checks that all have ended with their memory, for that reason or by their completions, and that waiting tasks
    /// were woken.
    async fn assert_ended(&mut self, reason: CloseReason, have_slept: bool) {
        for (kind, operation, count) in &mut self.operations {
            if have_slept {
                while count.0.load(Relaxed) == 0 {
                    tokio::task::yield_now().await;
                }
            }
            let Poll::Ready(outcome) = poll_once(operation) else {
                panic!("{kind:?} has not ended")
            };
            if let Some((error, bytes)) = outcome {
                assert!(is_closed(&error, reason), "{kind:?}: {error}");
                assert_eq!(bytes, kind.bytes());
            } else {
                assert_eq!(*kind, Kind::Write, "only the write was executed");
            }
        }
        let pair = &self.pair;
        // The thread of the driver closes one end after the other.
        while (pair.buffers(), self.provider.lent()) != (0, 0) || pair.other.closed().is_none() {
            tokio::task::yield_now().await;
        }
        for end in [&pair.one, &pair.other] {
            assert_eq!(end.closed(), Some(reason));
            let later = end.send(pair.buffer(&[1])).await.unwrap_err();
            assert!(is_closed(&later.error, reason), "{later}");
        }
        self.provider.assert_kept();
    }
}

fn is_closed(error: &TransportError, why: CloseReason) -> bool {
    matches!(error, TransportError::Closed { reason, .. } if *reason == why)
}

#[test]
fn a_completion_queue_that_fails_ends_all_its_operations() {
    for times in [1, ALWAYS] {
        for who in [Who::Awaits, Who::WaitsForSlot, Who::Driver, Who::Manual] {
            run(|| async move {
                let mut all = Outstanding::new(who);
                all.sleep();
                assert_eq!(all.pair.buffers(), 2 + DROPPED);
                all.provider.refuse(Call::Poll, times);
                all.find_out(who).await;
                all.assert_ended(CloseReason::Poll, true).await;
                // Other connections of the driver use another one.
                all.provider.refuse(Call::Poll, 0);
                let Outstanding { pair: Pair { driver, pd, .. }, provider, manual, .. } = all;
                if who != Who::Manual {
                    Pair::of(driver, pd, |builder| builder).assert_works().await;
                }
                drop(manual);
                provider.assert_kept();
            });
        }
    }
}

#[test]
fn a_completion_queue_that_cannot_be_armed_ends_all_its_operations() {
    for who in [Who::Awaits, Who::WaitsForSlot, Who::Drops] {
        run(|| async move {
            let mut all = Outstanding::unarmed(Who::Manual);
            all.provider.refuse(Call::RequestEvent, 1);
            all.find_out(who).await;
            all.assert_ended(CloseReason::Poll, false).await;
        });
    }
}

/// No task would ever be woken again.
#[test]
fn a_driver_that_cannot_arm_its_queue_ends_its_operations() {
    run(|| async {
        let mut all = Outstanding::new(Who::Driver);
        all.sleep();
        all.provider.refuse(Call::RequestEvent, 1);
        all.find_out(Who::Driver).await;
        all.assert_ended(CloseReason::Destroyed, true).await;
    });
}

/// A program that drives manually gets the error, and may try again.
#[test]
fn a_manual_driver_can_be_armed_again_after_a_failure() {
    run(|| async {
        let mut all = Outstanding::unarmed(Who::Manual);
        all.provider.refuse(Call::RequestEvent, 1);
        all.manual.as_mut().unwrap().arm().unwrap_err();
        assert_eq!(all.pair.one.closed(), None, "the program may arm it again");
        all.sleep();
        all.pair.release(1);
        assert_eq!(all.manual.as_mut().unwrap().arm().unwrap(), 1);
        let (.., count) = &all.operations[2];
        assert_eq!(count.0.load(Relaxed), 1, "the write has completed");
    });
}

/// Completions that resemble that of this request.
fn almost(honest: ibv_wc) -> Vec<ibv_wc> {
    const PLACE: u64 = 1 << 16;
    const GENERATION: u64 = 1 << 32;
    let id = honest.wr_id;
    let ids = [
        id, // repeated
        0,
        u64::MAX,
        id + 1,
        id.wrapping_sub(1),
        id | (PLACE - 1),
        id + PLACE,
        id | (GENERATION - PLACE),
        id + GENERATION,
        id.wrapping_sub(GENERATION),
        id | 1 << 63,
    ];
    let failed = ibv_wc { status: ibv_wc_status::IBV_WC_GENERAL_ERR, ..honest };
    ids.into_iter()
        .flat_map(|wr_id| [ibv_wc { wr_id, ..honest }, ibv_wc { wr_id, ..failed }])
        .collect()
}

#[test]
fn completions_without_an_outstanding_request_change_nothing() {
    for device in crate::provider::DEVICES {
        run(|| async move {
            let (pair, provider) = Pair::faulty(device);
            // Their WR IDs name an existing entry and existing slots.
            let mut waits = pair.one.receive(pair.buffer(&[1; BYTES])).post().await.unwrap();
            let dropped = pair.one.receive(pair.buffer(&[2; BYTES])).post().await.unwrap();
            drop(dropped);
            let of_one = ibv_wc { wr_id: 0, qp_num: pair.one.qpn().get(), ..Default::default() };
            provider.invent((0..20).flat_map(|slot| almost(ibv_wc { wr_id: slot, ..of_one })));
            for _ in 0..100 {
                assert!(poll_once(&mut waits).is_pending());
                tokio::task::yield_now().await;
            }
            assert!(provider.lied() > 100, "{} lies", provider.lied());
            assert!(pair.one.take_unclaimed().is_none());
            assert_eq!((pair.buffers(), provider.lent(), pair.one.closed()), (2, 2, None));
            provider.lie(almost);
            for text in [b"1st text", b"2nd text"] {
                pair.released(pair.other.send(pair.buffer(text)).into_future()).await.unwrap();
            }
            assert_eq!(*pair.released(waits).await.unwrap().memory, *b"1st text");
            let dropped = async {
                loop {
                    match pair.one.take_unclaimed() {
                        Some(received) => return received,
                        None => tokio::task::yield_now().await,
                    }
                }
            };
            let second = pair.released(dropped).await;
            assert_eq!(**second.memory.as_ref().unwrap(), *b"2nd text");
            drop(second);
            for _ in 0..3 {
                pair.assert_works().await;
            }
            assert!(provider.lied() > 500, "{} lies", provider.lied());
            pair.assert_given_back().await;
            assert_eq!((provider.lent(), pair.one.closed(), pair.other.closed()), (0, None, None));
            drop(pair);
            provider.gone().await;
        });
    }
}

/// A sleeping task is woken by the driver, which alone polls.
#[test]
fn a_sleeping_task_is_woken_on_a_failure() {
    run(|| async {
        let (pair, provider) = Pair::faulty(HELD);
        let write = tokio::spawn(Kind::Write.begin(&pair, Way::Posted));
        while provider.lent() == 0 {
            tokio::task::yield_now().await;
        }
        provider.refuse(Call::Poll, ALWAYS);
        pair.release(1);
        let (error, bytes) = timeout(HANG, write).await.unwrap().unwrap().unwrap();
        assert!(is_closed(&error, CloseReason::Poll), "{error}");
        assert_eq!(bytes, BYTES);
    });
}

/// The driver's waker finds the failure, and its task then ends the driver.
#[test]
fn a_sleeping_task_is_woken_if_the_channel_fails() {
    run(|| async {
        let (pair, provider) = Pair::faulty(HELD);
        let write = tokio::spawn(Kind::Write.begin(&pair, Way::Posted));
        while provider.lent() == 0 {
            tokio::task::yield_now().await;
        }
        provider.refuse(Call::ReceiveEvent, ALWAYS);
        pair.release(1);
        let failed = timeout(HANG, write).await.unwrap().unwrap();
        assert!(failed.is_none(), "it completed before the driver ended");
        let later = Kind::Write.begin(&pair, Way::Posted);
        let (error, bytes) = timeout(HANG, later).await.unwrap().unwrap();
        assert!(is_closed(&error, CloseReason::Destroyed), "{error}");
        assert_eq!(bytes, BYTES);
    });
}
