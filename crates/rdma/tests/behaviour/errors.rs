//! Each failure of `docs/errors.md` is provoked, and its message compared with the page.
#![cfg(feature = "soft")]

#[cfg(feature = "cm")]
mod cm;

use std::env;
use std::fmt::{Debug, Display};
#[cfg(feature = "async")]
use std::future::Future;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::process::Command;
#[cfg(feature = "async")]
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

#[cfg(feature = "async")]
use rdma::aio::{Connection, ConnectionOptions, Driver, LeaseLimits, Region};
use rdma::channel::{ChannelBuilder, ChannelListener, ConnectError, PeerSendWorkRequest, Server};
use rdma::prelude::*;
use rdma::qp::{AckTimeout, MaxAckRetries, MaxRnrRetries, MinRnrTimer, QueuePairType};

use crate::child::in_child;

const PAGE: &str = include_str!("../../../../docs/errors.md");
const SHORT: Duration = Duration::from_millis(20);
#[cfg(any(feature = "async", feature = "cm"))]
const LONG: Duration = Duration::from_secs(60);
#[cfg(feature = "async")]
const WRITE: AccessFlags = AccessFlags::new().with_remote_write();

/// Returns the sections of the page: the heading, and the rest.
fn sections() -> impl Iterator<Item = (&'static str, &'static str)> {
    PAGE.split("\n### ").skip(1).map(|section| section.split_once('\n').unwrap())
}

/// Returns the name of the test of a section.
fn test_of(heading: &str) -> String {
    heading.to_lowercase().replace([' ', '-'], "_").replace(['`', '\''], "")
}

/// Checks that the section of the running test has this message. On the page, `…` stands for
/// variable parts.
#[track_caller]
fn says(error: impl Display + Debug) {
    let (said, thread) = (error.to_string(), thread::current());
    // The output of `unwrap`, and of a `main` that returns the error.
    assert_eq!(format!("{error:?}"), said);
    let test = thread.name().unwrap().rsplit("::").next().unwrap();
    let (_, section) = sections().find(|(heading, _)| test_of(heading) == test).unwrap();
    let block = section.split("```").nth(1).unwrap().strip_prefix("text").unwrap();
    let expected = block.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut rest: &str = &said.split_whitespace().collect::<Vec<_>>().join(" ");
    for (place, part) in expected.split('…').enumerate() {
        let at = rest.find(part).filter(|&at| place > 0 || at == 0);
        let at = at.unwrap_or_else(|| panic!("the message: {said}\non the page: {expected}"));
        rest = &rest[at + part.len()..];
    }
    assert!(rest.is_empty() || expected.ends_with('…'), "message: {said}\non the page: {expected}");
}

#[test]
fn each_section_has_a_test() {
    let tests = concat!(include_str!("errors.rs"), include_str!("errors/cm.rs"));
    assert!(sections().count() >= 20, "the twenty commonest");
    for (heading, _) in sections() {
        let test = test_of(heading);
        assert!(tests.contains(&format!("#[test]\nfn {test}()")), "no test for {heading}: {test}");
    }
}

fn domain(device: &str) -> ProtectionDomain {
    open_device(device).unwrap().allocate_pd().unwrap()
}

/// Returns all access that a peer can have.
fn all() -> AccessFlags {
    let local = AccessFlags::new().with_local_write();
    local.with_remote_read().with_remote_write().with_remote_atomic()
}

/// Returns two channels of this domain that are connected to each other.
fn pair(pd: &ProtectionDomain) -> [Channel; 2] {
    pair_with(pd, |builder| builder)
}

fn pair_with(
    pd: &ProtectionDomain,
    knobs: impl Fn(ChannelBuilder<'_>) -> ChannelBuilder<'_>,
) -> [Channel; 2] {
    let [here, there] = [(); 2].map(|()| knobs(pd.create_channel().access(all())).build().unwrap());
    let (at_here, at_there) = (here.endpoint(), there.endpoint());
    [here.handshake(at_there).unwrap(), there.handshake(at_here).unwrap()]
}

#[test]
fn no_device_of_that_name() {
    says(open_device("mlx5_9").unwrap_err());
}

/// In a process of its own, since libibverbs is loaded only once in a process.
#[test]
fn no_libibverbs() {
    let library = ("RDMA_LIBIBVERBS", "/no/such/libibverbs.so.1");
    in_child(
        "errors::no_libibverbs",
        |program| _ = program.envs([library]),
        || {
            says(&list_devices().errors()[0]);
        },
    );
}

#[test]
fn a_region_of_no_bytes() {
    says(domain("soft0").allocate_region(0).unwrap_err());
}

#[test]
fn remote_access_without_local_write() {
    let access = AccessFlags::new().with_remote_write();
    says(domain("soft0").allocate_shared_region(8, access).unwrap_err());
}

#[test]
fn more_than_the_device_has() {
    says(domain("soft0").create_channel().max_send_wr(1 << 20).build().unwrap_err());
}

#[test]
fn a_channel_of_datagrams() {
    says(domain("soft0").create_channel().qp_type(QueuePairType::UD).build().unwrap_err());
}

#[test]
fn ends_of_different_link_layers() {
    let (roce, infiniband) = (domain("soft0"), domain("softib0"));
    let peer = infiniband.create_channel().build().unwrap().endpoint();
    says(roce.create_channel().build().unwrap().handshake(peer).unwrap_err());
}

/// Returns the error of a client that connects to a listener of `soft0` while `serve` is called.
fn refused(serve: impl FnOnce(&mut ChannelListener)) -> ConnectError {
    let pd = domain("soft0");
    let mut listener = pd.create_channel().listen("127.0.0.1:0").unwrap();
    let to = listener.local_addr();
    let client = thread::spawn(move || Channel::connect(to, &domain("soft0")).unwrap_err());
    serve(&mut listener);
    client.join().unwrap()
}

#[test]
fn no_server_listens_there() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    says(Channel::connect(free, &domain("soft0")).unwrap_err());
}

#[test]
fn the_address_is_in_use() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let pd = domain("soft0");
    says(pd.create_channel().listen(taken.local_addr().unwrap()).unwrap_err());
}

#[test]
fn the_server_has_no_place() {
    let pd = domain("soft0");
    let mut server = Server::bind("127.0.0.1:0", &pd, 1).unwrap();
    let to = server.local_addr();
    let clients = thread::spawn(move || {
        let _first = Channel::connect(to, &domain("soft0")).unwrap();
        Channel::connect(to, &domain("soft0")).unwrap_err()
    });
    while !clients.is_finished() {
        let _ = server.next(Some(SHORT)).unwrap();
    }
    says(clients.join().unwrap());
}

#[test]
fn the_server_turns_a_client_away() {
    says(refused(|listener| listener.incoming(None).unwrap().reject("no password")));
}

#[test]
fn the_server_does_not_accept() {
    let (pd, far) = (domain("soft0"), domain("soft0"));
    let listener = far.create_channel().listen("127.0.0.1:0").unwrap();
    let client = pd.create_channel().rendezvous_timeout(SHORT);
    says(client.connect(listener.local_addr()).unwrap_err());
}

#[test]
fn user_bytes_that_are_too_long() {
    let builder = domain("soft0").create_channel().user_bytes(&[0; 1025]).listen("127.0.0.1:0");
    says(builder.unwrap_err());
}

/// In a process of its own, since the limit is that of a process.
#[test]
fn too_many_open_files() {
    if env::var_os("IN_CHILD").is_some() {
        let pd = domain("soft0");
        let files = (0..).map(|_| pd.create_channel().build());
        let mut kept = Vec::new();
        let error =
            files.map(|built| built.map(|channel| kept.push(channel))).find_map(Result::err);
        return says(error.unwrap());
    }
    let child = Command::new("/bin/sh")
        .args(["-c", "ulimit -n 64 && exec \"$0\" --exact errors::too_many_open_files --nocapture"])
        .arg(env::current_exe().unwrap())
        .env("IN_CHILD", "1")
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
}

#[test]
fn something_else_speaks_there() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut web = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    web.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let stream = listener.accept().unwrap().0;
    let endpoint = domain("soft0").create_channel().build().unwrap().endpoint();
    says(exchange(stream, &endpoint, Duration::from_secs(5)).unwrap_err());
}

#[test]
fn the_peer_never_exchanges() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let _silent = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let stream = listener.accept().unwrap().0;
    let endpoint = domain("soft0").create_channel().build().unwrap().endpoint();
    says(exchange(stream, &endpoint, SHORT).unwrap_err());
}

#[test]
fn memory_of_another_domain() {
    let [mut here, _there] = pair(&domain("soft0"));
    let foreign = domain("soft0").allocate_region(8).unwrap();
    says(here.send_from(&foreign).unwrap_err());
}

#[test]
fn too_many_elements() {
    let pd = domain("soft0");
    let [mut here, _there] = pair_with(&pd, |builder| builder.max_send_sge(1));
    let region = pd.allocate_region(8).unwrap();
    let list = GatherList::from([region.as_slice(), region.as_slice()]);
    says(here.send(SendWorkRequest::from_list(&list)).unwrap_err());
}

#[test]
fn more_inline_bytes_than_the_device_has() {
    says(domain("soft0").create_channel().max_inline_data(4096).build().unwrap_err());
}

#[test]
fn a_type_of_queue_pair_that_the_device_does_not_have() {
    // Not in this process: other tests list its devices.
    in_child(
        "errors::a_type_of_queue_pair_that_the_device_does_not_have",
        |_| {},
        || {
            rdma::soft::Builder::new("errors-reliable").without_uc().install().unwrap();
            let pd = domain("errors-reliable");
            says(pd.create_channel().qp_type(QueuePairType::UC).build().unwrap_err());
        },
    );
}

#[test]
fn too_many_inline_bytes() {
    let [mut here, _there] = pair(&domain("soft0"));
    says(here.send_inline(&[0; 4096]).unwrap_err());
}

#[test]
fn beyond_the_remote_memory() {
    let pd = domain("soft0");
    let [mut here, _there] = pair(&pd);
    let board = pd.allocate_shared_region(8, all()).unwrap();
    says(here.read_into(&mut pd.allocate_region(16).unwrap(), board.remote()).unwrap_err());
}

#[test]
fn an_atomic_at_an_odd_address() {
    let pd = domain("soft0");
    let [mut here, _there] = pair(&pd);
    let board = pd.allocate_shared_region(16, all()).unwrap();
    says(here.fetch_add(board.remote().slice(4..12).unwrap(), 1).unwrap_err());
}

#[test]
fn the_queue_is_full() {
    let [mut here, _there] = pair_with(&domain("soft0"), |builder| builder.max_recv_wr(1));
    let full = here.scope(|s| {
        s.post_receive(ReceiveWorkRequest::only_immediate())?;
        let full = s.post_receive(ReceiveWorkRequest::only_immediate()).map(drop);
        s.close();
        full
    });
    says(full.map_err(ScopeError::flatten).unwrap_err());
}

#[test]
fn a_batch_longer_than_the_queue() {
    let [mut here, _there] = pair_with(&domain("soft0"), |builder| builder.max_send_wr(2));
    let none = || SendWorkRequest::new(&[]).into();
    says(here.batch([none(), none(), none()]).unwrap_err());
}

#[test]
fn no_such_peer() {
    let pd = domain("soft0");
    let prepared = pd.create_multi_channel().num_channels(2).build().unwrap();
    let ends = prepared.endpoints();
    let mut channels = prepared.handshake([ends[1], ends[0]]).unwrap();
    says(channels.send(PeerSendWorkRequest::new(2, &[])).unwrap_err());
}

#[test]
fn nothing_came_in_time() {
    let pd = domain("soft0");
    let [mut here, _there] = pair(&pd);
    let mut memory = pd.allocate_region(8).unwrap();
    says(here.within(SHORT).receive_into(&mut memory).unwrap_err());
}

#[test]
fn the_channel_is_closed() {
    let pd = domain("soft0");
    let [mut here, _there] = pair(&pd);
    let mut memory = pd.allocate_region(8).unwrap();
    here.within(SHORT).receive_into(&mut memory).unwrap_err();
    says(here.send_from(&memory).unwrap_err());
}

#[test]
fn the_peer_does_not_answer() {
    let pd = domain("soft0");
    let retries = MaxAckRetries::limited(1).unwrap();
    let [mut here, there] = pair_with(&pd, |builder| {
        builder.ack_timeout(AckTimeout::limited(12).unwrap()).max_ack_retries(retries)
    });
    drop(there);
    says(here.send_from(&pd.allocate_region(8).unwrap()).unwrap_err());
}

#[test]
fn the_peer_is_gone() {
    let pd = domain("soft0");
    let mut listener = pd.create_channel().listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr();
    let client = thread::spawn(move || Channel::connect(address, &domain("soft0")).map(drop));
    let mut here = listener.accept().unwrap();
    client.join().unwrap().unwrap();
    says(here.receive_into(&mut pd.allocate_region(8).unwrap()).unwrap_err());
}

#[test]
fn the_peer_has_no_receive_posted() {
    let pd = domain("soft0");
    let [mut here, _there] = pair_with(&pd, |builder| {
        let retries = MaxRnrRetries::limited(1).unwrap();
        builder.max_rnr_retries(retries).min_rnr_timer(MinRnrTimer::limited(1).unwrap())
    });
    says(here.send_from(&pd.allocate_region(8).unwrap()).unwrap_err());
}

#[test]
fn the_peer_does_not_allow_it() {
    let pd = domain("soft0");
    let [mut here, _there] = pair(&pd);
    let access = AccessFlags::new().with_remote_read();
    let board = pd.allocate_shared_region(8, access).unwrap();
    says(here.write_from(&pd.allocate_region(8).unwrap(), board.remote()).unwrap_err());
}

#[test]
fn a_request_of_the_peer_was_refused_here() {
    let pd = domain("soft0");
    let [mut here, mut there] = pair(&pd);
    let access = AccessFlags::new().with_remote_read();
    let board = pd.allocate_shared_region(8, access).unwrap();
    let _refused = here.write_from(&pd.allocate_region(8).unwrap(), board.remote()).unwrap_err();
    says(there.receive_into(&mut pd.allocate_region(8).unwrap()).unwrap_err());
}

#[test]
fn a_message_longer_than_its_receive() {
    let pd = domain("soft0");
    let [mut here, mut there] = pair(&pd);
    let receiver = thread::spawn({
        let pd = pd.clone();
        move || there.receive_into(&mut pd.allocate_region(8).unwrap()).unwrap_err()
    });
    let _refused = here.send_from(&pd.allocate_region(16).unwrap()).unwrap_err();
    says(receiver.join().unwrap());
}

#[test]
fn abandoned_operations_of_a_scope_failed() {
    let pd = domain("soft0");
    let [mut here, _there] = pair(&pd);
    let access = AccessFlags::new().with_remote_read();
    let board = pd.allocate_shared_region(8, access).unwrap();
    let memory = pd.allocate_region(8).unwrap();
    let left = here.scope(|s| {
        drop(s.write_from(memory.as_slice(), board.remote())?);
        Ok::<_, TransportError>(())
    });
    says(left.unwrap_err());
}

/// Returns two ends of a connection. The second one lends a megabyte at a time.
#[cfg(feature = "async")]
async fn lending() -> (Connection, Connection) {
    let pd = domain("soft0");
    let driver = Driver::spawn(pd.context()).unwrap();
    let options = ConnectionOptions::new(&pd).rendezvous_timeout(LONG);
    let limits = LeaseLimits::new(WRITE).per_peer(1 << 20);
    let listener =
        driver.listen("127.0.0.1:0", options.clone().lease_limits(limits)).await.unwrap();
    let connect = driver.connect(listener.local_addr(), options);
    let (client, server) = tokio::join!(connect, listener.accept());
    (client.unwrap().0, server.unwrap())
}

#[cfg(feature = "async")]
fn run(test: impl Future<Output = ()>) {
    runtime().block_on(test);
}

#[cfg(feature = "async")]
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[cfg(feature = "async")]
#[test]
fn no_control_connection() {
    run(async {
        let pd = domain("soft0");
        let driver = Driver::spawn(pd.context()).unwrap();
        let prepare = || driver.prepare(pd.create_qp()).unwrap();
        let (one, other) = (prepare(), prepare());
        let by_hand = one.handshake(other.endpoint()).unwrap();
        says(by_hand.borrow(8, WRITE, LONG).await.unwrap_err());
    });
}

#[cfg(feature = "async")]
#[test]
fn the_peer_lends_nothing() {
    run(async {
        let (_client, server) = lending().await;
        says(server.borrow(8, WRITE, LONG).await.unwrap_err());
    });
}

#[cfg(feature = "async")]
#[test]
fn more_than_the_peer_lends() {
    run(async {
        let (client, _server) = lending().await;
        says(client.borrow((1 << 20) + 1, WRITE, LONG).await.unwrap_err());
    });
}

#[cfg(feature = "async")]
#[test]
fn the_peer_has_lent_all_that_it_may() {
    run(async {
        let (client, _server) = lending().await;
        let all = client.borrow(1 << 20, WRITE, LONG).await.unwrap();
        says(client.borrow(8, WRITE, LONG).await.unwrap_err());
        drop(all);
    });
}

#[cfg(feature = "async")]
#[test]
fn rights_that_the_connection_does_not_give() {
    run(async {
        let (client, _server) = lending().await;
        let region = Region::allocate(client.pd(), 8).unwrap();
        let atomic = AccessFlags::new().with_remote_atomic();
        says(client.lend(region, atomic, LONG).await.unwrap_err());
    });
}

#[cfg(feature = "async")]
#[test]
fn the_peer_does_not_answer_a_request() {
    let pd = domain("soft0");
    let (listening, address) = mpsc::channel();
    let server = thread::spawn({
        let pd = pd.clone();
        move || {
            let runtime = runtime();
            let accepted = runtime.block_on(async {
                let driver = Driver::spawn(pd.context()).unwrap();
                let options = ConnectionOptions::new(&pd);
                let listener = driver.listen("127.0.0.1:0", options).await.unwrap();
                listening.send(listener.local_addr()).unwrap();
                listener.accept().await.unwrap()
            });
            (runtime, accepted)
        }
    });
    let runtime = runtime();
    let client = runtime.block_on(async {
        let driver = Driver::spawn(pd.context()).unwrap();
        let (address, mut failed) = (address.recv().unwrap(), 0);
        loop {
            // This timeout also applies to `connect`: a busy machine may need longer.
            let options = ConnectionOptions::new(&pd).rendezvous_timeout(Duration::from_secs(2));
            match driver.connect(address, options).await {
                Ok((client, _)) => break client,
                Err(error) => assert!(failed < 30, "{error}"),
            }
            failed += 1;
        }
    });
    // Its runtime does not run any more.
    let _server = server.join().unwrap();
    runtime.block_on(async { says(client.borrow(8, WRITE, LONG).await.unwrap_err()) });
}

#[cfg(feature = "async")]
#[test]
fn the_lease_is_over() {
    run(async {
        let (client, _server) = lending().await;
        let over = client.borrow(8, WRITE, Duration::ZERO).await.unwrap();
        let buffer = BufferPool::new(client.pd()).allocate(8).unwrap();
        says(over.write(buffer).await.unwrap_err());
    });
}

#[cfg(feature = "async")]
#[test]
fn the_connection_of_a_lease_has_ended() {
    run(async {
        let (client, server) = lending().await;
        drop(server);
        says(client.receive_lease().await.unwrap_err());
    });
}

#[cfg(feature = "async")]
#[test]
fn memory_that_cannot_be_opened() {
    run(async {
        let (client, _server) = lending().await;
        says(client.borrow(0, WRITE, LONG).await.unwrap_err());
    });
}
