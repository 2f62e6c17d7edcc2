//! Valid clients and servers.

use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use rdma_channel::{Channel, ConnectError, RemoteMemoryRegion, prelude::*};
use rdma_mem::{AccessFlags, GatherList, ScatterList};
use rdma_qp::{QueuePairType, ReceiveWorkRequest, SendWorkRequest, WriteWorkRequest};
use rdma_soft::{Builder, Limits};
use test_support::features::Feature;

use crate::common::lacks;
use crate::rendezvous::{
    DEVICES, LATER, LOCALHOST, SOON, assert_connected, assert_serves, client, domain, listener,
    patient,
};

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn ten_lines_of_a_client(address: SocketAddr, device: &str) -> Result<(), Failure> {
    let pd = domain(device);
    let mut channel = Channel::connect(address, &pd)?;
    let mut region = pd.allocate_region(5)?;
    region.copy_from_slice(b"hello");
    channel.send(SendWorkRequest::from_list(&GatherList::from([region.as_slice()])))?;
    Ok(())
}

#[test]
fn a_client_and_a_server_of_ten_lines_each() -> Result<(), Failure> {
    for device in DEVICES {
        let pd = domain(device);
        let mut listener = pd.create_channel().listen(LOCALHOST)?;
        let address = listener.local_addr();
        let client = thread::spawn(move || ten_lines_of_a_client(address, device));
        let mut channel = listener.accept()?;
        let mut region = pd.allocate_region(5)?;
        let mut list = ScatterList::from([region.as_slice_mut()]);
        channel.receive(ReceiveWorkRequest::from_list(&mut list))?;
        assert_eq!(*region, *b"hello");
        client.join().unwrap()?;
    }
    Ok(())
}

#[test]
fn user_bytes_go_both_ways() {
    for device in DEVICES {
        let mut listener = listener(device);
        for length in [0, 1, 1024] {
            let says: Vec<_> = (0..=u8::MAX).cycle().take(length).collect();
            let client = client(device, listener.local_addr(), &says);
            let incoming = listener.incoming(Some(LATER)).unwrap();
            assert_eq!(incoming.user_bytes(), says);
            assert!(incoming.peer_addr().ip().is_loopback());
            let answer: Vec<_> = says.iter().rev().copied().collect();
            let mut server = incoming.accept(&answer).unwrap();
            let (mut client, told) = client.join().unwrap().unwrap();
            assert_eq!(*told, answer);
            assert_connected(&mut server, &mut client);
        }
    }
}

#[test]
fn too_many_user_bytes_are_an_error_with_both_numbers() {
    let mut listener = listener("soft0");
    let assert_too_long = |error: ConnectError| {
        assert!(
            matches!(error, ConnectError::UserBytesTooLong { length: 1025, most: 1024 }),
            "{error}"
        );
        let said = error.to_string();
        assert!(said.contains("1025") && said.contains("1024"), "{said}");
    };
    let pd = domain("soft0");
    let builder = || pd.create_channel().user_bytes(&[7; 1025]);
    assert_too_long(builder().connect(listener.local_addr()).unwrap_err());
    assert_too_long(builder().listen(LOCALHOST).unwrap_err());
    // The server's mistake: the client is only rejected.
    let client = client("soft0", listener.local_addr(), b"");
    assert_too_long(listener.incoming(Some(LATER)).unwrap().accept(&[7; 1025]).unwrap_err());
    let told = client.join().unwrap();
    assert!(matches!(told, Err(ConnectError::Rejected(_))), "{told:?}");
    assert_eq!(listener.refused(), 0);
}

#[test]
fn a_region_of_the_server_goes_to_the_client_by_its_user_bytes() {
    for device in DEVICES {
        let pd = domain(device);
        let access = AccessFlags::new().with_local_write().with_remote_write();
        let board = pd.allocate_shared_region(64, access).unwrap();
        let mut listener = patient(&pd).listen(LOCALHOST).unwrap();
        let address = listener.local_addr();
        let client = thread::spawn(move || {
            let pd = domain(device);
            let (mut channel, told) = patient(&pd).connect(address).unwrap();
            let board = RemoteMemoryRegion::from_bytes(told[..].try_into().unwrap());
            let mut text = pd.allocate_region(5).unwrap();
            text.copy_from_slice(b"hello");
            let list = GatherList::from([text.as_slice()]);
            channel.write(WriteWorkRequest::from_list(&list, board)).unwrap();
        });
        let incoming = listener.incoming(Some(LATER)).unwrap();
        let _channel = incoming.accept(&board.remote().to_bytes()).unwrap();
        client.join().unwrap();
        let mut text = [0; 5];
        board.read(0, &mut text).unwrap();
        assert_eq!(&text, b"hello");
    }
}

#[test]
fn a_rejected_client_receives_the_reason() {
    let mut listener = listener("soft0");
    for (why, said) in [
        ("come back tomorrow", "come back tomorrow"),
        ("", "gave no reason"),
        (&"x".repeat(4000), &"x".repeat(1024)),
    ] {
        let client = client("soft0", listener.local_addr(), b"");
        listener.incoming(Some(LATER)).unwrap().reject(why);
        let error = client.join().unwrap().unwrap_err();
        assert!(matches!(error, ConnectError::Rejected(_)), "{error:?}");
        assert!(error.to_string().ends_with(said), "{error}");
    }
    assert_eq!(listener.refused(), 0, "the program has rejected them");
    assert_serves(&mut listener, "soft0");
}

#[test]
fn a_client_dropped_without_an_answer_is_rejected() {
    let mut listener = listener("soft0");
    let client = client("soft0", listener.local_addr(), b"");
    drop(listener.incoming(Some(LATER)).unwrap());
    match client.join().unwrap() {
        Err(ConnectError::Rejected(why)) => {
            assert!(why.contains("turned the client away"), "{why}")
        }
        other => panic!("{other:?}"),
    }
    assert_serves(&mut listener, "soft0");
}

#[test]
fn a_client_receives_a_message_sent_before_its_own() {
    for device in DEVICES {
        let mut listener = listener(device);
        let address = listener.local_addr();
        let client = thread::spawn(move || {
            let mut channel = Channel::connect(address, &domain(device)).unwrap();
            let request = ReceiveWorkRequest::only_immediate();
            channel.within(LATER).receive(request).unwrap().immediate_data()
        });
        let mut channel = listener.accept().unwrap();
        channel.within(LATER).send(SendWorkRequest::only_immediate(7)).unwrap();
        assert_eq!(client.join().unwrap(), Some(7));
    }
}

#[test]
fn accept_answers_with_the_bytes_of_the_builder() {
    let pd = domain("soft0");
    let mut listener = patient(&pd).user_bytes(b"from the builder").listen(LOCALHOST).unwrap();
    let client = client("soft0", listener.local_addr(), b"");
    let _channel = listener.accept().unwrap();
    assert_eq!(*client.join().unwrap().unwrap().1, *b"from the builder");
}

#[test]
fn options_of_channel_and_rendezvous_mix_in_any_order() {
    let pd = domain("soft0");
    let builder = pd.create_channel().max_send_wr(3).user_bytes(b"a").max_recv_wr(5);
    let qp_type = if lacks("soft0", Feature::Uc) { QueuePairType::RC } else { QueuePairType::UC };
    let builder = builder.rendezvous_timeout(Duration::MAX).qp_type(qp_type);
    let mut listener = builder.clone().listen(LOCALHOST).unwrap();
    let address = listener.local_addr();
    let same = builder.clone();
    thread::scope(|threads| {
        let client = threads.spawn(|| same.connect(address));
        let server = listener.accept().unwrap();
        let (client, told) = client.join().unwrap().unwrap();
        assert_eq!(*told, *b"a");
        assert_eq!(server.peer().map(|peer| peer.peer_qpn), client.qpn());
    });
}

#[test]
fn a_listener_is_kept_in_a_struct_and_moved_to_a_thread() {
    struct Server {
        listener: rdma_channel::ChannelListener,
    }
    let server = Server { listener: listener("soft0") };
    let address = server.listener.local_addr();
    let serving = thread::spawn(move || {
        let mut server = server;
        (server.listener.accept(), server)
    });
    let (mut client, _) = client("soft0", address, b"").join().unwrap().unwrap();
    let (channel, _server) = serving.join().unwrap();
    assert_connected(&mut channel.unwrap(), &mut client);
}

#[test]
fn incoming_ends_with_its_limit_and_a_client_goes_on_with_the_next_call() {
    let mut listener = listener("soft0");
    for limit in [Duration::ZERO, SOON] {
        let begin = Instant::now();
        let error = listener.incoming(Some(limit)).unwrap_err();
        assert!(matches!(&error, ConnectError::Timeout { limit: said, .. } if *said == limit));
        assert!(error.to_string().contains("waiting for the client at"), "{error}");
        assert!((limit..LATER).contains(&begin.elapsed()));
    }
    // The client is accepted, however short the calls are.
    let client = client("soft0", listener.local_addr(), b"");
    let begin = Instant::now();
    let mut server = loop {
        match listener.incoming(Some(Duration::ZERO)) {
            Ok(incoming) => break incoming.accept(b"").unwrap(),
            Err(ConnectError::Timeout { .. }) => thread::yield_now(),
            Err(other) => panic!("{other}"),
        }
        assert!(begin.elapsed() < LATER);
    };
    assert_connected(&mut server, &mut client.join().unwrap().unwrap().0);
}

#[test]
fn endpoints_that_do_not_fit_are_refused_with_both_devices() {
    let names_both = |why: &str| {
        why.contains("the server's device is soft0; the link layers")
            && why.ends_with("; the client's device is softib0")
    };
    let mut listener = listener("soft0");
    let client = client("softib0", listener.local_addr(), b"");
    crate::rendezvous::await_refused(&mut listener, 1);
    match client.join().unwrap() {
        Err(ConnectError::Rejected(why)) => assert!(names_both(&why), "{why}"),
        other => panic!("{other:?}"),
    }
    // The server's operator also gets the reason.
    let why = listener.last_refused().unwrap().to_owned();
    assert!(why.starts_with("127.0.0.1:") && names_both(&why), "{why}");
    let late = listener.incoming(Some(Duration::ZERO)).unwrap_err().to_string();
    assert!(late.contains(&why), "{late}");
    assert_serves(&mut listener, "soft0");
}

#[test]
fn impossible_options_are_an_error_of_listen_and_connect() {
    let pd = domain("soft0");
    let datagrams = || pd.create_channel().qp_type(QueuePairType::UD);
    assert!(matches!(datagrams().listen(LOCALHOST), Err(ConnectError::Verbs(_))));
    assert!(matches!(datagrams().connect("127.0.0.1:1"), Err(ConnectError::Verbs(_))));
}

#[test]
fn a_server_without_queue_pairs_fails_at_both_ends_and_recovers() {
    const FEW: &str = "softfew0";
    rdma_soft::install();
    Builder::new(FEW).limits(Limits::default().max_qp(3)).install().unwrap();
    let mut listener = listener(FEW);
    let first = client(FEW, listener.local_addr(), b"");
    let server = listener.accept().unwrap();
    let first = first.join().unwrap().unwrap();
    // The third queue pair belongs to the second client.
    let second = client(FEW, listener.local_addr(), b"");
    let error = listener.incoming(Some(LATER)).unwrap_err();
    assert!(matches!(error, ConnectError::Verbs(_)), "{error}");
    match second.join().unwrap() {
        Err(ConnectError::Busy(why)) => {
            assert!(why.starts_with("it cannot create a queue pair"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(listener.refused(), 0, "the client was valid");
    drop((server, first));
    assert_serves(&mut listener, FEW);
}

#[test]
fn connecting_to_an_address_without_a_listener_fails_with_a_remedy() {
    let free = || TcpListener::bind(LOCALHOST).unwrap().local_addr().unwrap();
    let addresses = [free(), free()];
    let pd = domain("soft0");
    let error = Channel::connect(addresses.as_slice(), &pd).unwrap_err();
    assert!(matches!(&error, ConnectError::NobodyListens { tried } if *tried == addresses));
    let said = error.to_string();
    assert!(said.contains("start the server first"), "{said}");
    assert!(addresses.iter().all(|address| said.contains(&address.to_string())), "{said}");
}

#[test]
fn the_first_address_that_answers_is_used() {
    let mut listener = listener("soft0");
    let nobody = TcpListener::bind(LOCALHOST).unwrap().local_addr().unwrap();
    let addresses = [nobody, listener.local_addr()];
    let client = thread::spawn(move || Channel::connect(addresses.as_slice(), &domain("soft0")));
    let mut server = listener.accept().unwrap();
    assert_connected(&mut server, &mut client.join().unwrap().unwrap());
}

#[test]
fn names_without_an_address_are_an_error_with_a_remedy() {
    let pd = domain("soft0");
    let none: [SocketAddr; 0] = [];
    let error = Channel::connect(none.as_slice(), &pd).unwrap_err();
    assert!(matches!(error, ConnectError::NoAddress), "{error}");
    let error = Channel::connect("no port here", &pd).unwrap_err();
    assert!(matches!(error, ConnectError::Resolve { .. }), "{error}");
    assert!(error.to_string().contains("HOST:PORT"), "{error}");
    assert!(pd.create_channel().listen(none.as_slice()).is_err());
}

#[test]
fn an_address_in_use_or_of_another_machine_cannot_be_listened_at() {
    let pd = domain("soft0");
    let taken = listener("soft0");
    let said = |address: SocketAddr| {
        let error = pd.create_channel().listen(address).unwrap_err();
        assert!(matches!(error, ConnectError::Io { .. }), "{error:?}");
        let said = error.to_string();
        assert!(said.contains(&address.to_string()), "{said}");
        said
    };
    assert!(said(taken.local_addr()).contains("another program listens there"));
    assert!(said("192.0.2.1:7471".parse().unwrap()).contains("an address of this machine"));
}
