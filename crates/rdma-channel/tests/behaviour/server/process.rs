//! Servers and processes: too few files, forked children, and clients that are killed.
#![allow(unsafe_code)]

use std::env;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use rdma_channel::{CloseReason, LeftReason, ServerError, ServerEvent, TransportError, prelude::*};
use rdma_mem::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use test_support::features::Feature;
use test_support::program::{in_own_process, this_program};

use crate::common::child::{must_live, wait_for};
use crate::common::provider::{HONEST_POSTS, KEEP, POST, Post, edit, faulty, honest};
use crate::common::{NO_SRQ, lacks};
use crate::server::own_receives::{receives, refused};
use crate::server::provider::pair;
use crate::server::{
    DEVICES, KINDS, LOCALHOST, SOON, connect, join, left, message, next, server, server_with,
};

const ADDRESS: &str = "RDMA_CHANNEL_SERVER_ADDRESS";
const DEVICE: &str = "RDMA_CHANNEL_SERVER_DEVICE";

#[test]
fn a_client_that_is_killed_leaves_at_once() {
    if let Ok(address) = env::var(ADDRESS) {
        let mut channel = connect(&env::var(DEVICE).unwrap(), address.parse().unwrap());
        channel.send_inline(b"last words").unwrap();
        println!("sent");
        // Waits to be killed.
        loop {
            thread::park();
        }
    }
    for (device, shares) in [("soft0", true), ("soft0", false), ("softib0", true)] {
        if shares && lacks(device, Feature::SharedReceiveQueues) {
            continue;
        }
        let mut server = server_with(device, |builder| builder.shared_receive_queue(shares));
        let mut child = this_program();
        let test = "server::process::a_client_that_is_killed_leaves_at_once";
        child.args(["--exact", test, "--nocapture"]).env(DEVICE, device);
        child.env(ADDRESS, server.local_addr().to_string()).stdout(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let ServerEvent::Joined { peer, .. } = next(&mut server) else { panic!() };
        let (from, buffer, length) = message(&mut server);
        assert_eq!((from, &buffer[..length]), (peer, b"last words".as_slice()));
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.contains("sent")));
        child.kill().unwrap();
        child.wait().unwrap();
        // Messages are sent to it until its end is detected.
        let gone = loop {
            let buffer = server.pool().allocate(8).unwrap();
            if server.send(peer, buffer, 8).is_err() {
                thread::sleep(Duration::from_millis(1));
            }
            match server.next(Some(SOON)).unwrap() {
                Some(ServerEvent::Left { peer, reason }) => break (peer, reason),
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        };
        assert_eq!(gone.0, peer);
        assert!(!matches!(gone.1, LeftReason::Disconnected), "{}", gone.1);
    }
}

#[test]
fn a_forked_child_gets_an_error_and_disturbs_no_client() {
    must_live("server::process::a_forked_child_gets_an_error_and_disturbs_no_client", |_| {
        for device in DEVICES {
            let mut server = server(device);
            let (peer, mut client) = join(device, &mut server);
            assert!(server.next(Some(Duration::ZERO)).unwrap().is_none());
            // SAFETY: SAFETY.md F15: the child waits for no other thread, and ends below.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // SAFETY: SAFETY.md F15: the alarm ends a child that hangs.
                unsafe { libc::alarm(120) };
                let told = server.next(None);
                let is_told = matches!(
                    told,
                    Err(ServerError::Transport(TransportError::Closed {
                        reason: CloseReason::Forked,
                        ..
                    }))
                );
                server.disconnect(peer);
                drop(server);
                // SAFETY: SAFETY.md F15: no other thread runs in this child.
                unsafe { libc::_exit(i32::from(!is_told)) };
            }
            wait_for(pid);
            client.send_inline(b"here").unwrap();
            assert_eq!(message(&mut server).0, peer);
            drop(client);
            assert_eq!(left(&mut server).0, peer);
        }
    });
}

#[test]
fn without_files_clients_wait_and_others_are_served() {
    let test = "server::process::without_files_clients_wait_and_others_are_served";
    in_own_process(test, without_files);
}

fn without_files() {
    let mut server = server("soft0");
    let (peer, mut client) = join("soft0", &mut server);
    let waits = TcpStream::connect(server.local_addr()).unwrap();
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(200), maximum }).unwrap();
    let files: Vec<_> = (0..).map_while(|_| File::open("/dev/null").ok()).collect();
    let error = server.next(Some(SOON)).unwrap_err();
    assert!(matches!(error, ServerError::Clients(_)), "{error:?}");
    assert!(error.to_string().contains("ulimit -n"), "{error}");
    // For a second the error does not occur again, and other clients are not disturbed.
    for _ in 0..10 {
        client.send_inline(b"goes on").unwrap();
        assert_eq!(message(&mut server).0, peer);
    }
    drop((files, waits));
    let _ = join("soft0", &mut server);
}

/// This runs in a process that ends without a leak check, since leaks are intended.
#[test]
fn a_queue_pair_that_cannot_be_destroyed_keeps_its_buffers() {
    must_live("server::process::a_queue_pair_that_cannot_be_destroyed_keeps_its_buffers", |_| {
        let mut lent = 0;
        for device in KINDS {
            let (mut server, peer, client) = pair(device);
            let pool = server.pool().clone();
            for _ in 0..3 {
                server.send(peer, pool.allocate(8).unwrap(), 8).unwrap();
            }
            // It has no completions either.
            edit(|_| Vec::new());
            KEEP.set(true);
            drop(client);
            drop(server);
            honest();
            // Three sends and four receives are lent permanently.
            lent += pool.usage().buffers;
        }
        // SAFETY: SAFETY.md F15: no work is left.
        unsafe { libc::_exit(i32::from(lent != 2 * 7)) };
    });
}

/// This runs in a process that ends without a leak check, since a leak is intended.
#[test]
fn receives_of_a_queue_pair_that_cannot_be_destroyed_are_no_other_clients() {
    let test =
        "server::process::receives_of_a_queue_pair_that_cannot_be_destroyed_are_no_other_clients";
    must_live(test, |_| {
        let pd = faulty(NO_SRQ).allocate_pd().unwrap();
        let builder = pd.create_server().max_peers(2).max_recv_wr(4);
        let mut server = builder.bind(LOCALHOST).unwrap();
        // The second of its two receives is refused.
        HONEST_POSTS.set(1);
        POST.set(Post::Refused(Errno::EIO));
        KEEP.set(true);
        refused(NO_SRQ, &mut server);
        honest();
        assert_eq!(receives(&server), 1);
        for _ in 0..3 {
            let (peer, client) = join(NO_SRQ, &mut server);
            assert_eq!(receives(&server), 3);
            drop(client);
            assert_eq!(left(&mut server).0, peer);
            assert_eq!(receives(&server), 1, "the device may still write there");
        }
        // SAFETY: SAFETY.md F15: no work is left.
        unsafe { libc::_exit(0) };
    });
}
