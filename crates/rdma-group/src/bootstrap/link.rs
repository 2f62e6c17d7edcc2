//! A TCP connection between rank 0 and another rank, whose frames are authenticated.
//!
//! A frame is a header, a payload and an HMAC-SHA256 of both nonces, the header and the payload. Each direction has its
//! own key. Without a secret, the keys are those of an empty secret. Frames are not encrypted.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit as _, Mac as _};
use rdma_connect::KeepAlive;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::Sha256;

pub(crate) type Nonce = [u8; 16];
pub(crate) type Tag = [u8; 32];

/// The version of the frames, of the messages of collectives, and of the choice of their algorithms.
pub(super) const VERSION: u16 = 6;
const MAGIC: [u8; 4] = *b"RDMG";
const HEADER: usize = 12;

/// A link ends if the other end's machine is silent for this long, like connections between ranks.
const SILENCE: Duration = Duration::from_secs(10);

/// The kinds of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The first frame, from rank 0: its nonce.
    Challenge = 1,
    /// A rank joins.
    Join,
    /// The table of all ranks, from rank 0.
    Table,
    /// Rank 0 refuses a rank, with the reason.
    Refusal,
    /// The group is closed, because of a rank.
    Notice,
    /// A rank leaves.
    Goodbye,
    /// A value of an exchange, which needs the feature `serde`.
    Value,
    /// The call in which a rank waits.
    Waiting,
}

const KINDS: [Kind; 8] = [
    Kind::Challenge,
    Kind::Join,
    Kind::Table,
    Kind::Refusal,
    Kind::Notice,
    Kind::Goodbye,
    Kind::Value,
    Kind::Waiting,
];

/// The keys that are derived from the group's secret.
#[derive(Clone)]
pub(crate) struct Keys {
    to_root: Tag,
    from_root: Tag,
    between_ranks: Tag,
}

impl Keys {
    pub(crate) fn new(secret: &[u8]) -> Self {
        let key = |purpose: &[u8]| tag(secret, &[purpose]);
        Self {
            to_root: key(b"rdma-group, to rank 0"),
            from_root: key(b"rdma-group, from rank 0"),
            between_ranks: key(b"rdma-group, between ranks"),
        }
    }

    /// Returns the code that one rank sends to another, to prove that both belong to the same group. It is valid only for
    /// a connection with these nonces.
    pub(crate) fn proof(
        &self,
        session: &Nonce,
        [from, to]: [usize; 2],
        nonces: &[Nonce; 2],
    ) -> Hmac<Sha256> {
        let [from, to] = [from, to].map(|rank| (rank as u64).to_le_bytes());
        mac(&self.between_ranks, &[session, &from, &to, &nonces.concat()])
    }
}

fn mac(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    // Every length is valid. The type of the error is for other algorithms.
    let mut mac =
        Hmac::<Sha256>::new_from_slice(key).unwrap_or_else(|_| Hmac::new(&Default::default()));
    parts.iter().for_each(|part| mac.update(part));
    mac
}

fn tag(key: &[u8], parts: &[&[u8]]) -> Tag {
    mac(key, parts).finalize().into_bytes().into()
}

/// Returns random bytes.
pub(crate) fn nonce() -> io::Result<Nonce> {
    let mut nonce = Nonce::default();
    rustix::io::retry_on_intr(|| getrandom(&mut nonce, GetRandomFlags::empty()))?;
    Ok(nonce)
}

/// One end of a connection.
pub(crate) struct Link {
    stream: TcpStream,
    keys: Arc<Keys>,
    is_root: bool,
    /// The nonces of the other rank and of rank 0; zeros until they are known.
    nonces: [Nonce; 2],
    received: Vec<u8>,
    /// The maximum length of a payload from the other end.
    longest: usize,
}

impl Link {
    /// Creates an end, whose stream no longer blocks.
    pub(crate) fn new(
        stream: TcpStream,
        keys: Arc<Keys>,
        is_root: bool,
        longest: usize,
    ) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        KeepAlive::within(SILENCE).set(&stream);
        let nonces = [Nonce::default(); 2];
        Ok(Self { stream, keys, is_root, nonces, received: Vec::new(), longest })
    }

    /// Sets the nonces of the other rank and of rank 0.
    pub(crate) const fn agree(&mut self, nonces: [Nonce; 2]) {
        self.nonces = nonces;
    }

    /// Sets the maximum length of a payload from the other end.
    #[cfg(feature = "serde")]
    pub(crate) const fn expect_at_most(&mut self, longest: usize) {
        self.longest = longest;
    }

    /// Sends a frame. Waits until the deadline for room in the socket. If this fails, the stream ends, because the other
    /// end cannot decode what follows a part of a frame.
    ///
    /// # Errors
    /// `TimedOut` at the deadline, otherwise an error of the socket.
    pub(crate) fn send(&mut self, kind: Kind, payload: &[u8], until: Instant) -> io::Result<()> {
        let mut frame = MAGIC.to_vec();
        frame.extend_from_slice(&VERSION.to_le_bytes());
        frame.extend_from_slice(&[kind as u8, 0]);
        frame.extend_from_slice(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes());
        frame.extend_from_slice(payload);
        let key = if self.is_root { &self.keys.from_root } else { &self.keys.to_root };
        let tag = tag(key, &[&self.nonces.concat(), &frame]);
        frame.extend_from_slice(&tag);
        let sent = self.write(&frame, until);
        if sent.is_err() {
            let _ = self.stream.shutdown(Shutdown::Both);
        }
        sent
    }

    /// Sends a short frame if the socket has room. Otherwise the frame is dropped.
    pub(crate) fn offer(&mut self, kind: Kind, payload: &[u8]) {
        let now = Instant::now();
        // A socket that can be written has more room than a short frame takes.
        if matches!(wait_for(&[self.awaited(PollFlags::OUT)], now), Ok(true)) {
            let _ = self.send(kind, payload, now);
        }
    }

    fn write(&mut self, mut rest: &[u8], until: Instant) -> io::Result<()> {
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if !wait_for(&[self.awaited(PollFlags::OUT)], until)? {
                        return Err(ErrorKind::TimedOut.into());
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns an entry for `poll` that waits for these events.
    pub(crate) fn awaited(&self, events: PollFlags) -> PollFd<'_> {
        PollFd::from_borrowed_fd(self.stream.as_fd(), events)
    }

    /// Returns the next frame, if it has arrived completely.
    ///
    /// # Errors
    /// `UnexpectedEof` if the other end has closed the stream, `InvalidData` if it does not follow the protocol, or has
    /// another version or secret. Otherwise an error of the socket.
    pub(crate) fn poll_receive(&mut self) -> io::Result<Option<(Kind, Vec<u8>)>> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(Some(frame));
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.received.extend_from_slice(&bytes[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for the next frame.
    ///
    /// # Errors
    /// `TimedOut` at the deadline, otherwise the same errors as [`poll_receive`](Self::poll_receive).
    pub(crate) fn receive(&mut self, until: Instant) -> io::Result<(Kind, Vec<u8>)> {
        loop {
            if let Some(frame) = self.poll_receive()? {
                return Ok(frame);
            }
            if !wait_for(&[self.awaited(PollFlags::IN)], until)? {
                return Err(ErrorKind::TimedOut.into());
            }
        }
    }

    /// Takes a frame from the bytes that have been received.
    fn take(&mut self) -> io::Result<Option<(Kind, Vec<u8>)>> {
        let invalid = |what: String| Err(io::Error::new(ErrorKind::InvalidData, what));
        let known = self.received.len().min(MAGIC.len());
        if self.received[..known] != MAGIC[..known] {
            return invalid("the process at the other end is not of a group".to_owned());
        }
        let Some(header) = self.received.first_chunk::<HEADER>() else { return Ok(None) };
        let [_, _, _, _, low, high, kind, _, length @ ..] = *header;
        let version = u16::from_le_bytes([low, high]);
        if version != VERSION {
            return invalid(format!(
                "the other end has version {version}, but this end has {VERSION}: use the same version on all ranks"
            ));
        }
        let length = u32::from_le_bytes(length) as usize;
        let Some(kind) = KINDS.into_iter().find(|known| *known as u8 == kind) else {
            return invalid(format!("a frame of the unknown kind {kind}"));
        };
        if length > self.longest {
            return invalid(format!("a frame of {length} bytes, {} are allowed", self.longest));
        }
        let Some((frame, rest)) = self.received.split_at_checked(HEADER + length) else {
            return Ok(None);
        };
        let Some((tag, rest)) = rest.split_first_chunk::<{ size_of::<Tag>() }>() else {
            return Ok(None);
        };
        let key = if self.is_root { &self.keys.to_root } else { &self.keys.from_root };
        if mac(key, &[&self.nonces.concat(), frame]).verify_slice(tag).is_err() {
            return invalid(
                "the other end has another secret: set RDMA_GROUP_SECRET to the same text on all ranks".to_owned(),
            );
        }
        let payload = frame[HEADER..].to_vec();
        self.received = rest.to_vec();
        Ok(Some((kind, payload)))
    }
}

/// Returns the end of a time limit, which may be `Duration::MAX`.
pub(crate) fn after(limit: Duration) -> Instant {
    Instant::now() + limit.min(CENTURY)
}

const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Waits until one of the files is ready. Returns false at the deadline.
pub(crate) fn wait_for(files: &[PollFd<'_>], until: Instant) -> io::Result<bool> {
    let mut files = files.to_vec();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left.min(LONGEST)).ok();
        match poll(&mut files, left.as_ref()) {
            Ok(0) if Instant::now() < until => {}
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

const LONGEST: Duration = Duration::from_secs(3600);

#[cfg(test)]
pub(crate) mod tests;
