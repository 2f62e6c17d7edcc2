//! The TCP connection to the other process. The user's time limit applies to each wait.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::runtime::{self, Runtime};
use tokio::time::{sleep, timeout};

use crate::output::{NotWritten, print};

/// The address of the other process, as part of the command line.
#[derive(Clone, Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Peer {
    /// Wait at this address for the other process to connect
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, default_missing_value = "127.0.0.1:18515")]
    listen: Option<String>,
    /// Connect to the other process, which listens at this address
    #[arg(long, value_name = "ADDR:PORT")]
    connect: Option<String>,
}

/// A connection to the other process.
#[derive(Debug)]
pub(super) struct Stream {
    runtime: Runtime,
    tcp: TcpStream,
    listens: bool,
    /// The time limit for each message from the peer, and for the peer to close the connection.
    wait: Duration,
}

/// An error on the connection between the two processes.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    #[error("cannot use the address {address} (an address is HOST:PORT, such as 127.0.0.1:18515)")]
    Address {
        address: String,
        #[source]
        source: io::Error,
    },
    #[error("no process connected to {address} within {wait:?}: start perftest's program there")]
    NoClient { address: SocketAddr, wait: Duration },
    #[error("no process is listening on {address} after {wait:?}: start perftest's program there")]
    NoServer { address: String, wait: Duration },
    #[error("the peer {then} after {} of {expected} bytes (\"{}\"): read its own output",
        .got.len(), .got.escape_ascii())]
    Short { got: Vec<u8>, expected: usize, then: &'static str },
    #[error("the peer sent more than perftest does: check that it is the same program")]
    Long,
    #[error("the peer did not close the connection within {0:?}")]
    Open(Duration),
    #[error(transparent)]
    Output(#[from] NotWritten),
    #[error("the connection to the peer failed")]
    Io(#[from] io::Error),
}

impl Stream {
    /// Connects to the other process within `wait`. An end that listens prints its address, because
    /// port 0 stands for any free port.
    pub(super) fn meet(peer: &Peer, wait: Duration) -> Result<Self, StreamError> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let listens = peer.listen.is_some();
        let address = peer.listen.as_ref().or(peer.connect.as_ref()).cloned().unwrap_or_default();
        let wrong = |source| StreamError::Address { address: address.clone(), source };
        let tcp = runtime.block_on(async {
            if listens {
                let listener = TcpListener::bind(&address).await.map_err(wrong)?;
                let address = listener.local_addr()?;
                print(format_args!("listening on {address}"))?;
                let client = timeout(wait, listener.accept()).await;
                let client = client.map_err(|_| StreamError::NoClient { address, wait })?;
                return Ok(client?.0);
            }
            let places: Vec<_> = lookup_host(&address).await.map_err(wrong)?.collect();
            let server = timeout(wait, connect(&places)).await;
            server
                .map_err(|_| StreamError::NoServer { address: address.clone(), wait })?
                .map_err(wrong)
        })?;
        Ok(Self { runtime, tcp, listens, wait })
    }

    /// Returns true if the other process connected to this one.
    pub(super) const fn listens(&self) -> bool {
        self.listens
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        Ok(self.runtime.block_on(self.tcp.write_all(bytes))?) // a socket has space for more bytes than this
    }

    /// Receives `N` bytes.
    pub(super) fn receive<const N: usize>(&mut self) -> Result<[u8; N], StreamError> {
        let (mut bytes, mut filled) = ([0; N], 0);
        let whole = async {
            while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
                match self.tcp.read(rest).await {
                    Ok(0) => return Ok("closed the connection"),
                    Ok(count) => filled += count,
                    Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                        return Ok("closed the connection");
                    }
                    Err(error) => return Err(error),
                }
            }
            Ok("")
        };
        let limited = async { timeout(self.wait, whole).await };
        let then = self.runtime.block_on(limited).unwrap_or(Ok("stalled"))?;
        if filled == N {
            return Ok(bytes);
        }
        let got = bytes.get(..filled).unwrap_or_default().to_vec();
        Err(StreamError::Short { got, expected: N, then })
    }

    /// Closes this direction of the connection, and waits until the peer closes the other one. If
    /// this process ended earlier, its device could not acknowledge the peer's last message.
    pub(super) fn finish(mut self) -> Result<(), StreamError> {
        let wait = self.wait;
        let read = self.runtime.block_on(async {
            match self.tcp.shutdown().await {
                Err(error) if error.kind() != ErrorKind::NotConnected => return Err(error),
                _ => {}
            }
            timeout(wait, self.tcp.read(&mut [0]))
                .await
                .unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
        });
        match read {
            Ok(0) => Ok(()),
            Ok(_) => Err(StreamError::Long),
            Err(error) => match error.kind() {
                ErrorKind::ConnectionReset => Ok(()),
                ErrorKind::TimedOut => Err(StreamError::Open(wait)),
                _ => Err(error.into()),
            },
        }
    }
}

/// Connects to one of these addresses. Tries again until a process is listening there.
async fn connect(places: &[SocketAddr]) -> io::Result<TcpStream> {
    loop {
        match TcpStream::connect(places).await {
            // If no process is listening, TCP may connect a port to itself.
            Ok(tcp) if tcp.local_addr()? == tcp.peer_addr()? => {}
            Ok(tcp) => return Ok(tcp),
            Err(error) => match error.kind() {
                // A listener that exits before it accepts the connection resets it.
                ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset | ErrorKind::TimedOut => {
                }
                _ => return Err(error),
            },
        }
        // No event reports that a process has begun to listen.
        sleep(Duration::from_millis(20)).await;
    }
}

#[cfg(test)]
impl Stream {
    /// Returns both ends of a connection, first the one that listened.
    pub(super) fn pair(wait: Duration) -> [Self; 2] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        [(listener.accept().unwrap().0, true), (client, false)].map(|(tcp, listens)| {
            tcp.set_nonblocking(true).unwrap();
            let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let tcp = runtime.block_on(async { TcpStream::from_std(tcp) }).unwrap();
            Self { runtime, tcp, listens, wait }
        })
    }
}
