//! Connections by rdma_cm, as in the examples `cm_client` and `cm_server` of async-rdma.

use std::env;
use std::net::Ipv4Addr;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rdma_async::{
    CloseReason, CmIncoming, CmListener, ConnectError, Connection, ConnectionOptions,
    TransportError,
};
use rdma_cm::{EventChannel, Listener};
use rdma_mem::AccessFlags;
use rdma_qp::CompletionQueue;
use rdma_qp::prelude::*;
use rdma_soft::{Builder, LinkModel, Network};
use test_support::program::this_program;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use crate::control::{HANG, Host, SHORT, run};

/// Environment variable of a child process: the address of its server.
const ADDRESS: &str = "RDMA_ASYNC_CM_CHILD";

/// The part of an error that names a port in use.
const IN_USE: &str = "another program listens there";

/// The options of an end, without a limit that a busy machine could exceed.
fn patient(host: &Host) -> ConnectionOptions {
    host.options().rendezvous_timeout(HANG)
}

/// A client and a server, and the address at which the server listens.
struct Ends {
    client: Host,
    server: Host,
    address: String,
}

impl Ends {
    fn local(device: &str) -> Self {
        Self { client: Host::new(device), server: Host::new(device), address: "localhost:0".into() }
    }

    /// Two devices, each alone at its address, which exchange packets.
    fn hosts() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let host = || {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let ip = Ipv4Addr::from_bits(0x7f00_0000 | (std::process::id() & 0xffff) << 7 | count);
            let name = format!("cmhost{count}");
            Builder::new(&name).gids([]).listen(ip.to_string()).install().unwrap();
            (Host::new(&name), ip)
        };
        let ((client, _), (server, ip)) = (host(), host());
        Self { client, server, address: format!("{ip}:0") }
    }

    /// Ends on one host, and ends on different hosts.
    fn both() -> [Self; 2] {
        [Self::local("soft0"), Self::hosts()]
    }

    async fn listen(&self) -> CmListener {
        let options = patient(&self.server).user_bytes(b"welcome");
        self.server.driver.listen_cm(self.address.as_str(), options).await.unwrap()
    }

    /// Returns a connection of each end.
    async fn connect(&self) -> (Connection, Connection) {
        let listener = self.listen().await;
        let connect = self.client.driver.connect_cm(listener.local_addr(), patient(&self.client));
        let ((client, _), server) = tokio::try_join!(connect, listener.accept()).unwrap();
        (client, server)
    }
}

/// Sends a message from one end to the other.
async fn talk((from_host, from): (&Host, &Connection), (to_host, to): (&Host, &Connection)) {
    let receive = to.receive(to_host.pool.allocate(64).unwrap()).post().await.unwrap();
    from.send(from_host.buffer(b"hello")).await.unwrap();
    let received = receive.await.unwrap();
    assert_eq!(received.memory[..received.length], *b"hello");
}

#[test]
fn ends_exchange_messages_and_user_bytes() {
    run(|| async {
        for ends in [Ends::local("soft0"), Ends::local("softib0"), Ends::hosts()] {
            let listener = ends.listen().await;
            let options = patient(&ends.client).user_bytes(&[5; 52]);
            let connect = ends.client.driver.connect_cm(listener.local_addr(), options);
            let both = tokio::try_join!(connect, listener.accept_with_user_bytes());
            let ((client, told), (server, said)) = both.unwrap();
            assert_eq!((&*told, &*said), (&b"welcome"[..], &[5; 52][..]));
            assert_eq!(server.peer().unwrap().qpn, client.qpn());
            talk((&ends.client, &client), (&ends.server, &server)).await;
            talk((&ends.server, &server), (&ends.client, &client)).await;
        }
    });
}

/// One-sided operations on memory whose location a message names.
#[test]
fn a_client_writes_and_reads_memory_of_the_server() {
    run(|| async {
        for ends in Ends::both() {
            let (client, server) = ends.connect().await;
            let access = AccessFlags::new().with_remote_write().with_remote_read();
            let access = access.with_local_write();
            let board = ends.server.pd.allocate_shared_region(8, access).unwrap();
            let mut word = ends.client.pool.allocate(8).unwrap();
            word.copy_from_slice(b"the word");
            let mut word = client.write(word, board.remote()).await.unwrap();
            word.fill(0);
            let word = client.read(word, board.remote()).await.unwrap();
            assert_eq!(*word, *b"the word");
            drop(server);
        }
    });
}

#[test]
fn the_end_of_the_peer_ends_waiting_operations() {
    run(|| async {
        for ends in Ends::both() {
            for is_client in [true, false] {
                let (client, server) = ends.connect().await;
                let (dropped, kept) = if is_client { (client, server) } else { (server, client) };
                let waits = kept.receive_imm().post().await.unwrap();
                drop(dropped);
                let error = timeout(HANG, waits).await.unwrap().unwrap_err();
                let TransportError::Closed { reason, .. } = error.error else { panic!("{error}") };
                assert_eq!(reason, CloseReason::Disconnected);
                assert_eq!(kept.closed(), Some(CloseReason::Disconnected));
                assert_eq!(kept.disconnect_reason().as_deref(), Some(&b""[..]));
            }
        }
    });
}

#[test]
fn the_reason_for_a_disconnect_arrives() {
    run(|| async {
        for ends in Ends::both() {
            let (client, server) = ends.connect().await;
            let waits = server.receive_imm().post().await.unwrap();
            client.disconnect_with(b"maintenance", HANG).await.unwrap();
            assert!(timeout(HANG, waits).await.unwrap().is_err());
            assert_eq!(server.closed(), Some(CloseReason::Disconnected));
            assert_eq!(server.disconnect_reason().as_deref(), Some(&b"maintenance"[..]));
        }
    });
}

/// Each of them shares the listener's event channel.
#[test]
fn only_the_connection_whose_peer_is_gone_ends() {
    run(|| async {
        for ends in Ends::both() {
            let listener = ends.listen().await;
            let mut pairs = Vec::new();
            for _ in 0..4 {
                let connect =
                    ends.client.driver.connect_cm(listener.local_addr(), patient(&ends.client));
                let ((client, _), server) = tokio::try_join!(connect, listener.accept()).unwrap();
                pairs.push((client, server));
            }
            drop(listener);
            let (client, server) = pairs.remove(0);
            let waits = server.receive_imm().post().await.unwrap();
            drop(client);
            assert!(timeout(HANG, waits).await.unwrap().is_err());
            for (client, server) in &pairs {
                talk((&ends.client, client), (&ends.server, server)).await;
            }
        }
    });
}

#[test]
fn a_killed_process_is_detected() {
    const NAME: &str = "control::cm::a_killed_process_is_detected";
    if let Ok(address) = env::var(ADDRESS) {
        return run(move || {
            let address = address.clone();
            async move {
                let host = Host::new("soft0");
                let connected = host.driver.connect_cm(address, patient(&host)).await;
                let never = connected.unwrap().0.receive_imm().await;
                panic!("it was not killed: {never:?}");
            }
        });
    }
    run(|| async {
        let ends = Ends::local("soft0");
        let listener = ends.listen().await;
        let mut peer = this_program();
        peer.args([NAME, "--exact", "--nocapture"]).stdout(Stdio::null());
        let mut peer = peer.env(ADDRESS, listener.local_addr().to_string()).spawn().unwrap();
        let server = timeout(HANG, listener.accept()).await.unwrap().unwrap();
        let waits = server.receive_imm().post().await.unwrap();
        peer.kill().unwrap();
        assert!(timeout(HANG, waits).await.unwrap().is_err());
        assert_eq!(server.closed(), Some(CloseReason::Died));
        assert_eq!(server.disconnect_reason(), None);
        peer.wait().unwrap();
    });
}

#[test]
fn errors_of_a_client_name_their_cause() {
    run(|| async {
        for ends in Ends::both() {
            let (driver, options) = (&ends.client.driver, || patient(&ends.client));
            let listener = ends.listen().await;
            let address = listener.local_addr();
            let slow = options().rendezvous_timeout(SHORT);
            let error = driver.connect_cm(address, slow).await.unwrap_err();
            assert!(matches!(error, ConnectError::Timeout { .. }), "no task accepts: {error}");
            let error = driver.connect_cm(address, options().user_bytes(&[1; 53])).await;
            let error = error.unwrap_err();
            assert!(matches!(error, ConnectError::UserBytesTooLong { most: 52, .. }), "{error}");
            let error = ends.server.driver.listen_cm(address, patient(&ends.server)).await;
            let error = error.unwrap_err();
            assert!(matches!(error, ConnectError::Io { .. }), "{error}");
            let free = ends.listen().await;
            let port = free.local_addr();
            drop(free);
            let answers = async { _ = listener.accept().await };
            let error = tokio::select! {
                error = driver.connect_cm(port, options()) => error.unwrap_err(),
                () = answers => panic!("a client without a listener was accepted"),
            };
            assert!(matches!(error, ConnectError::NobodyListens { .. }), "{error}");
        }
    });
}

#[test]
fn a_dropped_future_cancels_the_request() {
    run(|| async {
        for ends in Ends::both() {
            let listener = ends.listen().await;
            let address = listener.local_addr();
            let connect = ends.client.driver.connect_cm(address, patient(&ends.client));
            assert!(timeout(SHORT, connect).await.is_err());
            // A dropped `accept` loses no client either.
            assert!(timeout(SHORT, listener.accept()).await.is_err());
            let connect = ends.client.driver.connect_cm(address, patient(&ends.client));
            let accept = async {
                loop {
                    if let Ok(accepted) = timeout(SHORT, listener.accept()).await {
                        return accepted.unwrap();
                    }
                }
            };
            let (client, server) = tokio::join!(connect, accept);
            assert_eq!(server.peer().unwrap().qpn, client.unwrap().0.qpn());
        }
    });
}

#[test]
fn many_clients_connect_at_a_time() {
    run(|| async {
        for ends in Ends::both() {
            let listener = ends.listen().await;
            let address = listener.local_addr();
            // An epoll instance can be in at most 100 others that are themselves in a further one.
            let mut kept = Vec::new();
            for _ in 0..4 {
                let clients: Vec<_> = (0..30)
                    .map(|_| {
                        let (driver, options) = (ends.client.driver.clone(), patient(&ends.client));
                        tokio::spawn(async move { driver.connect_cm(address, options).await })
                    })
                    .collect();
                let mut servers = Vec::new();
                for _ in 0..30 {
                    servers.push(timeout(HANG, listener.accept()).await.unwrap().unwrap());
                }
                for client in clients {
                    let client = client.await.unwrap().unwrap().0;
                    let is_peer = |server: &&Connection| server.peer().unwrap().qpn == client.qpn();
                    let server = servers.iter().find(is_peer).unwrap();
                    talk((&ends.client, &client), (&ends.server, server)).await;
                    kept.push(client);
                }
                kept.extend(servers);
            }
        }
    });
}

/// A call may handle the events of a client that another call returns.
#[test]
fn concurrent_accepts_lose_no_client() {
    run(|| async {
        for ends in Ends::both() {
            let listener = ends.listen().await;
            let (driver, address) = (&ends.client.driver, listener.local_addr());
            let connect = || driver.connect_cm(address, patient(&ends.client));
            for _ in 0..30 {
                let all = async {
                    tokio::join!(connect(), connect(), listener.accept(), listener.accept())
                };
                let (one, other, first, second) = timeout(HANG, all).await.unwrap();
                let clients = [one.unwrap().0, other.unwrap().0];
                for server in [first.unwrap(), second.unwrap()] {
                    let peer = server.peer().unwrap().qpn;
                    assert!(clients.iter().any(|client| client.qpn() == peer));
                }
            }
        }
    });
}

/// Awaits a future during at most `turns` turns of other tasks, and then drops it.
async fn within<T>(turns: u32, future: impl Future<Output = T>) -> Option<T> {
    let gives_up = async {
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        result = future => Some(result),
        () = gives_up => None,
    }
}

/// Awaits both ends, which are then connected to each other.
async fn are_connected(
    connect: impl Future<Output = Result<(Connection, Box<[u8]>), ConnectError>>,
    accept: impl Future<Output = Connection>,
) {
    let (client, server) = timeout(HANG, async { tokio::join!(connect, accept) }).await.unwrap();
    assert_eq!(server.peer().unwrap().qpn, client.unwrap().0.qpn());
}

/// Returns the request of a client that has withdrawn it.
async fn withdrawn(ends: &Ends, listener: &CmListener) -> CmIncoming {
    let connect = ends.client.driver.connect_cm(listener.local_addr(), patient(&ends.client));
    tokio::select! {
        incoming = listener.incoming() => incoming.unwrap(),
        connected = connect => panic!("{connected:?}"),
    }
}

/// A dropped call may have handled the events of the other call's clients.
#[test]
fn a_dropped_accept_leaves_its_clients_to_another() {
    run(|| async {
        for ends in Ends::both() {
            let listener = ends.listen().await;
            let (driver, address) = (&ends.client.driver, listener.local_addr());
            for turns in 0..30 {
                let connect = driver.connect_cm(address, patient(&ends.client));
                let accept = async {
                    let dropped = within(turns, listener.accept());
                    let mut kept = Box::pin(listener.accept());
                    let either = async {
                        tokio::select! {
                            Some(accepted) = dropped => accepted,
                            accepted = &mut kept => accepted,
                        }
                    };
                    either.await.unwrap()
                };
                are_connected(connect, accept).await;
            }
        }
    });
}

#[test]
fn a_program_accepts_or_rejects_each_client() {
    run(|| async {
        for ends in Ends::both() {
            let listener = ends.listen().await;
            let (driver, address) = (&ends.client.driver, listener.local_addr());
            let connect =
                |bytes: &[u8]| driver.connect_cm(address, patient(&ends.client).user_bytes(bytes));
            let decide = async {
                let stranger = listener.incoming().await.unwrap();
                assert_eq!(stranger.user_bytes(), b"let me in");
                stranger.reject("no password");
            };
            let (rejected, ()) = tokio::join!(connect(b"let me in"), decide);
            let error = rejected.unwrap_err();
            assert!(matches!(&error, ConnectError::Rejected(why) if &**why == "no password"));

            let decide = async { drop(listener.incoming().await.unwrap()) };
            let (rejected, ()) = tokio::join!(connect(b""), decide);
            let error = rejected.unwrap_err();
            assert!(matches!(&error, ConnectError::Rejected(why) if why.is_empty()), "{error}");

            let decide = async {
                let long = listener.incoming().await.unwrap().accept(&[0; 193]).await;
                long.unwrap_err()
            };
            let (rejected, error) = tokio::join!(connect(b""), decide);
            assert!(matches!(error, ConnectError::UserBytesTooLong { most: 192, .. }), "{error}");
            assert!(matches!(rejected, Err(ConnectError::Rejected(_))), "{rejected:?}");

            let decide = async { listener.incoming().await.unwrap().accept(b"come in").await };
            let (accepted, server) = tokio::join!(connect(b"swordfish"), decide);
            let ((client, told), server) = (accepted.unwrap(), server.unwrap());
            assert_eq!(*told, *b"come in");
            talk((&ends.client, &client), (&ends.server, &server)).await;
            talk((&ends.server, &server), (&ends.client, &client)).await;
            // A refusal is counted only if it is not the program's.
            assert_eq!(listener.refused(), 1, "{:?}", listener.last_refused());
            let waits = server.receive_imm().post().await.unwrap();
            drop(client);
            assert!(timeout(HANG, waits).await.unwrap().is_err());
            assert_eq!(server.closed(), Some(CloseReason::Disconnected));
        }
    });
}

#[test]
fn a_client_that_withdraws_its_request_cannot_be_accepted() {
    run(|| async {
        for ends in Ends::both() {
            let listener = ends.listen().await;
            let incoming = withdrawn(&ends, &listener).await;
            let error = incoming.accept(b"").await.unwrap_err();
            assert!(matches!(error, ConnectError::Closed { .. }), "{error}");
            assert_eq!(listener.refused(), 1);
        }
    });
}

/// A dropped call may have received a request, which another call of either kind returns.
#[test]
fn a_dropped_incoming_leaves_its_client_to_another_call() {
    run(|| async {
        for ends in Ends::both() {
            let listener = ends.listen().await;
            let (driver, address) = (&ends.client.driver, listener.local_addr());
            for turns in 0..30 {
                let connect = driver.connect_cm(address, patient(&ends.client));
                let accept = async {
                    match within(turns, listener.incoming()).await {
                        Some(incoming) => incoming.unwrap().accept(b"").await.unwrap(),
                        None if turns % 2 == 0 => listener.accept().await.unwrap(),
                        None => listener.incoming().await.unwrap().accept(b"").await.unwrap(),
                    }
                };
                are_connected(connect, accept).await;
            }
        }
    });
}

/// The port is free as soon as the listener is dropped, and the client can still be accepted.
#[test]
fn a_client_that_waits_does_not_keep_its_listener() {
    run(|| async {
        for ends in Ends::both() {
            let listener = ends.listen().await;
            let address = listener.local_addr();
            let connect = ends.client.driver.connect_cm(address, patient(&ends.client));
            let accept = async {
                let incoming = listener.incoming().await.unwrap();
                drop(listener);
                let next = loop {
                    match ends.server.driver.listen_cm(address, patient(&ends.server)).await {
                        Ok(next) => break next,
                        // A process that another test starts has the socket until it runs its program.
                        Err(error) => assert!(error.to_string().contains(IN_USE), "{error}"),
                    }
                    yield_now().await;
                };
                assert_eq!(next.local_addr(), address);
                incoming.accept(b"").await.unwrap()
            };
            are_connected(connect, accept).await;
        }
    });
}

/// Its withdrawal is received, so that it does not keep the listener's file readable. Accepting it then fails.
#[test]
fn a_client_that_leaves_before_a_decision_does_not_stop_others() {
    run(|| async {
        for ends in Ends::both() {
            let listener = ends.listen().await;
            let incoming = withdrawn(&ends, &listener).await;
            let connect =
                ends.client.driver.connect_cm(listener.local_addr(), patient(&ends.client));
            let accept = async { listener.incoming().await.unwrap().accept(b"").await.unwrap() };
            are_connected(connect, accept).await;
            let refused = timeout(HANG, incoming.accept(b"")).await.unwrap();
            assert!(refused.is_err(), "{refused:?}");
        }
    });
}

/// A C program sees the user bytes as the beginning of the private data.
#[test]
fn a_connection_leads_to_a_plain_listener() {
    run(|| async {
        for ends in Ends::both() {
            let context = ends.server.pd.context();
            let events = EventChannel::open(context).unwrap();
            let listener = Listener::bind(&events, ends.address.as_str()).unwrap();
            let address = listener.local_address();
            let pd = ends.server.pd.clone();
            let plain = tokio::task::spawn_blocking(move || {
                let cq = CompletionQueue::create(pd.context(), 4).unwrap();
                let queue_pair = pd.create_qp().send_cq(&cq).recv_cq(&cq).build().unwrap();
                let request = listener.incoming(HANG).unwrap();
                assert_eq!(&request.private_data()[..6], b"hello\0");
                let accepting = request.prepare(queue_pair).unwrap();
                let connection = accepting.accept(b"welcome").unwrap().wait(HANG).unwrap();
                connection.disconnect(b"").unwrap().wait(HANG).unwrap();
            });
            let options = patient(&ends.client).user_bytes(b"hello");
            let (connection, told) = ends.client.driver.connect_cm(address, options).await.unwrap();
            assert_eq!((told.len(), &told[..8]), (196, &b"welcome\0"[..]));
            let waits = timeout(HANG, connection.receive_imm()).await.unwrap();
            assert!(waits.is_err());
            assert_eq!(connection.closed(), Some(CloseReason::Disconnected));
            plain.await.unwrap();
        }
    });
}

#[test]
fn a_connection_without_a_control_connection_is_not_renewed() {
    run(|| async {
        let ends = Ends::local("soft0");
        let (client, _server) = ends.connect().await;
        let error = client.reconnect().await;
        assert!(matches!(error, Err(ConnectError::NoControl)), "{error:?}");
    });
}

#[test]
fn a_client_that_does_not_confirm_is_dropped_at_its_limit_in_virtual_time() {
    let (network, limit) = (Network::simulated(4), Duration::from_secs(1));
    let names = ["confirm-near", "confirm-far"];
    let [near, far] = names.map(|name| Builder::new(name).network(&network).install().unwrap());
    network.block_on(async {
        let [client, server] = names.map(Host::new);
        let table = server.pd.context().gid_table().unwrap();
        let ip = table.iter().find_map(|entry| entry.gid.to_ipv4()).unwrap();
        let options = server.options().rendezvous_timeout(limit);
        let listener = server.driver.listen_cm((ip, 7471), options).await.unwrap();
        // The client never receives the answer to its request.
        network.set_link(&far, &near, LinkModel::cut()).unwrap();
        let connect = client.driver.connect_cm(listener.local_addr(), patient(&client));
        let observe = async {
            sleep(limit - limit / 10).await;
            assert_eq!(listener.dropped_half_open(), 0, "too early");
            sleep(limit / 5).await;
            assert_eq!(listener.dropped_half_open(), 1);
        };
        tokio::select! {
            connected = connect => panic!("{connected:?}"),
            accepted = listener.accept() => panic!("{accepted:?}"),
            () = observe => {}
        }
    });
}
