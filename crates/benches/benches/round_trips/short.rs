//! Messages of 8 bytes, each with an answer of the same length.

use std::future::{Future, poll_fn};
use std::hint;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use rdma_async::Endpoint;
use rdma_async::message::{MessageError, Messages, Options};
use rdma_channel::{Wait, message as blocking, prelude::*};
use rdma_mem::BufferPool;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio_util::bytes::{Bytes, BytesMut};
use tokio_util::codec::{Decoder as _, Encoder as _, LengthDelimitedCodec};

use super::{ANY, Outcome, RUNS, domain, say};

/// A way to exchange the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// A codec over TCP.
    Tcp,
    Async,
    /// Each task polls until its future is ready.
    AsyncSpinning,
    Blocking(Wait),
}

const MESSAGE: [u8; 8] = [7; 8];

pub(super) fn serve(way: Way) -> Outcome<()> {
    match way {
        Way::Tcp => Runtime::new()?.block_on(async {
            let listener = TcpListener::bind(ANY).await?;
            say(listener.local_addr()?)?;
            let mut end = Framed::new(listener.accept().await?.0)?;
            tokio::spawn(async move {
                loop {
                    end.receive().await?;
                    end.send().await?;
                }
            })
            .await?
        }),
        Way::Async | Way::AsyncSpinning => Runtime::new()?.block_on(async {
            let endpoint = Endpoint::new(domain()?.context())?;
            let listener = endpoint.listen_for_messages(ANY, Options::new()).await?;
            say(listener.local_addr())?;
            let client = listener.accept().await?;
            tokio::spawn(async move {
                while receive(&client, way).await? {
                    send(&client, way).await?;
                }
                Ok(())
            })
            .await?
        }),
        Way::Blocking(wait) => {
            let pd = domain()?;
            let (pool, builder) = (BufferPool::new(&pd), pd.create_channel().wait(wait));
            let mut listener = builder.listen_for_messages(ANY, &pool, Options::new())?;
            say(listener.local_addr())?;
            let client = listener.accept()?;
            while client.receive()?.is_some() {
                client.send(&MESSAGE)?;
            }
            Ok(())
        }
    }
}

/// Returns the times of several runs of `rounds` round trips.
pub(super) fn ask(way: Way, address: &str, rounds: u32) -> Outcome<Vec<Duration>> {
    if let Way::Blocking(wait) = way {
        let pd = domain()?;
        let (pool, builder) = (BufferPool::new(&pd), pd.create_channel().wait(wait));
        let server: blocking::Messages =
            builder.connect_messages(address, &pool, Options::new())?;
        let run = || {
            let begin = Instant::now();
            for _ in 0..rounds {
                server.send(&MESSAGE)?;
                server.receive()?;
            }
            Ok(begin.elapsed())
        };
        return (0..RUNS).map(|_| run()).collect();
    }
    let address = address.to_owned();
    Runtime::new()?.block_on(async move {
        if way == Way::Tcp {
            let mut end = Framed::new(TcpStream::connect(address).await?)?;
            return tokio::spawn(async move {
                let mut times = Vec::new();
                for _ in 0..RUNS {
                    let begin = Instant::now();
                    for _ in 0..rounds {
                        end.send().await?;
                        end.receive().await?;
                    }
                    times.push(begin.elapsed());
                }
                Ok(times)
            })
            .await?;
        }
        let endpoint = Endpoint::new(domain()?.context())?;
        let server = endpoint.connect_messages(address, Options::new()).await?;
        tokio::spawn(async move {
            let mut times = Vec::new();
            for _ in 0..RUNS {
                let begin = Instant::now();
                for _ in 0..rounds {
                    send(&server, way).await?;
                    receive(&server, way).await?;
                }
                times.push(begin.elapsed());
            }
            Ok(times)
        })
        .await?
    })
}

async fn send(end: &Messages, way: Way) -> Result<(), MessageError> {
    let send = end.send(&MESSAGE);
    if way == Way::AsyncSpinning { spin(send).await } else { send.await }
}

/// Returns true if there was a message.
async fn receive(end: &Messages, way: Way) -> Result<bool, MessageError> {
    let receive = end.receive();
    let received = if way == Way::AsyncSpinning { spin(receive).await } else { receive.await };
    Ok(received?.is_some())
}

/// Polls a future until it is ready, without giving up the thread.
async fn spin<F: Future>(future: F) -> F::Output {
    let mut future = pin!(tokio::task::unconstrained(future));
    poll_fn(|cx| {
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(output);
            }
            hint::spin_loop();
        }
    })
    .await
}

/// A TCP connection with a codec for messages.
struct Framed {
    stream: TcpStream,
    codec: LengthDelimitedCodec,
    sent: BytesMut,
    received: BytesMut,
}

impl Framed {
    fn new(stream: TcpStream) -> Outcome<Self> {
        stream.set_nodelay(true)?;
        let (codec, sent, received) =
            (LengthDelimitedCodec::new(), BytesMut::new(), BytesMut::new());
        Ok(Self { stream, codec, sent, received })
    }

    async fn send(&mut self) -> Outcome<()> {
        self.codec.encode(Bytes::from_static(&MESSAGE), &mut self.sent)?;
        Ok(self.stream.write_all_buf(&mut self.sent).await?)
    }

    async fn receive(&mut self) -> Outcome<BytesMut> {
        loop {
            if let Some(message) = self.codec.decode(&mut self.received)? {
                return Ok(message);
            }
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err("the peer has finished".into());
            }
        }
    }
}
