//! The end of the peer's end of the stream: every wait is notified, and returns its memory.

use std::thread;
use std::time::Duration;

use rdma_channel::{CloseReason, Operation, ScopeError, TransportError, Wait};
use rdma_qp::{ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest};
use rdma_soft::SoftDevice;

use crate::common::provider::{UNTIL_QUERY, faulty, honest};
use crate::common::{HELD, in_flight, must_end, open};
use crate::watch::{ROOM, SHORTLY, Watched, assert_gone, each, ends_shortly, unix};

#[test]
fn a_blocking_receive_ends_with_the_peer() {
    each(|wait, ends| {
        must_end(move || {
            let Watched { mut here, there: _there, end, .. } = Watched::new("soft0", wait, ends);
            let ending = ends_shortly(end);
            let gone = here.receive(ROOM).unwrap_err();
            assert_gone(&gone, Operation::Receive, &here);
            ending.join().unwrap();
            let again = here.send(SendWorkRequest::only_immediate(1)).unwrap_err();
            assert!(again.to_string().contains("ended without disconnecting"), "{again}");
        });
    });
}

/// Messages that the peer sent before its end are received first.
#[test]
fn earlier_messages_are_received_first() {
    each(|wait, ends| {
        must_end(move || {
            let watched = Watched::new("soft0", wait, ends);
            let Watched { mut here, mut there, end, .. } = watched;
            let peer = thread::spawn(move || {
                thread::sleep(SHORTLY);
                for number in 0..3 {
                    there.send(SendWorkRequest::only_immediate(number)).unwrap();
                }
                drop((there, end));
            });
            for number in 0..3 {
                assert_eq!(here.receive(ROOM).unwrap().immediate_data(), Some(number));
            }
            let gone = here.receive(ROOM).unwrap_err();
            assert_gone(&gone, Operation::Receive, &here);
            peer.join().unwrap();
        });
    });
}

/// The peer knows that its message has arrived, but polls here do not find the completion until the device is queried.
#[test]
fn a_message_whose_completion_is_late_is_received_before_the_end() {
    each(|wait, ends| {
        must_end(move || {
            let watched = Watched::on(&faulty("soft0"), &open("soft0"), wait, ends);
            let Watched { mut here, mut there, end, .. } = watched;
            let received = here.scope(|s| {
                let receive = s.post_receive(ROOM)?;
                there.send(SendWorkRequest::only_immediate(7))?;
                drop(end);
                UNTIL_QUERY.set(true);
                receive.wait(Duration::MAX)
            });
            assert_eq!(received.unwrap().immediate_data(), Some(7));
            let gone = here.receive(ROOM).unwrap_err();
            assert_gone(&gone, Operation::Receive, &here);
            honest();
        });
    });
}

/// Each handle reports it, except for operations that had completed. Then the scope, which has no limit, ends at once.
#[test]
fn handles_of_a_scope_report_the_end_of_the_peer() {
    each(|wait, ends| {
        must_end(move || {
            let watched = Watched::new("soft0", wait, ends);
            let (mut rented, mut borrowed) = (watched.memory(), watched.memory());
            let mut slice = borrowed.as_slice_mut();
            let Watched { mut here, mut there, end, .. } = watched;
            let ended = here.scope(|s| {
                let done = s.post_receive(ROOM)?;
                let rented = s.receive_into(rented.as_slice_mut())?;
                let mut list = [slice.scatter_element()];
                let plain = s.post_receive(ReceiveWorkRequest::new(&mut list))?;
                there.send(SendWorkRequest::only_immediate(4))?;
                let ending = ends_shortly(end);
                let late = rented.done(Duration::MAX).map(drop).unwrap_err();
                assert!(matches!(late, TransportError::PeerGone { .. }), "{late}");
                let late = plain.wait(Duration::MAX).unwrap_err();
                assert!(matches!(late, TransportError::PeerGone { .. }), "{late}");
                assert_eq!(done.wait(Duration::MAX)?.immediate_data(), Some(4));
                let refused = s.post_receive(ROOM).unwrap_err();
                assert!(
                    matches!(refused, TransportError::Closed { reason: CloseReason::Died, .. }),
                    "{refused}"
                );
                ending.join().unwrap();
                Err::<(), _>(late)
            });
            assert_gone(
                &ended.map_err(ScopeError::flatten).unwrap_err(),
                Operation::Receive,
                &here,
            );
            rented.close().unwrap();
            borrowed.close().unwrap();
        });
    });
}

/// The end of a scope has no limit here.
#[test]
fn the_end_of_a_scope_fails_for_requests_in_flight() {
    each(|wait, ends| {
        must_end(move || {
            let watched = Watched::new("soft0", wait, ends);
            let mut memory = watched.memory();
            let Watched { mut here, there: _there, end, .. } = watched;
            let ending = ends_shortly(end);
            let ended = here.scope(|s| s.receive_into(memory.as_slice_mut()).map(drop));
            let Err(ScopeError::AutoPollError(errors)) = ended else { panic!("{ended:?}") };
            let reason = CloseReason::Died;
            assert!(
                matches!(errors[0].error, TransportError::Closed { reason: why, .. } if why == reason)
            );
            assert_eq!((errors.len(), here.closed()), (1, Some(reason)));
            ending.join().unwrap();
            memory.close().unwrap();
        });
    });
}

/// Sends that are never received fill the queue.
#[test]
fn a_post_that_waits_for_a_slot_ends_with_the_peer() {
    each(|wait, ends| {
        must_end(move || {
            let Watched { mut here, there: _there, end, .. } = Watched::new("soft0", wait, ends);
            let ending = ends_shortly(end);
            let ended = here.scope(|s| {
                for number in 0..3 {
                    drop(s.post_send(SendWorkRequest::only_immediate(number))?);
                }
                Ok::<_, TransportError>(())
            });
            assert_gone(&ended.map_err(ScopeError::flatten).unwrap_err(), Operation::Send, &here);
            ending.join().unwrap();
        });
    });
}

#[test]
fn a_batch_ends_with_the_peer() {
    each(|wait, ends| {
        must_end(move || {
            let watched = Watched::new("soft0", wait, ends);
            let Watched { mut here, there: _there, end, .. } = watched;
            let ending = ends_shortly(end);
            let sends = [1, 2].map(|number| SendWorkRequest::only_immediate(number).into());
            let gone = here.batch(sends).map(drop).unwrap_err();
            assert_gone(&gone, Operation::Send, &here);
            ending.join().unwrap();
        });
    });
}

/// The device holds the requests until the queue pair releases them, and writes nothing afterwards.
#[test]
fn memory_is_returned_after_the_device_has_released_it() {
    for wait in [Wait::Spin, Wait::Sleep] {
        let watched = Watched::new(HELD, wait, unix());
        let (mut memory, remote) = (watched.memory(), watched.board.remote());
        let Watched { mut here, there: _there, end, board, .. } = watched;
        board.write(0, &[7; 64]).unwrap();
        drop(end);
        let device = SoftDevice::find(HELD).unwrap();
        let mut list = rdma_mem::ScatterList::from([memory.as_slice_mut()]);
        let gone = here.read(ReadWorkRequest::from_list(&mut list, remote)).unwrap_err();
        assert_gone(&gone, Operation::Read, &here);
        assert_eq!(in_flight(device, &here), 0, "requests are still in flight");
        assert_eq!(here.qpn().map_or(0, |qpn| device.release(qpn, u32::MAX)), 0);
        assert_eq!(*memory, [0; 64]);
    }
}
