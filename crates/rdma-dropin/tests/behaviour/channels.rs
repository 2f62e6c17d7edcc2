//! Channels of this process that exchange messages with programs of librdmacm, which use the libraries.

use std::process::{Command, Stdio};

use rdma_channel::prelude::*;
use rdma_channel::{Channel, TransportError};
use rdma_mem::ProtectionDomain;
use test_support::rig::until;

use crate::library::{command, text};

/// The length of the messages of `rdma_server` and `rdma_client`, which consist of zeros.
const LENGTH: usize = 16;

fn domain() -> ProtectionDomain {
    rdma_soft::install();
    rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap()
}

/// Runs a program of librdmacm while this process is its peer. Checks that the program succeeds.
fn meets(mut program: Command, arguments: &[&str], peer: impl FnOnce()) {
    program.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let program = program.spawn().unwrap();
    peer();
    let output = program.wait_with_output().unwrap();
    assert!(output.status.success() && text(&output).contains(": end 0"), "{}", text(&output));
}

#[test]
fn a_channel_exchanges_messages_with_rdma_server() {
    let Some(server) = command("rdma_server") else { return };
    let pd = domain();
    let free = pd.create_channel().listen_cm("127.0.0.1:0").unwrap().local_addr();
    meets(server, &["-p", &free.port().to_string()], || {
        let [mut question, mut answer] = [(); 2].map(|()| pd.allocate_region(LENGTH).unwrap());
        question.fill(7);
        answer.fill(7);
        // The program does not report that it listens. Before that, it rejects.
        let mut channel = None;
        until("the server listens", || {
            channel = Channel::connect_cm(free, &pd).ok();
            channel.is_some()
        });
        assert_eq!(channel.unwrap().exchange_from(&question, &mut answer).unwrap(), LENGTH);
        assert_eq!(*answer, [0; LENGTH]);
    });
}

#[test]
fn a_channel_exchanges_messages_with_rdma_client() {
    let Some(client) = command("rdma_client") else { return };
    let pd = domain();
    let mut listener = pd.create_channel().listen_cm("127.0.0.1:0").unwrap();
    let port = listener.local_addr().port().to_string();
    meets(client, &["-s", "127.0.0.1", "-p", &port], || {
        let mut channel = listener.accept().unwrap();
        let mut message = pd.allocate_region(LENGTH).unwrap();
        message.fill(7);
        assert_eq!(channel.receive_into(&mut message).unwrap(), LENGTH);
        assert_eq!(*message, [0; LENGTH]);
        // The client may disconnect before this end sees that the message was acknowledged.
        let sent = channel.send_from(&message);
        assert!(matches!(sent, Ok(()) | Err(TransportError::PeerGone { .. })), "{sent:?}");
    });
}
