//! Event loops of a program over several channels.
#![allow(unsafe_code)]

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::thread;

use rdma_channel::{
    Armed, CloseReason, PeerReceiveWorkRequest, ScopeError, ScopedPendingWork, TransportError,
    Wait, prelude::*,
};
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use test_support::rig::until;

use crate::common::provider::{POLL, faulty, honest};
use crate::common::{Pair, must_end, open};
use crate::sleeping::{DEVICES, MODES, SECONDS, SLEEPING, each, pair, sends_shortly};

const ROOM: ReceiveWorkRequest<'static, 'static> = ReceiveWorkRequest::only_immediate();

fn is_readable(file: impl std::os::fd::AsFd) -> bool {
    let mut files = [PollFd::new(&file, PollFlags::IN)];
    poll(&mut files, Some(&Timespec::default())).unwrap() == 1
}

/// The loop also serves the channel that spins; then it does not sleep.
#[test]
fn a_loop_over_two_channels_and_a_stream_sees_all() {
    for device in DEVICES {
        for modes in [[Wait::Sleep, Wait::SpinThenSleep], [Wait::Sleep, Wait::Spin]] {
            must_end(move || {
                let [mut one, mut two] = modes.map(|wait| pair(device, wait));
                let (end, mut far_end) = UnixStream::pair().unwrap();
                let mut peers = [one.there, two.there];
                let sending = thread::spawn(move || {
                    for number in 0..40 {
                        thread::yield_now();
                        let peer = &mut peers[number as usize % 2];
                        peer.send(SendWorkRequest::only_immediate(number)).unwrap();
                    }
                    far_end.write_all(&[1]).unwrap();
                    (peers, far_end)
                });
                let mut seen = Vec::new();
                let outcome = one.here.scope(|a| {
                    two.here.scope(|b| {
                        let mut rooms = [Vec::new(), Vec::new()];
                        for _ in 0..10 {
                            rooms[0].push(a.post_receive(ROOM)?);
                            rooms[1].push(b.post_receive(ROOM)?);
                        }
                        let mut posted = 10;
                        loop {
                            let before = seen.len();
                            for room in &mut rooms {
                                take(room, &mut seen)?;
                            }
                            while posted < 20 && rooms.iter().all(|room| room.len() < 16) {
                                rooms[0].push(a.post_receive(ROOM)?);
                                rooms[1].push(b.post_receive(ROOM)?);
                                posted += 1;
                            }
                            if seen.len() == 40 && is_readable(&end) {
                                return Ok::<(), TransportError>(());
                            }
                            let armed = [a.arm()?, b.arm()?];
                            let (Some(a), Some(b)) = (a.waitable(), b.waitable()) else {
                                assert_eq!(
                                    (armed[1], b.waitable().is_some()),
                                    (Armed::Ready, false)
                                );
                                continue;
                            };
                            if armed == [Armed::Sleep; 2] && !is_readable(&end) {
                                let mut files = [
                                    PollFd::new(&a, PollFlags::IN),
                                    PollFd::new(&b, PollFlags::IN),
                                    PollFd::new(&end, PollFlags::IN),
                                ];
                                let limit = Timespec::try_from(SECONDS).unwrap();
                                let woken = poll(&mut files, Some(&limit)).unwrap();
                                assert!(woken > 0, "slept over a completion, after {before}");
                            }
                        }
                    })
                });
                outcome.unwrap();
                sending.join().unwrap();
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..40));
            });
        }
    }
}

/// Receives the numbers that have arrived, in order.
fn take(rooms: &mut Vec<ScopedPendingWork<'_>>, seen: &mut Vec<u32>) -> Result<(), TransportError> {
    while let Some(first) = rooms.first()
        && let Some(received) = first.poll()
    {
        seen.extend(received?.immediate_data());
        rooms.remove(0);
    }
    Ok(())
}

#[test]
fn earlier_completions_are_ready_once_and_later_ones_wake() {
    for device in DEVICES {
        for wait in SLEEPING {
            must_end(move || {
                let Pair { mut here, mut there, .. } = pair(device, wait);
                here.scope(|s| {
                    assert_eq!(s.arm()?, Armed::Sleep, "nothing is in flight");
                    let (first, second) = (s.post_receive(ROOM)?, s.post_receive(ROOM)?);
                    assert_eq!(s.arm()?, Armed::Sleep);
                    let file = s.waitable().unwrap();
                    assert!(!is_readable(file));
                    there.send(SendWorkRequest::only_immediate(1))?;
                    until("an event", || is_readable(file));
                    assert_eq!(s.arm()?, Armed::Ready);
                    assert_eq!(s.arm()?, Armed::Sleep, "it was reported before");
                    assert_eq!(first.poll().unwrap()?.immediate_data(), Some(1));
                    assert_eq!(s.arm()?, Armed::Sleep);
                    there.send(SendWorkRequest::only_immediate(2))?;
                    until("an event", || is_readable(file));
                    assert_eq!(second.wait(SECONDS)?.immediate_data(), Some(2));
                    assert_eq!(s.arm()?, Armed::Sleep);
                    assert!(!is_readable(file), "its event was received");
                    Ok::<(), ScopeError>(())
                })
                .unwrap();
                assert_eq!(here.closed(), None);
            });
        }
    }
}

/// Its handle was polled before, and is not polled again before the sleep.
#[test]
fn a_completion_found_by_another_handle_is_ready() {
    for device in DEVICES {
        must_end(move || {
            let Pair { mut here, mut there, .. } = pair(device, Wait::Sleep);
            here.scope(|s| {
                let (first, second) = (s.post_receive(ROOM)?, s.post_receive(ROOM)?);
                assert!(first.poll().is_none());
                there.send(SendWorkRequest::only_immediate(1))?;
                assert!(second.poll().is_none());
                assert_eq!(s.arm()?, Armed::Ready, "it would be slept over");
                assert_eq!(first.poll().unwrap()?.immediate_data(), Some(1));
                there.send(SendWorkRequest::only_immediate(2))?;
                second.wait(SECONDS).map(drop)?;
                Ok::<(), ScopeError>(())
            })
            .unwrap();
        });
    }
}

/// It does not prevent sleep.
#[test]
fn a_handle_that_is_forgotten_or_dropped_is_ready_once() {
    for device in DEVICES {
        must_end(move || {
            let Pair { mut here, mut there, .. } = pair(device, Wait::Sleep);
            here.scope(|s| {
                drop(s.post_receive(ROOM)?);
                #[allow(clippy::mem_forget)] // the subject of this test
                std::mem::forget(s.post_receive(ROOM)?);
                for number in 0..2 {
                    there.send(SendWorkRequest::only_immediate(number))?;
                    assert_eq!(s.arm()?, Armed::Ready);
                    assert_eq!(s.arm()?, Armed::Sleep);
                }
                Ok::<(), ScopeError>(())
            })
            .unwrap();
        });
    }
}

#[test]
fn a_spinning_channel_is_always_ready() {
    for device in DEVICES {
        let mut pair = pair(device, Wait::Spin);
        pair.here
            .scope(|s| {
                for _ in 0..3 {
                    assert_eq!(s.arm()?, Armed::Ready);
                }
                Ok::<(), TransportError>(())
            })
            .unwrap();
        assert_eq!(pair.here.arm().unwrap(), Armed::Ready);
    }
}

#[test]
fn unpolled_operations_and_several_peers_wake_too() {
    each(|device, wait| {
        must_end(move || {
            let Pair { here, there, .. } = pair(device, wait);
            // SAFETY: SAFETY.md F8: the request has no memory.
            let received = unsafe { here.receive_unpolled(ROOM) }.unwrap();
            let sender = sends_shortly(there, 9);
            while here.arm().unwrap() == Armed::Sleep {
                sleep_on(here.waitable());
            }
            assert_eq!(received.wait(SECONDS).unwrap().immediate_data(), Some(9));
            sender.join().unwrap();

            let pd = open(device).allocate_pd().unwrap();
            let center = pd.create_multi_channel().num_channels(2).wait(wait).build().unwrap();
            let ends = center.endpoints();
            let mut center = center.handshake(ends).unwrap(); // each to itself
            let number = center.scope(|s| {
                let received = s.post_receive(PeerReceiveWorkRequest::only_immediate(1))?;
                s.to(1)?.post_send(SendWorkRequest::only_immediate(3))?;
                loop {
                    if let Some(done) = received.poll() {
                        return Ok::<_, TransportError>(done?.immediate_data());
                    }
                    if s.arm()? == Armed::Sleep {
                        sleep_on(s.waitable());
                    }
                }
            });
            assert_eq!(number.unwrap(), Some(3));
            while wait != Wait::Spin && center.arm().unwrap() == Armed::Ready {}
            assert_eq!(center.waitable().is_none(), wait == Wait::Spin);
        });
    });
}

fn sleep_on(file: Option<rdma_channel::Waitable<'_>>) {
    let file = file.unwrap();
    let limit = Timespec::try_from(SECONDS).unwrap();
    assert_eq!(poll(&mut [PollFd::new(&file, PollFlags::IN)], Some(&limit)), Ok(1), "slept over");
}

/// Flushes are completions, and wake a sleeping thread.
#[test]
fn the_end_of_a_connection_wakes_an_event_loop() {
    for device in DEVICES {
        must_end(move || {
            let Pair { mut here, .. } = pair(device, Wait::Sleep);
            here.scope(|s| {
                let received = s.post_receive(ROOM)?;
                assert_eq!(s.arm()?, Armed::Sleep);
                s.close();
                sleep_on(s.waitable());
                assert!(received.poll().unwrap().is_err());
                Ok::<(), TransportError>(())
            })
            .unwrap();
            assert_eq!(here.closed(), Some(CloseReason::Asked));
        });
    }
}

#[test]
fn arming_a_failed_queue_is_an_error() {
    for wait in MODES {
        must_end(move || {
            let context = faulty("soft0");
            let mut pair = Pair::on(&context, |builder| builder.wait(wait));
            let outcome = pair.here.scope(|s| {
                s.post_receive(ROOM)?;
                POLL.set(Some(-1));
                let armed = s.arm();
                honest();
                armed
            });
            assert!(
                matches!(outcome, Err(ScopeError::ClosureError(TransportError::PollError(_)))),
                "{outcome:?}"
            );
            assert_eq!(pair.here.closed(), Some(CloseReason::Poll));
        });
    }
}
