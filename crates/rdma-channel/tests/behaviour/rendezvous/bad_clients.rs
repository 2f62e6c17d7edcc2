//! Misbehaving clients, each next to a valid one that is accepted.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rdma_channel::{ChannelListener, ConnectError, prelude::*};

use crate::rendezvous::{
    HELLO, LATER, LOCALHOST, PREFACE, READY, SILENCE, SOON, WITH_ENDPOINT, assert_connected,
    assert_serves, await_refused, client, domain, hello, listener, preface, reason, rest,
};

/// Connects and sends these bytes.
fn says(to: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.write_all(bytes).unwrap();
    stream
}

/// Checks that a valid client is accepted next to one that sends these bytes, which is refused.
fn refused(listener: &mut ChannelListener, bytes: &[u8]) -> TcpStream {
    let before = listener.refused();
    let bad = says(listener.local_addr(), bytes);
    assert_serves(listener, "soft0");
    await_refused(listener, before + 1);
    bad
}

#[test]
fn garbage_is_refused_silently() {
    let mut listener = listener("soft0");
    for garbage in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), b"x", b"RDEX\0\x02\0\x01", &[0; 3000]] {
        let bad = refused(&mut listener, garbage);
        assert!(rest(&bad).is_empty());
    }
}

#[test]
fn a_client_of_another_version_receives_both_versions() {
    let mut listener = listener("soft0");
    let mut newer = hello(b"");
    newer[5] = 3;
    let why = reason(&refused(&mut listener, &newer));
    assert!(why.contains("version 3") && why.contains("the server has 2"), "{why}");
    // The reason arrives, however much the client sends.
    newer.resize(5000, 7);
    let why = reason(&refused(&mut listener, &newer));
    assert!(why.contains("same version"), "{why}");
}

#[test]
fn a_client_with_a_wrong_message_receives_the_reason() {
    let mut listener = listener("soft0");
    let mut no_endpoint = hello(b"");
    no_endpoint[PREFACE] = b'x';
    for (bytes, says) in [
        (preface(HELLO, 1025), "1025"),
        (preface(77, 0), "kind 77"),
        (preface(READY, 0), "kind 3"),
        (preface(READY, 1), "announced 1 bytes"),
        (no_endpoint, "RDQP"),
        ([hello(b"hi"), b"!".to_vec()].concat(), "1 bytes more"),
        ([hello(b""), preface(READY, 0)].concat(), "10 bytes more"),
    ] {
        let why = reason(&refused(&mut listener, &bytes));
        assert!(why.contains(says), "{why}");
    }
}

#[test]
fn a_client_that_does_not_fit_is_rejected_before_it_names_its_device() {
    let mut listener = listener("soft0");
    let address = listener.local_addr();
    let mut datagrams = hello(b"");
    datagrams[PREFACE + 21] = 4; // UD
    thread::scope(|threads| {
        // The stream is closed after the reason was received.
        let why = threads.spawn(|| reason(&says(address, &datagrams)));
        await_refused(&mut listener, 1);
        let why = why.join().unwrap();
        assert!(why.contains("the server's device is soft0; ") && why.contains("type"), "{why}");
    });
    let last = listener.last_refused().unwrap();
    assert!(last.ends_with("; the client's device is unknown"), "{last}");
}

#[test]
fn a_flood_after_a_valid_message_is_refused() {
    let mut listener = listener("soft0");
    let address = listener.local_addr();
    let flood = thread::spawn(move || {
        let mut stream = says(address, &hello(b""));
        let mut count = 0_u64;
        while stream.write_all(&[7; 4096]).is_ok() {
            count += 1;
            assert!(count < 1 << 20, "4 GiB were accepted");
        }
    });
    assert_serves(&mut listener, "soft0");
    await_refused(&mut listener, 1);
    flood.join().unwrap();
}

#[test]
fn a_client_that_sends_before_the_answer_is_refused() {
    let mut listener = listener("soft0");
    let address = listener.local_addr();
    let early = |at_once: bool| {
        let mut bad = says(address, &hello(b"bad"));
        bad.read_exact(&mut [0; WITH_ENDPOINT]).unwrap();
        if at_once {
            bad.write_all(&[&preface(READY, 0), b"early".as_slice()].concat()).unwrap();
        } else {
            bad.write_all(&preface(READY, 0)).unwrap();
        }
        bad
    };
    thread::scope(|threads| {
        let at_once = threads.spawn(|| reason(&early(true)));
        await_refused(&mut listener, 1);
        let why = at_once.join().unwrap();
        assert!(why.contains("5 bytes more"), "{why}");

        let later = threads.spawn(|| early(false));
        let incoming = listener.incoming(Some(LATER)).unwrap();
        let mut bad = later.join().unwrap();
        bad.write_all(b"early").unwrap();
        let outcome = incoming.accept(b"");
        assert!(matches!(outcome, Err(ConnectError::Garbled { .. })), "{outcome:?}");
        assert!(reason(&bad).contains("before it was answered"));
        assert_eq!(listener.refused(), 2);
    });
    assert_serves(&mut listener, "soft0");
}

#[test]
fn silence_ends_with_the_limit_of_the_listener() {
    let mut listener =
        domain("soft0").create_channel().rendezvous_timeout(SILENCE).listen(LOCALHOST).unwrap();
    let begin = Instant::now();
    let half = hello(b"");
    let silent = [b"".as_slice(), &half[..3], &half[..100], &half]
        .map(|part| says(listener.local_addr(), part));
    let late = assert_serves(&mut listener, "soft0");
    await_refused(&mut listener, 4 + late);
    assert!(begin.elapsed() >= SILENCE);
    for stream in silent {
        let why = reason(&stream);
        assert!(why.contains("within 2s"), "{why}");
    }
}

#[test]
fn a_byte_now_and_then_does_not_lengthen_the_limit() {
    let mut listener =
        domain("soft0").create_channel().rendezvous_timeout(SOON).listen(LOCALHOST).unwrap();
    let mut slow = TcpStream::connect(listener.local_addr()).unwrap();
    let message = hello(b"");
    let dripping = thread::spawn(move || {
        for byte in message {
            // The test is about the time between two bytes.
            thread::sleep(Duration::from_millis(100));
            if slow.write_all(&[byte]).is_err() {
                return true;
            }
        }
        false
    });
    await_refused(&mut listener, 1);
    assert!(dripping.join().unwrap(), "it should be refused before it has sent everything");
}

#[test]
fn a_message_that_arrives_in_pieces_is_accepted() {
    // Otherwise, a farewell would follow.
    let pd = domain("soft0");
    let mut listener = pd.create_channel().watch_nothing().listen(LOCALHOST).unwrap();
    let mut slow = TcpStream::connect(listener.local_addr()).unwrap();
    slow.set_nodelay(true).unwrap();
    let pieces = thread::spawn(move || {
        let message = hello(b"in pieces");
        for piece in message.chunks(7) {
            slow.write_all(piece).unwrap();
        }
        slow.read_exact(&mut [0; WITH_ENDPOINT]).unwrap();
        for byte in preface(READY, 0) {
            slow.write_all(&[byte]).unwrap();
        }
        rest(&slow)
    });
    let incoming = listener.incoming(Some(LATER)).unwrap();
    assert_eq!(incoming.user_bytes(), b"in pieces");
    drop(incoming.accept(b"ok").unwrap());
    assert_eq!(
        pieces.join().unwrap(),
        [preface(crate::rendezvous::ACCEPT, 2), b"ok".to_vec()].concat()
    );
}

/// The phases after which a client may die.
const PHASES: [&str; 5] = ["connected", "half a HELLO", "HELLO", "ENDPOINT", "READY"];

/// Closes the stream or one half of it, to end a client.
#[derive(Clone, Copy)]
enum Close {
    All,
    Half,
}

/// Dies after that phase, and reports that it has.
fn dies_after(phase: usize, to: SocketAddr, how: Close, gone: &Sender<()>) {
    let message = hello(b"dies");
    let mut stream = TcpStream::connect(to).unwrap();
    match phase {
        0 => {}
        1 => stream.write_all(&message[..150]).unwrap(),
        _ => stream.write_all(&message).unwrap(),
    }
    if phase >= 3 {
        stream.read_exact(&mut [0; WITH_ENDPOINT]).unwrap();
    }
    if phase >= 4 {
        stream.write_all(&preface(READY, 0)).unwrap();
    }
    match how {
        // Also reaches the listener while a child that another test has forked has a copy of the socket.
        Close::All => stream.shutdown(Shutdown::Both).unwrap(),
        Close::Half => {
            stream.shutdown(Shutdown::Write).unwrap();
            gone.send(()).unwrap();
            rest(&stream);
        }
    }
    let _ = gone.send(());
}

#[test]
fn a_client_that_dies_in_any_phase_blocks_no_other_and_leaves_nothing() {
    let mut listener = listener("soft0");
    let address = listener.local_addr();
    let mut count = 0;
    for (phase, name) in PHASES.iter().enumerate() {
        for how in [Close::All, Close::Half] {
            let (gone, is_gone) = mpsc::channel();
            let client = thread::spawn(move || dies_after(phase, address, how, &gone));
            count += 1;
            if phase == PHASES.len() - 1 {
                // The program has received it before it died.
                let incoming = listener.incoming(Some(LATER)).unwrap();
                is_gone.recv().unwrap();
                let outcome = incoming.accept(b"");
                assert!(matches!(outcome, Err(ConnectError::Closed { .. })), "{outcome:?}");
            }
            await_refused(&mut listener, count);
            client.join().unwrap_or_else(|_| panic!("{name}"));
        }
    }
    assert_serves(&mut listener, "soft0");
}

#[test]
fn accept_skips_a_client_that_is_gone() {
    let mut listener = listener("soft0");
    let address = listener.local_addr();
    let (gone, is_gone) = mpsc::channel();
    let dead = thread::spawn(move || dies_after(4, address, Close::All, &gone));
    // Both are connected when the program receives the first, or in the next call.
    let first = listener.incoming(Some(LATER)).unwrap();
    is_gone.recv().unwrap();
    drop(first);
    dead.join().unwrap();
    let (gone, is_gone) = mpsc::channel();
    let dead = thread::spawn(move || dies_after(2, address, Close::All, &gone));
    is_gone.recv().unwrap();
    let good = client("soft0", address, b"");
    let mut server = listener.accept().unwrap();
    assert_connected(&mut server, &mut good.join().unwrap().unwrap().0);
    dead.join().unwrap();
    assert_eq!(listener.refused(), 1);
}

/// Accepts clients that have waited for the program longer than the limit.
fn accept_after_the_limit() -> Result<(), ConnectError> {
    let pd = domain("soft0");
    let mut listener = pd.create_channel().rendezvous_timeout(SILENCE).listen(LOCALHOST)?;
    let address = listener.local_addr();
    let clients: Vec<_> = (0..3).map(|_| client("soft0", address, b"good")).collect();
    // The others become ready in the meantime or later; all of them longer ago than the limit.
    let first = listener.incoming(Some(LATER))?;
    thread::sleep(SILENCE / 4);
    let mut servers = vec![first.accept(b"")?];
    while servers.len() < 3 {
        servers.push(listener.incoming(Some(LATER))?.accept(b"")?);
        thread::sleep(SILENCE);
    }
    assert_eq!(listener.refused(), 0);
    clients.into_iter().try_for_each(|client| client.join().unwrap().map(drop))
}

#[test]
fn clients_that_wait_for_the_program_do_not_expire() {
    // On a busy machine, a client may get no processor until the limit. It is refused before it is ready.
    let is_accepted = || accept_after_the_limit().inspect_err(|why| eprintln!("{why}")).is_ok();
    assert!((0..3).any(|_| is_accepted()));
}

#[test]
fn a_client_is_not_late_because_the_program_was_busy() {
    let limit = Duration::from_secs(1);
    let pd = domain("soft0");
    let mut listener = pd.create_channel().rendezvous_timeout(limit).listen(LOCALHOST).unwrap();
    let mut client = says(listener.local_addr(), b"");
    let nobody = |listener: &mut ChannelListener| {
        let outcome = listener.incoming(Some(Duration::ZERO));
        assert!(matches!(outcome, Err(ConnectError::Timeout { .. })), "{outcome:?}");
    };
    nobody(&mut listener);
    client.write_all(&hello(b"in time")).unwrap();
    // The test is about the time in which the listener is not called.
    thread::sleep(2 * limit);
    nobody(&mut listener);
    client.read_exact(&mut [0; WITH_ENDPOINT]).unwrap();
    client.write_all(&preface(READY, 0)).unwrap();
    assert_eq!(listener.incoming(Some(LATER)).unwrap().user_bytes(), b"in time");
    assert_eq!(listener.refused(), 0);
}

#[test]
fn refused_clients_leave_no_queue_pair() {
    const COUNTED: &str = "softcounted0";
    rdma_soft::install();
    rdma_soft::Builder::new(COUNTED)
        .limits(rdma_soft::Limits::default().max_qp(2))
        .install()
        .unwrap();
    let mut listener = listener(COUNTED);
    let address = listener.local_addr();
    // Each is answered, and so uses a queue pair of the server for a while.
    for count in 1..=10 {
        let bad = thread::spawn(move || {
            let mut stream = says(address, &hello(b""));
            stream.read_exact(&mut [0; WITH_ENDPOINT]).unwrap();
        });
        await_refused(&mut listener, count);
        bad.join().unwrap();
    }
    // One queue pair for each end: none is left of the others.
    assert_serves(&mut listener, COUNTED);
}
