//! The ranks of a launcher's group, as one of them knows them: addresses, proofs of identity, and failures.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytemuck::Pod;
use hmac::Mac as _;
use rdma_channel::ConnectError;

use crate::bootstrap::link::{Keys, Nonce, Tag, nonce};
use crate::bootstrap::star::{Notice, Star};
use crate::bootstrap::table::{Entry, Table};
use crate::bootstrap::{self, is_end};
use crate::call::Call;
use crate::environment::{Settings, own_host};
use crate::error::Error;
use crate::run::{Mismatch, Run};
use crate::world::lane::Form;

/// The time between two checks for notices while a rank waits.
pub(crate) const CHECK: Duration = Duration::from_millis(20);

/// The time limit for notifying all peers when this rank closes the group. A blocking rank tries to notify each peer, so
/// each one that is stopped or has no room may delay it by [`CHECK`] more.
pub(crate) const FAREWELL: Duration = Duration::from_millis(200);

/// The reason that a collective fails.
pub(crate) enum Failure {
    /// The connection to this rank has ended.
    Lost(usize),
    /// Rank 0 has decided to close the group.
    Notice(Notice),
    /// A peer has closed the group, maybe without a decision of rank 0.
    Closed(Notice),
    /// The connection to this rank could not be made. The rank may have died meanwhile.
    Connect(usize, ConnectError),
    /// This rank has detected an error.
    Own(Error),
}

/// The times at which a rank that waits probes whether another one still listens, or looks at its other peers. A rank
/// that has left is not reported, because others may not need it. The probes become rarer, because each waits in the
/// queue of the listener.
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

/// The time in which repeated errors that strangers may cause are ignored, for example because they use all files.
const PATIENCE: Duration = Duration::from_secs(10);

/// The maximum time between repeated errors. A listener that cannot accept tries again after a second.
const REPEATED: Duration = Duration::from_secs(3);

/// The errors of a listener, or the refusals of a rank without room, which strangers may cause.
#[derive(Default)]
pub(crate) struct Patience {
    /// The times of the first and the last of the repeated errors.
    errors: Option<[Instant; 2]>,
}

impl Patience {
    /// Counts an error. Returns true if it is ignored.
    pub(crate) fn ignores(&mut self, error: &ConnectError) -> bool {
        self.ignores_at(error, Instant::now())
    }

    fn ignores_at(&mut self, error: &ConnectError, now: Instant) -> bool {
        // The listener has refused a client. If this is a rank, it reports that itself.
        if matches!(error, ConnectError::Verbs(_)) {
            return true;
        }
        let repeated = self.errors.filter(|[_, last]| now.duration_since(*last) < REPEATED);
        let first = repeated.map_or(now, |[first, _]| first);
        self.errors = Some([first, now]);
        now.duration_since(first) < PATIENCE
    }
}

/// Returns true if no process listens.
pub(crate) fn is_refusal(error: &io::Error) -> bool {
    error.kind() == ErrorKind::ConnectionRefused
}

/// The bytes with which a rank introduces itself, and the nonces of the listener and of the rank.
pub(crate) struct Greeting {
    pub(crate) bytes: Vec<u8>,
    pub(crate) nonces: [Nonce; 2],
}

fn random() -> Result<Nonce, Failure> {
    nonce().map_err(|error| Failure::Own(Error::io("getting random bytes")(error)))
}

pub(crate) struct Ranks {
    pub(crate) own: usize,
    pub(crate) entries: Vec<Entry>,
    /// The limit of a collective.
    pub(crate) limit: Duration,
    /// The last call of this rank.
    pub(crate) call: Call,
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
        let host = own_host();
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
        Ok(Self { own: rank, entries, limit, call: Call::default(), keys, session, star })
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

    /// Returns the challenge of a new listener, and the message that announces the listener to a rank that makes this call,
    /// too. A challenge is a random number, which the proofs of ranks cover.
    pub(crate) fn announce(call: Call, port: u16) -> Result<(Nonce, Vec<u8>), Failure> {
        let challenge = random()?;
        let message = [&call.to_bytes()[..], &port.to_le_bytes(), &challenge].concat();
        Ok((challenge, message))
    }

    /// Returns the address and the challenge in the message of a rank that must make this call.
    pub(crate) fn announced(
        &self,
        rank: usize,
        call: Call,
        message: &[u8],
    ) -> Result<(SocketAddr, Nonce), Failure> {
        let listener = Call::split(message).filter(|(theirs, _)| *theirs == call);
        let listener = listener.and_then(|(_, listener)| {
            let (port, challenge) = listener.split_first_chunk()?;
            Some((u16::from_le_bytes(*port), challenge.try_into().ok()?))
        });
        match listener {
            Some((port, challenge)) => {
                Ok((SocketAddr::new(self.address(rank)?.ip(), port), challenge))
            }
            None => Err(self.other_call(rank, call, message)),
        }
    }

    /// Returns the failure of this call, because a message of a rank is from another one.
    pub(crate) fn other_call(&self, rank: usize, call: Call, message: &[u8]) -> Failure {
        let theirs =
            Call::split(message).map_or("nothing valid".to_owned(), |(it, _)| it.to_string());
        let (host, ours) = (self.host(rank), call.to_string());
        Failure::Own(Error::Mismatch { rank, host, theirs, ours })
    }

    /// Returns the challenge of all listeners that the table names. A rank connects to each of them once.
    pub(crate) const fn challenge(&self) -> Nonce {
        self.session
    }

    /// Introduces this rank to a higher one, whose listener has this challenge.
    pub(crate) fn greet(&self, peer: usize, challenge: Nonce) -> Result<Greeting, Failure> {
        let nonces = [challenge, random()?];
        let mut bytes = (self.own as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(&nonces[1]);
        bytes.extend(self.proof(peer, &nonces));
        Ok(Greeting { bytes, nonces })
    }

    /// Returns the proof for a peer that this rank belongs to its group.
    fn proof(&self, peer: usize, nonces: &[Nonce; 2]) -> Tag {
        let proof = self.keys.proof(&self.session, [self.own, peer], nonces);
        proof.finalize().into_bytes().into()
    }

    /// Returns true if these bytes are the [proof](Self::proof) of that rank. Takes the same time for all wrong bytes.
    fn is_proof(&self, bytes: &[u8], peer: usize, nonces: &[Nonce; 2]) -> bool {
        self.keys.proof(&self.session, [peer, self.own], nonces).verify_slice(bytes).is_ok()
    }

    /// Returns the rank of a client with this greeting, if it is a lower rank of this group, and the answer to it.
    pub(crate) fn peer_of(&self, greeting: &[u8], challenge: Nonce) -> Option<(usize, Tag)> {
        let (rank, rest) = greeting.split_first_chunk()?;
        let (nonce, proof) = rest.split_first_chunk()?;
        let rank = usize::try_from(u64::from_le_bytes(*rank)).ok()?;
        let nonces = [challenge, *nonce];
        let is_peer = rank < self.own && self.is_proof(proof, rank, &nonces);
        is_peer.then(|| (rank, self.proof(rank, &nonces)))
    }

    /// Returns the rank of a client of the listener that the table names, and the answer to it. Fails with the reason for
    /// a client that is none, or whose place among `peers` is taken.
    pub(crate) fn admit<P>(
        &self,
        greeting: &[u8],
        peers: &[Option<P>],
    ) -> Result<(usize, Tag), &'static str> {
        match self.peer_of(greeting, self.challenge()) {
            None => Err("this is a rank of a group, and the client is not of this group"),
            Some((peer, answer)) if matches!(peers.get(peer), Some(None)) => Ok((peer, answer)),
            Some(_) => Err("this rank is connected already"),
        }
    }

    /// Returns the answer to a client of a listener for one rank alone, whose challenge this is. Fails with the reason for
    /// any other client.
    pub(crate) fn admit_only(
        &self,
        rank: usize,
        greeting: &[u8],
        challenge: Nonce,
    ) -> Result<Tag, &'static str> {
        match self.peer_of(greeting, challenge) {
            Some((peer, answer)) if peer == rank => Ok(answer),
            _ => Err("this rank waits for another rank of its group"),
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
        let (host, call) = (self.host(rank), self.call.to_string());
        Failure::Own(Error::Timeout { rank, host, call, limit: self.limit })
    }

    /// Returns the connection to a higher rank, unless it has failed, or the answer to these nonces is wrong.
    pub(crate) fn connected<C>(
        &self,
        peer: usize,
        nonces: &[Nonce; 2],
        result: Result<(C, Box<[u8]>), ConnectError>,
    ) -> Result<C, Failure> {
        match result {
            Ok((connection, answer)) if self.is_proof(&answer, peer, nonces) => Ok(connection),
            Ok(_) => {
                let error = ConnectError::Rejected("its proof is wrong".into());
                Err(Failure::Connect(peer, error))
            }
            Err(ConnectError::Timeout { .. }) => Err(self.late(peer)),
            // A rank that closes its group turns away those that wait to be accepted.
            Err(
                ConnectError::NobodyListens { .. }
                | ConnectError::Rejected(_)
                | ConnectError::Closed { .. },
            ) => Err(Failure::Lost(peer)),
            Err(ConnectError::Io { source, .. }) if is_end(&source) => Err(Failure::Lost(peer)),
            Err(error) => Err(Failure::Connect(peer, error)),
        }
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
                self.close(error.told_by(self.own));
                false
            }
            // Rank 0 may not know this yet.
            Failure::Closed(notice) => {
                self.star.report(notice);
                false
            }
            Failure::Notice(_) => false,
        }
    }

    /// Returns the message that states why this rank closes the group, once that is known.
    pub(crate) fn notice(&self) -> Option<Vec<u8>> {
        let notice = self.star.notice()?;
        let mut message = Form::Noticed.to_bytes().to_vec();
        message.extend(notice.to_bytes());
        Some(message)
    }

    /// Returns the reason in a message of a peer that has closed the group. A message about an unknown rank is invalid.
    pub(crate) fn noticed(&self, message: &[u8]) -> Option<Notice> {
        if Form::of(message) != Form::Noticed {
            return None;
        }
        let notice = Notice::from_bytes(message.get(Call::FORM_BYTE + 1..)?)?;
        (notice.rank < self.entries.len()).then_some(notice)
    }

    /// Returns the error of a failure that was reported. It names the rank that is the cause, as far as that is known.
    pub(crate) fn error(&mut self, failure: Failure) -> Error {
        let notice = match failure {
            Failure::Own(error) => return error,
            Failure::Lost(rank) => self.star.reason(Notice::lost(rank)),
            Failure::Closed(notice) => self.star.reason(notice),
            Failure::Notice(notice) => notice,
            Failure::Connect(rank, source) => match self.star.check() {
                Some(notice) => notice,
                None => {
                    let error = Error::Connect { rank, host: self.host(rank), source };
                    self.close(error.told_by(self.own));
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
    use rustix::io::Errno;

    use super::*;

    fn ranks(own: usize) -> Ranks {
        Ranks {
            own,
            entries: Vec::new(),
            limit: Duration::ZERO,
            call: Call::default(),
            keys: Arc::new(Keys::new(b"secret")),
            session: [3; 16],
            star: Star::new(own, Vec::new()),
        }
    }

    #[test]
    fn a_notice_of_a_peer_must_name_a_rank_of_the_group() {
        let mut sender = ranks(1);
        assert_eq!(sender.notice(), None);
        assert!(!sender.report(&Failure::Closed(Notice::lost(3))));
        sender.error(Failure::Closed(Notice::lost(3)));
        let message = sender.notice().unwrap();
        let mut receiver = ranks(2);
        assert_eq!(receiver.noticed(&message), None);
        let entry = Entry { address: receiver.any_port(), host: "host".to_owned() };
        receiver.entries = vec![entry; 4];
        assert_eq!(receiver.noticed(&message), Some(Notice::lost(3)));
        assert_eq!(receiver.noticed(&message[..message.len() - 1]), None);
        assert_eq!(receiver.noticed(&Call::default().to_bytes()), None);
    }

    #[test]
    fn a_proof_is_valid_only_for_its_ranks_and_nonces() {
        let [lower, higher, last] = [1, 2, 3].map(ranks);
        let challenge = [4; 16];
        let Ok(greeting) = lower.greet(2, challenge) else { panic!("no random bytes") };
        let (peer, answer) = higher.peer_of(&greeting.bytes, challenge).unwrap();
        assert_eq!(peer, 1);
        assert!(higher.peer_of(&greeting.bytes, [5; 16]).is_none());
        assert!(last.peer_of(&greeting.bytes, challenge).is_none());

        let is_valid = |answer: &[u8], peer, nonces: &[Nonce; 2]| {
            lower.connected(peer, nonces, Ok(((), answer.into()))).is_ok()
        };
        assert!(is_valid(&answer, 2, &greeting.nonces));
        assert!(!is_valid(&answer, 3, &greeting.nonces));
        assert!(!is_valid(&greeting.bytes[24..], 2, &greeting.nonces));
        let Ok(next) = lower.greet(2, challenge) else { panic!("no random bytes") };
        assert!(!is_valid(&answer, 2, &next.nonces));
        assert!(higher.peer_of(&next.bytes, challenge).is_some());
    }

    #[test]
    fn only_errors_that_are_repeated_for_long_end_a_call() {
        let begin = Instant::now();
        let ignored = |error: &ConnectError, seconds: &[u64]| {
            let mut patience = Patience::default();
            let at = |second: &u64| begin + Duration::from_secs(*second);
            seconds.iter().map(|it| patience.ignores_at(error, at(it))).collect::<Vec<_>>()
        };
        let files = ConnectError::Io { tried: "accepting".to_owned(), source: Errno::MFILE.into() };
        assert_eq!(ignored(&files, &[0, 2, 4, 6, 8, 10]), [true, true, true, true, true, false]);
        assert_eq!(ignored(&files, &[0, 20, 40]), [true; 3]);
    }

    #[test]
    fn a_peer_is_lost_only_if_it_has_ended_the_connection() {
        let failure = |errno: Errno| {
            let (tried, source) = ("connecting".to_owned(), errno.into());
            let failed = Err::<((), _), _>(ConnectError::Io { tried, source });
            ranks(1).connected(2, &[[0; 16]; 2], failed)
        };
        for errno in [Errno::CONNRESET, Errno::PIPE, Errno::NOTCONN] {
            assert!(matches!(failure(errno), Err(Failure::Lost(2))), "{errno:?}");
        }
        for errno in [Errno::MFILE, Errno::ADDRNOTAVAIL, Errno::PERM, Errno::NETUNREACH] {
            assert!(matches!(failure(errno), Err(Failure::Connect(2, _))), "{errno:?}");
        }
    }
}
