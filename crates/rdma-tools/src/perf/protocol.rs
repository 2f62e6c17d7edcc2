//! The conversation between the two ends: first about the settings, then about one block after
//! another.
//!
//! Each end first sends a greeting of fixed length that contains its version. The client then sends
//! [`Request`]s, to which the server answers with [`Reply`]s. Each message is JSON, preceded by its
//! length.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::perf::settings::Settings;
use crate::perf::watch::{Stop, Watch, lost};

/// The version of the protocol. It changes whenever a message changes.
const VERSION: u32 = 1;
const NAME: &str = "rdmatool perf ";
/// The length of the greeting: the name and a five-digit version.
const GREETING_BYTES: usize = NAME.len() + 5;
/// The maximum length of a message, in bytes.
const LONGEST: u32 = 1 << 20;
/// The time limit for an answer from the peer, which may not be scheduled for several seconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The time limit for the peer to explain an error.
const SOON: Duration = Duration::from_millis(200);

/// A message from the client.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Create the queue pairs. After [`Reply::Ready`], both ends exchange their endpoints.
    Prepare(Settings),
    /// Run the server's part of a block. The server sends [`Reply::Ready`] before the block and
    /// [`Reply::Done`] after it.
    Run(Block),
    /// The measurement is complete.
    End,
}

/// A message from the server.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Ready,
    Done,
    /// The server's error. After this, the server closes the connection.
    Failed(String),
}

/// A series of operations that are measured together.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Block {
    /// The work to measure: an RDMA operation or a reference.
    pub(crate) work: Work,
    /// The index of the message length in [`Settings::sizes`].
    pub(crate) size: usize,
    pub(crate) queue_pairs: u32,
    pub(crate) depth: u32,
    pub(crate) iterations: u64,
}

/// The work of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Work {
    /// The operation in the settings.
    Rdma,
    /// A reference: the same bytes are sent over the TCP connection that the two ends already have.
    Tcp,
    /// A reference: the same bytes are copied within the client's memory.
    Memcpy,
    /// A reference: both ends run perftest's program for the same measure and operation.
    Perftest,
}

impl Work {
    /// The references.
    const REFERENCES: [Self; 3] = [Self::Tcp, Self::Memcpy, Self::Perftest];

    /// Returns the name of a reference in a report.
    pub(crate) const fn reference(self) -> Option<&'static str> {
        match self {
            Self::Rdma => None,
            Self::Tcp => Some("tcp"),
            Self::Memcpy => Some("memcpy"),
            Self::Perftest => Some("perftest"),
        }
    }

    /// Returns true if a report's row with this operation measures a reference.
    pub(crate) fn is_reference(operation: &str) -> bool {
        Self::REFERENCES.iter().any(|work| work.reference() == Some(operation))
    }
}

/// The connection between the two ends.
#[derive(Debug)]
pub(crate) struct Control {
    stream: TcpStream,
    pub(crate) watch: Watch,
    is_server: bool,
}

impl Control {
    /// Sends a greeting, and checks the peer's.
    ///
    /// # Errors
    /// Returns an error if the peer is a different program, has a different version, does not
    /// answer, or disconnects.
    pub(crate) fn meet(
        mut stream: TcpStream,
        interrupted: Arc<AtomicBool>,
        is_server: bool,
    ) -> anyhow::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let watch = Watch::new(&stream, interrupted)?;
        stream.write_all(format!("{NAME}{VERSION:05}").as_bytes()).map_err(lost)?;
        let mut greeting = [0; GREETING_BYTES];
        let mut control = Self { stream, watch, is_server };
        control.read(&mut greeting).map_err(|error| match error.downcast_ref() {
            Some(Stop::Late) if !is_server => {
                error.context("the listener did not answer; it serves one client at a time")
            }
            _ => error,
        })?;
        let text = String::from_utf8_lossy(&greeting);
        let Some(version) = text.strip_prefix(NAME) else {
            bail!("the peer is not `rdmatool perf`: it sent {text:?}");
        };
        ensure!(
            version.parse() == Ok(VERSION),
            "the peer has version {version} of the conversation, but this program has version \
             {VERSION:05}: run the same rdmatool on both ends"
        );
        Ok(control)
    }

    pub(crate) const fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Lets the client wait until the server has created the objects that the settings require.
    ///
    /// # Errors
    /// The server returns the errors of [`send`](Self::send), and the client those of
    /// [`expect`](Self::expect).
    pub(crate) fn ready(&mut self) -> anyhow::Result<()> {
        match self.is_server {
            true => self.send(&Reply::Ready),
            false => self.expect(&Reply::Ready),
        }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// Returns an error if the peer has left or does not read the message.
    pub(crate) fn send(&self, message: &impl Serialize) -> anyhow::Result<()> {
        send(&self.stream, message)
    }

    /// Receives a message.
    ///
    /// # Errors
    /// Returns an error if the peer has left, sends something other than a message, or sends
    /// nothing within [`PATIENCE`]. Also returns an error if the user interrupts.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        let mut length = [0; 4];
        self.read(&mut length)?;
        let length = u32::from_be_bytes(length);
        ensure!(
            length <= LONGEST,
            "the peer sent a message of {length} bytes; the limit is {LONGEST}"
        );
        let mut json = vec![0; length as usize];
        self.read(&mut json)?;
        serde_json::from_slice(&json)
            .context("the peer sent a message that this version does not know")
    }

    /// Receives a reply, which must be the expected one: `Ready` or `Done`.
    ///
    /// # Errors
    /// Same errors as [`receive`](Self::receive). Also returns the error that the server reports.
    pub(crate) fn expect(&mut self, expected: &Reply) -> anyhow::Result<()> {
        match (self.receive()?, expected) {
            (Reply::Ready, Reply::Ready) | (Reply::Done, Reply::Done) => Ok(()),
            (Reply::Failed(error), _) => bail!("the peer failed: {error}"),
            (reply, _) => bail!("the peer answered {reply:?} instead of {expected:?}"),
        }
    }

    /// Adds what the peer reports to an error of this end: the peer's own error, or that the peer
    /// has left.
    pub(crate) fn explained(&mut self, error: anyhow::Error) -> anyhow::Error {
        let stop = error.downcast_ref::<Stop>();
        if stop == Some(&Stop::Interrupted) {
            return error;
        }
        // If the peer's process has ended, a request to it may fail before the end of the
        // connection is detected.
        while Watch::has_input(&self.stream, SOON).unwrap_or(false) {
            match self.receive() {
                Ok(Reply::Failed(reason)) => {
                    return anyhow!("the peer failed: {reason} (and here: {error:#})");
                }
                Ok(Reply::Ready | Reply::Done) => {}
                Err(end) if stop.is_none() && end.is::<Stop>() => {
                    return anyhow!("{error:#} ({end})");
                }
                Err(_) => return error,
            }
        }
        error
    }

    fn read(&mut self, mut bytes: &mut [u8]) -> anyhow::Result<()> {
        self.watch.begin();
        while !bytes.is_empty() {
            self.watch.patience()?; // the peer may send the bytes one by one
            if !Watch::has_input(&self.stream, Watch::INTERVAL)? {
                self.watch.check()?;
                continue;
            }
            match self.stream.read(bytes) {
                Ok(0) => return Err(Stop::PeerLeft.into()),
                Ok(count) => bytes = bytes.get_mut(count..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(lost(error)),
            }
        }
        Ok(())
    }
}

/// Sends a message like [`Control::send`], while the watch of the [`Control`] is borrowed.
///
/// # Errors
/// Same errors as [`Control::send`].
pub(crate) fn send(mut stream: &TcpStream, message: &impl Serialize) -> anyhow::Result<()> {
    let json = serde_json::to_vec(message)?;
    let length = u32::try_from(json.len()).context("a message is too long")?;
    let frame: Vec<u8> = length.to_be_bytes().into_iter().chain(json).collect();
    stream.write_all(&frame).map_err(lost)
}
