//! Servers with axum.

use std::future::IntoFuture as _;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::ConnectInfo;
use axum::routing::{get, post};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::TokioExecutor;
use rdma_async::Endpoint;
use rdma_async::message::Options;
use rdma_tonic::{Connector, PeerAddress};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Barrier, oneshot};
use tokio::task::JoinHandle;

use crate::rig::{Gate, Running, bind, endpoint, gated, run, server_of_this_client, start_client};

/// Starts a server.
async fn serve(endpoint: &Endpoint, routes: Router) -> Running<io::Error> {
    let (incoming, address) = bind(endpoint).await;
    let service = routes.into_make_service_with_connect_info::<PeerAddress>();
    let (stop, stopped) = oneshot::channel();
    let serves = axum::serve(incoming, service).with_graceful_shutdown(async {
        let _ = stopped.await;
    });
    Running { address, stop, ended: tokio::spawn(serves.into_future()) }
}

/// Starts a server whose requests wait until the test opens the gate.
async fn serve_gated(endpoint: &Endpoint) -> (Running<io::Error>, Gate) {
    let (service, gate) = gated();
    let service = Arc::new(service);
    let wait = move |ConnectInfo(PeerAddress(client)): ConnectInfo<PeerAddress>| async move {
        service.pass(Some(client)).await;
        "passed"
    };
    (serve(endpoint, Router::new().route("/", get(wait))).await, gate)
}

type HttpClient = Client<Connector, Empty<Bytes>>;

fn client(endpoint: &Endpoint) -> HttpClient {
    Client::builder(TokioExecutor::new()).build(Connector::new(endpoint, Options::new()))
}

/// Requests `/` in a task. Returns the body.
fn request(client: &HttpClient, server: SocketAddr) -> JoinHandle<Result<Bytes, Error>> {
    let response = client.get(format!("http://{server}/").parse().unwrap());
    tokio::spawn(async move { Ok(response.await?.into_body().collect().await.unwrap().to_bytes()) })
}

/// Each client waits in the server until the other one has called, too.
#[test]
fn two_clients_are_served_at_once_until_the_server_shuts_down() {
    run(async {
        let endpoint = endpoint();
        let both = Arc::new(Barrier::new(2));
        let whoami = move |ConnectInfo(PeerAddress(address)): ConnectInfo<PeerAddress>| async move {
            both.wait().await;
            address.to_string()
        };
        let routes = Router::new().route("/", get(whoami));
        let Running { address, stop, ended } = serve(&endpoint, routes).await;
        let clients = [(); 2].map(|()| {
            let client = client(&endpoint);
            tokio::spawn(async move {
                let mut addresses = Vec::new();
                for _ in 0..3 {
                    addresses.push(request(&client, address).await.unwrap().unwrap());
                }
                // The client keeps its connection.
                assert!(addresses.iter().all(|address| *address == addresses[0]), "{addresses:?}");
                addresses.swap_remove(0)
            })
        });
        let mut seen = Vec::new();
        for client in clients {
            seen.push(String::from_utf8(client.await.unwrap().to_vec()).unwrap());
        }
        assert_ne!(seen[0], seen[1]);
        assert!(seen.iter().all(|address| address.parse::<SocketAddr>().is_ok()), "{seen:?}");
        stop.send(()).unwrap();
        ended.await.unwrap().unwrap();
    });
}

#[test]
fn a_long_body_is_received_and_returned() {
    run(async {
        let endpoint = endpoint();
        let (incoming, server) = bind(&endpoint).await;
        let limit = axum::extract::DefaultBodyLimit::disable();
        let routes = Router::new().route("/", post(async |body: Bytes| body)).layer(limit);
        let serves = tokio::spawn(axum::serve(incoming, routes).into_future());
        let connector = Connector::new(&endpoint, Options::new());
        let client = Client::builder(TokioExecutor::new()).build(connector);
        let body: Bytes = (0..8 << 20_u32).map(|at: u32| at.to_le_bytes()[2]).collect();
        let request = http::Request::post(format!("http://{server}/"));
        let request = request.body(Full::new(body.clone())).unwrap();
        let answer = client.request(request).await.unwrap().into_body();
        let answer = answer.collect().await.unwrap().to_bytes();
        assert!(answer == body, "{} bytes arrived", answer.len());
        serves.abort();
    });
}

#[test]
fn a_server_that_shuts_down_closes_idle_connections_and_completes_its_requests() {
    run(async {
        let endpoint = endpoint();
        let (Running { address, stop, ended }, mut gate) = serve_gated(&endpoint).await;
        let mut idle = endpoint.connect_stream(address, Options::new()).await.unwrap();
        idle.write_all(b"GET /unknown HTTP/1.1\r\nhost: server\r\n\r\n").await.unwrap();
        let answer = b"HTTP/1.1 404";
        let mut begin = [0; 12];
        idle.read_exact(&mut begin).await.unwrap();
        assert_eq!(begin, *answer);
        let client = client(&endpoint);
        let busy = request(&client, address);
        gate.began.recv().await.unwrap();
        stop.send(()).unwrap();
        idle.read_to_end(&mut Vec::new()).await.unwrap();
        assert!(!ended.is_finished());
        gate.gate.notify_waiters();
        assert_eq!(busy.await.unwrap().unwrap(), "passed");
        ended.await.unwrap().unwrap();
        assert!(request(&client, address).await.unwrap().unwrap_err().is_connect());
    });
}

#[test]
fn a_client_that_is_killed_during_a_request_ends_only_its_own() {
    if let Some(address) = server_of_this_client() {
        return run(async {
            request(&client(&endpoint()), address).await.unwrap().unwrap();
        });
    }
    run(async {
        let endpoint = endpoint();
        let (Running { address, stop, ended }, mut gate) = serve_gated(&endpoint).await;
        let test = "routes::a_client_that_is_killed_during_a_request_ends_only_its_own";
        let mut killed = start_client(test, address);
        gate.began.recv().await.unwrap();
        let client = client(&endpoint);
        let continues = request(&client, address);
        gate.began.recv().await.unwrap();
        killed.kill().unwrap(); // SIGKILL
        killed.wait().unwrap();
        gate.ended.recv().await.unwrap();
        assert!(!continues.is_finished());
        gate.gate.notify_waiters();
        assert_eq!(continues.await.unwrap().unwrap(), "passed");
        let again = request(&client, address);
        gate.began.recv().await.unwrap();
        gate.gate.notify_waiters();
        assert_eq!(again.await.unwrap().unwrap(), "passed");
        stop.send(()).unwrap();
        ended.await.unwrap().unwrap();
    });
}
