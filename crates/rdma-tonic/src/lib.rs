//! gRPC and HTTP over RDMA streams.
//!
//! A [`Connector`] connects clients of tonic and hyper, and an [`Incoming`] accepts clients for a server. Both use the
//! [streams](rdma_async::message::Stream) of `rdma-async`. The program itself stays as it is for TCP: only the
//! connector and the listener differ. The address of a server is that of the control connection, a TCP address.
//!
//! # Features
//!
//! | to | take | feature |
//! |---|---|---|
//! | connect a client of tonic | [`Connector`] with `Endpoint::connect_with_connector` | none |
//! | connect a client of hyper | [`Connector`] with the functions `handshake` of hyper | none |
//! | use the client of hyper-util with its pool | [`Connector`] with `Client::builder` | `client` |
//! | serve with tonic | [`Incoming`] with `serve_with_incoming` | `tonic` |
//! | serve with axum | [`Incoming`] with `axum::serve` | `axum` |
//! | serve with hyper | [`Incoming::accept`] with [`TokioIo`] | none |
//!
//! # A server and a client of axum and hyper
//!
//! ```
//! use axum::{Router, routing::get};
//! use http_body_util::{BodyExt as _, Empty};
//! use hyper_util::{client::legacy::Client, rt::TokioExecutor};
//! use rdma_async::{Endpoint, message::Options};
//! use rdma_tonic::{Connector, Incoming};
//!
//! type Any = Box<dyn std::error::Error + Send + Sync>;
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> Result<(), Any> {
//!     rdma_soft::install();
//!     let endpoint = Endpoint::new(&rdma_mem::open_device("soft0")?)?;
//!     let incoming = Incoming::bind(&endpoint, "127.0.0.1:0", Options::new()).await?;
//!     let address = incoming.local_addr();
//!     let routes = Router::new().route("/", get(|| async { "hello" }));
//!     tokio::spawn(axum::serve(incoming, routes).into_future());
//!
//!     // This could be another process or machine.
//!     let client = Client::builder(TokioExecutor::new())
//!         .build::<_, Empty<&[u8]>>(Connector::new(&endpoint, Options::new()));
//!     let answer = client.get(format!("http://{address}/").parse()?).await?;
//!     assert_eq!(answer.into_body().collect().await?.to_bytes(), "hello");
//!     Ok(())
//! }
//! ```
//!
//! # A server and a client of tonic
//!
//! `GreeterServer` and `GreeterClient` are generated code, and `MyGreeter` implements the service. The example
//! `greeter` of this workspace contains all three.
//!
//! ```
//! # use greeter::{MyGreeter, proto::{HelloRequest, greeter_client::GreeterClient, greeter_server::GreeterServer}};
//! use rdma_async::{Endpoint, message::Options};
//! use rdma_tonic::{Connector, Incoming};
//! use tonic::transport::Server;
//!
//! # type Any = Box<dyn std::error::Error + Send + Sync>;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Any> {
//! # rdma_soft::install();
//! let endpoint = Endpoint::new(&rdma_mem::open_device("soft0")?)?;
//! let incoming = Incoming::bind(&endpoint, "127.0.0.1:0", Options::new()).await?;
//! let address = incoming.local_addr();
//! let service = GreeterServer::new(MyGreeter::default());
//! tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
//!
//! // This could be another process or machine.
//! let to_server = tonic::transport::Endpoint::from_shared(format!("http://{address}"))?;
//! let channel = to_server.connect_with_connector(Connector::new(&endpoint, Options::new())).await?;
//! let request = HelloRequest { name: "Ada".to_owned() };
//! let reply = GreeterClient::new(channel).say_hello(request).await?.into_inner();
//! assert_eq!(reply.message, "Hello Ada!");
//! # Ok(())
//! # }
//! ```
//!
//! # Limits
//!
//! Each connection has registered memory: see [`Options::registered_bytes`](rdma_async::message::Options::registered_bytes).
//! The time limits of tonic and axum work as on TCP. [`Options::linger`](rdma_async::message::Options::linger) limits how
//! long a dropped connection may still send.

#![forbid(unsafe_code)]

mod connector;
mod incoming;
mod stream;

pub use connector::Connector;
pub use hyper_util::rt::TokioIo;
pub use incoming::Incoming;
#[cfg(feature = "axum")]
pub use incoming::PeerAddress;
pub use rdma_async::Endpoint;
pub use rdma_async::message::Options;
pub use stream::HttpStream;

/// Runs the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
