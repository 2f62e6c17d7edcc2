//! The connections of a rank whose collectives are futures.

mod calling;

use std::future;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::ops::{ControlFlow, Range};
use std::pin::{Pin, pin};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use bytemuck::Pod;
use rdma_async::message::{Message, Messages, Options};
use rdma_async::{Connection, ConnectionOptions, Driver, Incoming, Listener, Pool};
use rdma_channel::{AccessFlags, Buffer, ConnectError, ProtectionDomain};
use rdma_qp::prelude::*;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout};

use self::calling::Calling;
use crate::bootstrap::link::{Nonce, after};
use crate::call::Call;
use crate::environment::Settings;
use crate::error::Error;
use crate::run::{Next, Run};
use crate::world::lane::Lane;
use crate::world::peer::{self, Looks, at};
use crate::world::ranks::{CHECK, Failure, Greeting, Patience, Probes, Ranks, is_refusal};
use crate::world::{STAGED_BYTES, options};

/// All ranks of the launcher, and the connections of this one.
pub(super) struct World {
    pub(super) ranks: Ranks,
    pub(super) pd: ProtectionDomain,
    pub(super) pool: Pool,
    driver: Driver,
    options: Options,
    /// `None` once the group is closed.
    connections: Option<Box<Connections>>,
}

type Connections = peer::Connections<Listener, Messages, Message>;
type Peer = peer::Peer<Messages, Message>;

/// Higher ranks, the nonces of the connections to them, and the connections with the answers of those ranks.
type Dials = JoinSet<(usize, [Nonce; 2], Result<(Connection, Box<[u8]>), ConnectError>)>;

impl World {
    /// Joins the other ranks. A thread waits for them.
    pub(super) async fn join(
        pd: &ProtectionDomain,
        settings: Settings,
        [join_limit, limit]: [Duration; 2],
    ) -> Result<Self, Error> {
        let failed = Error::io(format!("watching completions of {}", pd.context().device().name()));
        let (driver, options) = (Driver::spawn(pd.context()).map_err(failed)?, options());
        let (ask, asked) = oneshot::channel::<IpAddr>();
        let (answer, answered) = mpsc::channel();
        let (joined, result) = oneshot::channel();
        let wait = move || {
            let listen = |ip| {
                // If the future was dropped, nothing answers.
                let _ = ask.send(ip);
                answered.recv().unwrap_or_else(|_| Err(cancelled()))
            };
            let _ = joined.send(Ranks::join(&settings, [join_limit, limit], listen));
        };
        let failed =
            |source| Error::Io { tried: "starting a thread that joins".to_owned(), source };
        thread::Builder::new().name("joins a group".to_owned()).spawn(wait).map_err(failed)?;
        let mut listener = None;
        if let Ok(ip) = asked.await {
            let options = connection_options(pd, &options).rendezvous_timeout(limit);
            let listens = driver.listen(SocketAddr::from((ip, 0)), options).await;
            let address = listens.map(|listens| listener.insert(listens).local_addr());
            let _ = answer.send(address);
        }
        let ranks = result.await.unwrap_or_else(|_| {
            Err(Error::Argument("the thread that joins the group has panicked".to_owned()))
        })?;
        let connections = Some(Box::new(Connections::new(listener, ranks.entries.len())));
        Ok(Self { ranks, pd: pd.clone(), pool: Pool::new(pd), driver, options, connections })
    }

    /// Begins a call. Unless [`Calling::end`] follows, the group is closed.
    fn begin(&mut self) -> Result<Calling<'_>, Error> {
        let connections = self.connections.take().ok_or(Error::Closed)?;
        Ok(Calling { world: self, connections: Some(connections) })
    }

    /// Runs a collective. Closes the group if it fails, or the future is dropped.
    pub(super) async fn execute<T: Pod>(&mut self, run: Run<'_, T>) -> Result<(), Error> {
        let mut call = self.begin()?;
        let (world, connections) = call.parts()?;
        let result = world.proceed(connections, run).await;
        call.end(result).await
    }

    /// Connects to a rank that makes the same call. The higher rank listens, and sends its address in a message.
    pub(super) async fn connect_to(
        &mut self,
        rank: usize,
        call: Call,
    ) -> Result<Connection, Error> {
        let mut calling = self.begin()?;
        let (world, connections) = calling.parts()?;
        let result = world.connected(connections, rank, call).await;
        calling.end(result).await
    }

    async fn connected(
        &mut self,
        connections: &mut Connections,
        rank: usize,
        call: Call,
    ) -> Result<Connection, Failure> {
        let until = after(self.ranks.limit);
        self.ranks.call = call;
        self.connect(connections, &[rank], None, until).await?;
        let peer = at(&mut connections.peers, rank)?;
        let options = ConnectionOptions::new(&self.pd).rendezvous_timeout(self.ranks.limit);
        if rank > self.ranks.own {
            let message = self.receive(rank, peer, until).await?;
            let (address, challenge) = self.ranks.announced(rank, call, &message)?;
            let greeting = self.ranks.greet(rank, challenge)?;
            let options = options.user_bytes(&greeting.bytes);
            let mut dialing = pin!(reach(self.driver.clone(), address, options, until));
            loop {
                match timeout(CHECK, &mut dialing).await {
                    Ok(dialed) => return self.ranks.connected(rank, &greeting.nonces, dialed),
                    Err(_) => self.ranks.check(rank, until)?,
                }
            }
        }
        if let Some(message) = peer.next_early() {
            return Err(self.ranks.other_call(rank, call, &message));
        }
        let failed = |error| Failure::Connect(rank, error);
        let listener = self.driver.listen(self.ranks.any_port(), options).await.map_err(failed)?;
        let (challenge, message) = Ranks::announce(call, listener.local_addr().port())?;
        self.send(rank, &peer.messages, &message, until).await?;
        let mut patience = Patience::default();
        loop {
            tokio::select! {
                client = listener.incoming() => match client {
                    Ok(client) => match self.ranks.admit_only(rank, client.user_bytes(), challenge) {
                        Ok(answer) => return client.accept(&answer).map_err(|_| Failure::Lost(rank)),
                        Err(why) => client.reject(why),
                    },
                    Err(error) if patience.ignores(&error) => sleep(CHECK).await,
                    Err(error) => return Err(failed(error)),
                },
                message = peer.messages.receive() => match message {
                    Ok(Some(message)) if peer.process_outside(&message, &self.ranks)? => {}
                    // The other rank has sent nothing if it makes this call.
                    Ok(Some(message)) => return Err(self.ranks.other_call(rank, call, &message)),
                    Ok(None) | Err(_) => return Err(Failure::Lost(rank)),
                },
                () = sleep(CHECK) => {}
            }
            self.ranks.check(rank, until)?;
        }
    }

    async fn proceed<T: Pod>(
        &mut self,
        connections: &mut Connections,
        mut run: Run<'_, T>,
    ) -> Result<(), Failure> {
        let until = after(self.ranks.limit);
        self.ranks.call = *run.call();
        self.prepare(connections, &run, until).await?;
        let result = loop {
            match self.step(connections, &mut run, until).await {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(())) => break Ok(()),
                Err(failure) => break Err(failure),
            }
        };
        match &result {
            Ok(()) => self.flush(&mut connections.peers, run.peers(), until).await,
            // The peer may wait for this rank. It then names both calls, too.
            Err(Failure::Own(Error::Mismatch { rank, .. })) => {
                let peer = at(&mut connections.peers, *rank)?;
                let _ = timeout(CHECK, peer.messages.post(&run.statement())).await;
            }
            Err(_) => {}
        }
        result
    }

    /// Connects to the peers of a run, and opens landings for long blocks.
    async fn prepare<T: Pod>(
        &mut self,
        connections: &mut Connections,
        run: &Run<'_, T>,
        until: Instant,
    ) -> Result<(), Failure> {
        self.connect(connections, run.peers(), Some(run.call()), until).await?;
        for rank in run.writers() {
            self.open(rank, at(&mut connections.peers, rank)?, until).await?;
        }
        Ok(())
    }

    /// Sends or receives a message of a run, unless the run is done.
    async fn step<T: Pod>(
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
                    self.write(rank, peer, (run, &part), staged, until).await?;
                }
                self.send(rank, &peer.messages, run.message(&part), until).await?;
                if run.checks_limit(&part) && Instant::now() >= until {
                    return Err(self.ranks.late(rank));
                }
            }
            Next::Receive(rank) => {
                let message = self.receive_for(rank, peers, run, until).await?;
                let peer = at(peers, rank)?;
                if let Some(grant) = peer.pass(rank, &message, run, &self.ranks)? {
                    match self.send(rank, &peer.messages, &grant, until).await {
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

    /// Waits until the devices of these ranks have received what this rank has sent. So another rank can still complete this
    /// call if this one fails in the next call, or its runtime ends.
    async fn flush(&mut self, peers: &mut [Option<Peer>], ranks: &[usize], until: Instant) {
        for rank in ranks.iter().copied() {
            let Ok(peer) = at(peers, rank) else { continue };
            // A rank that has failed has completed this call, or the next call notices it.
            let _ = self.within(rank, until, peer.messages.flush()).await;
        }
    }

    /// Awaits an operation of a connection, and checks for notices meanwhile.
    async fn within<R, E>(
        &mut self,
        rank: usize,
        until: Instant,
        operation: impl Future<Output = Result<R, E>>,
    ) -> Result<R, Failure> {
        let mut operation = pin!(operation);
        loop {
            if let Some(result) = self.soon(rank, until, operation.as_mut()).await? {
                return Ok(result);
            }
        }
    }

    /// Awaits an operation of a connection for a short time, and then checks for notices.
    async fn soon<R, E>(
        &mut self,
        rank: usize,
        until: Instant,
        mut operation: Pin<&mut impl Future<Output = Result<R, E>>>,
    ) -> Result<Option<R>, Failure> {
        match timeout(CHECK, &mut operation).await {
            Ok(result) => result.map(Some).map_err(|_| Failure::Lost(rank)),
            Err(_) => match self.ranks.check(rank, until) {
                Ok(()) => Ok(None),
                Err(failure) => {
                    // A message may have arrived before the notice.
                    let last = timeout(Duration::ZERO, operation).await;
                    last.ok().and_then(Result::ok).ok_or(failure).map(Some)
                }
            },
        }
    }

    async fn send(
        &mut self,
        rank: usize,
        peer: &Messages,
        message: &[u8],
        until: Instant,
    ) -> Result<(), Failure> {
        self.within(rank, until, peer.post(message)).await
    }

    /// Receives a message of a collective.
    async fn receive(
        &mut self,
        rank: usize,
        peer: &mut Peer,
        until: Instant,
    ) -> Result<Message, Failure> {
        if let Some(message) = peer.next_early() {
            return Ok(message);
        }
        loop {
            let message = self.next_message(rank, peer, until).await?;
            if !peer.process_outside(&message, &self.ranks)? {
                return Ok(message);
            }
        }
    }

    /// Receives a message of a run. After a while, looks for a peer that makes another call.
    async fn receive_for<T: Pod>(
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
            let received = self.soon(rank, until, pin!(peer.messages.receive())).await?;
            match received {
                Some(Some(message)) if peer.process(rank, &message, run, &self.ranks)? => {}
                Some(Some(message)) => return Ok(message),
                Some(None) => return Err(Failure::Lost(rank)),
                None => {
                    let Some(other) = looks.next(run.peers()) else { continue };
                    if other == rank {
                        self.ranks.star.waits(*run.call());
                        // A peer without room for this message has other messages of this rank.
                        let _ = timeout(CHECK, peer.messages.post(&run.statement())).await;
                        continue;
                    }
                    let peer = at(peers, other)?;
                    let message = match peer.is_ahead() {
                        true => None,
                        false => timeout(Duration::ZERO, peer.messages.receive()).await.ok(),
                    };
                    let message = message.and_then(Result::ok).flatten();
                    peer.look_ahead(other, message, run, &self.ranks)?;
                }
            }
        }
    }

    async fn next_message(
        &mut self,
        rank: usize,
        peer: &Peer,
        until: Instant,
    ) -> Result<Message, Failure> {
        let message = self.within(rank, until, peer.messages.receive()).await?;
        message.ok_or(Failure::Lost(rank))
    }

    /// Opens the landing for a peer, unless it is open.
    async fn open(&mut self, rank: usize, peer: &mut Peer, until: Instant) -> Result<(), Failure> {
        if peer.lane.is_open() {
            return Ok(());
        }
        let pd = self.pd.clone();
        // Registration may take long.
        let landing = spawn_blocking(move || Lane::landing(&pd)).await;
        let landing = landing.map_err(|_| Failure::Lost(rank))?;
        let message = peer.lane.open(landing.map_err(|error| Failure::Own(error.into()))?);
        self.send(rank, &peer.messages, &message, until).await
    }

    /// Writes a long piece to the landing of a peer.
    async fn write<T: Pod>(
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
                        self.send(rank, &peer.messages, &run.question(), until).await?;
                    }
                    let message = self.next_message(rank, peer, until).await?;
                    peer.keep(rank, message, run, &self.ranks)?;
                }
            }
        };
        if let Some((memory, range)) = run.lend(part, &self.pd) {
            let writing = peer.messages.write(memory, range, target);
            run.restore(self.within(rank, until, writing).await?);
            return Ok(());
        }
        let mut memory = match staged.take() {
            Some(memory) => memory,
            None => {
                let memory = self.pool.as_blocking().allocate(STAGED_BYTES);
                memory.map_err(|error| Failure::Own(error.into()))?
            }
        };
        for (start, bytes) in (0..).step_by(STAGED_BYTES).zip(run.bytes(part).chunks(STAGED_BYTES))
        {
            let target = target.slice(start..start + bytes.len()).ok_or(Failure::Lost(rank))?;
            memory[..bytes.len()].copy_from_slice(bytes);
            let writing = peer.messages.write(memory, 0..bytes.len(), target);
            memory = self.within(rank, until, writing).await?;
        }
        *staged = Some(memory);
        Ok(())
    }

    /// Connects to the peers that have a higher rank, and accepts those that have a lower one. `call` is the call that all
    /// ranks of a group make.
    async fn connect(
        &mut self,
        connections: &mut Connections,
        wanted: &[usize],
        call: Option<&Call>,
        until: Instant,
    ) -> Result<(), Failure> {
        let Connections { listener, peers, .. } = connections;
        let is_missing = |peers: &[Option<Peer>], peer| matches!(peers.get(peer), Some(None));
        let mut dials = Dials::new();
        for peer in
            wanted.iter().filter(|peer| **peer > self.ranks.own && is_missing(peers, **peer))
        {
            self.dial(*peer, until, &mut dials)?;
        }
        let (mut probes, mut patience) = (Probes::new(), Patience::default());
        while let Some(missing) = wanted.iter().copied().find(|peer| is_missing(peers, *peer)) {
            let client = async {
                match listener {
                    Some(listener) if missing < self.ranks.own => listener.incoming().await,
                    _ => future::pending().await,
                }
            };
            tokio::select! {
                Some(dialed) = dials.join_next() => {
                    let (peer, nonces, dialed) = dialed.map_err(|_| Failure::Lost(missing))?;
                    let connection = self.ranks.connected(peer, &nonces, dialed)?;
                    let started = self.start(connection, peer).await?;
                    peers.get_mut(peer).map(|place| place.insert(started));
                }
                client = client => match client {
                    Ok(client) => self.accept(client, peers).await?,
                    Err(error) if patience.ignores(&error) => sleep(CHECK).await,
                    Err(error) => return Err(Failure::Connect(missing, error)),
                },
                () = sleep(CHECK) => {}
            }
            self.ranks.check(missing, until)?;
            let is_late = probes.are_due();
            if let Some(call) = call.filter(|_| is_late) {
                self.ranks.star.waits(*call);
            }
            let probe = async {
                let connects = TcpStream::connect(self.ranks.address(missing)?);
                Ok(matches!(timeout(CHECK, connects).await, Ok(Err(error)) if is_refusal(&error)))
            };
            if self.ranks.star.has_left(missing) || is_late && probe.await? {
                return Err(Failure::Lost(missing));
            }
        }
        Ok(())
    }

    /// Connects to a higher rank in another task.
    fn dial(&self, peer: usize, until: Instant, dials: &mut Dials) -> Result<(), Failure> {
        let address = self.ranks.address(peer)?;
        let Greeting { bytes, nonces } = self.ranks.greet(peer, self.ranks.challenge())?;
        let options = connection_options(&self.pd, &self.options).user_bytes(&bytes);
        let dialing = reach(self.driver.clone(), address, options, until);
        dials.spawn(async move { (peer, nonces, dialing.await) });
        Ok(())
    }

    /// Accepts a client if it is a lower rank. It may be another one than the one that this rank waits for.
    async fn accept(&self, client: Incoming, peers: &mut [Option<Peer>]) -> Result<(), Failure> {
        let (peer, answer) = match self.ranks.admit(client.user_bytes(), peers) {
            Ok(admitted) => admitted,
            Err(why) => {
                client.reject(why);
                return Ok(());
            }
        };
        // A client that has gone is not lost yet: its end is noticed elsewhere.
        if let Ok(connection) = client.accept(&answer) {
            peers[peer] = Some(self.start(connection, peer).await?);
        }
        Ok(())
    }

    async fn start(&self, connection: Connection, peer: usize) -> Result<Peer, Failure> {
        let messages = Messages::new(connection, &self.pool, self.options).await;
        let messages = messages.map_err(|source| {
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

/// Connects to a rank, which may have no room at first.
async fn reach(
    driver: Driver,
    address: SocketAddr,
    options: ConnectionOptions,
    until: Instant,
) -> Result<(Connection, Box<[u8]>), ConnectError> {
    let mut patience = Patience::default();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let result = driver.connect(address, options.clone().rendezvous_timeout(left)).await;
        match &result {
            Err(busy @ ConnectError::Busy(_)) if patience.ignores(busy) => sleep(CHECK).await,
            _ => return result,
        }
    }
}

fn connection_options(pd: &ProtectionDomain, options: &Options) -> ConnectionOptions {
    let access = AccessFlags::new().with_remote_read().with_remote_write();
    options.fit(pd.create_qp().access(access)).into()
}

/// Returns the error of a rank whose program no longer waits until it has joined.
fn cancelled() -> ConnectError {
    let tried = "waiting for the program, which no longer joins".to_owned();
    ConnectError::Io { tried, source: ErrorKind::Interrupted.into() }
}

#[cfg(test)]
pub(crate) mod tests;
