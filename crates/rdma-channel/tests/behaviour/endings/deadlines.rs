//! Scopes with a deadline, and scopes whose closure has failed after a timeout.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rdma_channel::{Channel, MultiChannel, ScopeError, TransportError, prelude::*};
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest, WriteWorkRequest};
use rdma_soft::SoftDevice;
use test_support::features::Feature;

use crate::common::{DRAIN, HANG, HELD, Pair, everything, lacks, must_end, open};

/// Longer than any duration in this file.
const LONG: Duration = Duration::from_secs(300);

/// A pair with limits that are too long for a test: requests end only by a deadline or a wait.
fn patient(device: &str) -> Pair {
    Pair::with(device, |builder| {
        let builder = builder.drain_timeout(LONG).send_timeout(LONG).write_timeout(LONG);
        builder.read_timeout(LONG).atomic_timeout(LONG).max_send_wr(1)
    })
}

fn nothing() -> SendWorkRequest<'static, 'static> {
    SendWorkRequest::new(&[])
}

/// Checks that it took the limit, and not much longer.
#[track_caller]
fn took_about(limit: Duration, begin: Instant) {
    let took = begin.elapsed();
    assert!(took >= limit && took < HANG, "{took:?} for {limit:?}");
}

fn limit_of(error: TransportError) -> Duration {
    match error {
        TransportError::Timeout { timeout, .. } => timeout,
        error => panic!("{error}"),
    }
}

type Wait = fn(&mut Pair, Duration) -> Result<(), ScopeError<TransportError>>;

const WAITS: [(&str, Wait); 5] = [
    ("the wait of a handle", |pair, limit| {
        pair.here.scope_deadline(limit, |s| s.post_send(nothing())?.wait(LONG).map(drop))
    }),
    ("a handle's usual limit", |pair, limit| {
        pair.here.scope_deadline(limit, |s| s.post_send(nothing())?.spin_poll().map(drop))
    }),
    ("a receive, which has no limit", |pair, limit| {
        let receive = ReceiveWorkRequest::only_immediate;
        pair.here.scope_deadline(limit, |s| s.post_receive(receive())?.spin_poll().map(drop))
    }),
    ("rented memory", |pair, limit| {
        let mut memory = pair.memory(8, 0);
        pair.here.scope_deadline(limit, |s| {
            s.receive_into(memory.as_slice_mut())?.done(LONG)?;
            Ok(())
        })
    }),
    ("a post that waits for a free slot", |pair, limit| {
        pair.here.scope_deadline(limit, |s| {
            let _first = s.post_send(nothing())?;
            s.post_send(nothing()).map(drop)
        })
    }),
];

#[test]
fn each_wait_of_a_scope_ends_by_its_deadline_and_so_does_the_scope() {
    for (what, wait) in WAITS {
        must_end(move || {
            let (mut pair, begin) = (patient(HELD), Instant::now());
            let error = wait(&mut pair, DRAIN).map_err(ScopeError::flatten).unwrap_err();
            took_about(DRAIN, begin);
            assert_eq!(limit_of(error), DRAIN, "{what}: the limit that it ended by");
            assert_eq!(pair.in_flight(), 0, "{what}: requests are still in flight");
        });
    }
}

#[test]
fn requests_that_a_closure_leaves_in_flight_end_by_the_deadline() {
    must_end(|| {
        let (mut pair, begin) = (patient(HELD), Instant::now());
        let left = pair.here.scope_deadline(DRAIN, |s| s.post_send(nothing()).map(drop));
        took_about(DRAIN, begin);
        assert!(matches!(left, Err(ScopeError::AutoPollError(errors)) if errors.len() == 1));
        assert!(pair.here.closed().is_some());
    });
}

/// The deadline is one instant: time used by earlier waits is not available again.
#[test]
fn waits_of_a_scope_share_its_deadline() {
    must_end(|| {
        // A thread that gets no processor before the first wait needs a longer limit.
        let own_limit_is_earlier = [4, 40, 400].iter().any(|&times| {
            let (mut pair, begin) = (patient(HELD), Instant::now());
            let (limit, mut first) = (times * DRAIN, Ok(()));
            let ended = pair.here.scope_deadline(limit, |s| {
                let send = s.post_send(nothing())?;
                first = send.wait(DRAIN).map(drop).map_err(limit_of);
                send.wait(LONG).map(drop)
            });
            assert_eq!(limit_of(ended.map_err(ScopeError::flatten).unwrap_err()), limit);
            took_about(limit, begin);
            first == Err(DRAIN)
        });
        assert!(own_limit_is_earlier);
    });
}

#[test]
fn a_deadline_applies_only_to_its_scope() {
    must_end(|| {
        for end in [0, 1, 2] {
            let mut pair = Pair::new(HELD);
            match end {
                0 => pair.here.scope_deadline(LONG, |_| Ok::<_, TransportError>(())).unwrap(),
                1 => drop(pair.here.scope_deadline(LONG, |_| Err::<(), _>("failed")).unwrap_err()),
                _ => {
                    let unwinds = AssertUnwindSafe(|| {
                        pair.here.scope_deadline(LONG, |_| -> Result<(), TransportError> {
                            panic!("on purpose")
                        })
                    });
                    assert!(catch_unwind(unwinds).is_err());
                }
            }
            let late = pair
                .here
                .scope_deadline(Duration::MAX, |s| s.post_send(nothing())?.spin_poll().map(drop));
            assert_eq!(limit_of(late.map_err(ScopeError::flatten).unwrap_err()), DRAIN);
        }
    });
}

/// Completions that are there are received, however late: the clock is not read before one is missing.
#[test]
fn an_expired_deadline_does_not_discard_completions() {
    let mut pair = Pair::new("soft0");
    let remote = pair.board.remote().slice(0..8).unwrap();
    let written = pair.here.scope_deadline(Duration::ZERO, |s| {
        s.post_write(WriteWorkRequest::new(&[], remote))?.wait(LONG).map(drop)
    });
    written.unwrap();
    if lacks("soft0", Feature::Atomics) {
        return;
    }
    let drawn = pair.here.scope_deadline(Duration::ZERO, |s| s.fetch_add(remote, 1)?.wait(LONG));
    assert_eq!(drawn.unwrap(), 0);
}

#[test]
fn channels_to_several_peers_have_deadlines_too() {
    must_end(|| {
        let pd = open(HELD).allocate_pd().unwrap();
        let prepared = pd.create_multi_channel().num_channels(2).access(everything(&pd));
        let prepared = prepared.drain_timeout(LONG).build().unwrap();
        let ends = prepared.endpoints();
        let mut channels: MultiChannel = prepared.handshake([ends[1], ends[0]]).unwrap();
        let begin = Instant::now();
        let late =
            channels.scope_deadline(DRAIN, |s| s.to(0)?.post_send(nothing())?.wait(LONG).map(drop));
        assert_eq!(limit_of(late.map_err(ScopeError::flatten).unwrap_err()), DRAIN);
        took_about(DRAIN, begin);
    });
}

/// A program that has given up waiting has given up: its scope does not wait again for a longer time.
#[test]
fn a_closure_that_fails_after_a_timeout_is_drained_for_no_longer_than_that_wait() {
    type Give = fn(&mut Channel) -> Result<(), ScopeError<TransportError>>;
    const GIVES: [Give; 3] = [
        |here| here.scope(|s| s.post_send(nothing())?.wait(DRAIN).map(drop)),
        |here| {
            here.scope(|s| {
                let send = s.post_send(nothing())?;
                let receive = s.post_receive(ReceiveWorkRequest::only_immediate())?;
                // The longest wait counts, even if it is not the last one.
                let _ = send.wait(DRAIN).unwrap_err();
                receive.wait(DRAIN / 4).map(drop)
            })
        },
        |here| {
            here.within(DRAIN).scope(|s| {
                let _first = s.post_send(nothing())?;
                s.post_send(nothing()).map(drop)
            })
        },
    ];
    for give in GIVES {
        must_end(move || {
            let (mut pair, begin) = (patient(HELD), Instant::now());
            let late = give(&mut pair.here).map_err(ScopeError::flatten).unwrap_err();
            assert!(limit_of(late) <= DRAIN);
            took_about(2 * DRAIN, begin);
            assert_eq!(pair.in_flight(), 0, "requests are still in flight");
        });
    }
}

/// Otherwise the usual limit applies: requests in flight get the time that they need.
#[test]
fn a_closure_that_fails_for_another_reason_is_drained_as_usual() {
    must_end(|| {
        let mut pair = Pair::with(HELD, |builder| builder.drain_timeout(4 * DRAIN));
        let (device, qpn) = (pair.device, pair.here.qpn().unwrap());
        // An earlier wait has timed out, but its request has completed, so it is forgotten.
        let remote = pair.board.remote();
        let ended = pair.here.scope(|s| {
            let write = s.post_write(WriteWorkRequest::new(&[], remote))?;
            let _ = write.wait(Duration::ZERO).unwrap_err();
            assert_eq!(device.release(qpn, 1), 1);
            write.wait(HANG).map(drop)
        });
        ended.unwrap();
        let begin = Instant::now();
        let failed = pair.here.scope(|s| {
            s.post_send(nothing()).unwrap();
            Err::<(), _>("mine")
        });
        assert!(matches!(failed, Err(ScopeError::ClosureError("mine"))));
        took_about(4 * DRAIN, begin);
    });
}

/// A look is no wait: a request that was only polled gets its time when another one fails.
#[test]
fn a_failed_look_gives_nothing_up() {
    must_end(|| {
        let mut pair = Pair::with(HELD, |builder| builder.drain_timeout(4 * DRAIN));
        let begin = Instant::now();
        let failed = pair.here.scope(|s| {
            let send = s.post_send(nothing()).unwrap();
            let _ = send.wait(Duration::ZERO).unwrap_err();
            Err::<(), _>("mine")
        });
        assert!(matches!(failed, Err(ScopeError::ClosureError("mine"))));
        took_about(4 * DRAIN, begin);
    });
}

/// Only connections with requests whose waits have timed out are closed early.
#[test]
fn requests_given_up_at_one_peer_are_kept_at_another() {
    must_end(|| {
        let context = open(HELD);
        let device = SoftDevice::find(HELD).unwrap();
        let pd = context.allocate_pd().unwrap();
        let prepared = pd.create_multi_channel().num_channels(2).access(everything(&pd));
        let prepared = prepared.drain_timeout(LONG).build().unwrap();
        let ends = prepared.endpoints();
        let mut channels: MultiChannel = prepared.handshake([ends[1], ends[0]]).unwrap();
        let board = pd.allocate_shared_region(8, everything(&pd)).unwrap();
        let other = channels.peer(0).unwrap().unwrap().peer_qpn;
        let release = std::thread::spawn(move || {
            while device.in_flight(other) == 0 {}
            // Longer than the expired wait.
            std::thread::sleep(4 * DRAIN);
            assert_eq!(device.release(other, 1), 1);
        });
        let failed = channels.scope(|s| {
            s.to(1)?.post_write(WriteWorkRequest::new(&[], board.remote()))?;
            s.to(0)?.post_send(nothing())?.wait(DRAIN).map(drop)
        });
        assert_eq!(limit_of(failed.map_err(ScopeError::flatten).unwrap_err()), DRAIN);
        assert!(channels.closed(0).unwrap().is_some(), "its request was given up");
        assert!(
            channels.closed(1).unwrap().is_none(),
            "its request was not given up, and completed"
        );
        release.join().unwrap();
    });
}
