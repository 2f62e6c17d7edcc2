//! The bootstrap: all ranks join at rank 0 over TCP, and get a table of all addresses.
//!
//! Rank 0 sends a challenge on each connection. The other end answers with its rank and its address. Rank 0 drops a
//! process that is silent or does not know the secret. The other connections stay open, for [notices](star).

pub(crate) mod link;
mod master;
pub(crate) mod star;
pub(crate) mod table;

use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use self::link::{Keys, Kind, Link, Nonce, after, nonce, wait_for};
use self::master::Pauses;
use self::star::Star;
use self::table::{Entry, Join, Table};
use crate::environment::Settings;
use crate::error::Error;

/// The time in which a process must join after it has connected.
const HALF_OPEN: Duration = Duration::from_secs(10);

/// The maximum number of half-open connections, in addition to one for each rank. A further one replaces another.
const STRANGERS: usize = 64;

/// The time that rank 0 has to send its decision after its own limit.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

/// Joins the group. `entry` returns the entry of this rank, whose address must have that IP address.
pub(crate) fn join(
    settings: &Settings,
    limit: Duration,
    keys: &Arc<Keys>,
    entry: impl FnOnce(IpAddr) -> Result<Entry, Error>,
) -> Result<(Table, Star), Error> {
    let until = after(limit);
    let master = &settings.master;
    let addresses = master::addresses(settings, limit)?;
    if settings.rank == 0 {
        let waiting = most_half_open(settings.world_size);
        let listener = master::listen_as_root(settings, &addresses, waiting)?;
        return Root::new(settings, limit, keys, listener, entry)?.gather(until);
    }
    let mut stream = master::connect_to_root(settings, &addresses, limit, until)?;
    let failed = |error: io::Error| Error::Join {
        address: master.clone(),
        rank: settings.rank,
        reason: reason(&error, limit),
    };
    let own = entry(stream.local_addr().map_err(failed)?.ip())?;
    let most = Table::most(settings.world_size);
    // Rank 0 decides within its own limit. Unless a proxy accepted this connection, that limit has begun.
    let (mut until, decision) = (until, after(limit.saturating_add(GRACE)));
    let mut pauses = Pauses::default();
    loop {
        let mut link = Link::new(stream, Arc::clone(keys), false, most).map_err(failed)?;
        match enter(settings, &mut link, own.clone(), until, decision) {
            Ok(Ok(table)) => return Ok((table, Star::new(settings.rank, vec![Some(link)]))),
            Ok(Err(reason)) => {
                let address = master.clone();
                return Err(Error::Refused { address, rank: settings.rank, reason });
            }
            // During a flood of strangers, rank 0 may drop a rank. If it does not listen any more, it has failed.
            Err(error) if is_end(&error) && Instant::now() < decision => {
                until = decision;
                stream = master::connect_again(&addresses, &mut pauses, decision)
                    .map_err(|_| failed(error))?;
            }
            Err(error) => return Err(failed(error)),
        }
    }
}

/// Returns the maximum number of half-open connections.
const fn most_half_open(world_size: usize) -> usize {
    world_size.saturating_add(STRANGERS)
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

/// Receives the nonce of rank 0.
fn challenge(link: &mut Link, until: Instant) -> io::Result<Nonce> {
    let challenge = link.receive(until).inspect_err(|error| {
        if error.kind() == ErrorKind::InvalidData {
            // Rank 0 then reports the same difference, for example in the versions.
            link.offer(Kind::Goodbye, &[]);
        }
    });
    let (_, challenge) = challenge?;
    Nonce::try_from(challenge).map_err(|_| invalid("the challenge has another length"))
}

/// Joins at rank 0, which sends its nonce before the first deadline, and decides before the last one. The inner error is
/// the reason why rank 0 has refused this rank.
fn enter(
    settings: &Settings,
    link: &mut Link,
    entry: Entry,
    until: Instant,
    decision: Instant,
) -> io::Result<Result<Table, String>> {
    let (theirs, own) = (challenge(link, until)?, nonce()?);
    let join = Join {
        nonce: own,
        rank: u32::try_from(settings.rank).unwrap_or(u32::MAX),
        world_size: u32::try_from(settings.world_size).unwrap_or(u32::MAX),
        epoch: settings.epoch,
        entry,
    };
    link.agree([Nonce::default(), theirs]);
    link.send(Kind::Join, &join.to_bytes(), until)?;
    link.agree([own, theirs]);
    match link.receive(decision)? {
        (Kind::Table, bytes) => Table::from_bytes(&bytes, settings.world_size)
            .map(Ok)
            .ok_or_else(|| invalid("the table of ranks is invalid")),
        (Kind::Refusal, reason) => Ok(Err(String::from_utf8_lossy(&reason).into_owned())),
        (kind, _) => Err(invalid(&format!("rank 0 sent {kind:?} in place of the table"))),
    }
}

/// Returns true if the other end has closed the connection.
pub(crate) fn is_end(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, NotConnected, UnexpectedEof};
    [UnexpectedEof, ConnectionReset, BrokenPipe, NotConnected].contains(&error.kind())
}

fn reason(error: &io::Error, limit: Duration) -> String {
    match error.kind() {
        _ if is_end(error) => {
            "rank 0 closed the connection: check its output, and that no other process has this rank".to_owned()
        }
        // With an error number, it is from the kernel: the host of rank 0 is silent.
        ErrorKind::TimedOut if error.raw_os_error().is_none() => format!(
            "rank 0 did not answer within {limit:?}: check that it runs, and that no other program has its address"
        ),
        _ => error.to_string(),
    }
}

/// A connection whose other end has not joined yet.
struct HalfOpen {
    link: Link,
    address: SocketAddr,
    /// The nonce of this end.
    nonce: Nonce,
    until: Instant,
}

/// Rank 0 while ranks join.
struct Root<'s> {
    settings: &'s Settings,
    limit: Duration,
    keys: &'s Arc<Keys>,
    listener: TcpListener,
    half_open: VecDeque<HalfOpen>,
    /// The ranks that have joined. Rank 0 has no link.
    joined: Vec<Option<(Option<Link>, Entry)>>,
    last_refused: Option<String>,
    /// Whether all ranks are known to be on this host.
    one_host: bool,
    /// The reason why ranks on other hosts cannot join.
    local_only: Option<String>,
}

impl<'s> Root<'s> {
    fn new(
        settings: &'s Settings,
        limit: Duration,
        keys: &'s Arc<Keys>,
        listener: TcpListener,
        entry: impl FnOnce(IpAddr) -> Result<Entry, Error>,
    ) -> Result<Self, Error> {
        let failed = |source| Error::Io { tried: "preparing to listen".to_owned(), source };
        listener.set_nonblocking(true).map_err(failed)?;
        let ip = listener.local_addr().map_err(failed)?.ip();
        let local_only = master::local_only(settings, ip);
        if let Some(reason) = &local_only {
            tracing::warn!("{reason}");
        }
        let own = entry(ip)?;
        let mut joined: Vec<_> = (0..settings.world_size).map(|_| None).collect();
        if let Some(place) = joined.first_mut() {
            *place = Some((None, own));
        }
        Ok(Self {
            settings,
            limit,
            keys,
            listener,
            half_open: VecDeque::new(),
            joined,
            last_refused: None,
            one_host: settings.is_one_host(ip),
            local_only,
        })
    }

    /// Waits until all ranks have joined, and sends them the table.
    fn gather(mut self, until: Instant) -> Result<(Table, Star), Error> {
        while self.joined.iter().any(Option::is_none) {
            if Instant::now() >= until {
                return Err(self.refuse_all());
            }
            self.wait(until).map_err(Error::io("waiting for ranks to join"))?;
            self.accept().map_err(Error::io("accepting a rank"))?;
            self.serve();
        }
        let (links, entries) = self.joined.into_iter().flatten().unzip();
        let session = nonce().map_err(Error::io("getting random bytes"))?;
        let table = Table { session, entries };
        let mut star = Star::new(0, links);
        star.send_table(&table, Instant::now() + GRACE);
        Ok((table, star))
    }

    fn wait(&self, until: Instant) -> io::Result<()> {
        let joined = self.joined.iter().flatten().filter_map(|(link, _)| link.as_ref());
        let links = self.half_open.iter().map(|half_open| &half_open.link).chain(joined);
        let mut files = vec![PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN)];
        files.extend(links.map(|link| link.awaited(PollFlags::IN)));
        let first = self.half_open.iter().map(|half_open| half_open.until).min();
        wait_for(&files, first.map_or(until, |first| first.min(until))).map(drop)
    }

    /// Accepts a limited number of processes, so that a flood of them does not prevent other work.
    fn accept(&mut self) -> io::Result<()> {
        for _ in 0..self.most_half_open() {
            let (stream, address) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // The client has gone.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
                // Most often, too many files are open.
                Err(error) => {
                    if !self.drop_half_open() {
                        return Err(error);
                    }
                    continue;
                }
            };
            if self.half_open.len() >= self.most_half_open() {
                self.drop_half_open();
            }
            let nonce = nonce()?;
            let mut link = Link::new(stream, Arc::clone(self.keys), true, Join::MOST)?;
            // An empty socket has room for the challenge.
            if link.send(Kind::Challenge, &nonce, Instant::now()).is_ok() {
                link.agree([Nonce::default(), nonce]);
                let until = Instant::now() + HALF_OPEN;
                self.half_open.push_back(HalfOpen { link, address, nonce, until });
            }
        }
        Ok(())
    }

    /// Drops a process that has not joined, after those whose messages have arrived have joined. It is the oldest of the
    /// IP address with the most such processes. Returns false if none was half-open.
    fn drop_half_open(&mut self) -> bool {
        let before = self.half_open.len();
        self.serve();
        if self.half_open.len() == before {
            let mut counts = HashMap::new();
            for half_open in &self.half_open {
                *counts.entry(half_open.address.ip()).or_insert(0) += 1;
            }
            let most = counts.values().max();
            let is_of_most = |it: &HalfOpen| counts.get(&it.address.ip()) == most;
            if let Some(oldest) = self.half_open.iter().position(is_of_most) {
                self.half_open.remove(oldest);
            }
        }
        self.half_open.len() < before
    }

    const fn most_half_open(&self) -> usize {
        most_half_open(self.settings.world_size)
    }

    /// Processes the frames that have arrived.
    fn serve(&mut self) {
        for mut half_open in std::mem::take(&mut self.half_open) {
            let address = half_open.address;
            let refused = match half_open.link.poll_receive() {
                Ok(None) if Instant::now() < half_open.until => {
                    self.half_open.push_back(half_open);
                    continue;
                }
                Ok(None) => Err("it did not join in time".to_owned()),
                Ok(Some((Kind::Join, bytes))) => match Join::from_bytes(&bytes) {
                    Some(join) => self.admit(half_open, join),
                    None => Err("its message is invalid".to_owned()),
                },
                Ok(Some((kind, _))) => Err(format!("it began with {kind:?}")),
                Err(error) => Err(error.to_string()),
            };
            if let Err(reason) = refused {
                self.last_refused = Some(format!("{address}: {reason}"));
            }
        }
        // A rank that has joined sends nothing until it has the table. Its end is noticed here, so it can join again.
        for joined in self.joined.iter_mut().skip(1) {
            let link = joined.as_mut().and_then(|(link, _)| link.as_mut());
            if link.is_some_and(|link| !matches!(link.poll_receive(), Ok(None))) {
                *joined = None;
            }
        }
    }

    /// Admits a rank, or refuses it with the reason.
    fn admit(&mut self, half_open: HalfOpen, join: Join) -> Result<(), String> {
        let HalfOpen { mut link, nonce, .. } = half_open;
        link.agree([join.nonce, nonce]);
        let Settings { world_size, epoch, .. } = *self.settings;
        let host = &join.entry.host;
        let who = format!("rank {} on {host}", join.rank);
        let place = self.joined.get_mut(join.rank as usize);
        let reason = match place {
            _ if join.epoch != epoch => {
                format!("{who} is of epoch {}, but rank 0 is of epoch {epoch}", join.epoch)
            }
            _ if join.world_size as usize != world_size => {
                let theirs = join.world_size;
                format!(
                    "{who} expects {theirs} ranks, but rank 0 expects {world_size}: start all with the same size"
                )
            }
            None => format!("{who} is outside the group of {world_size} ranks"),
            Some(Some((_, other))) => {
                format!(
                    "{who} has already joined from {} on {}: start only one process with this rank",
                    other.address, other.host
                )
            }
            Some(place) => {
                *place = Some((Some(link), join.entry));
                return Ok(());
            }
        };
        // An empty socket has room for the reason.
        let _ = link.send(Kind::Refusal, reason.as_bytes(), Instant::now());
        Err(reason)
    }

    /// Sends the reason to all ranks that have joined, and returns it.
    fn refuse_all(mut self) -> Error {
        let ranks = self.joined.iter().enumerate().filter(|(_, joined)| joined.is_none());
        let ranks: Vec<_> = ranks.map(|(rank, _)| rank).collect();
        let own = self.joined.first().into_iter().flatten().map(|(_, entry)| &entry.host);
        let own = own.take(self.one_host.into()).next();
        let host = |rank: &usize| self.settings.hosts.get(*rank).or(own).cloned();
        let hosts = ranks.iter().filter_map(host).collect();
        let error = Error::Missing {
            hosts,
            ranks,
            world_size: self.settings.world_size,
            limit: self.limit,
            last_refused: self.last_refused.take(),
            local_only: self.local_only.take(),
        };
        let reason = error.to_string();
        for (link, _) in self.joined.iter_mut().flatten() {
            if let Some(link) = link {
                let _ = link.send(Kind::Refusal, reason.as_bytes(), Instant::now());
            }
        }
        error
    }
}

#[cfg(test)]
pub(crate) mod tests;
