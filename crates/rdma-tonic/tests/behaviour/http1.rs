//! HTTP/1 with hyper.

use std::convert::Infallible;

use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONNECTION, UPGRADE};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use rdma_tonic::{HttpStream, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::rig::{run, streams};

/// Answers with the path. If the client requests it, changes to an echo.
async fn answer(mut request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    if !request.headers().contains_key(UPGRADE) {
        return Ok(Response::new(Full::from(path)));
    }
    tokio::spawn(async move {
        let upgraded = hyper::upgrade::on(&mut request).await.unwrap();
        let (mut reader, mut writer) = tokio::io::split(TokioIo::new(upgraded));
        tokio::io::copy(&mut reader, &mut writer).await.unwrap();
        writer.shutdown().await.unwrap();
    });
    let response = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
    let response = response.header(UPGRADE, "echo").header(CONNECTION, "upgrade");
    Ok(response.body(Full::default()).unwrap())
}

async fn serve(stream: HttpStream) {
    let server = hyper::server::conn::http1::Builder::new()
        .pipeline_flush(true)
        .serve_connection(TokioIo::new(stream), service_fn(answer));
    server.with_upgrades().await.unwrap();
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    run(async {
        let (mut client, server) = streams().await;
        let serves = tokio::spawn(serve(server));
        let requests: Vec<_> = (0..100).map(|n| format!("GET /{n} HTTP/1.1\r\n\r\n")).collect();
        client.write_all(requests.concat().as_bytes()).await.unwrap();
        client.write_all(b"GET /last HTTP/1.1\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut answers = String::new();
        client.read_to_string(&mut answers).await.unwrap();
        let bodies = answers.split("HTTP/1.1 200 OK\r\n").skip(1);
        let bodies: Vec<_> = bodies.map(|one| one.split("\r\n\r\n").nth(1).unwrap()).collect();
        let paths = (0..100).map(|n| format!("/{n}")).chain(["/last".to_owned()]);
        assert_eq!(bodies, paths.collect::<Vec<_>>());
        serves.await.unwrap();
    });
}

#[test]
fn a_connection_can_be_upgraded() {
    run(async {
        let (client, server) = streams().await;
        let serves = tokio::spawn(serve(server));
        let io = TokioIo::new(client);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        let connected = tokio::spawn(connection.with_upgrades());
        let request = Request::builder().uri("/echo");
        let request = request.header(UPGRADE, "echo").header(CONNECTION, "upgrade");
        let response = sender.send_request(request.body(Empty::<Bytes>::new()).unwrap());
        let response = response.await.unwrap();
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        let mut upgraded = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
        upgraded.write_all(b"no longer HTTP").await.unwrap();
        upgraded.shutdown().await.unwrap();
        let mut echo = String::new();
        upgraded.read_to_string(&mut echo).await.unwrap();
        assert_eq!(echo, "no longer HTTP");
        serves.await.unwrap();
        connected.await.unwrap().unwrap();
    });
}

/// The body is longer than all buffers, so both directions carry a part of it at once.
#[test]
fn a_body_is_echoed_while_it_is_sent() {
    run(async {
        let (client, server) = streams().await;
        let serves = tokio::spawn(async move {
            let echo = service_fn(async |request: Request<Incoming>| {
                Ok::<_, Infallible>(Response::new(request.into_body()))
            });
            let server = TokioIo::new(server);
            hyper::server::conn::http1::Builder::new().serve_connection(server, echo).await
        });
        let io = TokioIo::new(client);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        let connected = tokio::spawn(connection);
        let body: Bytes = (0..16 << 20_u32).map(|at: u32| at.to_le_bytes()[1]).collect();
        let response = sender.send_request(Request::new(Full::new(body.clone()))).await.unwrap();
        let echo = response.into_body().collect().await.unwrap().to_bytes();
        assert!(echo == body, "{} bytes arrived", echo.len());
        drop(sender);
        connected.await.unwrap().unwrap();
        serves.await.unwrap().unwrap();
    });
}
