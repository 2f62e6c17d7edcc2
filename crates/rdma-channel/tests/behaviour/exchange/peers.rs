//! Peers that close the stream, stall, or do not read.

use std::io::{self, ErrorKind, PipeReader, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rdma_channel::{
    ExchangeError, Pipes, QueuePairEndpoint, TimedStream, confirm, exchange, exchange_all,
};

use crate::exchange::{LATER, MESSAGE, SOON, endpoint, endpoints, message};

type Outcome = Result<QueuePairEndpoint, ExchangeError>;

#[test]
fn a_peer_that_closes_early_is_an_error_with_how_much_came() {
    for count in 0..MESSAGE {
        let (here, mut there) = UnixStream::pair().unwrap();
        there.write_all(&message(&[endpoint(0x21)])[..count]).unwrap();
        there.shutdown(Shutdown::Write).unwrap();
        match exchange(here, &endpoint(0x11), LATER) {
            Err(ExchangeError::Closed { sent: MESSAGE, received, expected: MESSAGE }) => {
                assert_eq!(received, count);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_peer_that_is_gone_is_an_error_at_once() {
    let begin = Instant::now();
    let closed = |outcome: Outcome| match outcome {
        Err(ExchangeError::Closed { received: 0, .. }) => {}
        other => panic!("{other:?}"),
    };
    let (here, _) = UnixStream::pair().unwrap();
    closed(exchange(here, &endpoint(0x11), LATER));

    // The stream is reset, before this end sends or while it waits: the peer has not read the message.
    for reset_first in [true, false] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let there = listener.accept().unwrap().0;
        let peer = thread::spawn(move || {
            there.peek(&mut [0]).unwrap();
        });
        if reset_first {
            (&here).write_all(b"unread bytes").unwrap();
            peer.join().unwrap();
            closed(exchange(here, &endpoint(0x11), LATER));
        } else {
            closed(exchange(here, &endpoint(0x11), LATER));
            peer.join().unwrap();
        }
    }

    // It does not read, but bytes that it sends could still arrive.
    let ((here, _open), to_peer) = (io::pipe().unwrap(), io::pipe().unwrap().1);
    closed(exchange(Pipes::new(here, to_peer), &endpoint(0x11), LATER));
    assert!(begin.elapsed() < LATER / 2);
}

#[test]
fn bytes_that_a_peer_sent_before_it_closed_give_the_better_error() {
    let (here, mut said) = io::pipe().unwrap();
    let to_peer = io::pipe().unwrap().1;
    said.write_all(b"too many connections\n").unwrap();
    match exchange(Pipes::new(here, to_peer), &endpoint(0x11), LATER) {
        Err(ExchangeError::Foreign { received, .. }) => {
            assert_eq!(received, b"too many connections\n");
        }
        other => panic!("{other:?}"),
    }
    // A complete message does not compensate for a peer that never received this end's.
    let (here, mut said) = io::pipe().unwrap();
    let to_peer = io::pipe().unwrap().1;
    said.write_all(&message(&[endpoint(0x21)])).unwrap();
    match exchange(Pipes::new(here, to_peer), &endpoint(0x11), LATER) {
        Err(ExchangeError::Closed { sent: 0, .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_peer_that_stalls_is_an_error_in_time() {
    for count in [0, 3, 7, 8, MESSAGE - 1] {
        let (here, mut there) = UnixStream::pair().unwrap();
        there.write_all(&message(&[endpoint(0x21)])[..count]).unwrap();
        let begin = Instant::now();
        match exchange(here, &endpoint(0x11), SOON) {
            Err(error @ ExchangeError::Timeout { timeout: SOON, sent: MESSAGE, received, .. }) => {
                assert_eq!(received, count);
                let text = error.to_string();
                assert!(text.contains(&format!("after 200ms, {count} of 352 bytes")), "{text}");
            }
            other => panic!("{other:?}"),
        }
        assert!((SOON..LATER).contains(&begin.elapsed()));
    }
}

/// At this rate, 304 bytes would take half a minute.
#[test]
fn a_peer_that_sends_a_byte_now_and_then_does_not_move_the_deadline() {
    let (here, mut there) = UnixStream::pair().unwrap();
    let (done, over) = mpsc::channel::<()>();
    let pause = SOON / 2;
    let peer = thread::spawn(move || {
        let mut bytes = message(&[endpoint(0x21)]).into_iter();
        while over.recv_timeout(pause) == Err(mpsc::RecvTimeoutError::Timeout) {
            there.write_all(&[bytes.next().unwrap()]).unwrap();
        }
    });
    let begin = Instant::now();
    let outcome = exchange(&here, &endpoint(0x11), SOON);
    let time = begin.elapsed();
    drop(done);
    peer.join().unwrap();
    assert!(matches!(outcome, Err(ExchangeError::Timeout { .. })), "{outcome:?}");
    assert!(time < Duration::from_secs(20), "{time:?}");
}

/// Checks an end that sends more than the stream can buffer to a peer that only sends.
fn unheard(here: impl TimedStream, mut there: impl io::Write + Send + 'static) {
    let peer = thread::spawn(move || there.write_all(&message(&endpoints(0x2000, 5000))));
    let begin = Instant::now();
    match exchange_all(here, &endpoints(0x11, 5000), SOON) {
        Err(ExchangeError::Timeout { sent, expected, .. }) => assert!(sent < expected),
        other => panic!("{other:?}"),
    }
    assert!((SOON..LATER).contains(&begin.elapsed()));
    drop(peer.join().unwrap()); // its stream was closed: it may have failed
}

#[test]
fn a_peer_that_does_not_read_is_an_error_in_time() {
    let (here, there) = UnixStream::pair().unwrap();
    unheard(here, there);
    let ((here, there), (_open, to_peer)) = (io::pipe().unwrap(), io::pipe().unwrap());
    unheard(Pipes::new(here, to_peer), there);

    let full = || -> (PipeReader, _) {
        let (reader, writer) = io::pipe().unwrap();
        rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
        (&writer).write_all(&[0; 4096]).unwrap();
        (reader, writer)
    };
    let ((here, _said), (_open, to_peer)) = (io::pipe().unwrap(), full());
    match exchange(Pipes::new(here, to_peer), &endpoint(0x11), SOON) {
        Err(ExchangeError::Timeout { sent: 0, received: 0, .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_peer_that_echoes_is_refused() {
    let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let pipes = Pipes::new(cat.stdout.take().unwrap(), cat.stdin.take().unwrap());
    let outcome = exchange(pipes, &endpoint(0x11), LATER);
    assert!(cat.wait().unwrap().success());
    let error = outcome.unwrap_err();
    assert!(matches!(error, ExchangeError::Echo { index: 0 }), "{error:?}");
    assert!(error.to_string().contains("echoes what it receives"), "{error}");

    let (reader, writer) = io::pipe().unwrap();
    let outcome = exchange(Pipes::new(reader, writer), &endpoint(0x11), LATER);
    assert!(matches!(outcome, Err(ExchangeError::Echo { index: 0 })), "{outcome:?}");
}

#[test]
fn a_confirmation_waits_for_the_peer() {
    let (here, there) = UnixStream::pair().unwrap();
    match confirm(&here, SOON) {
        Err(ExchangeError::Timeout { sent: 8, received: 0, expected: 8, .. }) => {}
        other => panic!("{other:?}"),
    }
    confirm(&there, LATER).unwrap(); // this end has sent its confirmation
    let (here, there) = UnixStream::pair().unwrap();
    drop(there);
    let outcome = confirm(here, LATER);
    assert!(matches!(outcome, Err(ExchangeError::Closed { .. })), "{outcome:?}");
}

/// A stream with its own kinds of errors.
struct Broken(fn() -> io::Result<usize>);

impl TimedStream for Broken {
    fn read_within(&mut self, _: &mut [u8], _: Duration) -> io::Result<usize> {
        (self.0)()
    }

    fn write_within(&mut self, bytes: &[u8], _: Duration) -> io::Result<usize> {
        Ok(bytes.len())
    }
}

#[test]
fn other_errors_of_a_stream_are_returned() {
    let outcome = |read| exchange(Broken(read), &endpoint(0x11), SOON).unwrap_err();
    let other = outcome(|| Err(ErrorKind::HostUnreachable.into()));
    match other {
        ExchangeError::Io(error) => assert_eq!(error.kind(), ErrorKind::HostUnreachable),
        other => panic!("{other:?}"),
    }
    let interrupted = outcome(|| Err(ErrorKind::Interrupted.into()));
    assert!(matches!(interrupted, ExchangeError::Timeout { .. }), "{interrupted:?}");
    let more_than_there_was_room_for = outcome(|| Ok(usize::MAX));
    let is_read = matches!(more_than_there_was_room_for, ExchangeError::Foreign { .. });
    assert!(is_read, "{more_than_there_was_room_for:?}");
}
