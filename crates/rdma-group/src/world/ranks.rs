//! The ranks of a launcher's group, as one of them knows them: addresses, proofs of identity, and failures.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytemuck::Pod;
use hmac::Mac as _;
use rdma_channel::ConnectError;

use crate::bootstrap;
use crate::bootstrap::link::{Keys, Nonce, Tag};
use crate::bootstrap::star::{Notice, Star};
use crate::bootstrap::table::{Entry, Table};
use crate::call::Call;
use crate::environment::Settings;
use crate::error::Error;
use crate::run::{Mismatch, Run};

/// The time between two checks for notices while a rank waits.
pub(crate) const CHECK: Duration = Duration::from_millis(20);

/// The reason that a collective fails.
pub(crate) enum Failure {
    /// The connection to this rank has ended.
    Lost(usize),
    /// Another rank has closed the group.
    Notice(Notice),
    /// The connection to this rank could not be made. The rank may have died meanwhile.
    Connect(usize, ConnectError),
    /// This rank has detected an error.
    Own(Error),
}

/// The times at which a rank probes whether another one still listens. A rank that has left is not reported, because
/// others may not need it. The probes become rarer, because each waits in the queue of the listener.
pub(crate) struct Probes {
    next: Instant,
    pause: Duration,
}

impl Probes {
    pub(crate) fn new() -> Self {
        let pause = Duration::from_secs(1);
        Self { next: Instant::now() + pause, pause }
    }

    pub(crate) fn are_due(&mut self) -> bool {
        let now = Instant::now();
        let is_due = now >= self.next;
        if is_due {
            self.pause *= 2;
            self.next = now + self.pause;
        }
        is_due
    }
}

/// Returns true if no process listens.
pub(crate) fn is_refusal(error: &io::Error) -> bool {
    error.kind() == ErrorKind::ConnectionRefused
}

pub(crate) struct Ranks {
    pub(crate) own: usize,
    pub(crate) entries: Vec<Entry>,
    /// The limit of a collective.
    pub(crate) limit: Duration,
    keys: Arc<Keys>,
    session: Nonce,
    pub(crate) star: Star,
}

impl Ranks {
    /// Joins the other ranks. `listen` listens for them at this IP address, and returns the address with the port. It is
    /// not called if there are no other ranks.
    pub(crate) fn join(
        settings: &Settings,
        [join_limit, limit]: [Duration; 2],
        listen: impl FnOnce(IpAddr) -> Result<SocketAddr, ConnectError>,
    ) -> Result<Self, Error> {
        let Settings { rank, world_size, ref secret, .. } = *settings;
        let keys = Arc::new(Keys::new(secret.as_deref().unwrap_or_default()));
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let (table, star) = if world_size == 1 {
            let entries = vec![Entry { address: (Ipv4Addr::LOCALHOST, 0).into(), host }];
            (Table { session: [0; 16], entries }, Star::new(0, Vec::new()))
        } else {
            bootstrap::join(settings, join_limit, &keys, |ip| match listen(ip) {
                Ok(address) => Ok(Entry { address, host }),
                Err(source) => Err(Error::Connect { rank, host, source }),
            })?
        };
        let Table { session, entries } = table;
        Ok(Self { own: rank, entries, limit, keys, session, star })
    }

    pub(crate) fn host(&self, rank: usize) -> String {
        self.entries.get(rank).map(|entry| entry.host.clone()).unwrap_or_default()
    }

    /// Returns the address at which a rank accepts others.
    pub(crate) fn address(&self, rank: usize) -> Result<SocketAddr, Failure> {
        self.entries.get(rank).map(|entry| entry.address).ok_or(Failure::Lost(rank))
    }

    /// Returns the IP address of this rank, with port 0.
    pub(crate) fn any_port(&self) -> SocketAddr {
        let own = self.entries.get(self.own).map(|entry| entry.address.ip());
        SocketAddr::new(own.unwrap_or(Ipv4Addr::LOCALHOST.into()), 0)
    }

    /// Returns the message with which a rank that makes this call announces where it listens.
    pub(crate) fn address_message(call: Call, port: u16) -> Vec<u8> {
        [&call.to_bytes()[..], &port.to_le_bytes()].concat()
    }

    /// Returns the address in the message of a rank that must make this call.
    pub(crate) fn address_in(
        &self,
        rank: usize,
        call: Call,
        message: &[u8],
    ) -> Result<SocketAddr, Failure> {
        match Call::split(message).map(|(theirs, port)| (theirs, port.try_into())) {
            Some((theirs, Ok(port))) if theirs == call => {
                let ip = self.address(rank)?.ip();
                Ok(SocketAddr::new(ip, u16::from_le_bytes(port)))
            }
            _ => Err(self.other_call(rank, call, message)),
        }
    }

    /// Returns the failure of this call, because a message of a rank is from another one.
    pub(crate) fn other_call(&self, rank: usize, call: Call, message: &[u8]) -> Failure {
        let theirs =
            Call::split(message).map_or("nothing valid".to_owned(), |(it, _)| it.to_string());
        let (host, ours) = (self.host(rank), call.to_string());
        Failure::Own(Error::Mismatch { rank, host, theirs, ours })
    }

    /// Returns the bytes with which this rank introduces itself to a higher one, which listens at this port. They prove
    /// nothing at another port.
    pub(crate) fn greeting(&self, peer: usize, port: u16) -> Vec<u8> {
        let mut greeting = (self.own as u64).to_le_bytes().to_vec();
        greeting.extend(self.answer(peer, port));
        greeting
    }

    /// Returns the bytes with which this rank answers the greeting of a lower one at this port of its own.
    pub(crate) fn answer(&self, peer: usize, port: u16) -> Tag {
        let proof = self.keys.proof(&self.session, [self.own, peer], port);
        proof.finalize().into_bytes().into()
    }

    /// Returns true if these bytes are the [answer](Self::answer) of that rank. Takes the same time for all wrong bytes.
    fn is_answer(&self, bytes: &[u8], peer: usize, port: u16) -> bool {
        self.keys.proof(&self.session, [peer, self.own], port).verify_slice(bytes).is_ok()
    }

    /// Returns the rank of a client with this greeting at this port, if it is a lower rank of this group.
    pub(crate) fn peer_of(&self, greeting: &[u8], port: u16) -> Option<usize> {
        let (rank, proof) = greeting.split_first_chunk()?;
        let rank = usize::try_from(u64::from_le_bytes(*rank)).ok()?;
        (rank < self.own && self.is_answer(proof, rank, port)).then_some(rank)
    }

    /// Returns the rank of a client with this greeting at this port. Fails with the reason for a client that is none, or
    /// whose place among `peers` is taken.
    pub(crate) fn admit<P>(
        &self,
        greeting: &[u8],
        port: u16,
        peers: &[Option<P>],
    ) -> Result<usize, &'static str> {
        match self.peer_of(greeting, port).map(|peer| (peer, peers.get(peer))) {
            None => Err("this is a rank of a group, and the client is not of this group"),
            Some((peer, Some(None))) => Ok(peer),
            Some(_) => Err("this rank is connected already"),
        }
    }

    /// Fails if another rank has closed the group, or the limit has passed.
    pub(crate) fn check(&mut self, awaited: usize, until: Instant) -> Result<(), Failure> {
        match self.star.check() {
            Some(notice) => Err(Failure::Notice(notice)),
            None if Instant::now() >= until => Err(self.late(awaited)),
            None => Ok(()),
        }
    }

    /// Returns the failure of a rank that did not take part within the limit.
    pub(crate) fn late(&self, rank: usize) -> Failure {
        Failure::Own(Error::Timeout { rank, host: self.host(rank), limit: self.limit })
    }

    /// Returns the failure of a connection to a higher rank.
    pub(crate) fn unconnected(&self, peer: usize, error: ConnectError) -> Failure {
        match error {
            ConnectError::Timeout { .. } => self.late(peer),
            // A rank that closes its group turns away those that wait to be accepted.
            ConnectError::NobodyListens { .. }
            | ConnectError::Rejected(_)
            | ConnectError::Closed { .. }
            | ConnectError::Io { .. } => Failure::Lost(peer),
            _ => Failure::Connect(peer, error),
        }
    }

    /// Fails unless these bytes are the answer of a higher rank, to which this one has connected at this port.
    pub(crate) fn check_answer(&self, bytes: &[u8], peer: usize, port: u16) -> Result<(), Failure> {
        if self.is_answer(bytes, peer, port) {
            return Ok(());
        }
        Err(Failure::Connect(peer, ConnectError::Rejected("its proof is wrong".into())))
    }

    /// Returns the failure of a run that has received a message of another call or length.
    pub(crate) fn mismatch<T: Pod>(
        &self,
        rank: usize,
        run: &Run<'_, T>,
        mismatch: Mismatch,
    ) -> Failure {
        let call = run.call();
        let (theirs, ours) = match mismatch {
            Mismatch::Call(theirs) => (theirs.to_string(), call.to_string()),
            Mismatch::Length { found, expected } => {
                (format!("{call} with {found} bytes"), format!("it with {expected} bytes"))
            }
        };
        Failure::Own(Error::Mismatch { rank, host: self.host(rank), theirs, ours })
    }

    /// Closes the group because of an error of this rank.
    pub(crate) fn close(&mut self, error: String) {
        self.star.report(&Notice { rank: self.own, error });
    }

    /// Reports a failure to the other ranks. Returns true if the driver then waits for the decision of rank 0.
    pub(crate) fn report(&mut self, failure: &Failure) -> bool {
        match failure {
            Failure::Lost(rank) => self.star.report(&Notice::lost(*rank)),
            Failure::Connect(..) => true,
            Failure::Own(error) => {
                self.close(error.to_string());
                false
            }
            Failure::Notice(_) => false,
        }
    }

    /// Returns the error of a failure that was reported. It names the rank that is the cause, as far as that is known.
    pub(crate) fn error(&mut self, failure: Failure) -> Error {
        let notice = match failure {
            Failure::Own(error) => return error,
            Failure::Lost(rank) => self.star.reason(Notice::lost(rank)),
            Failure::Notice(notice) => notice,
            Failure::Connect(rank, source) => match self.star.check() {
                Some(notice) => notice,
                None => {
                    let error = Error::Connect { rank, host: self.host(rank), source };
                    self.close(error.to_string());
                    return error;
                }
            },
        };
        let (rank, host) = (notice.rank, self.host(notice.rank));
        match notice.error {
            reason if reason.is_empty() => Error::Lost { rank, host },
            reason => Error::Failed { rank, host, reason },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_valid_only_for_its_port_and_its_ranks() {
        let ranks = |own| Ranks {
            own,
            entries: Vec::new(),
            limit: Duration::ZERO,
            keys: Arc::new(Keys::new(b"secret")),
            session: [3; 16],
            star: Star::new(own, Vec::new()),
        };
        let [lower, higher, last] = [1, 2, 3].map(ranks);
        let greeting = lower.greeting(2, 4000);
        assert_eq!(higher.peer_of(&greeting, 4000), Some(1));
        assert_eq!(higher.peer_of(&greeting, 4001), None);
        assert_eq!(last.peer_of(&greeting, 4000), None);
        let answer = higher.answer(1, 4000);
        assert!(lower.check_answer(&answer, 2, 4000).is_ok());
        assert!(lower.check_answer(&answer, 2, 4001).is_err());
        assert!(lower.check_answer(&answer, 3, 4000).is_err());
        assert!(lower.check_answer(&greeting[8..], 2, 4000).is_err());
    }
}
