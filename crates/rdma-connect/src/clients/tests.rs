//! Clients and a listener in virtual time, without sockets.

use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdma_mem::Error as MemError;
use rdma_qp::{PacketSequenceNumber, Qpn, QueuePairEndpoint};
use rustix::io::Errno;

use super::Clients;
use crate::client::Client;
use crate::dial::StreamAddresses;
use crate::error::connect_error::ConnectError;
use crate::half_open::{ClientStream, MakeEnds, NoEnd};
use crate::message::{Greeting, MOST, Message, Parsed, UNFIT, parse};

const LIMIT: Duration = Duration::from_secs(10);

/// A stream to a client, in memory.
#[derive(Clone, Debug, Default)]
struct Wire(Arc<Mutex<Bytes>>);

#[derive(Debug, Default)]
struct Bytes {
    from_client: Vec<u8>,
    from_server: Vec<u8>,
    has_ended: bool,
}

impl Wire {
    fn client_sends(&self, bytes: &[u8]) {
        self.0.lock().unwrap().from_client.extend(bytes);
    }

    fn client_ends(&self) {
        self.0.lock().unwrap().has_ended = true;
    }

    fn server_has_sent(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().unwrap().from_server)
    }

    fn verdict(&self) -> Message {
        match parse(&self.server_has_sent()) {
            Ok(Parsed::Whole(message)) => message,
            other => panic!("{other:?}"),
        }
    }
}

impl ClientStream for Wire {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.peek()?.min(buffer.len());
        let sent: Vec<_> = self.0.lock().unwrap().from_client.drain(..count).collect();
        buffer[..count].copy_from_slice(&sent);
        Ok(count)
    }

    /// Returns the number of available bytes.
    fn peek(&self) -> io::Result<usize> {
        let wire = self.0.lock().unwrap();
        if wire.from_client.is_empty() && !wire.has_ended {
            Err(ErrorKind::WouldBlock.into())
        } else {
            Ok(wire.from_client.len())
        }
    }

    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().from_server.extend(bytes);
        Ok(bytes.len())
    }

    fn end_sending(&self) -> io::Result<()> {
        Ok(())
    }
}

fn endpoint(qpn: u32) -> QueuePairEndpoint {
    QueuePairEndpoint::new(Qpn::masked(qpn), PacketSequenceNumber::masked(7))
}

/// Provides numbers as ends, until they are used up.
struct Numbers(Mutex<Vec<u32>>);

impl MakeEnds for Numbers {
    type Prepared = u32;
    type Connected = u32;

    fn prepare(&self, _: StreamAddresses) -> Result<(u32, QueuePairEndpoint), NoEnd> {
        let number = self.0.lock().unwrap().pop();
        number.map(|number| (number, endpoint(number))).ok_or(NoEnd::Full("used up".into()))
    }

    fn device(&self) -> String {
        "numbers".into()
    }

    fn connect(&self, prepared: u32, _: QueuePairEndpoint) -> Result<u32, rdma_qp::Error> {
        Ok(prepared)
    }
}

/// A listener in virtual time, whose ends are numbers.
struct Server {
    clients: Clients<Wire, u32>,
    numbers: Numbers,
    now: Instant,
}

impl Server {
    fn new(open_files: fn() -> Option<u64>, numbers: &[u32]) -> Self {
        let address = ([192, 0, 2, 1], 7471).into();
        let clients = Clients::new(address, LIMIT, open_files);
        Self { clients, numbers: Numbers(Mutex::new(numbers.to_vec())), now: Instant::now() }
    }

    /// Adds a client whose address ends with `from`. Returns its stream and its key.
    fn admit(&mut self, from: u8) -> (Wire, u64) {
        let (wire, key) = (Wire::default(), self.clients.next_key());
        self.clients.admit(wire.clone(), (([192, 0, 2, from], 40_000).into(), None), self.now);
        (wire, key)
    }

    fn step(&mut self, key: u64) {
        let Some(hello) = self.clients.step(key) else { return };
        let (clients, now) = (&mut self.clients, self.now);
        let made = self.numbers.make(None, hello.endpoint(), || clients.make_room(&hello, now));
        clients.answer(hello, made, now);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.clients.expire(self.now);
    }
}

fn plenty() -> Option<u64> {
    None
}

fn hello(client: &Client) -> Vec<u8> {
    let greeting = Greeting { user_bytes: (*b"hi").into(), ..Greeting::default() };
    client.hello(endpoint(0x102), greeting)
}

fn client() -> Client {
    Client::new(([192, 0, 2, 1], 7471).into(), LIMIT, "soft9")
}

#[test]
fn two_ends_meet_whatever_the_pieces_in_which_bytes_come() {
    let mut server = Server::new(plenty, &[0x201]);
    let (mut client, (wire, key)) = (client(), server.admit(9));
    for byte in hello(&client) {
        assert!(wire.server_has_sent().is_empty());
        wire.client_sends(&[byte]);
        server.step(key);
    }
    let mut answer = None;
    for byte in wire.server_has_sent() {
        assert!(answer.is_none() && client.lacks() > 0);
        answer = client.answer(&[byte]).unwrap();
    }
    assert_eq!(answer, Some(endpoint(0x201)));
    assert!(!server.clients.has_news());
    wire.client_sends(&client.ready());
    server.step(key);
    let mut candidate = server.clients.take().unwrap();
    assert_eq!((&*candidate.greeting.user_bytes, candidate.end), (&b"hi"[..], 0x201));
    let greeting = Greeting { user_bytes: (*b"welcome").into(), watches: true, talks: false };
    candidate.accept(greeting.clone()).unwrap();
    assert_eq!(client.verdict(&wire.server_has_sent()).unwrap(), Some(greeting));
    drop(candidate);
    assert!(wire.server_has_sent().is_empty(), "it was accepted");
}

#[test]
fn a_client_that_is_dropped_without_a_decision_is_rejected() {
    let mut server = Server::new(plenty, &[0x201]);
    let (client, (wire, key)) = (client(), server.admit(9));
    wire.client_sends(&hello(&client));
    server.step(key);
    wire.server_has_sent();
    wire.client_sends(&client.ready());
    server.step(key);
    drop(server);
    assert!(matches!(wire.verdict(), Message::Reject(why) if why.contains("gave no reason")));
}

#[test]
fn a_client_whose_time_is_over_is_rejected_unless_it_has_sent_something() {
    let mut server = Server::new(plenty, &[0x201]);
    let ((silent, _), (late, key)) = (server.admit(9), server.admit(9));
    assert_eq!(server.clients.next_end(server.now), LIMIT);
    late.client_sends(&hello(&client()));
    server.pass(LIMIT);
    assert!(matches!(silent.verdict(), Message::Reject(why) if why.contains("within 10s")));
    server.step(key);
    assert!(matches!(late.verdict(), Message::Endpoint(_)));
    assert_eq!((server.clients.refused, server.clients.dropped_half_open()), (1, 1));
}

#[test]
fn a_full_listener_drops_a_client_that_has_sent_nothing_for_a_second() {
    // There is room for two half-open clients.
    let mut server = Server::new(|| Some(8), &[]);
    let ((first, _), (_second, _)) = (server.admit(9), server.admit(9));
    assert!(!server.clients.has_room(server.now));
    assert_eq!(server.clients.next_end(server.now), Duration::from_secs(1));
    server.pass(Duration::from_secs(1));
    assert!(server.clients.takes(server.now));
    server.admit(8);
    assert!(matches!(first.verdict(), Message::Busy(why) if why.contains("had sent nothing")));
    assert_eq!(server.clients.dropped_half_open(), 1);
}

#[test]
fn a_client_without_a_queue_pair_gets_that_of_a_late_one() {
    let mut server = Server::new(plenty, &[0x201]);
    let ((late, first), (newcomer, second)) = (server.admit(9), server.admit(8));
    late.client_sends(&hello(&client()));
    server.step(first);
    late.server_has_sent();
    newcomer.client_sends(&hello(&client()));
    server.step(second);
    assert!(matches!(newcomer.verdict(), Message::Busy(why) if &*why == "used up"));
    assert!(late.server_has_sent().is_empty());

    let (newcomer, third) = server.admit(8);
    server.now += Duration::from_secs(1);
    server.numbers = Numbers(Mutex::new(Vec::new()));
    newcomer.client_sends(&hello(&client()));
    server.step(third);
    assert!(matches!(late.verdict(), Message::Busy(_)), "it had to make room");
}

#[test]
fn a_candidate_that_has_gone_or_speaks_is_not_accepted() {
    for ends in [true, false] {
        let mut server = Server::new(plenty, &[0x201]);
        let (client, (wire, key)) = (client(), server.admit(9));
        wire.client_sends(&hello(&client));
        server.step(key);
        wire.client_sends(&client.ready());
        server.step(key);
        let mut candidate = server.clients.take().unwrap();
        if ends {
            wire.client_ends()
        } else {
            wire.client_sends(b"more")
        }
        match candidate.accept(Greeting::default()).unwrap_err() {
            ConnectError::Closed { .. } => assert!(ends),
            ConnectError::Garbled { .. } => assert!(!ends),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_foreign_protocol_gets_no_answer_and_another_version_does() {
    let mut server = Server::new(plenty, &[]);
    let ((foreign, first), (newer, second)) = (server.admit(9), server.admit(9));
    foreign.client_sends(b"GET / HTTP/1.1");
    newer.client_sends(b"RDRV\0\x09\0\x01");
    server.step(first);
    server.step(second);
    assert!(foreign.server_has_sent().is_empty());
    assert!(matches!(newer.verdict(), Message::Reject(why) if why.contains("version 9")));
    assert_eq!(server.clients.refused, 2);
}

#[test]
fn a_listener_that_cannot_make_a_queue_pair_reports_it_and_the_client_may_come_again() {
    struct Broken;
    impl MakeEnds for Broken {
        type Prepared = ();
        type Connected = u32;

        fn prepare(&self, _: StreamAddresses) -> Result<((), QueuePairEndpoint), NoEnd> {
            Err(NoEnd::Failed(MemError::NoWindows { device: "none".into() }.into()))
        }

        fn device(&self) -> String {
            unreachable!("nothing is connected")
        }

        fn connect(&self, (): (), _: QueuePairEndpoint) -> Result<u32, rdma_qp::Error> {
            unreachable!("nothing is prepared")
        }
    }
    let mut server = Server::new(plenty, &[]);
    let (wire, key) = server.admit(9);
    wire.client_sends(&hello(&client()));
    let hello = server.clients.step(key).unwrap();
    let made = Broken.make(None, hello.endpoint(), || false);
    server.clients.answer(hello, made, server.now);
    assert!(matches!(wire.verdict(), Message::Busy(_)));
    assert!(matches!(server.clients.take_failure(), Some(ConnectError::Verbs(_))));
}

#[test]
fn a_listener_without_files_drops_late_clients_and_else_waits_a_second() {
    let mut server = Server::new(plenty, &[]);
    let no_files = || io::Error::from(Errno::MFILE);
    let (late, _) = server.admit(9);
    server.now += Duration::from_secs(1);
    server.clients.not_admitted(no_files(), 0, server.now);
    assert!(matches!(late.verdict(), Message::Busy(_)));
    assert!(server.clients.takes(server.now));
    server.clients.not_admitted(no_files(), 0, server.now);
    assert!(matches!(server.clients.take_failure(), Some(ConnectError::Io { .. })));
    assert!(!server.clients.takes(server.now));
    assert_eq!(server.clients.next_end(server.now), Duration::from_secs(1));
    assert!(server.clients.takes(server.now + Duration::from_secs(1)));
    // A client that has already gone is not a failure.
    server.clients.not_admitted(Errno::CONNABORTED.into(), 0, server.now);
    assert!(!server.clients.has_news());
}

#[test]
fn ends_that_do_not_fit_name_both_devices() {
    let unfit = |sent: &dyn Fn(&Wire, &Client)| {
        let mut server = Server::new(plenty, &[]);
        let ((wire, key), mut client) = (server.admit(9), client());
        wire.client_sends(&hello(&client));
        let hello = server.clients.step(key).unwrap();
        let error = MemError::NoWindows { device: "none".into() }.into();
        server.clients.answer(hello, Err(NoEnd::Unfit(error, "soft1".into())), server.now);
        let reject = wire.server_has_sent();
        let at_client = client.answer(&reject).unwrap_err().to_string();
        for part in [UNFIT, "the server's device is soft1", "the client's device is soft9"] {
            assert!(at_client.contains(part), "{at_client}");
        }
        assert_eq!(server.clients.refused, 0);
        sent(&wire, &client);
        server.step(key);
        server.pass(LIMIT);
        assert_eq!(server.clients.refused, 1);
        assert!(wire.server_has_sent().is_empty());
        server.clients.last_refused().unwrap().to_owned()
    };
    let last = |client: &Client| client.last_message().unwrap();
    let at_server = unfit(&|wire, client| wire.client_sends(&last(client)));
    assert!(at_server.contains("soft1; ") && at_server.ends_with("the client's device is soft9"));
    // An earlier version sends no name; other clients send invalid data.
    type Sends<'a> = &'a dyn Fn(&Wire, &Client);
    let odd: [Sends<'_>; 4] = [
        &|wire, _| wire.client_ends(),
        &|_, _| {},
        &|wire, client| wire.client_sends(&client.ready()),
        &|wire, client| wire.client_sends(&[last(client), last(client)].concat()),
    ];
    for sent in odd {
        let at_server = unfit(sent);
        assert!(at_server.contains("the server's device is soft1; "), "{at_server}");
        assert!(at_server.ends_with("; the client's device is unknown"), "{at_server}");
    }
    let mut client = client();
    let reject = Message::Reject(format!("{UNFIT}too small").into()).to_bytes();
    let error = client.answer(&reject).unwrap_err().to_string();
    let both = "the server's device is unknown; too small; the client's device is soft9";
    assert!(error.ends_with(both), "{error}");
}

#[test]
fn a_server_that_refuses_or_ends_is_reported_by_the_client() {
    let reject = Message::Reject("not you".into()).to_bytes();
    let error = client().answer(&reject).unwrap_err();
    assert!(matches!(error, ConnectError::Rejected(why) if &*why == "not you"));
    assert_eq!(client().last_message(), None);
    let error = client().answer(&Message::Busy("later".into()).to_bytes()).unwrap_err();
    assert!(matches!(error, ConnectError::Busy(why) if &*why == "later"));
    assert!(matches!(client().answer(b""), Err(ConnectError::Closed { .. })));
    assert!(matches!(client().answer(b"SSH-2.0-"), Err(ConnectError::Foreign { .. })));
    assert!(matches!(
        client().verdict(&Message::Ready.to_bytes()),
        Err(ConnectError::Garbled { .. })
    ));
    let late = client().not_received(ErrorKind::TimedOut.into());
    assert!(matches!(late, ConnectError::Timeout { awaited, .. } if awaited.contains("answer")));
    assert!(client().not_sent(ErrorKind::BrokenPipe.into()).is_ok());
    let long = ConnectError::check_user_bytes(&[0; MOST + 1]);
    assert!(matches!(long, Err(ConnectError::UserBytesTooLong { .. })));
}
