//! Streams of each kind, with little room, blocking or not.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rdma_channel::{Pipes, TimedStream, confirm, exchange, exchange_all};
use rustix::net::sockopt;

use crate::exchange::{LATER, SOON, endpoint, endpoints};

fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (here, listener.accept().unwrap().0)
}

fn pipes(size: usize) -> [Pipes<io::PipeReader, io::PipeWriter>; 2] {
    let ((here, to_here), (there, to_there)) = (io::pipe().unwrap(), io::pipe().unwrap());
    for writer in [&to_here, &to_there] {
        rustix::pipe::fcntl_setpipe_size(writer, size).unwrap();
    }
    [Pipes::new(here, to_there), Pipes::new(there, to_here)]
}

/// Checks that both ends receive the endpoints of the other one.
fn both(count: u32, mut here: impl TimedStream, mut there: impl TimedStream + Send) {
    thread::scope(|threads| {
        let peer = threads.spawn(move || {
            let own = endpoints(0x10_0000, count);
            let peers = exchange_all(&mut there, &own, LATER).unwrap();
            confirm(&mut there, LATER).unwrap();
            peers
        });
        let peers = exchange_all(&mut here, &endpoints(0x11, count), LATER).unwrap();
        assert_eq!(peers, endpoints(0x10_0000, count));
        confirm(&mut here, LATER).unwrap();
        assert_eq!(peer.join().unwrap(), endpoints(0x11, count));
    });
}

#[test]
fn endpoints_pass_through_each_kind_of_stream() {
    for count in [1, 13, 14, 500] {
        let (here, mut there) = tcp();
        both(count, &here, &mut there);
        let (mut here, there) = UnixStream::pair().unwrap();
        both(count, &mut here, &there);
        let (here, there) = UnixStream::pair().unwrap();
        both(count, Pipes::new(&here, &here), Pipes::new(&there, &there));
        let [here, there] = pipes(65536);
        both(count, here, there);
    }
}

#[test]
fn ends_do_not_wait_for_each_other_where_there_is_little_room() {
    for count in [1, 14, 3000] {
        let [here, there] = pipes(4096);
        both(count, here, there);
        let (here, there) = UnixStream::pair().unwrap();
        for socket in [&here, &there] {
            sockopt::set_socket_send_buffer_size(socket, 1).unwrap();
        }
        both(count, here, there);
    }
}

#[test]
fn the_options_of_a_socket_stay_unchanged() {
    let (here, there) = tcp();
    let (seconds_7, seconds_9) = (Duration::from_secs(7), Duration::from_secs(9));
    here.set_read_timeout(Some(seconds_7)).unwrap();
    here.set_write_timeout(Some(seconds_9)).unwrap();
    there.set_nonblocking(true).unwrap();
    both(500, &here, &there);
    assert_eq!(here.read_timeout().unwrap(), Some(seconds_7));
    assert_eq!(here.write_timeout().unwrap(), Some(seconds_9));
    let flags = |socket| rustix::fs::fcntl_getfl(socket).unwrap();
    assert!(!flags(&here).contains(rustix::fs::OFlags::NONBLOCK));
    assert!(flags(&there).contains(rustix::fs::OFlags::NONBLOCK));
    assert_eq!((&there).read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

/// A blocking write of all bytes would wait for a reader.
#[test]
fn one_write_is_no_longer_than_the_available_room() {
    let ends = |mut stream: Box<dyn TimedStream>| {
        let (mut sent, bytes) = (0, vec![7; 10_000_000]);
        let error = loop {
            match stream.write_within(&bytes, SOON) {
                Ok(count) => sent += count,
                Err(error) => break error,
            }
        };
        assert!((4096..bytes.len()).contains(&sent), "{sent}");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    };
    let (here, _open) = tcp();
    ends(Box::new(here));
    let (here, _open) = UnixStream::pair().unwrap();
    ends(Box::new(here));
    let [here, _open] = pipes(65536);
    ends(Box::new(here));
}

/// A byte wakes all readers, and one of them gets it.
#[test]
fn a_read_ends_in_time_even_if_another_reader_is_faster() {
    let (here, mut there) = UnixStream::pair().unwrap();
    let ((reads, read), (ends, ended)) = (mpsc::channel(), mpsc::channel());
    for _ in 0..4 {
        let (mut here, reads, ends) = (here.try_clone().unwrap(), reads.clone(), ends.clone());
        thread::spawn(move || {
            loop {
                match here.read_within(&mut [0], SOON) {
                    Ok(count) => reads.send(count).unwrap(),
                    Err(error) => return ends.send(error.kind()).unwrap(),
                }
            }
        });
    }
    for _ in 0..1000 {
        there.write_all(b"x").unwrap();
        // On a machine that was suspended, all may have timed out, and none reads it.
        match read.recv_timeout(SOON * 10) {
            Ok(count) => assert_eq!(count, 1),
            Err(_) => break,
        }
    }
    for _ in 0..4 {
        assert_eq!(ended.recv_timeout(LATER / 2).unwrap(), ErrorKind::TimedOut);
    }
}

#[test]
fn an_endless_time_limit_does_not_overflow() {
    let (here, there) = UnixStream::pair().unwrap();
    thread::scope(|threads| {
        threads.spawn(|| exchange(&there, &endpoint(0x21), Duration::MAX).unwrap());
        assert_eq!(exchange(&here, &endpoint(0x11), Duration::MAX).unwrap(), endpoint(0x21));
    });
}
