//! The command line of `greeter`.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Parser;
use rdma::prelude::*;
use rdma_examples_common::{Failure, print, program};
use rdma_tonic::{Connector, Endpoint, Incoming, Options};
use tokio_stream::iter;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};

use crate::proto::greeter_client::GreeterClient;
use crate::proto::greeter_server::GreeterServer;
use crate::proto::{HelloRequest, RepeatRequest};
use crate::service::MyGreeter;

/// A gRPC service over RDMA or TCP. The ends are two tasks, or two processes.
#[derive(Debug, Parser)]
#[command(name = "greeter")]
struct Arguments {
    #[arg(long, value_name = "NAME", default_value = "soft0", help = "The RDMA device")]
    device: String,
    #[arg(long, help = "Use TCP instead of RDMA")]
    tcp: bool,
    #[arg(
        long,
        value_name = "ADDRESS",
        help = "Serve clients that connect here, until this process is killed"
    )]
    listen: Option<SocketAddr>,
    #[arg(
        long,
        value_name = "ADDRESS",
        conflicts_with = "listen",
        help = "Call the server at this address"
    )]
    connect: Option<String>,
    #[arg(default_values = ["Ada", "Grace"], value_name = "NAME", help = "The names to greet")]
    names: Vec<String>,
}

/// Runs the program with the options of its command line.
#[must_use]
pub fn main() -> ExitCode {
    program(|arguments| {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(run(arguments))
    })
}

/// The endpoint that connects a client to its server, or `None` for TCP.
type Way = Option<Endpoint>;

async fn run(arguments: &Arguments) -> Result<String, Failure> {
    let Arguments { device, tcp, listen, connect, names } = arguments;
    let way = if *tcp { None } else { Some(Endpoint::new(&open_device(device)?)?) };
    match (listen, connect) {
        (Some(address), _) => {
            let (address, serves) = serve(&way, *address).await?;
            print(&format!("listening on {address}"))?;
            serves.await??;
            Ok(String::new())
        }
        (None, Some(address)) => greet(dial(&way, address).await?, names).await,
        (None, None) => {
            let (address, serves) = serve(&way, ([127, 0, 0, 1], 0).into()).await?;
            let said = greet(dial(&way, &address.to_string()).await?, names).await;
            serves.abort();
            said
        }
    }
}

type Serves = tokio::task::JoinHandle<Result<(), tonic::transport::Error>>;

/// Serves clients in a task. Returns its address.
async fn serve(way: &Way, address: SocketAddr) -> Result<(SocketAddr, Serves), Failure> {
    let server = Server::builder().add_service(GreeterServer::new(MyGreeter));
    Ok(match way {
        Some(endpoint) => {
            let incoming = Incoming::bind(endpoint, address, Options::new()).await?;
            (incoming.local_addr(), tokio::spawn(server.serve_with_incoming(incoming)))
        }
        None => {
            let incoming = TcpIncoming::bind(address)?.with_nodelay(Some(true));
            (incoming.local_addr()?, tokio::spawn(server.serve_with_incoming(incoming)))
        }
    })
}

/// Connects to a server.
async fn dial(way: &Way, address: &str) -> Result<GreeterClient<Channel>, Failure> {
    let to = tonic::transport::Endpoint::from_shared(format!("http://{address}"))?;
    let channel = match way {
        Some(endpoint) => {
            to.connect_with_connector(Connector::new(endpoint, Options::new())).await?
        }
        None => to.connect().await?,
    };
    Ok(GreeterClient::new(channel))
}

/// Makes a call of each kind. Returns the replies.
async fn greet(mut client: GreeterClient<Channel>, names: &[String]) -> Result<String, Failure> {
    let requests: Vec<_> = names.iter().map(|name| HelloRequest { name: name.clone() }).collect();
    let mut lines = Vec::new();
    for request in &requests {
        let reply = client.say_hello(request.clone()).await?;
        lines.push(format!("one call: {}", reply.into_inner().message));
    }
    let first = names.first().cloned().unwrap_or_default();
    let replies = client.repeat_hello(RepeatRequest { name: first, times: 2 }).await?;
    let mut replies = replies.into_inner();
    while let Some(reply) = replies.message().await? {
        lines.push(format!("repeated: {}", reply.message));
    }
    let reply = client.greet_all(iter(requests.clone())).await?;
    lines.push(format!("all at once: {}", reply.into_inner().message));
    let mut replies = client.chat(iter(requests)).await?.into_inner();
    while let Some(reply) = replies.message().await? {
        lines.push(format!("chat: {}", reply.message));
    }
    Ok(lines.join("\n"))
}
