//! The connections between the ranks of a launcher's group, which its subgroups share.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use bytemuck::Pod;
use rdma_channel::message::{Message, MessageError, Messages, Options};
use rdma_channel::prelude::*;
use rdma_channel::{
    BufferPool, Channel, ChannelListener, ConnectError, ProtectionDomain, RendezvousBuilder,
};

use crate::bootstrap;
use crate::bootstrap::link::{Keys, after};
use crate::bootstrap::star::{Notice, Star};
use crate::bootstrap::table::{Entry, Table};
use crate::call::Call;
use crate::environment::Settings;
use crate::error::Error;
use crate::run::{MESSAGE_BYTES, Mismatch, Next, Run};

/// The time between two checks for notices while a rank waits.
const CHECK: Duration = Duration::from_millis(20);

/// The time between two checks for notices while a rank sends. A message is sent again after each, so a
/// device should take less time for a message.
const SEND: Duration = Duration::from_secs(1);

/// All ranks of the launcher, and the connections of this one.
pub(crate) struct World {
    pub(crate) rank: usize,
    pub(crate) entries: Vec<Entry>,
    pub(crate) pd: ProtectionDomain,
    pool: BufferPool,
    options: Options,
    limit: Duration,
    keys: Arc<Keys>,
    session: [u8; 16],
    star: Star,
    /// `None` once the group is closed.
    connections: Option<Connections>,
}

struct Connections {
    /// `None` if the group has a single rank.
    listener: Option<ChannelListener>,
    peers: Vec<Option<Peer>>,
}

/// A connection to a rank. A message whose send times out is sent again, although it may have been sent. Therefore, each
/// message has a number, and the receiver drops a message with the number of the one before.
struct Peer {
    messages: Messages,
    /// The numbers of the last messages.
    sent: u8,
    received: u8,
}

/// A connection to a higher rank, and that rank's answer.
type Dialed = Result<(Channel, Box<[u8]>), ConnectError>;

/// The reason that a collective fails.
enum Failure {
    /// The connection to this rank has ended.
    Lost(usize),
    /// Another rank has closed the group.
    Notice(Notice),
    /// The connection to this rank could not be made. The rank may have died meanwhile.
    Connect(usize, ConnectError),
    /// This rank has detected an error.
    Own(Error),
}

impl World {
    /// Joins the other ranks.
    pub(crate) fn join(
        pd: &ProtectionDomain,
        settings: &Settings,
        join_limit: Duration,
        limit: Duration,
    ) -> Result<Self, Error> {
        let Settings { rank, world_size, ref secret, .. } = *settings;
        let keys = Arc::new(Keys::new(secret.as_deref().unwrap_or_default()));
        let options = options();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let mut listener = None;
        let (table, star) = if world_size == 1 {
            let address = SocketAddr::from((IpAddr::from([127, 0, 0, 1]), 0));
            let entries = vec![Entry { address, host }];
            (Table { session: [0; 16], entries }, Star::new(0, Vec::new()))
        } else {
            bootstrap::join(settings, join_limit, &keys, |ip| {
                let builder = builder(pd, &options).rendezvous_timeout(limit);
                let listens = builder.listen(SocketAddr::from((ip, 0)));
                let listens = listens.map_err(|source| Error::Connect {
                    rank,
                    host: host.clone(),
                    source,
                })?;
                let address = listens.local_addr();
                listener = Some(listens);
                Ok(Entry { address, host })
            })?
        };
        let Table { session, entries } = table;
        let peers = entries.iter().map(|_| None).collect();
        Ok(Self {
            rank,
            entries,
            pd: pd.clone(),
            pool: BufferPool::new(pd),
            options,
            limit,
            keys,
            session,
            star,
            connections: Some(Connections { listener, peers }),
        })
    }

    fn host(&self, rank: usize) -> String {
        self.entries.get(rank).map(|entry| entry.host.clone()).unwrap_or_default()
    }

    /// Runs a collective of these ranks. Closes the group if it fails.
    pub(crate) fn execute<T: Pod>(
        &mut self,
        members: &[usize],
        run: Run<'_, T>,
    ) -> Result<(), Error> {
        let Some(mut connections) = self.connections.take() else { return Err(Error::Closed) };
        let proceed = AssertUnwindSafe(|| self.proceed(&mut connections, members, run));
        // The connections end after the report.
        match panic::catch_unwind(proceed) {
            Ok(Ok(())) => {
                self.connections = Some(connections);
                Ok(())
            }
            Ok(Err(failure)) => Err(self.report(failure)),
            Err(payload) => {
                let error = "its function panicked".to_owned();
                self.star.report(Notice { rank: self.rank, error });
                panic::resume_unwind(payload)
            }
        }
    }

    fn proceed<T: Pod>(
        &mut self,
        connections: &mut Connections,
        members: &[usize],
        mut run: Run<'_, T>,
    ) -> Result<(), Failure> {
        let until = after(self.limit);
        let in_world = |rank: usize| members.get(rank).copied().unwrap_or(rank);
        let peers: BTreeSet<_> = run.peers().map(in_world).collect();
        self.connect(connections, &peers, until)?;
        let Connections { peers, .. } = connections;
        loop {
            let (peer, message) = match run.next() {
                Next::Done => return Ok(()),
                Next::Send(peer, message) => (in_world(peer), Some(message)),
                Next::Receive(peer) => (in_world(peer), None),
            };
            let place = peers.get_mut(peer).and_then(Option::as_mut);
            let connection = place.ok_or(Failure::Lost(peer))?;
            if let Some(message) = message {
                self.send(peer, connection, message, until)?;
                if Instant::now() >= until {
                    return Err(self.late(peer));
                }
                continue;
            }
            let message = self.receive(peer, connection, until)?;
            run.received(&message).map_err(|mismatch| {
                let (theirs, ours) = match mismatch {
                    Mismatch::Call(theirs) => (theirs.to_string(), run.call().to_string()),
                    Mismatch::Length { found, expected } => {
                        let call = run.call();
                        (format!("{call} with {found} bytes"), format!("it with {expected} bytes"))
                    }
                };
                Failure::Own(Error::Mismatch { rank: peer, host: self.host(peer), theirs, ours })
            })?;
        }
    }

    fn send(
        &mut self,
        rank: usize,
        peer: &mut Peer,
        message: &mut [u8],
        until: Instant,
    ) -> Result<(), Failure> {
        peer.sent = peer.sent.wrapping_add(1);
        if let Some(number) = message.get_mut(Call::DRIVER_BYTE) {
            *number = peer.sent;
        }
        loop {
            match peer.messages.send(message) {
                Ok(()) => return Ok(()),
                Err(MessageError::TimedOut { .. }) => self.check(rank, until)?,
                Err(_) => return Err(Failure::Lost(rank)),
            }
        }
    }

    fn receive(
        &mut self,
        rank: usize,
        peer: &mut Peer,
        until: Instant,
    ) -> Result<Message, Failure> {
        loop {
            match peer.messages.receive() {
                Ok(Some(message)) => match message.get(Call::DRIVER_BYTE) {
                    Some(number) if *number == peer.received => {}
                    number => {
                        peer.received = number.copied().unwrap_or_default();
                        return Ok(message);
                    }
                },
                Err(MessageError::TimedOut { .. }) => self.check(rank, until)?,
                Ok(None) | Err(_) => return Err(Failure::Lost(rank)),
            }
        }
    }

    /// Fails if another rank has closed the group, or the limit has passed.
    fn check(&mut self, awaited: usize, until: Instant) -> Result<(), Failure> {
        match self.star.check() {
            Some(notice) => Err(Failure::Notice(notice)),
            None if Instant::now() >= until => Err(self.late(awaited)),
            None => Ok(()),
        }
    }

    fn late(&self, rank: usize) -> Failure {
        Failure::Own(Error::Timeout { rank, host: self.host(rank), limit: self.limit })
    }

    /// Connects to the peers that have a higher rank, and accepts those that have a lower one. A thread for each higher
    /// rank waits until that rank accepts. Meanwhile, this thread accepts, and checks for notices.
    fn connect(
        &mut self,
        connections: &mut Connections,
        wanted: &BTreeSet<usize>,
        until: Instant,
    ) -> Result<(), Failure> {
        let Connections { listener, peers } = connections;
        let is_missing = |peers: &[Option<Peer>], peer| matches!(peers.get(peer), Some(None));
        let (dialed, results) = mpsc::channel();
        for peer in wanted.range(self.rank + 1..).filter(|peer| is_missing(peers, **peer)) {
            self.dial(*peer, until, dialed.clone())?;
        }
        while let Some(missing) = wanted.iter().copied().find(|peer| is_missing(peers, *peer)) {
            let result = match listener {
                Some(listener) if missing < self.rank => {
                    self.accept(listener, peers, missing)?;
                    results.try_recv().ok()
                }
                _ => results.recv_timeout(CHECK).ok(),
            };
            if let Some((peer, result)) = result {
                let dialed = self.dialed(peer, result)?;
                peers.get_mut(peer).map(|place| place.insert(dialed));
            }
            self.check(missing, until)?;
            if self.star.has_left(missing) {
                return Err(Failure::Lost(missing));
            }
        }
        Ok(())
    }

    /// Connects to a higher rank in another thread, which sends the result. If the call fails before, the thread ends
    /// when the other rank closes the group, or at the deadline.
    fn dial(
        &self,
        peer: usize,
        until: Instant,
        results: mpsc::Sender<(usize, Dialed)>,
    ) -> Result<(), Failure> {
        let Some(Entry { address, .. }) = self.entries.get(peer).cloned() else {
            return Err(Failure::Lost(peer));
        };
        let mut greeting = (self.rank as u64).to_le_bytes().to_vec();
        greeting.extend(self.keys.proof(&self.session, self.rank, peer));
        let (pd, options) = (self.pd.clone(), self.options);
        let dial = move || {
            let left = until.saturating_duration_since(Instant::now());
            let builder = builder(&pd, &options).user_bytes(&greeting);
            let result = builder.rendezvous_timeout(left).connect(address);
            // Without a receiver, the call has failed.
            let _ = results.send((peer, result));
        };
        let thread = thread::Builder::new().name(format!("connects to rank {peer}")).spawn(dial);
        let failed = Error::io(format!("starting a thread that connects to rank {peer}"));
        thread.map(drop).map_err(|error| Failure::Own(failed(error)))
    }

    /// Checks the result of [`dial`](Self::dial).
    fn dialed(&self, peer: usize, result: Dialed) -> Result<Peer, Failure> {
        let (channel, answer) = result.map_err(|error| match error {
            ConnectError::Timeout { .. } => self.late(peer),
            // A rank that closes its group turns away those that wait to be accepted.
            ConnectError::NobodyListens { .. }
            | ConnectError::Rejected(_)
            | ConnectError::Closed { .. }
            | ConnectError::Io { .. } => Failure::Lost(peer),
            _ => Failure::Connect(peer, error),
        })?;
        if !self.keys.is_proof(&answer, &self.session, peer, self.rank) {
            let wrong = ConnectError::Rejected("its proof is wrong".into());
            return Err(Failure::Connect(peer, wrong));
        }
        self.start(channel, peer)
    }

    /// Accepts a rank, if one connects soon. It may be another one than the one that this rank waits for.
    fn accept(
        &self,
        listener: &mut ChannelListener,
        peers: &mut [Option<Peer>],
        awaited: usize,
    ) -> Result<(), Failure> {
        let client = match listener.incoming(Some(CHECK)) {
            Ok(client) => client,
            Err(ConnectError::Timeout { .. }) => return Ok(()),
            Err(error) => return Err(Failure::Connect(awaited, error)),
        };
        let Some(peer) = self.peer_of(client.user_bytes()) else {
            client.reject("this is a rank of a group, and the client is not of this group");
            return Ok(());
        };
        let Some(place @ None) = peers.get_mut(peer) else {
            client.reject("this rank is connected already");
            return Ok(());
        };
        // A client that has gone is not lost yet: its end is noticed elsewhere.
        if let Ok(channel) = client.accept(&self.keys.proof(&self.session, self.rank, peer)) {
            *place = Some(self.start(channel, peer)?);
        }
        Ok(())
    }

    /// Returns the rank of a client, if it is a lower rank of this group.
    fn peer_of(&self, greeting: &[u8]) -> Option<usize> {
        let (rank, proof) = greeting.split_first_chunk()?;
        let rank = usize::try_from(u64::from_le_bytes(*rank)).ok()?;
        let is_proof = || self.keys.is_proof(proof, &self.session, rank, self.rank);
        (rank < self.rank && is_proof()).then_some(rank)
    }

    fn start(&self, channel: Channel, peer: usize) -> Result<Peer, Failure> {
        let messages = Messages::new(channel, &self.pool, self.options).map_err(|source| {
            let tried = format!("preparing the connection to rank {peer}");
            Failure::Own(Error::Io { tried, source })
        })?;
        Ok(Peer { messages, sent: 0, received: 0 })
    }

    /// Reports a failure to the other ranks. Returns the error, with the rank that is the cause.
    fn report(&mut self, failure: Failure) -> Error {
        let own = match failure {
            Failure::Lost(rank) => Err(self.star.report(Notice::lost(rank))),
            Failure::Notice(notice) => Err(notice),
            Failure::Own(error) => Ok(error),
            Failure::Connect(rank, source) => match self.star.await_notice() {
                Some(notice) => Err(notice),
                None => Ok(Error::Connect { rank, host: self.host(rank), source }),
            },
        };
        let notice = match own {
            Ok(error) => {
                self.star.report(Notice { rank: self.rank, error: error.to_string() });
                return error;
            }
            Err(notice) => notice,
        };
        let (rank, host) = (notice.rank, self.host(notice.rank));
        match notice.error {
            reason if reason.is_empty() => Error::Lost { rank, host },
            reason => Error::Failed { rank, host, reason },
        }
    }
}

/// Notifies rank 0 that this rank leaves, unless the group is closed or belongs to the parent of this process.
impl Drop for World {
    fn drop(&mut self) {
        if self.connections.is_some() && self.pd.check_process().is_ok() {
            self.star.leave();
        }
    }
}

/// The limits of a connection. Each message fits in a frame, and several are under way at a time. Messages are not lent,
/// because both ends of a connection may send first.
fn options() -> Options {
    // A frame begins with a header of less than 64 bytes.
    let frame = u32::try_from(MESSAGE_BYTES).unwrap_or(u32::MAX).saturating_add(64);
    Options::new().receives(8).sends(8).frame_bytes(frame).window_bytes(8 * frame).offer_bytes(0)
}

fn builder<'a>(pd: &'a ProtectionDomain, options: &Options) -> RendezvousBuilder<'a> {
    let builder = pd.create_channel().fit(options).receive_timeout(CHECK).send_timeout(SEND);
    builder.user_bytes(&[])
}

#[cfg(test)]
mod tests;
