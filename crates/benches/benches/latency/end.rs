//! One end of the connection, with the messages that it exchanges with the other end out of band.

use std::error::Error;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use rdma_channel::{Channel, confirm, exchange, prelude::*};
use rdma_mem::{
    AccessFlags, AtomicCapability, OwnedRegion, ProtectionDomain, RemoteMemoryRegion, SharedRegion,
};
use rdma_qp::{MaxRnrRetries, MinRnrTimer};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The length of the longest message.
pub(crate) const LONGEST: usize = 1 << 20;
/// The maximum number of outstanding operations.
pub(crate) const DEPTH: usize = 16;
/// The time that either end waits for the other.
const WAIT: Duration = Duration::from_secs(30);

/// A request to the server: send back `messages` messages of `length` bytes. The client keeps at most `depth` of them
/// outstanding.
#[derive(Clone, Copy)]
pub(crate) struct Echo {
    pub(crate) length: u64,
    pub(crate) messages: u64,
    pub(crate) depth: u64,
}

pub(crate) struct End {
    pub(crate) channel: Channel,
    pub(crate) stream: TcpStream,
    pub(crate) pd: ProtectionDomain,
    /// Memory that the peer writes, reads and uses for atomics.
    _board: SharedRegion,
    pub(crate) peer: RemoteMemoryRegion,
    /// The reason for a lack of atomics, if one of the devices has none.
    pub(crate) no_atomics: Option<&'static str>,
}

impl End {
    pub(crate) fn connect(device: &str, mut stream: TcpStream) -> Outcome<Self> {
        let pd = rdma_mem::open_device(device)?.allocate_pd()?;
        let atomics = pd.context().query_device()?.atomic_capability != AtomicCapability::NONE;
        let access = AccessFlags::new().with_local_write().with_remote_read().with_remote_write();
        let access = if atomics { access.with_remote_atomic() } else { access };
        stream.set_nodelay(true)?;
        let depth = u32::try_from(2 * DEPTH)?;
        let prepared = pd
            .create_channel()
            .access(access)
            .max_send_wr(depth)
            .max_recv_wr(depth)
            // An answer may arrive before its receive is posted.
            .max_rnr_retries(MaxRnrRetries::unlimited())
            .min_rnr_timer(MinRnrTimer::min_duration_greater_than(Duration::ZERO))
            .build()?;
        let peer = exchange(&stream, &prepared.endpoint(), WAIT)?;
        let channel = prepared.handshake(peer)?;
        confirm(&stream, WAIT)?;
        let board = pd.allocate_shared_region(LONGEST, access)?;
        let remote = board.remote();
        let mut own = [0; 21];
        own[..8].copy_from_slice(&remote.address().to_be_bytes());
        own[8..16].copy_from_slice(&(remote.length() as u64).to_be_bytes());
        own[16..20].copy_from_slice(&remote.rkey().get().to_be_bytes());
        own[20] = atomics.into();
        stream.write_all(&own)?;
        let (address, length) = (number(&mut stream, 8)?, number(&mut stream, 8)?);
        let rkey = u32::try_from(number(&mut stream, 4)?)?;
        let peer = RemoteMemoryRegion::new(address, usize::try_from(length)?, rkey);
        let no_atomics = no_atomics(atomics, number(&mut stream, 1)? != 0);
        Ok(Self { channel, stream, pd, _board: board, peer, no_atomics })
    }

    /// Makes the server expect messages. Its receives are posted when this returns.
    pub(crate) fn ask(&mut self, echo: Echo) -> Outcome<()> {
        for part in [echo.length, echo.messages, echo.depth] {
            self.stream.write_all(&part.to_be_bytes())?;
        }
        self.stream.read_exact(&mut [0])?;
        Ok(())
    }

    /// Sends messages back for each request of the client, until the client is gone.
    pub(crate) fn serve(mut self) -> Outcome<()> {
        let mut memory: Option<OwnedRegion> = None;
        loop {
            let length = match number(&mut self.stream, 8) {
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let (messages, depth) = (number(&mut self.stream, 8)?, number(&mut self.stream, 8)?);
            let echo = Echo { length, messages, depth };
            let needed = usize::try_from(length * 2 * depth)?;
            let region = match memory.take() {
                Some(region) if region.len() >= needed => region,
                _ => self.pd.allocate_region(needed)?,
            };
            self.echo(echo, memory.insert(region))?;
        }
    }

    /// Sends each message back. Posts twice as many receives as there are outstanding messages, so that each message
    /// finds one.
    fn echo(&mut self, echo: Echo, memory: &mut OwnedRegion) -> Outcome<()> {
        let length = usize::try_from(echo.length)?;
        let places = usize::try_from((2 * echo.depth).min(echo.messages))?;
        let Self { channel, stream, .. } = self;
        channel
            .scope(|s| {
                let (mut rest, mut rooms) = (memory.as_slice_mut(), [const { None }; 2 * DEPTH]);
                for place in rooms.iter_mut().take(places) {
                    let (slice, after) = rest.split_at(length);
                    rest = after;
                    *place = Some(s.receive_into(slice).map_err(|refused| refused.error)?);
                }
                stream.write_all(&[0])?;
                let mut posted = places as u64;
                for message in 0..echo.messages {
                    let place = &mut rooms[usize::try_from(message)? % places];
                    let Some(arrival) = place.take() else { return Err("no receive".into()) };
                    let arrived = arrival.wait(WAIT).map_err(|_| "no message arrived")?;
                    arrived.result?;
                    let sent = s.send_from(arrived.buf).map_err(|refused| refused.error)?;
                    let sent = sent.wait(WAIT).map_err(|_| "a message was not sent")?;
                    sent.result?;
                    if posted < echo.messages {
                        posted += 1;
                        *place = Some(s.receive_into(sent.buf).map_err(|refused| refused.error)?);
                    }
                }
                Ok::<(), Box<dyn Error + Send + Sync>>(())
            })
            .map_err(|error| error.to_string().into())
    }
}

const fn no_atomics(here: bool, there: bool) -> Option<&'static str> {
    match (here, there) {
        (true, true) => None,
        (false, _) => Some("left out: the device has no atomics"),
        (true, false) => Some("left out: the device of the other end has no atomics"),
    }
}

/// Reads a number of `bytes` bytes.
fn number(stream: &mut TcpStream, bytes: usize) -> io::Result<u64> {
    let mut all = [0; 8];
    stream.read_exact(&mut all[8 - bytes..])?;
    Ok(u64::from_be_bytes(all))
}
