//! The connections between the ranks of a launcher's group, which its subgroups share.

mod farewell;
pub(crate) mod lane;
pub(crate) mod peer;
pub(crate) mod ranks;
pub(crate) mod shared;

use std::net::{SocketAddr, TcpStream};
use std::ops::{ControlFlow, Range};
use std::panic::{self, AssertUnwindSafe};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use bytemuck::Pod;
use rdma_channel::message::{Message, MessageError, Messages, Options};
use rdma_channel::prelude::*;
use rdma_channel::{
    Buffer, BufferPool, Channel, ChannelListener, ConnectError, ProtectionDomain,
    RemoteMemoryRegion, RendezvousBuilder,
};

use self::lane::Lane;
use self::peer::{Looks, at};
use self::ranks::{CHECK, Failure, Patience, Probes, Ranks, is_refusal};
use crate::bootstrap::link::{Nonce, after};
use crate::call::Call;
use crate::environment::Settings;
use crate::error::Error;
use crate::run::{MESSAGE_BYTES, Next, Run};

/// The error of a rank whose function of a reduction panicked.
pub(crate) const PANICKED: &str = "its function panicked";

/// The length of the registered memory to which long pieces of ordinary memory are copied. It fits in the second-level
/// cache of a processor, and is long enough that the request for a WRITE costs little beside the copies.
pub(crate) const STAGED_BYTES: usize = 128 << 10;

/// All ranks of the launcher, and the connections of this one.
pub(crate) struct World {
    pub(crate) ranks: Ranks,
    pub(crate) pd: ProtectionDomain,
    pub(crate) pool: BufferPool,
    options: Options,
    /// `None` once the group is closed.
    connections: Option<Box<Connections>>,
}

type Connections = peer::Connections<ChannelListener, Messages, Message>;
type Peer = peer::Peer<Messages, Message>;

/// A higher rank, the nonces of the connection to it, and the connection with that rank's answer.
type Dialed = (usize, [Nonce; 2], Result<(Channel, Box<[u8]>), ConnectError>);

impl World {
    /// Joins the other ranks.
    pub(crate) fn join(
        pd: &ProtectionDomain,
        settings: &Settings,
        [join_limit, limit]: [Duration; 2],
    ) -> Result<Self, Error> {
        let options = options();
        let mut listener = None;
        let ranks = Ranks::join(settings, [join_limit, limit], |ip| {
            let builder = builder(pd, &options).rendezvous_timeout(limit);
            let listens = listener.insert(builder.listen(SocketAddr::from((ip, 0)))?);
            Ok(listens.local_addr())
        })?;
        let connections = Some(Box::new(Connections::new(listener, ranks.entries.len())));
        let (pd, pool) = (pd.clone(), BufferPool::new(pd));
        Ok(Self { ranks, pd, pool, options, connections })
    }

    /// Runs a collective. Closes the group if it fails.
    pub(crate) fn execute<T: Pod>(&mut self, run: Run<'_, T>) -> Result<(), Error> {
        self.call(|world, connections| world.proceed(connections, run))
    }

    /// Makes a call. Closes the group if it fails.
    fn call<R>(
        &mut self,
        call: impl FnOnce(&mut Self, &mut Connections) -> Result<R, Failure>,
    ) -> Result<R, Error> {
        let Some(mut connections) = self.connections.take() else { return Err(Error::Closed) };
        // The connections end after the report.
        match panic::catch_unwind(AssertUnwindSafe(|| call(self, &mut connections))) {
            Ok(Ok(result)) => {
                self.connections = Some(connections);
                Ok(result)
            }
            Ok(Err(failure)) => {
                let mut failure = self.prefer_notice(&connections, failure);
                if self.ranks.report(&failure)
                    && let Some(notice) = self.await_notice(&connections)
                {
                    failure = Failure::Closed(notice);
                    self.ranks.report(&failure);
                }
                let error = self.ranks.error(failure);
                self.notify(&connections);
                Err(error)
            }
            Err(payload) => {
                self.ranks.close(PANICKED.to_owned());
                self.notify(&connections);
                panic::resume_unwind(payload)
            }
        }
    }

    /// Connects to a rank that makes the same call. The higher rank listens, and sends its address in a message.
    pub(crate) fn connect_to(&mut self, rank: usize, call: Call) -> Result<Channel, Error> {
        self.call(|world, connections| {
            let until = after(world.ranks.limit);
            world.ranks.call = call;
            world.connect(connections, &[rank], None, until)?;
            let peer = at(&mut connections.peers, rank)?;
            if rank < world.ranks.own {
                return world.accept_from(rank, peer, call, until);
            }
            let message = world.receive(rank, peer, until)?;
            let target = world.ranks.announced(rank, call, &message)?;
            let (dialed, results) = mpsc::channel();
            world.dial(rank, target, None, until, dialed)?;
            loop {
                match results.recv_timeout(CHECK) {
                    Ok((_, nonces, result)) => return world.ranks.connected(rank, &nonces, result),
                    Err(_) => world.ranks.check(rank, until)?,
                }
            }
        })
    }

    /// Listens for a lower rank, which makes this call, too.
    fn accept_from(
        &mut self,
        rank: usize,
        peer: &mut Peer,
        call: Call,
        until: Instant,
    ) -> Result<Channel, Failure> {
        if let Some(message) = peer.next_early() {
            return Err(self.ranks.other_call(rank, call, &message));
        }
        let failed = |error| Failure::Connect(rank, error);
        let builder = self.pd.create_channel().rendezvous_timeout(self.ranks.limit);
        let mut listener = builder.listen(self.ranks.any_port()).map_err(failed)?;
        let (challenge, message) = Ranks::announce(call, listener.local_addr().port())?;
        self.send(rank, &peer.messages, &message, until)?;
        let mut patience = Patience::default();
        loop {
            match listener.incoming(Some(CHECK)) {
                Ok(client) => match self.ranks.admit_only(rank, client.user_bytes(), challenge) {
                    Ok(answer) => return client.accept(&answer).map_err(|_| Failure::Lost(rank)),
                    Err(why) => client.reject(why),
                },
                Err(ConnectError::Timeout { .. }) => {}
                Err(error) if patience.ignores(&error) => {}
                Err(error) => return Err(failed(error)),
            }
            match peer.messages.receive() {
                Ok(Some(message)) if peer.process_outside(&message, &self.ranks)? => {}
                // The other rank has sent nothing if it makes this call.
                Ok(Some(message)) => return Err(self.ranks.other_call(rank, call, &message)),
                Err(MessageError::TimedOut { .. }) => self.ranks.check(rank, until)?,
                Ok(None) | Err(_) => return Err(Failure::Lost(rank)),
            }
        }
    }

    fn proceed<T: Pod>(
        &mut self,
        connections: &mut Connections,
        mut run: Run<'_, T>,
    ) -> Result<(), Failure> {
        let until = after(self.ranks.limit);
        self.ranks.call = *run.call();
        self.prepare(connections, &run, until)?;
        let result = loop {
            match self.step(connections, &mut run, until) {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(())) => break Ok(()),
                Err(failure) => break Err(failure),
            }
        };
        match &result {
            Ok(()) => self.flush(&connections.peers, run.peers(), until),
            // The peer may wait for this rank. It then names both calls, too.
            Err(Failure::Own(Error::Mismatch { rank, .. })) => {
                let _ = at(&mut connections.peers, *rank)?.messages.post(&run.statement());
            }
            Err(_) => {}
        }
        result
    }

    /// Connects to the peers of a run, and opens landings for long blocks.
    fn prepare<T: Pod>(
        &mut self,
        connections: &mut Connections,
        run: &Run<'_, T>,
        until: Instant,
    ) -> Result<(), Failure> {
        self.connect(connections, run.peers(), Some(run.call()), until)?;
        for rank in run.writers() {
            self.open(rank, at(&mut connections.peers, rank)?, until)?;
        }
        Ok(())
    }

    /// Sends or receives a message of a run, unless the run is done.
    fn step<T: Pod>(
        &mut self,
        connections: &mut Connections,
        run: &mut Run<'_, T>,
        until: Instant,
    ) -> Result<ControlFlow<()>, Failure> {
        let Connections { peers, staged, .. } = connections;
        match run.next() {
            Next::Done => return Ok(ControlFlow::Break(())),
            Next::Send(rank, part) => {
                let peer = at(peers, rank)?;
                if run.is_written(&part) {
                    self.write(rank, peer, (run, &part), staged, until)?;
                }
                self.send(rank, &peer.messages, run.message(&part), until)?;
                if run.checks_limit(&part) && Instant::now() >= until {
                    return Err(self.ranks.late(rank));
                }
            }
            Next::Receive(rank) => {
                let message = self.receive_for(rank, peers, run, until)?;
                let peer = at(peers, rank)?;
                if let Some(grant) = peer.pass(rank, &message, run, &self.ranks)? {
                    match self.send(rank, &peer.messages, &grant, until) {
                        // A rank that has left after its last call needs no grant. If this rank needs a message
                        // from it, the receive fails.
                        Ok(()) | Err(Failure::Lost(_)) => {}
                        Err(failure) => return Err(failure),
                    }
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Opens the landing for a peer, unless it is open.
    fn open(&mut self, rank: usize, peer: &mut Peer, until: Instant) -> Result<(), Failure> {
        if peer.lane.is_open() {
            return Ok(());
        }
        let landing = Lane::landing(&self.pd).map_err(|error| Failure::Own(error.into()))?;
        let message = peer.lane.open(landing);
        self.send(rank, &peer.messages, &message, until)
    }

    /// Writes a long piece to the landing of a peer.
    fn write<T: Pod>(
        &mut self,
        rank: usize,
        peer: &mut Peer,
        (run, part): (&mut Run<'_, T>, &Range<usize>),
        staged: &mut Option<Buffer>,
        until: Instant,
    ) -> Result<(), Failure> {
        let length = run.bytes(part).len();
        let target = loop {
            match peer.lane.next_target(length) {
                Some(target) => break target,
                None => {
                    if peer.lane.asks() {
                        self.send(rank, &peer.messages, &run.question(), until)?;
                    }
                    let message = self.next_message(rank, peer, until)?;
                    peer.keep(rank, message, run, &self.ranks)?;
                }
            }
        };
        if let Some((memory, range)) = run.lend(part, &self.pd) {
            run.restore(self.write_from(rank, peer, (memory, range), target, until)?);
            return Ok(());
        }
        let mut memory = match staged.take() {
            Some(memory) => memory,
            None => self.pool.allocate(STAGED_BYTES).map_err(|error| Failure::Own(error.into()))?,
        };
        for (start, bytes) in (0..).step_by(STAGED_BYTES).zip(run.bytes(part).chunks(STAGED_BYTES))
        {
            let target = target.slice(start..start + bytes.len()).ok_or(Failure::Lost(rank))?;
            memory[..bytes.len()].copy_from_slice(bytes);
            memory = self.write_from(rank, peer, (memory, 0..bytes.len()), target, until)?;
        }
        *staged = Some(memory);
        Ok(())
    }

    fn write_from(
        &mut self,
        rank: usize,
        peer: &Peer,
        (memory, range): (Buffer, Range<usize>),
        target: RemoteMemoryRegion,
        until: Instant,
    ) -> Result<Buffer, Failure> {
        let mut writing = peer.messages.write(memory, range, target);
        loop {
            match writing.wait() {
                Ok(memory) => return Ok(memory),
                Err(MessageError::TimedOut { .. }) => self.ranks.check(rank, until)?,
                Err(_) => return Err(Failure::Lost(rank)),
            }
        }
    }

    fn send(
        &mut self,
        rank: usize,
        peer: &Messages,
        message: &[u8],
        until: Instant,
    ) -> Result<(), Failure> {
        loop {
            match peer.post(message) {
                Ok(()) => return Ok(()),
                Err(MessageError::TimedOut { .. }) => self.ranks.check(rank, until)?,
                Err(_) => return Err(Failure::Lost(rank)),
            }
        }
    }

    /// Receives a message of a collective.
    fn receive(
        &mut self,
        rank: usize,
        peer: &mut Peer,
        until: Instant,
    ) -> Result<Message, Failure> {
        if let Some(message) = peer.next_early() {
            return Ok(message);
        }
        loop {
            let message = self.next_message(rank, peer, until)?;
            if !peer.process_outside(&message, &self.ranks)? {
                return Ok(message);
            }
        }
    }

    /// Receives a message of a run. After a while, looks for a peer that makes another call.
    fn receive_for<T: Pod>(
        &mut self,
        rank: usize,
        peers: &mut [Option<Peer>],
        run: &Run<'_, T>,
        until: Instant,
    ) -> Result<Message, Failure> {
        let mut looks = Looks::default();
        loop {
            let peer = at(peers, rank)?;
            if let Some(message) = peer.next_early() {
                return Ok(message);
            }
            match self.soon(rank, peer, until)? {
                Some(message) if peer.process(rank, &message, run, &self.ranks)? => {}
                Some(message) => return Ok(message),
                None => {
                    let Some(other) = looks.next(run.peers()) else { continue };
                    if other == rank {
                        self.ranks.star.waits(*run.call());
                        // A peer without room for this message has other messages of this rank.
                        let _ = peer.messages.post(&run.statement());
                        continue;
                    }
                    let peer = at(peers, other)?;
                    let receive = || peer.messages.receive().ok().flatten();
                    let message = if peer.is_ahead() { None } else { receive() };
                    peer.look_ahead(other, message, run, &self.ranks)?;
                }
            }
        }
    }

    fn next_message(
        &mut self,
        rank: usize,
        peer: &Peer,
        until: Instant,
    ) -> Result<Message, Failure> {
        loop {
            if let Some(message) = self.soon(rank, peer, until)? {
                return Ok(message);
            }
        }
    }

    /// Receives a message if one arrives soon.
    fn soon(
        &mut self,
        rank: usize,
        peer: &Peer,
        until: Instant,
    ) -> Result<Option<Message>, Failure> {
        match peer.messages.receive() {
            Ok(Some(message)) => Ok(Some(message)),
            Err(MessageError::TimedOut { .. }) => match self.ranks.check(rank, until) {
                Ok(()) => Ok(None),
                // A message may have arrived before the notice.
                Err(failure) => peer.messages.receive().ok().flatten().ok_or(failure).map(Some),
            },
            Ok(None) | Err(_) => Err(Failure::Lost(rank)),
        }
    }

    /// Waits until the devices of these ranks have received what this rank has sent. So another rank can still complete this
    /// call if this one fails in the next call, or ends.
    fn flush(&mut self, peers: &[Option<Peer>], ranks: &[usize], until: Instant) {
        for (rank, peer) in
            ranks.iter().filter_map(|rank| Some((*rank, peers.get(*rank)?.as_ref()?)))
        {
            // A rank that has failed has completed this call, or the next call notices it.
            while matches!(peer.messages.flush(), Err(MessageError::TimedOut { .. }))
                && self.ranks.check(rank, until).is_ok()
            {}
        }
    }

    /// Connects to the peers that have a higher rank, and accepts those that have a lower one. A thread for each higher
    /// rank waits until that rank accepts. Meanwhile, this thread accepts, and checks for notices. `call` is the call that
    /// all ranks of a group make.
    fn connect(
        &mut self,
        connections: &mut Connections,
        wanted: &[usize],
        call: Option<&Call>,
        until: Instant,
    ) -> Result<(), Failure> {
        let Connections { listener, peers, .. } = connections;
        let is_missing = |peers: &[Option<Peer>], peer| matches!(peers.get(peer), Some(None));
        if !wanted.iter().any(|peer| is_missing(peers, *peer)) {
            return Ok(());
        }
        let (dialed, results) = mpsc::channel();
        for peer in
            wanted.iter().filter(|peer| **peer > self.ranks.own && is_missing(peers, **peer))
        {
            let target = (self.ranks.address(*peer)?, self.ranks.challenge());
            self.dial(*peer, target, Some(self.options), until, dialed.clone())?;
        }
        let (mut probes, mut patience) = (Probes::new(), Patience::default());
        while let Some(missing) = wanted.iter().copied().find(|peer| is_missing(peers, *peer)) {
            let result = match listener {
                Some(listener) if missing < self.ranks.own => {
                    self.accept(listener, peers, missing, &mut patience)?;
                    results.try_recv().ok()
                }
                _ => results.recv_timeout(CHECK).ok(),
            };
            if let Some((peer, nonces, result)) = result {
                let channel = self.ranks.connected(peer, &nonces, result)?;
                let started = self.start(channel, peer)?;
                peers.get_mut(peer).map(|place| place.insert(started));
            }
            self.ranks.check(missing, until)?;
            let is_late = probes.are_due();
            if let Some(call) = call.filter(|_| is_late) {
                self.ranks.star.waits(*call);
            }
            let address = self.ranks.address(missing)?;
            let is_gone =
                || TcpStream::connect_timeout(&address, CHECK).is_err_and(|it| is_refusal(&it));
            if self.ranks.star.has_left(missing) || is_late && is_gone() {
                return Err(Failure::Lost(missing));
            }
        }
        Ok(())
    }

    /// Connects to a higher rank in another thread, which sends the result. The target is the address and the challenge of
    /// the listener. The channel is for messages if there are options. If the call fails before, the thread does not end
    /// with it. It ends at the deadline, when the other rank closes the group, or when that rank has had no room for long.
    fn dial(
        &self,
        peer: usize,
        (address, challenge): (SocketAddr, Nonce),
        options: Option<Options>,
        until: Instant,
        results: mpsc::Sender<Dialed>,
    ) -> Result<(), Failure> {
        let (pd, greeting) = (self.pd.clone(), self.ranks.greet(peer, challenge)?);
        let dial = move || {
            let connect = || {
                let left = until.saturating_duration_since(Instant::now());
                let builder = match &options {
                    Some(options) => builder(&pd, options).user_bytes(&greeting.bytes),
                    None => pd.create_channel().user_bytes(&greeting.bytes),
                };
                builder.rendezvous_timeout(left).connect(address)
            };
            let mut patience = Patience::default();
            let result = loop {
                let result = connect();
                match &result {
                    Err(busy @ ConnectError::Busy(_)) if patience.ignores(busy) => {}
                    _ => break result,
                }
                thread::sleep(CHECK);
            };
            // Without a receiver, the call has failed.
            let _ = results.send((peer, greeting.nonces, result));
        };
        let thread = thread::Builder::new().name(format!("connects to rank {peer}")).spawn(dial);
        let failed = Error::io(format!("starting a thread that connects to rank {peer}"));
        thread.map(drop).map_err(|error| Failure::Own(failed(error)))
    }

    /// Accepts a rank, if one connects soon. It may be another one than the one that this rank waits for.
    fn accept(
        &self,
        listener: &mut ChannelListener,
        peers: &mut [Option<Peer>],
        awaited: usize,
        patience: &mut Patience,
    ) -> Result<(), Failure> {
        let client = match listener.incoming(Some(CHECK)) {
            Ok(client) => client,
            Err(ConnectError::Timeout { .. }) => return Ok(()),
            Err(error) if patience.ignores(&error) => return Ok(()),
            Err(error) => return Err(Failure::Connect(awaited, error)),
        };
        let (peer, answer) = match self.ranks.admit(client.user_bytes(), peers) {
            Ok(admitted) => admitted,
            Err(why) => {
                client.reject(why);
                return Ok(());
            }
        };
        // A client that has gone is not lost yet: its end is noticed elsewhere.
        if let Ok(channel) = client.accept(&answer) {
            peers[peer] = Some(self.start(channel, peer)?);
        }
        Ok(())
    }

    fn start(&self, channel: Channel, peer: usize) -> Result<Peer, Failure> {
        let messages = Messages::new(channel, &self.pool, self.options).map_err(|source| {
            let tried = format!("preparing the connection to rank {peer}");
            Failure::Own(Error::Io { tried, source })
        })?;
        Ok(Peer::new(messages))
    }
}

/// Notifies rank 0 that this rank leaves, unless the group is closed or belongs to the parent of this process.
impl Drop for World {
    fn drop(&mut self) {
        if self.connections.is_some() && self.pd.check_process().is_ok() {
            self.ranks.star.leave();
        }
    }
}

/// The limits of a connection. Each message fits in a frame, and several are under way at a time. Messages are not lent,
/// because both ends of a connection may send first.
pub(crate) fn options() -> Options {
    // A frame begins with a header of less than 64 bytes.
    let longest = u32::try_from(MESSAGE_BYTES).unwrap_or(u32::MAX);
    let frame = longest.saturating_add(64);
    let options = Options::new().receives(8).sends(8).frame_bytes(frame).window_bytes(8 * frame);
    options.offer_bytes(0).fetch_bytes(0).max_message(longest)
}

fn builder<'a>(pd: &'a ProtectionDomain, options: &Options) -> RendezvousBuilder<'a> {
    let builder = pd.create_channel().fit(options).receive_timeout(CHECK).send_timeout(CHECK);
    builder.user_bytes(&[])
}

#[cfg(test)]
pub(crate) mod tests;
