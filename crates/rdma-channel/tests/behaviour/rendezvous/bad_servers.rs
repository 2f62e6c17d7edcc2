//! Misbehaving servers, and the errors of their clients.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use rdma_channel::{ConnectError, prelude::*};

use crate::rendezvous::{
    ACCEPT, ENDPOINT, HELLO, LATER, LOCALHOST, PREFACE, READY, REJECT, SOON, WITH_ENDPOINT, client,
    domain, listener, preface,
};

/// The error of a client whose server runs `serve` on the stream, after it has received the client's HELLO.
fn error_with(serve: impl FnOnce(&mut TcpStream, &[u8]) + Send) -> ConnectError {
    let socket = TcpListener::bind(LOCALHOST).unwrap();
    let address = socket.local_addr().unwrap();
    thread::scope(|threads| {
        threads.spawn(move || {
            let mut stream = socket.accept().unwrap().0;
            let mut hello = [0; WITH_ENDPOINT];
            stream.read_exact(&mut hello).unwrap();
            serve(&mut stream, &hello);
        });
        connect(address)
    })
}

fn connect(address: SocketAddr) -> ConnectError {
    let pd = domain("soft0");
    let builder = pd.create_channel().rendezvous_timeout(LATER);
    let begin = Instant::now();
    let error = builder.connect(address).unwrap_err();
    assert!(begin.elapsed() < LATER, "{error}");
    error
}

/// An ENDPOINT message with a queue pair of soft0.
fn endpoint() -> Vec<u8> {
    let endpoint = domain("soft0").create_channel().build().unwrap().endpoint();
    [preface(ENDPOINT, 0), endpoint.to_bytes().to_vec()].concat()
}

/// Receives READY.
fn ready(stream: &mut TcpStream) {
    let mut message = [0; PREFACE];
    stream.read_exact(&mut message).unwrap();
    assert_eq!(message[..], preface(READY, 0));
}

#[test]
fn garbage_is_foreign_and_shows_what_came() {
    let error = error_with(|stream, _| stream.write_all(b"HTTP/1.1 400 Bad Request").unwrap());
    assert!(matches!(&error, ConnectError::Foreign { received, .. } if received == b"HTTP/1.1 4"));
    assert!(error.to_string().contains("HTTP/1.1 4"), "{error}");
    let error = error_with(|stream, _| stream.write_all(b"x").unwrap());
    assert!(matches!(error, ConnectError::Foreign { .. }), "{error}");
}

#[test]
fn a_server_of_another_version_is_an_error_with_both_versions() {
    let mut message = endpoint();
    message[5] = 9;
    let error = error_with(move |stream, _| stream.write_all(&message).unwrap());
    assert!(matches!(error, ConnectError::Version { found: 9, .. }), "{error:?}");
    let said = error.to_string();
    assert!(said.contains("version 9") && said.contains("has 2"), "{said}");
    // Its rejection is understood nevertheless.
    let error = error_with(|stream, _| stream.write_all(b"RDRV\0\x09\0\x05\0\x03old").unwrap());
    assert!(matches!(&error, ConnectError::Rejected(why) if &**why == "old"), "{error:?}");
}

#[test]
fn wrong_messages_are_named() {
    let mut no_endpoint = endpoint();
    no_endpoint[PREFACE] = b'x';
    for (message, says) in [
        (preface(READY, 0), "kind 3"),
        (preface(99, 0), "kind 99"),
        (preface(ACCEPT, 0), "kind 4"),
        (preface(ENDPOINT, 5), "announced 5 bytes"),
        (preface(REJECT, 2000), "announced 2000 bytes"),
        (no_endpoint, "RDQP"),
    ] {
        let error = error_with(move |stream, _| stream.write_all(&message).unwrap());
        assert!(matches!(error, ConnectError::Garbled { .. }), "{error:?}");
        assert!(error.to_string().contains(says), "{error}");
    }
    // A server that echoes what it receives.
    let error = error_with(|stream, hello| stream.write_all(hello).unwrap());
    assert!(matches!(&error, ConnectError::Garbled { what, .. } if what.contains("kind 1")));
    assert_eq!(HELLO, 1);
    // The same after READY.
    let message = endpoint();
    let error = error_with(move |stream, _| {
        stream.write_all(&message).unwrap();
        ready(stream);
        stream.write_all(&message).unwrap();
    });
    assert!(matches!(&error, ConnectError::Garbled { what, .. } if what.contains("kind 2")));
}

#[test]
fn an_endpoint_that_does_not_fit_is_an_error_of_the_verbs() {
    let endpoint = domain("softib0").create_channel().build().unwrap().endpoint();
    let message = [preface(ENDPOINT, 0), endpoint.to_bytes().to_vec()].concat();
    let error = error_with(move |stream, _| stream.write_all(&message).unwrap());
    assert!(matches!(error, ConnectError::Verbs(_)), "{error:?}");
    assert!(error.to_string().contains("link layer"), "{error}");
}

#[test]
fn a_server_that_dies_in_any_phase_is_an_error() {
    let message = endpoint();
    let answered = |error: ConnectError| {
        assert!(matches!(error, ConnectError::Closed { .. }), "{error:?}");
        error.to_string()
    };
    for part in [0, 3, PREFACE, 200, WITH_ENDPOINT - 1] {
        let part = &message[..part];
        let said = answered(error_with(move |stream, _| stream.write_all(part).unwrap()));
        assert!(said.contains("before it had answered"), "{said}");
    }
    let whole = &message;
    let said = answered(error_with(move |stream, _| stream.write_all(whole).unwrap()));
    assert!(said.contains("before it had accepted"), "{said}");
    for part in [0, 5, PREFACE, PREFACE + 1] {
        let verdict = [preface(ACCEPT, 2), b"ok".to_vec()].concat();
        let said = answered(error_with(move |stream, _| {
            stream.write_all(whole).unwrap();
            ready(stream);
            stream.write_all(&verdict[..part]).unwrap();
        }));
        assert!(said.contains("before it had accepted"), "{said}");
    }
    // A server that dies before it has accepted the client resets the stream.
    let socket = TcpListener::bind(LOCALHOST).unwrap();
    let address = socket.local_addr().unwrap();
    thread::scope(|threads| {
        threads.spawn(move || drop(socket.accept().unwrap().0.peek(&mut [0])));
        answered(connect(address));
    });
}

#[test]
fn the_clients_of_a_dropped_listener_fail() {
    let mut waiting = listener("soft0");
    let address = waiting.local_addr();
    let clients = [(); 3].map(|()| client("soft0", address, b""));
    // The program has received one of them, and the others have made some progress.
    drop(waiting.incoming(Some(LATER)).unwrap());
    drop(waiting);
    for client in clients {
        let error = client.join().unwrap().unwrap_err();
        let known = matches!(
            error,
            ConnectError::Rejected(_)
                | ConnectError::Closed { .. }
                | ConnectError::NobodyListens { .. }
        );
        assert!(known, "{error:?}");
    }
}

#[test]
fn a_silent_server_causes_a_timeout_that_names_the_missing_answer() {
    // The program does not call `incoming`.
    let socket = listener("soft0");
    let pd = domain("soft0");
    let connect = |address: SocketAddr| {
        let begin = Instant::now();
        let builder = pd.create_channel().rendezvous_timeout(SOON);
        let error = builder.connect(address).unwrap_err();
        assert!((SOON..LATER).contains(&begin.elapsed()));
        assert!(matches!(error, ConnectError::Timeout { limit: SOON, .. }), "{error:?}");
        error.to_string()
    };
    // This process may itself be too late.
    let until_said = |address, what: &str| {
        let mut said = std::iter::repeat_with(|| connect(address)).take(50);
        said.find(|said| said.contains(what)).expect(what)
    };
    let said = until_said(socket.local_addr(), "waiting for the answer from the server");
    assert!(said.contains("incoming"), "{said}");

    // The program does not decide.
    let socket = TcpListener::bind(LOCALHOST).unwrap();
    let address = socket.local_addr().unwrap();
    let (endpoint, (say, heard)) = (endpoint(), mpsc::channel());
    thread::spawn(move || {
        loop {
            let mut stream = socket.accept().unwrap().0;
            // A client that was too late has gone.
            let _ = stream.write_all(&endpoint);
            let said = stream.read_to_end(&mut Vec::new());
            say.send(said.ok()).unwrap();
        }
    });
    until_said(address, "waiting for the verdict from the server");
    let whole = |said| said == Some(WITH_ENDPOINT + PREFACE);
    assert!(heard.iter().any(whole));
}

#[test]
fn a_client_without_time_fails_at_once() {
    let socket = listener("soft0");
    let pd = domain("soft0");
    let builder = pd.create_channel().rendezvous_timeout(std::time::Duration::ZERO);
    let error = builder.connect(socket.local_addr()).unwrap_err();
    assert!(matches!(error, ConnectError::Timeout { .. }), "{error:?}");
    assert!(error.to_string().contains(&socket.local_addr().to_string()), "{error}");
}
