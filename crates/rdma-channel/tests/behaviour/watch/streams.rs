//! Events on a watched stream that are not its end.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use rdma_channel::{Operation, prelude::*};
use rdma_qp::SendWorkRequest;
use rustix::net::sockopt;

use crate::common::{must_end, open};
use crate::watch::{End, ROOM, SHORTLY, Watched, assert_gone, each, ends_shortly, tcp};

/// A time after which the channel has most likely checked the stream.
const WHILE: Duration = Duration::from_millis(50);

/// Checks that the channel is open, waits until its limit, and later detects the end of the stream.
fn assert_goes_on(mut watched: Watched) {
    let late = watched.here.scope(|s| {
        s.post_receive(ROOM)?.wait(WHILE).map(drop).inspect_err(|_| {
            // Otherwise the end of the scope waits for it.
            watched.there.send(SendWorkRequest::only_immediate(1)).unwrap();
        })
    });
    let late = late.unwrap_err();
    assert!(late.to_string().contains("did not complete within"), "{late}");
    assert_eq!(watched.here.closed(), None);
    let Watched { mut here, mut there, end, .. } = watched;
    let sender = thread::spawn(move || {
        thread::sleep(SHORTLY);
        there.send(SendWorkRequest::only_immediate(5)).unwrap();
        there
    });
    assert_eq!(here.receive(ROOM).unwrap().immediate_data(), Some(5));
    let _there = sender.join().unwrap();
    let ending = ends_shortly(end);
    assert_gone(&here.receive(ROOM).unwrap_err(), Operation::Receive, &here);
    ending.join().unwrap();
}

#[test]
fn a_silent_stream_is_not_the_end() {
    each(|wait, ends| {
        must_end(move || assert_goes_on(Watched::new("soft0", wait, ends)));
    });
}

#[test]
fn unread_bytes_are_not_the_end() {
    each(|wait, ends| {
        must_end(move || {
            let watched = Watched::new("soft0", wait, ends);
            match &watched.end {
                End::Tcp(stream) => (&*stream).write_all(&[7; 1000]),
                End::Unix(stream) => (&*stream).write_all(&[7; 1000]),
            }
            .unwrap();
            assert_goes_on(watched);
        });
    });
}

#[test]
fn a_shutdown_of_this_end_is_not_the_end() {
    each(|wait, [own, end]| {
        must_end(move || {
            let duplicate = own.try_clone();
            let watched = Watched::new("soft0", wait, [own, end]);
            duplicate.shutdown(Shutdown::Write);
            assert_goes_on(watched);
        });
    });
}

#[test]
fn a_shutdown_of_the_other_end_is_its_end() {
    each(|wait, ends| {
        must_end(move || {
            let Watched { mut here, there: _there, end, .. } = Watched::new("soft0", wait, ends);
            end.shutdown(Shutdown::Write);
            assert_gone(&here.receive(ROOM).unwrap_err(), Operation::Receive, &here);
        });
    });
}

/// Several channels to one process use the same stream.
#[test]
fn one_stream_serves_several_channels() {
    let [own, end] = tcp();
    let pd = open("soft0").allocate_pd().unwrap();
    let builder = pd.create_channel().watch_stream(own, crate::watch::LIMIT);
    let mut channels = [(); 2].map(|()| {
        let prepared = builder.clone().build().unwrap();
        let itself = prepared.endpoint();
        prepared.handshake(itself).unwrap()
    });
    drop((builder, end));
    for channel in &mut channels {
        let gone = channel.receive(ROOM).unwrap_err();
        assert_gone(&gone, Operation::Receive, channel);
    }
}

/// The kernel ends the stream of a silent machine: the last probe is not after the limit.
#[test]
fn tcp_gets_the_keepalive_options_of_the_limit() {
    for (limit, each, silence) in [
        (Duration::ZERO, 1, 1),
        (Duration::from_secs(2), 1, 1000),
        (Duration::from_secs(10), 2, 8000),
        (Duration::from_secs(60), 15, 45000),
        (Duration::from_secs(1 << 20), 32767, (1_048_576 - 32767) * 1000),
        (Duration::MAX, 32767, i32::MAX as u32),
    ] {
        let [own, _end] = tcp();
        let End::Tcp(duplicate) = own.try_clone() else { panic!() };
        let pd = open("soft0").allocate_pd().unwrap();
        let prepared = pd.create_channel().watch_stream(own, limit).build().unwrap();
        let itself = prepared.endpoint();
        let _channel = prepared.handshake(itself).unwrap();
        assert_eq!(told(&duplicate), (true, each, each, silence), "{limit:?}");
    }
}

/// The keepalive options: whether it is on, idle time in seconds, number of probes, and user timeout in milliseconds.
fn told(stream: &TcpStream) -> (bool, u64, u64, u32) {
    let stream = stream.as_fd();
    (
        sockopt::socket_keepalive(stream).unwrap(),
        sockopt::tcp_keepidle(stream).unwrap().as_secs(),
        sockopt::tcp_keepintvl(stream).unwrap().as_secs(),
        sockopt::tcp_user_timeout(stream).unwrap(),
    )
}
