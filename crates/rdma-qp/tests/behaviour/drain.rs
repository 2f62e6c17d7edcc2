//! Draining: every posted request completes, and the caller sees the completion.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use crate::common::{DEVICES, HANG, must_end, pair, pair_with, parts};
use rdma_qp::{
    CompletionQueue, Error, PollSlot, QpState, QueuePair, ReceiveWorkRequest, SendWorkRequest,
    prelude::*,
};

fn receive(qp: &QueuePair, wr_id: u64) {
    // SAFETY: SAFETY.md F8: no memory.
    unsafe { qp.post_receive(ReceiveWorkRequest::only_immediate(), wr_id) }.unwrap();
}

#[test]
fn draining_hands_out_every_completion_once() {
    for device in DEVICES {
        must_end(move || {
            let (a, b) = pair(device);
            let (sends, receives) =
                (a.qp.capabilities().max_send_wr.into(), a.qp.capabilities().max_recv_wr.into());
            // The queues are full: the last requests can be posted only after others have
            // completed.
            (0..receives).for_each(|id| receive(&a.qp, 1000 + id));
            for id in 0..sends {
                // SAFETY: SAFETY.md F8: no memory. There is no receive, so the request waits.
                unsafe { a.qp.post_send(SendWorkRequest::only_immediate(1), id) }.unwrap();
            }
            let mut ids = Vec::new();
            a.qp.drain(HANG, |completion| {
                assert_eq!(completion.qpn(), a.qp.qpn());
                assert!(completion.result().is_err());
                ids.push(completion.wr_id());
            })
            .unwrap();
            assert_eq!(a.qp.state().unwrap(), QpState::ERR);
            assert!(a.is_idle());
            ids.sort_unstable();
            let expected: Vec<u64> = (0..sends).chain((0..receives).map(|id| 1000 + id)).collect();
            assert_eq!(ids, expected);
            // Again, when nothing is left.
            a.qp.drain(HANG, |completion| panic!("{completion:?}")).unwrap();
            drop(b);
        });
    }
}

#[test]
fn queue_pairs_that_share_the_completion_queue_lose_nothing() {
    for device in DEVICES {
        let (a, b) = pair(device);
        let prepare = || a.pd.create_qp().send_cq(&a.cq).recv_cq(&a.cq).build().unwrap();
        let other = prepare().handshake(prepare().endpoint()).unwrap();
        receive(&other, QueuePair::LAST_RECEIVE_ID);
        other.to_error().unwrap();
        receive(&a.qp, 7);
        let mut seen = Vec::new();
        a.qp.drain(HANG, |completion| seen.push((completion.qpn(), completion.wr_id()))).unwrap();
        seen.sort_unstable_by_key(|&(_, id)| id);
        assert_eq!(seen, [(a.qp.qpn(), 7), (other.qpn(), QueuePair::LAST_RECEIVE_ID)]);
        drop(b);
    }
}

#[test]
fn queues_that_hold_nothing_need_no_draining() {
    for device in DEVICES {
        let (a, _b) = pair_with(device, |builder| builder.max_recv_wr(0));
        a.qp.drain(HANG, |completion| panic!("{completion:?}")).unwrap();
    }
}

#[test]
fn draining_times_out_if_other_code_polls_the_completions() {
    for device in DEVICES {
        must_end(move || {
            let (pd, sends) = parts(device);
            let receives = CompletionQueue::create(pd.context(), 64).unwrap();
            let prepare = || pd.create_qp().send_cq(&sends).recv_cq(&receives).build().unwrap();
            let qp = prepare().handshake(prepare().endpoint()).unwrap();
            // SAFETY: SAFETY.md F8: no memory.
            unsafe { qp.post_send(SendWorkRequest::only_immediate(1), 1) }.unwrap();
            let short = Duration::from_millis(5);
            let begin = Instant::now();
            let mut slots = [PollSlot::default(); 16];
            // Both queues are flushed when the first completion of one is seen.
            let drained =
                qp.drain(short, |_| while receives.poll(&mut slots).unwrap().is_empty() {});
            let Err(Error::DrainTimedOut { qpn, timeout }) = drained else { panic!("{drained:?}") };
            assert_eq!((qpn, timeout), (qp.qpn(), short));
            assert!(begin.elapsed() >= short);
            qp.close().unwrap();
        });
    }
}
