//! The control connection between two doctors: first a greeting, and then messages.
//!
//! Each end first sends a greeting of 12 bytes: `rdmadoc`, a zero byte, and the version. It then
//! reads the other end's greeting. A message consists of its length, as four bytes in network byte
//! order, and at most 64 KiB of JSON.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rdma::qp::QueuePairEndpoint;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The version of the messages. Both ends must have the same one.
pub(crate) const VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"rdmadoc\0";

/// The maximum length of a message, in bytes.
const MAX_LENGTH: usize = 64 << 10;

/// The time limit for receiving a greeting, for receiving the length of a message, and for
/// receiving its JSON. Also the limit for each write.
const LIMIT: Duration = Duration::from_secs(10);

/// The endpoint of a queue pair in its encoded form.
#[derive(Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Endpoint(Vec<u8>);

impl From<QueuePairEndpoint> for Endpoint {
    fn from(endpoint: QueuePairEndpoint) -> Self {
        Self(endpoint.to_bytes().to_vec())
    }
}

impl Endpoint {
    pub(crate) fn read(&self) -> anyhow::Result<QueuePairEndpoint> {
        QueuePairEndpoint::from_bytes(&self.0).context("the peer's endpoint")
    }
}

/// The device and GIDs of one end.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Offer {
    pub(crate) device: String,
    /// The endpoint, which lists the GIDs of the port.
    pub(crate) endpoint: Endpoint,
}

/// The client's request that the listener create a queue pair for a probe.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Try {
    /// The position of the listener's GID in its offer, or `None` on InfiniBand with LIDs.
    pub(crate) gid: Option<usize>,
    pub(crate) endpoint: Endpoint,
}

/// The listener's answer to [`Try`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum Answer {
    /// The listener's queue pair is connected, and its receives are posted.
    Ready(Endpoint),
    /// The listener cannot create or connect a queue pair for the request.
    Refused(String),
}

/// The client's report of a probe, sent after [`Answer::Ready`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sent {
    /// Whether both messages were acknowledged.
    pub(crate) is_done: bool,
}

/// The listener's report of a probe.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Outcome {
    /// The reason why the two messages did not arrive, or `None` if they did.
    pub(crate) error: Option<String>,
    /// The port counters that changed, as text.
    pub(crate) counters: String,
}

/// The stream to the other doctor, on which the greetings have been exchanged.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
}

impl Wire {
    /// Sends a greeting, and reads and checks the other end's.
    pub(crate) fn greet(stream: TcpStream) -> anyhow::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(LIMIT))?;
        let mut wire = Self { stream };
        wire.stream.write_all(&[MAGIC.as_slice(), &VERSION.to_be_bytes()].concat())?;
        let mut greeting = [0; 12];
        wire.read(&mut greeting).context("no greeting of `rdmatool doctor` arrived")?;
        let (magic, version) = greeting.split_at(MAGIC.len());
        if magic != MAGIC {
            bail!("the program at the other end is not `rdmatool doctor`");
        }
        let version = u32::from_be_bytes(version.try_into()?);
        if version != VERSION {
            bail!(
                "the other end has version {version} of the doctor's messages, but this one has \
                 {VERSION}: run the same rdmatool at both ends"
            );
        }
        Ok(wire)
    }

    pub(crate) fn send(&mut self, message: &impl Serialize) -> anyhow::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        if bytes.len() > MAX_LENGTH {
            bail!("a message of {} bytes is longer than {MAX_LENGTH}", bytes.len());
        }
        let length = u32::try_from(bytes.len())?;
        self.stream.write_all(&[&length.to_be_bytes(), bytes.as_slice()].concat())?;
        Ok(())
    }

    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        self.receive_or_end()?.context("the other end closed the connection")
    }

    /// Receives a message. Returns `None` if the other end closes the connection instead of sending
    /// one.
    pub(crate) fn receive_or_end<T: DeserializeOwned>(&mut self) -> anyhow::Result<Option<T>> {
        let mut length = [0; 4];
        match self.read(&mut length) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let length = usize::try_from(u32::from_be_bytes(length))?;
        if length > MAX_LENGTH {
            bail!("the other end announced a message of {length} bytes, more than {MAX_LENGTH}");
        }
        let mut bytes = vec![0; length];
        self.read(&mut bytes)
            .context("the other end closed the connection in the middle of a message")?;
        Ok(Some(serde_json::from_slice(&bytes).context("the other end's message")?))
    }

    /// Fills the whole buffer within the time limit, even if the bytes arrive one by one.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        let end = Instant::now() + LIMIT;
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(rest) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => filled += count,
                // The read timed out or was interrupted. The loop checks the time limit, and reads
                // again or returns `TimedOut`.
                Err(error)
                    if [io::ErrorKind::Interrupted, io::ErrorKind::WouldBlock]
                        .contains(&error.kind()) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(crate) const fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    /// Returns the result of greeting an end, and then reading a message from it. That end sends
    /// these bytes and closes its side.
    fn after(bytes: &[u8]) -> String {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        other.write_all(bytes).unwrap();
        other.shutdown(std::net::Shutdown::Write).unwrap();
        let (stream, _) = listener.accept().unwrap();
        match Wire::greet(stream).and_then(|mut wire| wire.receive_or_end::<Offer>()) {
            Ok(None) => "end".to_owned(),
            Ok(Some(offer)) => format!("{offer:?}"),
            Err(error) => format!("{error:#}"),
        }
    }

    fn greeting(version: u32) -> Vec<u8> {
        [MAGIC.as_slice(), &version.to_be_bytes()].concat()
    }

    #[test]
    fn another_version_and_another_program_are_named() {
        let text = after(&greeting(7));
        assert!(text.contains("version 7") && text.contains("has 1"), "{text}");
        let text = after(b"GET / HTTP/1.1\r\n");
        assert!(text.contains("is not `rdmatool doctor`"), "{text}");
        assert!(after(b"rdma").contains("no greeting"));
        assert_eq!(after(&greeting(VERSION)), "end");
    }

    #[test]
    fn hostile_messages_are_refused() {
        let sent = |bytes: &[u8]| after(&[greeting(VERSION), bytes.to_vec()].concat());
        assert!(sent(&u32::MAX.to_be_bytes()).contains("4294967295 bytes"));
        assert!(sent(&[0, 0, 0, 9, b'{']).contains("in the middle of a message"));
        assert!(sent(&[0, 0, 0, 2, b'{', b'}']).contains("the other end's message"));
        let deep = [4000_u32.to_be_bytes().as_slice(), "[".repeat(4000).as_bytes()].concat();
        assert!(sent(&deep).contains("the other end's message"));
        let extra = br#"{"device":"a","endpoint":[],"more":1}"#;
        let extra = [&[0, 0, 0, u8::try_from(extra.len()).unwrap()], extra.as_slice()].concat();
        assert!(sent(&extra).contains("unknown field"), "{}", sent(&extra));
        assert!(Endpoint(vec![0; 7]).read().is_err() && Endpoint(vec![0xff; 344]).read().is_err());
    }
}
