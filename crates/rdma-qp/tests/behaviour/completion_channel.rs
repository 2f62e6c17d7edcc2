//! Sleeping until something completes: no lost wake-up, and no event left over.
#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{DEVICES, HANG, everything, forget, must_end, open};
use rdma_mem::{ObjectId, ProtectionDomain};
use rdma_qp::{
    CompletionChannel, CompletionQueue, Error, PollSlot, QueuePair, ReceiveWorkRequest,
    SendWorkRequest, prelude::*,
};

/// One end with receives that complete in a queue with a channel.
struct Sleeper {
    qp: QueuePair,
    cq: CompletionQueue,
}

/// Returns a sender, and a receiver of this domain and channel.
fn pair(pd: &ProtectionDomain, channel: &CompletionChannel) -> (QueuePair, Sleeper) {
    let cq = CompletionQueue::create_with_channel(channel, 64, 0).unwrap();
    let plain = CompletionQueue::create(pd.context(), 64).unwrap();
    let prepare = |cq| {
        pd.create_qp().send_cq(&plain).recv_cq(cq).max_recv_wr(32).access(everything()).build()
    };
    let (a, b) = (prepare(&plain).unwrap(), prepare(&cq).unwrap());
    let (a_end, b_end) = (a.endpoint(), b.endpoint());
    let (a, qp) = (a.handshake(b_end).unwrap(), b.handshake(a_end).unwrap());
    (a, Sleeper { qp, cq })
}

fn setup(device: &str) -> (ProtectionDomain, CompletionChannel) {
    let context = open(device);
    (context.allocate_pd().unwrap(), CompletionChannel::create(&context).unwrap())
}

/// Sends a message of 0 bytes and waits until the sender has its completion.
fn send(from: &QueuePair, to: &QueuePair, solicited: bool) {
    // SAFETY: SAFETY.md F8: no memory.
    unsafe { to.post_receive(ReceiveWorkRequest::only_immediate(), 1) }.unwrap();
    let request = SendWorkRequest::only_immediate(7);
    let request = if solicited { request.solicited() } else { request };
    // SAFETY: SAFETY.md F8: no memory.
    unsafe { from.post_send(request, 2) }.unwrap();
    let begin = Instant::now();
    while from.send_cq().poll(&mut [PollSlot::default()]).unwrap().is_empty() {
        assert!(begin.elapsed() < HANG, "nothing was sent");
    }
}

fn drain(cq: &CompletionQueue) -> usize {
    let mut slots = [PollSlot::default(); 16];
    let mut count = 0;
    loop {
        match cq.poll(&mut slots).unwrap().len() {
            0 => return count,
            more => count += more,
        }
    }
}

#[test]
fn no_wake_up_is_lost() {
    const ROUNDS: usize = 3000;
    for device in DEVICES {
        let (pd, channel) = setup(device);
        let (a, b) = pair(&pd, &channel);
        let (seen, wait_seen) = mpsc::channel();
        thread::scope(|threads| {
            let (from, to) = (&a, &b.qp);
            threads.spawn(move || {
                let mut total = 0;
                for round in 0..ROUNDS {
                    let burst = round % 3 + 1;
                    (0..burst).for_each(|_| send(from, to, false));
                    total += burst;
                    // The next round begins after this event was seen: a lost wake-up stops both
                    // threads.
                    while wait_seen.recv_timeout(HANG).unwrap() < total {}
                }
            });
            let total = (0..ROUNDS).map(|round| round % 3 + 1).sum();
            let mut count = 0;
            while count < total {
                let mut new = drain(&b.cq);
                if new == 0 {
                    b.cq.req_notify(false).unwrap();
                    new = drain(&b.cq);
                }
                if new == 0 {
                    let event = channel.get_event_timeout(HANG).unwrap();
                    assert_eq!(event, Some(b.cq.id()), "a wake-up was lost after {count}");
                    continue;
                }
                count += new;
                seen.send(count).unwrap();
            }
        });
    }
}

#[test]
fn an_event_comes_once_for_each_request() {
    for device in DEVICES {
        let (pd, channel) = setup(device);
        let (a, b) = pair(&pd, &channel);
        send(&a, &b.qp, false);
        assert_eq!(channel.try_get_event().unwrap(), None, "no request");
        b.cq.req_notify(false).unwrap();
        let begin = Instant::now();
        let short = Duration::from_millis(3);
        assert_eq!(channel.get_event_timeout(short).unwrap(), None, "it was there before");
        assert!(begin.elapsed() >= short);
        send(&a, &b.qp, false);
        send(&a, &b.qp, false);
        assert_eq!(channel.get_event().unwrap(), b.cq.id());
        assert_eq!(channel.try_get_event().unwrap(), None, "one for one request");
        assert!(channel.as_fd().try_clone_to_owned().is_ok());
    }
}

#[test]
fn solicited_events_come_for_solicited_and_for_failed_requests_only() {
    for device in DEVICES {
        let (pd, channel) = setup(device);
        let (a, b) = pair(&pd, &channel);
        b.cq.req_notify(true).unwrap();
        send(&a, &b.qp, false);
        assert_eq!(channel.try_get_event().unwrap(), None);
        send(&a, &b.qp, true);
        assert_eq!(channel.get_event().unwrap(), b.cq.id());
        b.cq.req_notify(true).unwrap();
        // SAFETY: SAFETY.md F8: no memory.
        unsafe { b.qp.post_receive(ReceiveWorkRequest::only_immediate(), 1) }.unwrap();
        b.qp.to_error().unwrap();
        assert_eq!(channel.get_event().unwrap(), b.cq.id());
    }
}

#[test]
fn events_name_their_queue() {
    for device in DEVICES {
        let (pd, channel) = setup(device);
        let pairs: Vec<_> = (0..8).map(|_| pair(&pd, &channel)).collect();
        for (_, b) in &pairs {
            assert!(b.cq.channel().unwrap().is_same(&channel));
            b.cq.req_notify(false).unwrap();
        }
        for n in [5, 0, 7, 3] {
            send(&pairs[n].0, &pairs[n].1.qp, false);
            assert_eq!(channel.get_event().unwrap(), pairs[n].1.cq.id());
        }
        for n in [6, 4, 2, 1] {
            send(&pairs[n].0, &pairs[n].1.qp, false);
        }
        // Two queues are destroyed before their events are taken: these events are dropped with
        // them.
        let ids: Vec<ObjectId> = pairs.iter().map(|(_, b)| b.cq.id()).collect();
        let kept: Vec<_> =
            pairs.into_iter().enumerate().filter(|(n, _)| ![4, 2].contains(n)).collect();
        assert_eq!(channel.get_event().unwrap(), ids[6]);
        assert_eq!(channel.get_event().unwrap(), ids[1]);
        assert_eq!(channel.try_get_event().unwrap(), None);
        drop(kept);
    }
}

#[test]
fn destroying_waits_for_no_event() {
    for device in DEVICES {
        must_end(move || {
            let (pd, channel) = setup(device);
            let (a, b) = pair(&pd, &channel);
            // More events than one batch of acknowledgements, and one that is never taken.
            for _ in 0..600 {
                b.cq.req_notify(false).unwrap();
                send(&a, &b.qp, false);
                assert_eq!(channel.get_event().unwrap(), b.cq.id());
                drain(&b.cq);
            }
            b.cq.req_notify(false).unwrap();
            send(&a, &b.qp, false);
            let (cq, error) = b.cq.close().unwrap_err();
            assert!(matches!(error, Error::StillUsed { .. }), "{error}");
            drop((a, b.qp));
            let (channel, error) = channel.close().unwrap_err();
            assert!(matches!(error, Error::StillUsed { .. }), "{error}");
            cq.close().unwrap();
            assert_eq!(channel.try_get_event().unwrap(), None);
            channel.close().unwrap();
        });
    }
}

#[test]
fn forgotten_handles_make_nothing_wait() {
    for device in DEVICES {
        must_end(move || {
            let (pd, channel) = setup(device);
            let (a, b) = pair(&pd, &channel);
            let (c, d) = pair(&pd, &channel);
            for (from, to) in [(&a, &b), (&c, &d)] {
                to.cq.req_notify(false).unwrap();
                send(from, &to.qp, false);
                let _ = channel.get_event().unwrap();
                to.cq.req_notify(false).unwrap();
                send(from, &to.qp, false);
            }
            forget(b.cq.clone());
            forget(channel.clone());
            forget(pd.context().async_events().unwrap());
            drop((a, b, c));
            drop(d.qp);
            d.cq.close().unwrap();
            drop((channel, pd));
        });
    }
}

#[test]
fn queues_come_and_go_while_another_thread_sleeps() {
    const ROUNDS: u32 = 200;
    for device in DEVICES {
        must_end(move || {
            let (pd, channel) = setup(device);
            let (stop, last) = pair(&pd, &channel);
            let sleeping = channel.clone();
            let id = last.cq.id();
            let sleeper = thread::spawn(move || {
                let mut count = 0;
                while sleeping.get_event().unwrap() != id {
                    count += 1;
                }
                count
            });
            for _ in 0..ROUNDS {
                let (a, b) = pair(&pd, &channel);
                b.cq.req_notify(false).unwrap();
                send(&a, &b.qp, false);
                drop((a, b)); // while the other thread takes the event, or has taken it
            }
            last.cq.req_notify(false).unwrap();
            send(&stop, &last.qp, false);
            assert!(sleeper.join().unwrap() <= ROUNDS);
        });
    }
}

#[test]
fn queues_without_a_channel_or_vector_refuse_events() {
    for device in DEVICES {
        let context = open(device);
        let cq = context.create_cq(4).unwrap();
        assert!(cq.channel().is_none());
        let error = cq.req_notify(false).unwrap_err();
        assert!(error.to_string().contains("create_with_channel"), "{error}");
        let channel = context.create_completion_channel().unwrap();
        assert!(channel.context().is_same(&context));
        let count = context.completion_vectors();
        let error = CompletionQueue::create_with_channel(&channel, 4, count).unwrap_err();
        assert_eq!(
            error.to_string(),
            "there is no completion vector 1: the context has 1, counted from 0"
        );
    }
}
