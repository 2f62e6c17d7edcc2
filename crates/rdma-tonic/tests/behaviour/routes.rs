//! Servers with axum.

use std::future::IntoFuture as _;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::ConnectInfo;
use axum::routing::{get, post};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use rdma_async::message::Options;
use rdma_tonic::{Connector, PeerAddress};
use tokio::sync::{Barrier, oneshot};

use crate::rig::{bind, endpoint, run};

/// Each client waits in the server until the other one has called, too.
#[test]
fn two_clients_are_served_at_once_until_the_server_shuts_down() {
    run(async {
        let endpoint = endpoint();
        let (incoming, server) = bind(&endpoint).await;
        let both = Arc::new(Barrier::new(2));
        let whoami = move |ConnectInfo(PeerAddress(address)): ConnectInfo<PeerAddress>| async move {
            both.wait().await;
            address.to_string()
        };
        let routes = Router::new().route("/", get(whoami));
        let service = routes.into_make_service_with_connect_info::<PeerAddress>();
        let (stop, stopped) = oneshot::channel::<()>();
        let serves = axum::serve(incoming, service).with_graceful_shutdown(async {
            let _ = stopped.await;
        });
        let serves = tokio::spawn(serves.into_future());
        let clients = [(); 2].map(|()| {
            let connector = Connector::new(&endpoint, Options::new());
            let client = Client::builder(TokioExecutor::new()).build(connector);
            tokio::spawn(async move {
                let mut addresses = Vec::new();
                for _ in 0..3 {
                    let uri = format!("http://{server}/").parse().unwrap();
                    let answer = client.get(uri).await.unwrap().into_body();
                    addresses.push(answer.collect().await.unwrap().to_bytes());
                }
                // The client keeps its connection.
                assert!(addresses.iter().all(|address| *address == addresses[0]), "{addresses:?}");
                drop::<Client<_, Empty<Bytes>>>(client);
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
        serves.await.unwrap().unwrap();
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
