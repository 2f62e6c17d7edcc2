//! Channels whose ends have exchanged their endpoints.

use std::os::unix::net::UnixStream;
use std::thread;

use rdma_channel::{Channel, ExchangeError, PreparedChannel, confirm, exchange_all, prelude::*};
use rdma_mem::Mtu;
use rdma_qp::{Error, HandshakeError, QpState, ReceiveWorkRequest, SendWorkRequest};

use crate::exchange::LATER;

fn prepare(device: &str, mtus: &[Mtu]) -> Vec<PreparedChannel> {
    rdma_soft::install();
    let pd = rdma_mem::open_device(device).unwrap().allocate_pd().unwrap();
    mtus.iter().map(|&mtu| pd.create_channel().mtu(mtu).build().unwrap()).collect()
}

/// The result of one end, up to the confirmation: its channels, or the reason why it has none, and the confirmation of
/// the peer.
#[derive(Debug)]
struct End {
    connected: Result<Vec<Channel>, Error>,
    confirmed: Option<Result<(), ExchangeError>>,
}

fn connect(stream: &UnixStream, prepared: Vec<PreparedChannel>) -> End {
    let own: Vec<_> = prepared.iter().map(PreparedChannel::endpoint).collect();
    let peers = exchange_all(stream, &own, LATER).unwrap();
    let ends = prepared.into_iter().zip(peers);
    let connected: Result<_, _> = ends.map(|(channel, peer)| channel.handshake(peer)).collect();
    let confirmed = connected.is_ok().then(|| confirm(stream, LATER));
    End { connected, confirmed }
}

fn both(here: Vec<PreparedChannel>, there: Vec<PreparedChannel>) -> [End; 2] {
    let (stream, peers) = UnixStream::pair().unwrap();
    let peer = thread::spawn(move || connect(&peers, there));
    let end = connect(&stream, here);
    drop(stream);
    [end, peer.join().unwrap()]
}

#[test]
fn each_channel_is_connected_to_the_one_at_its_place() {
    for device in ["soft0", "softib0"] {
        let ends = both(prepare(device, &[Mtu::MTU1024; 3]), prepare(device, &[Mtu::MTU1024; 3]));
        let [here, there] = ends.map(|end| {
            end.confirmed.unwrap().unwrap();
            end.connected.unwrap()
        });
        for (number, (mut here, mut there)) in (1..).zip(here.into_iter().zip(there)) {
            thread::scope(|threads| {
                threads.spawn(|| {
                    let request = SendWorkRequest::only_immediate(number);
                    here.within(LATER).send(request).unwrap();
                });
                let request = ReceiveWorkRequest::only_immediate();
                let received = there.within(LATER).receive(request).unwrap();
                assert_eq!(received.immediate_data(), Some(number));
            });
        }
    }
}

#[test]
fn an_endpoint_of_another_transport_is_refused_at_both_ends() {
    for end in both(prepare("soft0", &[Mtu::MTU1024]), prepare("softib0", &[Mtu::MTU1024])) {
        match end.connected.unwrap_err() {
            Error::Handshake(error) => {
                assert!(matches!(*error, HandshakeError::LinkLayer { .. }), "{error}");
            }
            error => panic!("{error:?}"),
        }
    }
}

#[test]
fn an_end_notices_that_the_other_could_not_connect() {
    let large = prepare("soft0", &[Mtu::MTU1024, Mtu::MTU4096]);
    let small = prepare("soft0", &[Mtu::MTU1024, Mtu::MTU256]);
    let [large, small] = both(large, small);
    assert!(large.connected.unwrap_err().to_string().contains("MTU"));
    assert_eq!(small.connected.unwrap().len(), 2);
    let confirmed = small.confirmed.unwrap();
    assert!(matches!(confirmed, Err(ExchangeError::Closed { .. })), "{confirmed:?}");
}

/// The attributes may come from another program, in its own format.
#[test]
fn channels_are_connected_by_attributes_from_elsewhere() {
    for device in ["soft0", "softib0"] {
        let [one, other] =
            [(); 2].map(|()| prepare(device, &[Mtu::MTU1024]).pop().expect("one channel"));
        let (here, there) = (one.endpoint(), other.endpoint());
        let attributes = one.connect_attributes(&there).unwrap();
        assert_eq!((attributes.peer_qpn, attributes.mtu), (there.qpn(), Mtu::MTU1024));
        let mut other = other.handshake(here).unwrap();
        let mut one = one.connect(attributes).unwrap();
        assert_eq!(one.peer(), Some(attributes));
        assert_eq!((one.qpn(), one.state().unwrap()), (Some(here.qpn()), QpState::RTS));
        assert_eq!(one.query().unwrap().peer_qpn, there.qpn());
        thread::scope(|threads| {
            threads.spawn(|| one.within(LATER).send(SendWorkRequest::only_immediate(5)).unwrap());
            let request = ReceiveWorkRequest::only_immediate();
            let received = other.within(LATER).receive(request).unwrap();
            assert_eq!(received.immediate_data(), Some(5));
        });
    }
}
