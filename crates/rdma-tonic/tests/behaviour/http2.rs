//! HTTP/2 with hyper.

use std::convert::Infallible;
use std::sync::Arc;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioExecutor;
use rdma_tonic::TokioIo;
use tokio::sync::Barrier;

use crate::rig::{run, streams};

const STREAMS: usize = 100;

/// No request is answered before all of them have arrived.
#[test]
fn a_connection_has_100_streams_at_once() {
    run(async {
        let (client, server) = streams().await;
        let all = Arc::new(Barrier::new(STREAMS));
        let serves = tokio::spawn(async move {
            let echo = service_fn(move |request: Request<Incoming>| {
                let all = Arc::clone(&all);
                async move {
                    all.wait().await;
                    Ok::<_, Infallible>(Response::new(request.into_body()))
                }
            });
            hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(server), echo)
                .await
        });
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(client))
                .await
                .unwrap();
        let connected = tokio::spawn(connection);
        let calls = (0..STREAMS).map(|number| {
            let mut sender = sender.clone();
            tokio::spawn(async move {
                // Longer than the window of a stream.
                let body = Bytes::from(format!("{number} ").repeat(50_000));
                let response = sender.send_request(Request::new(Full::new(body.clone()))).await;
                let echo = response.unwrap().into_body().collect().await.unwrap().to_bytes();
                assert!(echo == body, "{number}: {} bytes arrived", echo.len());
            })
        });
        for call in calls.collect::<Vec<_>>() {
            call.await.unwrap();
        }
        drop(sender);
        connected.await.unwrap().unwrap();
        serves.await.unwrap().unwrap();
    });
}
