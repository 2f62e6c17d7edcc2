//! Clients that must not delay others, and errors of accepting.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};

use greeter::MyGreeter;
use rdma_async::message::Options;
use rdma_tonic::Incoming;
use test_support::events;
use tokio_stream::StreamExt as _;

use crate::rig::{bind, connect, endpoint, name, run, serve};

fn stranger(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).unwrap()
}

#[test]
fn silent_and_bad_strangers_do_not_delay_clients() {
    run(async {
        let endpoint = endpoint();
        let server = serve(&endpoint, MyGreeter).await;
        let silent: Vec<_> = (0..20).map(|_| stranger(server.address)).collect();
        stranger(server.address).write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut half = stranger(server.address);
        half.write_all(b"RD").unwrap();
        let mut client = connect(&endpoint, server.address).await.unwrap();
        client.say_hello(name("Ada")).await.unwrap();
        drop((silent, half));
        connect(&endpoint, server.address).await.unwrap().say_hello(name("Ada")).await.unwrap();
        assert!(!server.ended.is_finished());
    });
}

/// The subscriber raises the limit when it receives the report.
#[test]
fn a_server_without_memory_reports_it_and_accepts_later() {
    let work = async {
        let scarce = endpoint();
        let mut incoming = Incoming::bind(&scarce, "127.0.0.1:0", Options::new()).await.unwrap();
        let pool = scarce.pool().as_blocking().clone();
        pool.set_limit(0);
        let reports = events::Hears(move |event: events::Event| {
            if event.target.starts_with("rdma_tonic") {
                assert!(event.field("error").unwrap().contains("set a higher limit"), "{event:?}");
                pool.set_limit(usize::MAX);
            }
        });
        let _reports = tracing::subscriber::set_default(reports);
        let endpoint = endpoint();
        let client = endpoint.connect_stream(incoming.local_addr(), Options::new());
        let (client, accepted) = tokio::join!(client, incoming.next());
        client.unwrap();
        accepted.unwrap().unwrap();
        assert_eq!(scarce.pool().as_blocking().limit(), usize::MAX);
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
}

#[test]
fn a_client_is_not_lost_when_accepting_is_interrupted() {
    run(async {
        let endpoint = endpoint();
        let (mut incoming, address) = bind(&endpoint).await;
        let connects = tokio::spawn({
            let endpoint = endpoint.clone();
            async move { endpoint.connect_stream(address, Options::new()).await.unwrap() }
        });
        let accepted = loop {
            // Drops the future of `accept` after each poll.
            let once = tokio::select! {
                biased;
                accepted = incoming.accept() => Some(accepted),
                () = tokio::task::yield_now() => None,
            };
            if let Some(accepted) = once {
                break accepted.unwrap();
            }
        };
        connects.await.unwrap();
        assert_eq!(accepted.0.peer_addr().unwrap(), accepted.1);
    });
}

#[test]
fn a_server_ends_with_the_runtime_of_its_listener() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (mut incoming, _) = runtime.block_on(async { bind(&endpoint()).await });
    drop(runtime);
    run(async {
        let error = incoming.next().await.unwrap().unwrap_err();
        assert!(error.to_string().contains("the listener's task has ended"), "{error}");
        assert!(incoming.next().await.is_none());
    });
}
