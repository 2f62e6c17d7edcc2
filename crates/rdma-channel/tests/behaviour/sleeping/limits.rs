//! Limits end each wait in each mode, and sleeping uses no processor time.

use std::time::{Duration, Instant};

use rdma_channel::{CloseReason, PeerReceiveWorkRequest, TransportError, Wait, prelude::*};
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};
use rustix::time::{ClockId, clock_gettime};

use crate::common::{DRAIN, HELD, Pair, must_end, open};
use crate::sleeping::{DEVICES, SLEEPING, each, pair};

const ROOM: ReceiveWorkRequest<'static, 'static> = ReceiveWorkRequest::only_immediate();
/// The time limit of a test that hangs.
const LATE: Duration = Duration::from_secs(60);

/// Fails if `run` ends before `limit`, or long after.
fn takes<T>(limit: Duration, run: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let value = run();
    let took = begin.elapsed();
    assert!((limit..limit + LATE).contains(&took), "{took:?} instead of {limit:?}");
    value
}

/// The processor time of this thread.
fn processor_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap()
}

#[test]
fn handles_and_calls_end_at_their_limit() {
    each(|device, wait| {
        must_end(move || {
            let mut pair = pair(device, wait);
            let outcome = pair.here.scope(|s| {
                let received = s.post_receive(ROOM)?;
                for limit in [Duration::ZERO, Duration::from_nanos(1), DRAIN] {
                    let late = takes(limit, || received.wait(limit));
                    assert!(matches!(late, Err(TransportError::Timeout { timeout, .. })
                        if timeout == limit));
                }
                s.close();
                Ok::<(), TransportError>(())
            });
            outcome.unwrap();
            let late = takes(DRAIN, || pair.there.within(DRAIN).receive(ROOM));
            assert!(matches!(late, Err(TransportError::Timeout { .. })), "{late:?}");
            assert!(matches!(pair.there.closed(), Some(CloseReason::Timeout { .. })));
        });
    });
}

/// The device does nothing, and does not even flush.
#[test]
fn full_queues_and_scopes_end_at_their_limit() {
    for wait in crate::sleeping::MODES {
        must_end(move || {
            let mut pair = Pair::with(HELD, |builder| {
                builder.wait(wait).max_send_wr(1).send_timeout(DRAIN).drain_timeout(DRAIN)
            });
            let left = takes(2 * DRAIN, || {
                pair.here.scope(|s| {
                    drop(s.post_send(SendWorkRequest::only_immediate(1))?);
                    let full = takes(DRAIN, || s.post_send(SendWorkRequest::only_immediate(2)));
                    assert!(matches!(full, Err(TransportError::Timeout { .. })));
                    Ok::<(), TransportError>(())
                })
            });
            assert!(left.is_err() && pair.here.closed().is_some());
        });
    }
}

/// No completion would show its end, so the channel is closed at once.
#[test]
fn a_last_unsignaled_request_is_not_waited_for() {
    for wait in crate::sleeping::MODES {
        must_end(move || {
            let mut pair = pair(HELD, wait);
            let begin = Instant::now();
            let left = pair.here.scope(|s| {
                s.post_send(SendWorkRequest::only_immediate(1).signaled(false)).map(drop)
            });
            assert!(left.is_err(), "{wait:?}");
            assert!(matches!(pair.here.closed(), Some(CloseReason::Unsignaled { .. })));
            assert!(begin.elapsed() < LATE);
        });
    }
}

#[test]
fn collectives_end_at_their_limit() {
    each(|device, wait| {
        must_end(move || {
            let pd = open(device).allocate_pd().unwrap();
            let builder = pd.create_multi_channel().num_channels(2).wait(wait);
            let prepared = builder.build().unwrap();
            let ends = prepared.endpoints();
            let mut channels = prepared.handshake(ends).unwrap(); // each to itself
            let rooms = (0..2).map(PeerReceiveWorkRequest::only_immediate);
            let late = takes(DRAIN, || channels.within(DRAIN).gather_receive(rooms));
            assert!(matches!(late, Err(TransportError::Collective(errors)) if errors.len() == 2));
        });
    });
}

#[test]
fn a_sleeping_thread_uses_no_processor_time() {
    for device in DEVICES {
        for wait in SLEEPING {
            must_end(move || {
                let mut pair = pair(device, wait);
                let limit = Duration::from_millis(300);
                let before = processor_time();
                pair.here.within(limit).receive(ROOM).unwrap_err();
                let had = processor_time() - before;
                assert!(had < limit / 2, "{device}, {wait:?}: {had:?}");
            });
        }
    }
}

#[test]
fn the_end_of_a_scope_uses_no_processor_time() {
    must_end(|| {
        let mut pair = Pair::with("soft0", |builder| {
            builder.wait(Wait::Sleep).drain_timeout(Duration::from_millis(300))
        });
        let before = processor_time();
        pair.here.scope(|s| s.post_receive(ROOM).map(drop)).unwrap_err();
        let had = processor_time() - before;
        assert!(had < Duration::from_millis(150), "{had:?}");
    });
}
