//! The futures that make connections by address: plain ones, streams, and connections for messages.

use std::io;
use std::net::SocketAddr;

use rdma_async::message::{Messages, MessagesListener, Options, Stream, StreamListener};
use rdma_async::{ConnectError, ConnectionOptions, Endpoint, Listener};
use tokio::io::AsyncReadExt as _;

use crate::await_points::*;

/// More polls than are needed to connect, with memory of the pool and a test of the windows.
const POLLS_TO_CONNECT: usize = 12;

/// The purpose of a connection.
#[derive(Clone, Copy, Debug)]
enum Carried {
    Requests,
    Bytes,
    Messages,
}

/// A listener for connections of one kind.
enum Server {
    Requests(Listener),
    Bytes(StreamListener),
    Messages(MessagesListener),
}

/// One end of a connection.
#[derive(Debug)]
enum End {
    Requests(Connection),
    Bytes(Stream),
    Messages(Messages),
}

/// Short queues. An end that is not closed cleanly is never reset.
fn options() -> Options {
    let options = Options::new().receives(4).sends(6).frame_bytes(256).window_bytes(1024);
    options.linger(30 * HANG)
}

impl Carried {
    const ALL: [Self; 3] = [Self::Requests, Self::Bytes, Self::Messages];

    async fn listen(self, endpoint: &Endpoint, address: &str) -> Result<Server, ConnectError> {
        Ok(match self {
            Self::Requests => Server::Requests(endpoint.listen(address).await?),
            Self::Bytes => Server::Bytes(endpoint.listen_for_streams(address, options()).await?),
            Self::Messages => {
                Server::Messages(endpoint.listen_for_messages(address, options()).await?)
            }
        })
    }

    async fn connect(
        self,
        endpoint: &Endpoint,
        address: SocketAddr,
        options: Options,
    ) -> Result<End, ConnectError> {
        Ok(match self {
            Self::Requests => End::Requests(endpoint.connect(address).await?),
            Self::Bytes => End::Bytes(endpoint.connect_stream(address, options).await?),
            Self::Messages => End::Messages(endpoint.connect_messages(address, options).await?),
        })
    }
}

impl Server {
    async fn accept(&self) -> Result<End, ConnectError> {
        Ok(match self {
            Self::Requests(listener) => End::Requests(listener.accept().await?),
            Self::Bytes(listener) => End::Bytes(listener.accept().await?),
            Self::Messages(listener) => End::Messages(listener.accept().await?),
        })
    }

    fn local_addr(&self) -> SocketAddr {
        match self {
            Self::Requests(listener) => listener.local_addr(),
            Self::Bytes(listener) => listener.local_addr(),
            Self::Messages(listener) => listener.local_addr(),
        }
    }
}

impl End {
    /// Waits until the other end has closed.
    async fn closed(self) {
        match self {
            Self::Requests(connection) => drop(connection.receive_imm().await.unwrap_err()),
            Self::Bytes(mut stream) => {
                let read: io::Result<usize> = stream.read(&mut [0]).await;
                assert_eq!(read.unwrap_or(0), 0);
            }
            Self::Messages(messages) => {
                let received = messages.receive().await;
                assert!(matches!(received, Ok(None) | Err(_)));
            }
        }
    }
}

/// An endpoint of a domain. Two of its plain connections fit into a completion queue.
fn endpoint(pd: &ProtectionDomain) -> Endpoint {
    let qp = pd.create_qp().max_send_wr(1000).max_recv_wr(1000);
    Endpoint::with_options(pd, ConnectionOptions::from(qp)).unwrap()
}

/// Checks that no connection is left, and no memory of these endpoints is in use.
async fn assert_nothing_left(provider: &Provider, endpoints: &[&Endpoint]) {
    assert_queue_pairs(provider, 0).await;
    let buffers = || endpoints.iter().map(|one| one.pool().usage().buffers).sum::<usize>();
    let free = async {
        while buffers() > 0 {
            tokio::task::yield_now().await;
        }
    };
    let free = timeout(HANG, free).await;
    assert!(free.is_ok(), "{} buffers are in use", buffers());
}

/// Nothing of it remains at this end. At the server, the connection ends if it was accepted.
#[test]
fn a_connect_dropped_after_any_poll_leaves_nothing() {
    for carried in Carried::ALL {
        run(move || async move {
            let (pd, provider) = Provider::faulty("soft0");
            let [at_server, at_client] = [endpoint(&pd), endpoint(&pd)];
            let server = carried.listen(&at_server, "127.0.0.1:0").await.unwrap();
            let address = server.local_addr();
            // Keeps each accepted connection until the other end closes.
            let server = tokio::spawn(async move {
                while let Ok(accepted) = server.accept().await {
                    tokio::spawn(accepted.closed());
                }
            });
            let mut is_over = false;
            for polls in (0..3).flat_map(|_| 0..POLLS_TO_CONNECT) {
                let connect = carried.connect(&at_client, address, options());
                if let Some(made) = timeout(HANG, give_up_after(polls, connect)).await.unwrap() {
                    drop(made.unwrap());
                    is_over = true;
                }
                assert_nothing_left(&provider, &[&at_client]).await;
            }
            assert!(is_over, "{carried:?}: the polls were not enough");
            let queues = provider.live()[4];
            assert!(queues <= 4, "the room of closed connections was not reused: {queues} queues");
            server.abort();
            let _ = server.await;
            assert_nothing_left(&provider, &[&at_server, &at_client]).await;
            drop((at_server, at_client, pd));
            provider.gone().await;
        });
    }
}

/// The peer's device does not execute the requests of this end, so an end that lingers would remain.
#[test]
fn a_connect_that_is_not_accepted_does_not_linger_after_it_is_dropped() {
    for carried in [Carried::Bytes, Carried::Messages] {
        run(move || async move {
            let (pd, provider) = Provider::faulty(HELD);
            let endpoint = endpoint(&pd);
            let options = options().offer_bytes(0);
            let driver = endpoint.driver();
            let listener = driver.listen("127.0.0.1:0", options.fit(pd.create_qp())).await.unwrap();
            let connect = carried.connect(&endpoint, listener.local_addr(), options);
            // This client has prepared its end.
            let incoming = tokio::select! {
                connected = connect => panic!("{connected:?}"),
                incoming = listener.incoming() => incoming.unwrap(),
            };
            assert_queue_pairs(&provider, 1).await;
            drop(incoming);
            assert_nothing_left(&provider, &[&endpoint]).await;
            drop((listener, endpoint, pd));
            provider.gone().await;
        });
    }
}

/// No listener remains. Its task would keep the driver alive.
#[test]
fn a_listen_dropped_after_any_poll_leaves_no_listener() {
    for carried in Carried::ALL {
        run(move || async move {
            let (pd, provider) = Provider::faulty("soft0");
            let endpoint = endpoint(&pd);
            let mut is_over = false;
            for polls in 0.. {
                // Another thread looks up the name.
                let listen = carried.listen(&endpoint, "localhost:0");
                if let Some(server) = timeout(HANG, give_up_after(polls, listen)).await.unwrap() {
                    drop(server.unwrap());
                    is_over = true;
                }
                assert_nothing_left(&provider, &[&endpoint]).await;
                if is_over {
                    break;
                }
            }
            drop((endpoint, pd));
            provider.gone().await;
        });
    }
}

/// No client is lost.
#[test]
fn an_accept_dropped_after_any_poll_loses_no_client() {
    for carried in Carried::ALL {
        run(move || drop_accept(carried, true));
    }
}

/// No client is lost. A client that was taken and not accepted is notified.
#[test]
fn an_incoming_dropped_after_any_poll_loses_no_client() {
    run(|| drop_accept(Carried::Requests, false));
}

async fn drop_accept(carried: Carried, accepts: bool) {
    let (pd, provider) = Provider::faulty("soft0");
    let endpoint = endpoint(&pd);
    let server = carried.listen(&endpoint, "127.0.0.1:0").await.unwrap();
    let address = server.local_addr();
    for polls in 0..8 {
        let client = tokio::spawn({
            let endpoint = endpoint.clone();
            async move { carried.connect(&endpoint, address, options()).await }
        });
        let taken = async {
            match &server {
                Server::Requests(listener) if !accepts => {
                    drop(give_up_after(polls, listener.incoming()).await?.unwrap());
                }
                _ => drop(give_up_after(polls, server.accept()).await?.unwrap()),
            }
            Some(())
        };
        let taken = timeout(HANG, taken).await.unwrap();
        if taken.is_none() {
            // The next call gets the client.
            drop(timeout(HANG, server.accept()).await.unwrap().unwrap());
        }
        let connected = timeout(HANG, client).await.unwrap().unwrap();
        assert_eq!(connected.is_ok(), accepts || taken.is_none(), "{connected:?}");
        drop(connected);
        assert_nothing_left(&provider, &[&endpoint]).await;
    }
    if let Server::Requests(listener) = &server {
        assert_eq!(listener.refused(), 0);
    }
    drop((server, endpoint, pd));
    provider.gone().await;
}
