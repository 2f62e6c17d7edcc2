//! Messages and streams in forked children.
#![allow(unsafe_code)]

use std::io::{Read as _, Write as _};

use rdma_channel::Wait;
use rdma_channel::message::{ConnectionError, MessageError, Options};

use super::rig::Rig;
use crate::common::child::{must_live, wait_for};

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
        let lost = matches!(received, Err(MessageError::Ended(ConnectionError::Lost)));
        let good = lost && *message == *b"read by both" && reader.read(&mut [0; 1]).is_err();
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
