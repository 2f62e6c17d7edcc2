//! Servers and clients in one process.

use std::env;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use greeter::proto::greeter_client::GreeterClient;
use greeter::proto::greeter_server::{Greeter, GreeterServer};
use greeter::proto::{HelloReply, HelloRequest, RepeatRequest};
use rdma_async::Endpoint;
use rdma_async::message::{Options, Stream};
use rdma_mem::open_device;
use rdma_tonic::{Connector, HttpStream, Incoming};
use test_support::program::this_program;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::StreamExt as _;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status, Streaming};

/// A time that is only exceeded by a hang.
pub(crate) const HANG: Duration = Duration::from_secs(60);

/// Runs this on several threads.
pub(crate) fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(work)
}

/// Runs this on one thread, whose clock a test may stop.
pub(crate) fn run_in_one_thread<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

pub(crate) fn endpoint() -> Endpoint {
    rdma_soft::install();
    Endpoint::new(&open_device("soft0").unwrap()).unwrap()
}

pub(crate) async fn bind(endpoint: &Endpoint) -> (Incoming, SocketAddr) {
    let incoming = Incoming::bind(endpoint, "127.0.0.1:0", Options::new()).await.unwrap();
    let address = incoming.local_addr();
    (incoming, address)
}

/// Both ends of a stream: the client's and the server's.
pub(crate) async fn streams() -> (Stream, HttpStream) {
    let endpoint = endpoint();
    let (mut incoming, address) = bind(&endpoint).await;
    let client = endpoint.connect_stream(address, Options::new());
    let (client, (server, _)) = tokio::try_join!(client, incoming.accept()).unwrap();
    (client, server)
}

/// The largest message of the tests.
pub(crate) const LARGEST: usize = 80 << 20;

pub(crate) async fn connect(
    endpoint: &Endpoint,
    address: SocketAddr,
) -> Result<GreeterClient<Channel>, tonic::transport::Error> {
    let to = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
    let connector = Connector::new(endpoint, Options::new());
    let channel = to.connect_with_connector(connector).await?;
    Ok(GreeterClient::new(channel).max_decoding_message_size(LARGEST))
}

/// A server that ends when `stop` is sent.
pub(crate) struct Running<E = tonic::transport::Error> {
    pub(crate) address: SocketAddr,
    pub(crate) stop: oneshot::Sender<()>,
    pub(crate) ended: JoinHandle<Result<(), E>>,
}

pub(crate) async fn serve(endpoint: &Endpoint, service: impl Greeter) -> Running {
    let (incoming, address) = bind(endpoint).await;
    let service = GreeterServer::new(service).max_decoding_message_size(LARGEST);
    let (stop, stopped) = oneshot::channel();
    let server = Server::builder().add_service(service);
    let ended = tokio::spawn(server.serve_with_incoming_shutdown(incoming, async {
        let _ = stopped.await;
    }));
    Running { address, stop, ended }
}

/// Returns a server of this service, and its client.
pub(crate) async fn meet(service: impl Greeter) -> (Running, GreeterClient<Channel>) {
    let endpoint = endpoint();
    let server = serve(&endpoint, service).await;
    let client = connect(&endpoint, server.address).await.unwrap();
    (server, client)
}

/// The environment variable that makes a process the client of a test, with the address of its server.
const SERVER: &str = "RDMA_TEST_SERVER";

/// Returns the address of the server if this process is the client of a test.
pub(crate) fn server_of_this_client() -> Option<SocketAddr> {
    env::var(SERVER).ok().map(|address| address.parse().unwrap())
}

/// Starts a process that runs a test as the client of this server.
pub(crate) fn start_client(test: &str, server: SocketAddr) -> Child {
    this_program()
        .args(["--exact", test])
        .env(SERVER, server.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// A service whose calls wait until the test opens the gate. A call with a stream of replies waits before the stream,
/// and then within it.
#[derive(Clone)]
pub(crate) struct Gated {
    began: mpsc::UnboundedSender<Option<SocketAddr>>,
    ended: mpsc::UnboundedSender<()>,
    gate: Arc<Notify>,
}

/// The test's side of a [`Gated`] service.
pub(crate) struct Gate {
    /// Receives the address of the client of each call.
    pub(crate) began: mpsc::UnboundedReceiver<Option<SocketAddr>>,
    /// Notified when the future of a call was dropped.
    pub(crate) ended: mpsc::UnboundedReceiver<()>,
    pub(crate) gate: Arc<Notify>,
}

pub(crate) fn gated() -> (Gated, Gate) {
    let (began, told) = mpsc::unbounded_channel();
    let (ends, ended) = mpsc::unbounded_channel();
    let gate = Arc::new(Notify::new());
    let service = Gated { began, ended: ends, gate: Arc::clone(&gate) };
    (service, Gate { began: told, ended, gate })
}

/// Notifies the test when it is dropped.
struct Guard<'a>(&'a mpsc::UnboundedSender<()>);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

impl Gated {
    /// Notifies the test of a call by this client, and waits for the gate.
    pub(crate) async fn pass(&self, client: Option<SocketAddr>) {
        let _guard = Guard(&self.ended);
        let opened = pin!(self.gate.notified());
        let _ = self.began.send(client);
        opened.await;
    }

    /// Waits for the gate twice: before the stream, and within it. The stream then has one reply.
    async fn pass_with_stream(&self, client: Option<SocketAddr>) -> Response<Replies> {
        self.pass(client).await;
        let this = self.clone();
        let reply = move |name| {
            let this = this.clone();
            async move {
                this.pass(client).await;
                Ok(HelloReply { message: name })
            }
        };
        Response::new(Box::pin(tokio_stream::once("Ada".to_owned()).then(reply)))
    }
}

/// The replies of a gated call.
type Replies = Pin<Box<dyn tokio_stream::Stream<Item = Result<HelloReply, Status>> + Send>>;

#[tonic::async_trait]
impl Greeter for Gated {
    type RepeatHelloStream = Replies;
    type ChatStream = Replies;

    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        self.pass(request.remote_addr()).await;
        Ok(Response::new(HelloReply { message: request.into_inner().name }))
    }

    async fn repeat_hello(
        &self,
        request: Request<RepeatRequest>,
    ) -> Result<Response<Replies>, Status> {
        Ok(self.pass_with_stream(request.remote_addr()).await)
    }

    async fn greet_all(
        &self,
        request: Request<Streaming<HelloRequest>>,
    ) -> Result<Response<HelloReply>, Status> {
        self.pass(request.remote_addr()).await;
        let first = request.into_inner().message().await?;
        Ok(Response::new(HelloReply { message: first.unwrap_or_default().name }))
    }

    async fn chat(
        &self,
        request: Request<Streaming<HelloRequest>>,
    ) -> Result<Response<Replies>, Status> {
        Ok(self.pass_with_stream(request.remote_addr()).await)
    }
}

pub(crate) fn name(name: &str) -> HelloRequest {
    HelloRequest { name: name.to_owned() }
}

/// Greets this person in a task. Returns the reply.
pub(crate) fn call(
    client: &GreeterClient<Channel>,
    person: &'static str,
) -> JoinHandle<Result<String, Status>> {
    let mut client = client.clone();
    tokio::spawn(async move { Ok(client.say_hello(name(person)).await?.into_inner().message) })
}
