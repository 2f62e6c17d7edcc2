//! Servers whose clients share no receive queue, because the device has none or the program has chosen so.
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rdma_channel::{Channel, ConnectError, Error, Recovery, Server, prelude::*};
use rdma_mem::Errno;
use rdma_soft::{Builder, Limits};

use crate::common::provider::{POST, Post, honest};
use crate::common::{NO_SRQ, WIRE_NO_SRQ};
use crate::server::provider::pair;
use crate::server::{LOCALHOST, SOON, domain, join, joined, left, message, server_with};

/// Connects a client that the server refuses, and returns its error.
pub(crate) fn refused(device: &'static str, server: &mut Server) -> ConnectError {
    let (to, before) = (server.local_addr(), server.refused());
    let client = thread::spawn(move || Channel::connect(to, &domain(device)));
    while server.refused() == before {
        assert!(server.next(Some(SOON)).unwrap().is_none());
    }
    client.join().unwrap().unwrap_err()
}

#[test]
fn a_client_without_receives_is_refused_with_both_numbers() {
    for device in [NO_SRQ, WIRE_NO_SRQ] {
        let mut server = server_with(device, |builder| {
            builder.max_peers(100).max_recv_wr(9).max_recv_wr_per_peer(4)
        });
        let (first, channel) = join(device, &mut server);
        let (_, _stays) = join(device, &mut server);
        let error = refused(device, &mut server);
        let ConnectError::Busy(why) = &error else { panic!("{error}") };
        assert!(why.contains("for 2 clients, `max_recv_wr` 9 in all and 4 for each"), "{why}");
        assert_eq!(error.recovery(), Recovery::Retry);
        drop(channel);
        assert_eq!(left(&mut server).0, first);
        let (peer, mut again) = join(device, &mut server);
        again.send_inline(b"after all").unwrap();
        assert_eq!(message(&mut server).0, peer);
    }
}

/// By default, the receives are divided equally among the maximum number of clients, with at least one each.
#[test]
fn receives_are_divided_among_all_clients() {
    let three = server_with(NO_SRQ, |builder| builder.max_peers(2).max_recv_wr(7));
    assert_eq!(posted_with_one_client(three), 3);
    let one = server_with(NO_SRQ, |builder| builder.max_peers(100).max_recv_wr(7));
    assert_eq!(posted_with_one_client(one), 1);
}

/// The number of receives on the device with one client; there are none before.
fn posted_with_one_client(mut server: Server) -> usize {
    assert_eq!(receives(&server), 0);
    let _client = join(NO_SRQ, &mut server);
    receives(&server)
}

/// The number of receives on the device.
pub(crate) fn receives(server: &Server) -> usize {
    let text = format!("{server:?}");
    let count = text.strip_suffix(" receives)").unwrap().rsplit(' ').next();
    count.unwrap().parse().unwrap()
}

#[test]
fn a_client_that_uses_up_its_receives_does_not_use_those_of_others() {
    for device in [NO_SRQ, WIRE_NO_SRQ] {
        let mut server = server_with(device, |builder| {
            builder.max_recv_wr(4).max_recv_wr_per_peer(2).max_send_wr(4)
        });
        let (greedy, mut floods) = join(device, &mut server);
        let (modest, mut client) = join(device, &mut server);
        let (sends, sent) = mpsc::channel();
        let flood = thread::spawn(move || {
            for _ in 0..10 {
                floods.send_inline(b"x").unwrap();
                sends.send(()).unwrap();
            }
            floods
        });
        // It has used up its own receives, and the server does not run: the next message waits.
        sent.iter().take(2).for_each(drop);
        client.send_inline(b"arrives").unwrap();
        let (mut of_greedy, mut of_modest) = (0, 0);
        while (of_greedy, of_modest) != (10, 1) {
            let (peer, ..) = message(&mut server);
            of_greedy += u32::from(peer == greedy);
            of_modest += u32::from(peer == modest);
        }
        drop(flood.join().unwrap());
    }
}

#[test]
fn an_option_decides_whether_clients_share_receives() {
    const ONE: &str = "softonesrq1";
    rdma_soft::install();
    let _ = Builder::new(ONE).limits(Limits::default().max_srq(1)).install();
    let _first = server_with(ONE, |builder| builder);
    let error = domain(ONE).create_server().bind(LOCALHOST).unwrap_err();
    assert!(error.to_string().contains("shared receive queue"), "{error}");
    let mut second = server_with(ONE, |builder| builder.shared_receive_queue(false));
    let (peer, mut client) = join(ONE, &mut second);
    client.send_inline(b"good").unwrap();
    assert_eq!(message(&mut second).0, peer);

    let error = domain(NO_SRQ).create_server().shared_receive_queue(true).bind(LOCALHOST);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("the device has no shared receive queues"), "{error}");
}

#[test]
fn a_client_cannot_have_more_receives_than_there_are_or_than_the_device_allows() {
    let pd = domain(NO_SRQ);
    let error = pd.create_server().max_recv_wr(8).max_recv_wr_per_peer(9).bind(LOCALHOST);
    let Err(ConnectError::Verbs(error)) = error else { panic!("{error:?}") };
    let knob = "max_recv_wr_per_peer";
    assert!(
        matches!(*error, Error::TooLarge { knob: k, value: 9, most: 8 } if k == knob),
        "{error}"
    );
    // Otherwise it would be an error of the first client.
    const FEW: &str = "softfewrecv0";
    let _ = Builder::new(FEW).limits(Limits::default().max_srq(0).max_qp_wr(32)).install();
    let error = domain(FEW).create_server().max_peers(1).max_recv_wr(100).bind(LOCALHOST);
    assert!(matches!(error, Err(ConnectError::Verbs(_))), "{error:?}");
}

#[test]
fn a_client_whose_receives_are_refused_is_rejected_and_others_continue() {
    let (mut server, first, channel) = pair(NO_SRQ);
    drop(channel);
    assert_eq!(left(&mut server).0, first);
    POST.set(Post::Refused(Errno::EIO));
    let error = refused(NO_SRQ, &mut server);
    assert!(matches!(error, ConnectError::Rejected(_)), "{error}");
    assert!(server.last_refused().unwrap().contains("receive"), "{:?}", server.last_refused());
    honest();
    // The server replaces the buffer of the refused receive when it looks for events again.
    assert!(server.next(Some(Duration::ZERO)).unwrap().is_none());
    assert_eq!(server.pool().usage().buffers, 4);
    let to = server.local_addr();
    let client = thread::spawn(move || crate::server::connect(NO_SRQ, to));
    let peer = joined(&mut server);
    client.join().unwrap().send_inline(b"good").unwrap();
    assert_eq!(message(&mut server).0, peer);
}
