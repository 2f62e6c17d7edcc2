//! The stream of the rendezvous: both ends keep it if one of them watches.

use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use rdma_channel::{
    Armed, Channel, CloseReason, ConnectError, Operation, ScopeError, TransportError, Wait,
    prelude::*,
};
use rdma_qp::SendWorkRequest;
use rustix::event::{PollFd, PollFlags, poll};

use crate::common::{must_end, open};
use crate::watch::{LIMIT, MODES, ROOM, assert_gone_by};

/// A client and its server; the flags select which of them watch.
fn connected(wait: Wait, [client, server]: [bool; 2]) -> [Channel; 2] {
    let pd = open("soft0").allocate_pd().unwrap();
    let builder = |watches| {
        let builder = pd.create_channel().wait(wait).user_bytes(b"");
        if watches { builder.watch(LIMIT) } else { builder.watch_nothing() }
    };
    let mut listener = builder(server).listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr();
    thread::scope(|threads| {
        let client = threads.spawn(|| builder(client).connect(address).unwrap().0);
        let server = listener.accept().unwrap();
        [client.join().unwrap(), server]
    })
}

#[test]
fn a_watching_end_is_notified_and_the_other_keeps_its_stream() {
    for wait in MODES {
        for watches in [[true, false], [false, true], [true, true]] {
            must_end(move || {
                let mut ends = connected(wait, watches);
                if !watches[0] {
                    ends.reverse();
                }
                let [mut here, mut there] = ends;
                // The stream exists as long as the other channel.
                let late = here.scope(|s| {
                    let received = s.post_receive(ROOM)?;
                    let late = received.wait(Duration::from_millis(20)).unwrap_err();
                    there.send(SendWorkRequest::only_immediate(3))?;
                    assert_eq!(received.wait(LIMIT)?.immediate_data(), Some(3));
                    Ok::<_, TransportError>(late)
                });
                let late = late.unwrap();
                assert!(matches!(late, TransportError::Timeout { .. }), "{late}");
                drop(there);
                let gone = here.receive(ROOM).unwrap_err();
                assert_gone_by(&gone, Operation::Receive, CloseReason::Disconnected, &here);
            });
        }
    }
}

#[test]
fn an_end_that_does_not_watch_is_not_notified() {
    for watches in [[false, false], [false, true]] {
        let [mut here, there] = connected(Wait::default(), watches);
        drop(there);
        let late = here.within(Duration::from_millis(50)).receive(ROOM).unwrap_err();
        assert!(matches!(late, TransportError::Timeout { .. }), "{late}");
    }
}

#[test]
fn both_ends_watch_by_default() {
    let pd = open("soft0").allocate_pd().unwrap();
    let mut listener = pd.create_channel().listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr();
    for is_client in [true, false] {
        let ends = thread::scope(|threads| {
            let client = threads.spawn(|| Channel::connect(address, &pd).unwrap());
            let server = listener.accept().unwrap();
            [client.join().unwrap(), server]
        });
        must_end(move || {
            let [client, server] = ends;
            let (mut here, there) = if is_client { (client, server) } else { (server, client) };
            drop(there);
            let gone = here.receive(ROOM).unwrap_err();
            assert_gone_by(&gone, Operation::Receive, CloseReason::Disconnected, &here);
        });
    }
}

/// A forked child has such a copy of the descriptor.
#[test]
fn a_copy_of_the_stream_does_not_keep_the_peer_waiting() {
    must_end(|| {
        let [mut here, there] = connected(Wait::default(), [true, true]);
        let _copy = there.watched_stream().unwrap().try_clone_to_owned().unwrap();
        drop(there);
        let gone = here.receive(ROOM).unwrap_err();
        assert_gone_by(&gone, Operation::Receive, CloseReason::Disconnected, &here);
    });
}

#[test]
fn the_watched_stream_wakes_the_programs_own_loop() {
    must_end(|| {
        let [mut here, there] = connected(Wait::Sleep, [true, false]);
        assert!(there.watched_stream().is_none(), "it only keeps the stream");
        let ended = here.scope(|s| {
            let receive = s.post_receive(ROOM)?;
            assert_eq!(s.arm()?, Armed::Sleep);
            drop(there);
            let (completions, stream) = (s.waitable().unwrap(), s.watched_stream().unwrap());
            let mut files =
                [PollFd::new(&completions, PollFlags::IN), PollFd::new(&stream, PollFlags::RDHUP)];
            assert_eq!(poll(&mut files, None), Ok(1));
            assert!(files[1].revents().contains(PollFlags::RDHUP));
            receive.wait(Duration::MAX)
        });
        let gone = ended.map_err(ScopeError::flatten).unwrap_err();
        assert_gone_by(&gone, Operation::Receive, CloseReason::Disconnected, &here);
    });
}

#[test]
fn a_stream_of_the_program_has_no_effect_on_a_rendezvous() {
    let pd = open("soft0").allocate_pd().unwrap();
    let mut listener = pd.create_channel().listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr();
    let (stream, _end) = UnixStream::pair().unwrap();
    thread::scope(|threads| {
        let client = threads.spawn(|| {
            let builder = pd.create_channel().watch_stream(stream, LIMIT);
            builder.watch_nothing().connect(address).unwrap().0
        });
        let _server = listener.accept().unwrap();
        assert!(client.join().unwrap().watched_stream().is_none());
    });
}

/// Either end can read it, if one of them watches.
#[test]
fn the_reason_of_a_disconnection_is_read_by_the_end_that_watches() {
    for wait in MODES {
        for reason in [&b""[..], &[7; 64]] {
            must_end(move || {
                let [mut here, there] = connected(wait, [true, false]);
                assert_eq!(here.disconnect_reason(), None);
                there.disconnect_with(reason).unwrap();
                let gone = here.receive(ROOM).unwrap_err();
                assert_gone_by(&gone, Operation::Receive, CloseReason::Disconnected, &here);
                assert_eq!(here.disconnect_reason().as_deref(), Some(reason));
            });
        }
    }
}

#[test]
fn a_reason_that_is_too_long_is_refused() {
    let [_here, there] = connected(Wait::default(), [true, false]);
    let refused = there.disconnect_with(&[7; 65]).unwrap_err();
    assert!(matches!(refused, ConnectError::ReasonTooLong { length: 65 }), "{refused}");
}
