//! The service.

use std::pin::Pin;

use tokio_stream::{Stream, StreamExt as _, iter};
use tonic::{Request, Response, Status, Streaming};

use crate::proto::greeter_server::Greeter;
use crate::proto::{HelloReply, HelloRequest, RepeatRequest};

/// A greeter for friends.
#[derive(Clone, Copy, Debug, Default)]
pub struct MyGreeter;

type Replies = Pin<Box<dyn Stream<Item = Result<HelloReply, Status>> + Send>>;

fn greet(name: &str) -> HelloReply {
    HelloReply { message: format!("Hello {name}!") }
}

#[tonic::async_trait]
impl Greeter for MyGreeter {
    type RepeatHelloStream = Replies;
    type ChatStream = Replies;

    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        Ok(Response::new(greet(&request.into_inner().name)))
    }

    async fn repeat_hello(
        &self,
        request: Request<RepeatRequest>,
    ) -> Result<Response<Replies>, Status> {
        let RepeatRequest { name, times } = request.into_inner();
        Ok(Response::new(Box::pin(iter((0..times).map(move |_| Ok(greet(&name)))))))
    }

    async fn greet_all(
        &self,
        request: Request<Streaming<HelloRequest>>,
    ) -> Result<Response<HelloReply>, Status> {
        let (mut requests, mut names) = (request.into_inner(), Vec::new());
        while let Some(HelloRequest { name }) = requests.message().await? {
            names.push(name);
        }
        Ok(Response::new(greet(&names.join(", "))))
    }

    async fn chat(
        &self,
        request: Request<Streaming<HelloRequest>>,
    ) -> Result<Response<Replies>, Status> {
        let replies = request.into_inner().map(|request| Ok(greet(&request?.name)));
        Ok(Response::new(Box::pin(replies)))
    }
}
