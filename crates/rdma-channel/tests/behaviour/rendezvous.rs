//! Two ends that know an address become a channel, whatever other programs do at that address.

mod bad_clients;
mod bad_servers;
mod chance;
mod clients;
mod files;
mod half_open;
mod many;
mod stream_addresses;

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rdma_channel::{
    Channel, ChannelListener, ConnectError, QueuePairEndpoint, RendezvousBuilder, prelude::*,
};
use rdma_mem::ProtectionDomain;
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};

use crate::common::connected;

/// The devices of the tests.
const DEVICES: [&str; 2] = ["soft0", "softib0"];
const LOCALHOST: &str = "127.0.0.1:0";
/// The time that a test waits for something that should not happen.
const SOON: Duration = Duration::from_millis(200);
/// The time that a listener waits for silent clients: long enough for a working one.
const SILENCE: Duration = Duration::from_secs(2);
/// The time limit for something that should happen.
const LATER: Duration = Duration::from_secs(60);

const HELLO: u16 = 1;
const ENDPOINT: u16 = 2;
const READY: u16 = 3;
const ACCEPT: u16 = 4;
const REJECT: u16 = 5;
/// The length of a message's preface, and of a message with an endpoint.
const PREFACE: usize = 10;
const WITH_ENDPOINT: usize = PREFACE + QueuePairEndpoint::BYTES;

type Connected = Result<(Channel, Box<[u8]>), ConnectError>;

fn domain(device: &str) -> ProtectionDomain {
    rdma_soft::install();
    rdma_mem::open_device(device).unwrap().allocate_pd().unwrap()
}

fn patient(pd: &ProtectionDomain) -> RendezvousBuilder<'_> {
    pd.create_channel().rendezvous_timeout(LATER)
}

fn listener(device: &str) -> ChannelListener {
    patient(&domain(device)).listen(LOCALHOST).unwrap()
}

/// A client in another thread, with its own domain.
fn client(device: &'static str, to: SocketAddr, says: &[u8]) -> JoinHandle<Connected> {
    let says = says.to_vec();
    thread::spawn(move || patient(&domain(device)).user_bytes(&says).connect(to))
}

/// Lets each end send a number and receive that of the other; the server starts.
fn assert_connected(server: &mut Channel, client: &mut Channel) {
    let send = |from: &mut Channel, number| {
        from.within(LATER).send(SendWorkRequest::only_immediate(number)).unwrap();
    };
    let receive = |to: &mut Channel, number| {
        let received = to.within(LATER).receive(ReceiveWorkRequest::only_immediate()).unwrap();
        assert_eq!(received.immediate_data(), Some(number));
    };
    thread::scope(|threads| {
        threads.spawn(|| {
            receive(client, 1);
            send(client, 2);
        });
        send(server, 1);
        receive(server, 2);
    });
}

/// Checks that a valid client is accepted. Returns the number of times that it was refused as late.
fn assert_serves(listener: &mut ChannelListener, device: &'static str) -> u64 {
    let to = listener.local_addr();
    let good = thread::spawn(move || {
        let pd = domain(device);
        connected(|| patient(&pd).user_bytes(b"good").connect(to))
    });
    let incoming = listener.incoming(Some(LATER)).unwrap();
    assert_eq!(incoming.user_bytes(), b"good");
    let mut server = incoming.accept(b"welcome").unwrap();
    let ((mut client, told), late) = good.join().unwrap();
    assert_eq!(*told, *b"welcome");
    assert_connected(&mut server, &mut client);
    late
}

/// Runs the listener until it has refused that many clients.
fn await_refused(listener: &mut ChannelListener, count: u64) {
    let begin = Instant::now();
    while listener.refused() < count {
        assert!(begin.elapsed() < LATER, "{} of {count} were refused", listener.refused());
        let outcome = listener.incoming(Some(Duration::from_millis(10)));
        assert!(matches!(outcome, Err(ConnectError::Timeout { .. })), "{outcome:?}");
    }
    assert_eq!(listener.refused(), count);
}

fn preface(kind: u16, length: usize) -> Vec<u8> {
    let length = u16::try_from(length).unwrap().to_be_bytes();
    [b"RDRV\0\x02".as_slice(), &kind.to_be_bytes(), &length].concat()
}

/// A HELLO with the endpoint of a queue pair that need not exist.
fn hello(says: &[u8]) -> Vec<u8> {
    let endpoint = domain("soft0").create_channel().build().unwrap().endpoint().to_bytes();
    [&preface(HELLO, says.len()), endpoint.as_slice(), says].concat()
}

/// All bytes until the stream ends.
fn rest(mut stream: &TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(LATER)).unwrap();
    let mut said = Vec::new();
    // A stream that is reset has ended, too.
    let _ = stream.read_to_end(&mut said);
    said
}

/// The reason in the last message of a server, which rejects the client.
fn reason(stream: &TcpStream) -> String {
    let said = rest(stream);
    let said = if said.starts_with(&preface(ENDPOINT, 0)) { &said[WITH_ENDPOINT..] } else { &said };
    let why = String::from_utf8(said[PREFACE..].to_vec()).unwrap();
    assert_eq!(said[..PREFACE], preface(REJECT, why.len()), "{why}");
    why
}
