//! Many sleeps, one after the other: no wake-up is missed, and nothing accumulates.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use rdma_channel::{Armed, Channel, TransportError, Wait};
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::common::{Pair, must_end};
use crate::sleeping::{DEVICES, SECONDS, SLEEPING, pair};

const ROOM: ReceiveWorkRequest<'static, 'static> = ReceiveWorkRequest::only_immediate();

/// Sends and receives `rounds` numbers in turn. Each receive is posted before the peer may send.
fn play(channel: &mut Channel, serves: bool, rounds: u32, begin: &Barrier) {
    let played = channel.scope(|s| {
        let mut next = Some(s.post_receive(ROOM)?);
        begin.wait();
        for round in 0..rounds {
            let Some(received) = next.take() else { break };
            if round + 1 < rounds {
                next = Some(s.post_receive(ROOM)?);
            }
            let send = || s.post_send(SendWorkRequest::only_immediate(round));
            if serves {
                send()?.wait(SECONDS)?;
            }
            assert_eq!(received.wait(SECONDS)?.immediate_data(), Some(round));
            if !serves {
                send()?.wait(SECONDS)?;
            }
        }
        Ok::<(), TransportError>(())
    });
    played.unwrap();
}

fn ping_pong(device: &'static str, wait: Wait, rounds: u32) {
    let Pair { mut here, mut there, .. } = pair(device, wait);
    let begin = Arc::new(Barrier::new(2));
    let peer = thread::spawn({
        let begin = Arc::clone(&begin);
        move || {
            play(&mut there, false, rounds, &begin);
            there.close().unwrap();
        }
    });
    play(&mut here, true, rounds, &begin);
    peer.join().unwrap();
    here.close().unwrap();
}

#[test]
fn none_of_ten_thousand_round_trips_is_slept_over() {
    for device in DEVICES {
        ping_pong(device, Wait::Sleep, 10_000);
    }
}

#[test]
fn round_trips_also_wake_a_channel_that_polls_first() {
    for device in DEVICES {
        ping_pong(device, Wait::SpinThenSleep, 2_000);
    }
}

/// Each request makes an event, and no thread sleeps on it.
#[test]
fn unused_events_do_not_accumulate() {
    for device in DEVICES {
        for wait in SLEEPING {
            must_end(move || {
                let mut pair = pair(device, wait);
                let remote = pair.board.remote().slice(0..8).unwrap();
                let mut sleeps = 0;
                pair.here
                    .scope(|s| {
                        for _ in 0..3000 {
                            let write =
                                s.post_write(rdma_qp::WriteWorkRequest::new(&[], remote))?;
                            sleeps += u32::from(s.arm()? == Armed::Sleep);
                            write.wait(SECONDS)?;
                        }
                        let file = s.waitable().unwrap();
                        let mut files = [PollFd::new(&file, PollFlags::IN)];
                        let mut is_readable = || {
                            let readable = poll(&mut files, Some(&Timespec::default()));
                            readable.unwrap() == 1
                        };
                        // An event that a thread of the device was about to report when the write was found completed
                        // arrives late.
                        let mut late = 0;
                        while s.arm()? == Armed::Ready || is_readable() {
                            late += 1;
                        }
                        assert!(late < 10, "{late} of 3000 are left");
                        let received = s.post_receive(ROOM)?;
                        received.wait(Duration::from_millis(20)).unwrap_err();
                        s.close();
                        Ok::<(), TransportError>(())
                    })
                    .unwrap();
                pair.here.close().unwrap();
            });
        }
    }
}
