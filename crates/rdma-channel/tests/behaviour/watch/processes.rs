//! Peers in child processes, which are killed.

use std::env;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use rdma_channel::{
    Channel, Operation, RemoteMemoryRegion, ScopeError, TransportError, Wait, prelude::*,
};
use rdma_qp::SendWorkRequest;
use test_support::program::this_program;

use crate::common::{must_end, open};
use crate::watch::{LIMIT, MODES, ROOM, SHORTLY, assert_gone};

/// Environment variable of a child: the address of its parent.
const ADDRESS: &str = "RDMA_CHANNEL_WATCHED_CHILD";

/// Sends two numbers when it is connected, and then waits to be killed.
fn child(address: &str) {
    let pd = open("soft0").allocate_pd().unwrap();
    let mut channel = Channel::connect(address, &pd).unwrap();
    for number in [8, 9] {
        channel.send(SendWorkRequest::only_immediate(number)).unwrap();
    }
    let never = channel.receive(ROOM);
    panic!("it was not killed: {never:?}");
}

/// Runs this test in a child process, and returns a channel to it.
fn parent(test: &str, wait: Wait) -> (Channel, Child) {
    let pd = open("soft0").allocate_pd().unwrap();
    let builder = pd.create_channel().wait(wait).drain_timeout(Duration::MAX);
    let mut listener = builder.watch(LIMIT).listen("127.0.0.1:0").unwrap();
    let mut program = this_program();
    program.args(["--exact", test, "--nocapture"]).stdout(Stdio::null());
    let child = program.env(ADDRESS, listener.local_addr().to_string()).spawn().unwrap();
    (listener.accept().unwrap(), child)
}

fn kill(mut child: Child) {
    thread::sleep(SHORTLY);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_receive_waits_for_a_peer_that_is_killed() {
    if let Ok(address) = env::var(ADDRESS) {
        return child(&address);
    }
    for wait in MODES {
        must_end(move || {
            let test = "watch::processes::a_receive_waits_for_a_peer_that_is_killed";
            let (mut channel, child) = parent(test, wait);
            for number in [8, 9] {
                assert_eq!(channel.receive(ROOM).unwrap().immediate_data(), Some(number));
            }
            let killer = thread::spawn(|| kill(child));
            assert_gone(&channel.receive(ROOM).unwrap_err(), Operation::Receive, &channel);
            killer.join().unwrap();
        });
    }
}

/// The device may detect it before the stream has ended.
#[test]
fn a_write_to_a_peer_that_is_killed_is_no_failure_of_the_network() {
    if let Ok(address) = env::var(ADDRESS) {
        return child(&address);
    }
    for wait in MODES {
        must_end(move || {
            let test =
                "watch::processes::a_write_to_a_peer_that_is_killed_is_no_failure_of_the_network";
            let (mut channel, child) = parent(test, wait);
            channel.receive(ROOM).unwrap();
            kill(child);
            let nowhere = RemoteMemoryRegion::new(0, 0, 0);
            let gone = loop {
                if let Err(error) = channel.write_inline(&[], nowhere) {
                    break error;
                }
            };
            assert_gone(&gone, Operation::Write, &channel);
        });
    }
}

/// A message that arrived before the end is received, however late the program polls for it.
#[test]
fn a_scope_waits_for_a_peer_that_is_killed() {
    if let Ok(address) = env::var(ADDRESS) {
        return child(&address);
    }
    for wait in MODES {
        must_end(move || {
            let test = "watch::processes::a_scope_waits_for_a_peer_that_is_killed";
            let (mut channel, child) = parent(test, wait);
            let ended = channel.scope(|s| {
                let (first, second) = (s.post_receive(ROOM)?, s.post_receive(ROOM)?);
                let third = s.post_receive(ROOM)?;
                assert_eq!(second.wait(Duration::MAX)?.immediate_data(), Some(9));
                let killer = thread::spawn(|| kill(child));
                let late = third.wait(Duration::MAX).unwrap_err();
                killer.join().unwrap();
                assert_eq!(first.wait(Duration::MAX)?.immediate_data(), Some(8));
                Err::<(), _>(late)
            });
            let gone = ended.map_err(ScopeError::<TransportError>::flatten).unwrap_err();
            assert_gone(&gone, Operation::Receive, &channel);
        });
    }
}
