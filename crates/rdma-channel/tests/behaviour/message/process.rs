//! Messages and streams in forked children.
#![allow(unsafe_code)]

use std::io::{ErrorKind, Read as _, Write as _};
use std::sync::mpsc;
use std::thread;

use rdma_channel::Wait;
use rdma_channel::message::{MessageError, Options};

use super::rig::Rig;
use crate::common::child::{must_live, wait_for};
use crate::common::provider::{at_next_poll, faulty};

/// The test runs in a process whose other threads hold no locks.
#[test]
fn a_forked_child_gets_errors_and_disturbs_nothing() {
    must_live("message::process::a_forked_child_gets_errors_and_disturbs_nothing", |_| {
        [Wait::Spin, Wait::SpinThenSleep, Wait::Sleep].into_iter().for_each(fork);
    });
}

fn fork(wait: Wait) {
    let rig = Rig::new("soft0", wait);
    let (client, server) = rig.messages(Options::new());
    let (mut writer, mut reader) = rig.streams(Options::new());
    client.send(b"read by both").unwrap();
    let message = server.receive().unwrap().unwrap();
    writer.write_all(b"chunk").unwrap();
    let chunk = reader.read_chunk().unwrap().unwrap();
    // SAFETY: SAFETY.md F15: the child waits for no other thread, and ends below.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: SAFETY.md F15: the alarm ends a child that hangs.
        unsafe { libc::alarm(120) };
        let received = server.receive();
        let forked = matches!(received, Err(MessageError::Forked(_)));
        let read = reader.read(&mut [0; 1]).map_err(|error| error.kind());
        let good = forked && *message == *b"read by both" && read == Err(ErrorKind::NotConnected);
        drop((chunk, message, reader, writer, client, server));
        // SAFETY: SAFETY.md F15: no other thread runs in this child.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    wait_for(pid);
    assert_eq!(*chunk, *b"chunk");
    client.send(b"later").unwrap();
    assert_eq!(*server.receive().unwrap().unwrap(), *b"later");
    writer.write_all(b"x").unwrap();
    reader.read_exact(&mut [0; 1]).unwrap();
}

/// Another thread has the lock of the connection when the process forks, and the child does not have that thread.
#[test]
fn a_child_that_is_forked_while_a_thread_receives_gets_an_error_by_name() {
    must_live(
        "message::process::a_child_that_is_forked_while_a_thread_receives_gets_an_error_by_name",
        |_| fork_during_a_poll(),
    );
}

fn fork_during_a_poll() {
    let rig = Rig::of(faulty("soft0"), Wait::Sleep);
    let (client, server) = rig.messages(Options::new());
    let (polls, has_lock) = mpsc::channel();
    let (forks, has_forked) = mpsc::channel::<()>();
    thread::scope(|threads| {
        let receives = threads.spawn(|| {
            at_next_poll(move || {
                polls.send(()).unwrap();
                has_forked.recv().unwrap();
            });
            server.receive().unwrap().unwrap()
        });
        has_lock.recv().unwrap();
        // SAFETY: SAFETY.md F15: the child waits for no other thread, and ends below.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: SAFETY.md F15: the alarm ends a child that hangs.
            unsafe { libc::alarm(120) };
            let good = matches!(server.receive(), Err(MessageError::Forked(_)))
                && matches!(server.send(b"a note"), Err(MessageError::Forked(_)));
            // SAFETY: SAFETY.md F15: no other thread runs in this child.
            unsafe { libc::_exit(i32::from(!good)) };
        }
        forks.send(()).unwrap();
        wait_for(pid);
        client.send(b"later").unwrap();
        assert_eq!(*receives.join().unwrap(), *b"later");
    });
}
