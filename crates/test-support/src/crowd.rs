//! TCP clients that connect, send a few bytes, and stay connected. Tests check that a listener
//! still serves other clients.
#![allow(clippy::expect_used, clippy::panic)] // helpers of tests

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The time after which a wait counts as a hang.
const HANG: Duration = Duration::from_secs(60);

/// An address of this host that programs do not connect from by default (they use 127.0.0.1).
pub const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Connects `count` clients from this address. Each client sends the same bytes and then stays
/// silent. When this returns, all clients are connected, whether or not the listener has accepted
/// them.
///
/// # Panics
/// Panics if a client cannot connect.
#[must_use]
pub fn crowd(from: Ipv4Addr, to: SocketAddr, count: usize, says: &[u8]) -> Vec<TcpStream> {
    let clients: Vec<_> = (0..count).map(|_| begin(from, to)).collect();
    for mut client in &clients {
        let mut files = [PollFd::new(client, PollFlags::OUT)];
        let limit = Timespec::try_from(HANG).ok();
        let ready = poll(&mut files, limit.as_ref()).expect("poll");
        assert_eq!(ready, 1, "a client gets no connection to {to}");
        assert!(client.take_error().expect("the error of a socket").is_none());
        // The write may fail, because the listener may already have dropped the client.
        let _ = client.write(says);
    }
    clients
}

fn begin(from: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).expect("socket");
    bind(&socket, &SocketAddr::new(IpAddr::V4(from), 0)).expect("bind");
    match connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => socket.into(),
        Err(error) => panic!("{from} cannot connect to {to}: {error}"),
    }
}

/// Returns everything that a client receives from the listener until the stream ends.
///
/// # Panics
/// Panics if the stream does not end.
#[must_use]
pub fn last_words(mut client: &TcpStream) -> Vec<u8> {
    client.set_nonblocking(false).expect("a blocking socket");
    client.set_read_timeout(Some(HANG)).expect("a limit");
    let mut said = Vec::new();
    match client.read_to_end(&mut said) {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            panic!("the listener does not disconnect the client")
        }
        // A reset ends the stream too.
        _ => said,
    }
}

/// Returns true if the listener has neither sent the client anything nor closed the client's
/// stream.
#[must_use]
pub fn is_kept(client: &TcpStream) -> bool {
    client.set_nonblocking(true).expect("a non-blocking socket");
    matches!(client.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// Raises this process's limit on open files to at least `needed`.
///
/// # Panics
/// Panics if the hard limit is lower.
pub fn allow_files(needed: u64) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_some_and(|current| current < needed) {
        let raised = Rlimit { current: Some(needed), maximum };
        setrlimit(Resource::Nofile, raised).unwrap_or_else(|error| {
            panic!("the test needs {needed} open files, the hard limit is {maximum:?}: {error}")
        });
    }
}
