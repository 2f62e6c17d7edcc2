//! The exchange of a value between all ranks, over TCP.
//!
//! The ranks join at rank 0 as those of a group do. Each then sends its value to rank 0, which sends the values of all
//! others to each rank, in rank order.

use std::fmt;
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::config::NetworkConfig;
use crate::bootstrap;
use crate::bootstrap::link::{Keys, Kind, Link, after, wait_for};
use crate::bootstrap::table::{Entry, Table};
use crate::environment::{Settings, with_port};
use crate::error::{Error, after_semicolon, refused};

/// The options of an exchange.
#[derive(Clone)]
pub struct ExchangeConfig {
    /// The time limit. Default: 60 seconds. Rank 0 measures it from its own call. Another rank first waits at most this
    /// time for rank 0, and then for the end of rank 0's limit.
    pub exchange_timeout: Duration,
    /// The maximum length of an encoded value in bytes. Default: 16 MiB.
    pub max_bytes: usize,
    /// The secret that all ranks share. Default: the environment variable `RDMA_GROUP_SECRET`. A secret is required if
    /// rank 0 does not listen at a loopback address. See [`GroupBuilder::secret`](crate::GroupBuilder::secret).
    pub secret: Option<Vec<u8>>,
}

impl Default for ExchangeConfig {
    fn default() -> Self {
        Self { exchange_timeout: Duration::from_secs(60), max_bytes: 16 << 20, secret: None }
    }
}

/// Formats everything except the secret.
impl fmt::Debug for ExchangeConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { exchange_timeout, max_bytes, secret: _ } = self;
        write!(f, "ExchangeConfig({exchange_timeout:?}, at most {max_bytes} bytes)")
    }
}

/// Exchanges values between all ranks of a [`NetworkConfig`].
#[derive(Clone, Copy, Debug)]
pub struct Exchanger;

impl Exchanger {
    /// Sends a value to all other ranks, and returns the values of all ranks in rank order.
    ///
    /// The values are encoded as JSON, so keys of maps must be strings. NaN and infinities become `null`: decoding fails,
    /// or an `Option` becomes `None`. All ranks connect to rank 0, which listens at its address in the
    /// configuration and forwards the values. Processes that do not belong to the group are dropped.
    ///
    /// # Errors
    /// - [`ExchangeError::InvalidRank`] if the configuration does not contain the rank;
    /// - [`ExchangeError::SerdeError`] if a value cannot be encoded or decoded;
    /// - [`ExchangeError::MessageTooLarge`] if the value of this rank is too long;
    /// - [`ExchangeError::Timeout`] on rank 0, with the ranks that are missing at the limit;
    /// - [`ExchangeError::Lost`] if a rank that has joined ends, or does not read or send in time;
    /// - [`ExchangeError::Join`] for the other errors of [`GroupBuilder::join`](crate::GroupBuilder::join). Ranks other
    ///   than 0 get [`Error::Refused`], which names the missing ranks and their hosts.
    ///
    /// # Examples
    /// ```no_run
    /// # use rdma_group::network::{ExchangeConfig, Exchanger, NetworkConfig};
    /// # fn exchange(rank: usize, config: &NetworkConfig) -> Result<(), Box<dyn std::error::Error>> {
    /// let own = format!("process {} of rank {rank}", std::process::id());
    /// let all = Exchanger::await_exchange_all(rank, config, &own, &ExchangeConfig::default())?;
    /// assert_eq!(all[rank], own);
    /// # Ok(()) }
    /// ```
    pub fn await_exchange_all<T: Serialize + DeserializeOwned + Clone>(
        rank: usize,
        network: &NetworkConfig,
        data: &T,
        config: &ExchangeConfig,
    ) -> Result<Vec<T>, ExchangeError> {
        let failed = |rank| move |source| ExchangeError::SerdeError { rank, source };
        let own = serde_json::to_vec(data).map_err(failed(rank))?;
        let values = exchange(rank, network, own, config)?;
        let decode = |(of, bytes): (usize, Vec<u8>)| match of {
            _ if of == rank => Ok(data.clone()),
            _ => serde_json::from_slice(&bytes).map_err(failed(of)),
        };
        values.into_iter().enumerate().map(decode).collect()
    }
}

/// Exchanges encoded values.
fn exchange(
    rank: usize,
    network: &NetworkConfig,
    own: Vec<u8>,
    config: &ExchangeConfig,
) -> Result<Vec<Vec<u8>>, ExchangeError> {
    let (length, most, world_size) = (own.len(), config.max_bytes, network.world_size());
    let Some(node) = network.get(rank) else {
        return Err(ExchangeError::InvalidRank { rank, world_size });
    };
    if length > most {
        return Err(ExchangeError::MessageTooLarge { length, most });
    }
    let limit = config.exchange_timeout;
    let until = after(limit);
    if world_size == 1 {
        return Ok(vec![own]);
    }
    let settings = settings(rank, network, config.secret.clone());
    let keys = Keys::new(settings.secret.as_deref().unwrap_or_default());
    let entry = |ip| Ok(Entry { address: (ip, node.port).into(), host: node.hostname.clone() });
    let joined = bootstrap::join(&settings, limit, &keys.into(), entry);
    let (_, star) = joined.map_err(|error| ExchangeError::of(error, network))?;
    let mut links = star.into_links();
    // Rank 0 may send a reason in place of a value.
    let longest = if rank == 0 { most } else { most.max(Table::most(world_size)) };
    links.iter_mut().flatten().for_each(|link| link.expect_at_most(longest));
    let mut values = vec![Vec::new(); world_size];
    values[rank] = own;
    match (rank, links.first_mut()) {
        (0, _) => {
            let mut root = Root { links, values, network, until, limit };
            let outcome = root.collect().and_then(|()| root.distribute());
            outcome.map(|()| root.values).inspect_err(|error| {
                let reason = error.to_string();
                for link in root.links.iter_mut().flatten() {
                    let _ = link.send(Kind::Refusal, reason.as_bytes(), Instant::now());
                }
            })
        }
        (_, Some(Some(link))) => {
            // Rank 0 decides within its own limit.
            let until = after(limit.saturating_add(bootstrap::GRACE));
            swap(link, rank, &mut values, until, network)?;
            Ok(values)
        }
        _ => Err(ExchangeError::InvalidRank { rank, world_size }),
    }
}

fn settings(rank: usize, network: &NetworkConfig, secret: Option<Vec<u8>>) -> Settings {
    let master = network.first().map(|root| with_port(&root.hostname, root.port));
    let stated = || std::env::var("RDMA_GROUP_SECRET").ok().filter(|secret| !secret.is_empty());
    let hosts: Vec<_> = network.iter().map(|node| node.hostname.clone()).collect();
    Settings {
        stated_by: "the configuration",
        secret: secret.or_else(|| stated().map(String::into_bytes)),
        // Different names may belong to one host.
        one_host: hosts.windows(2).all(|hosts| hosts[0] == hosts[1]).then_some(true),
        hosts,
        ..Settings::new(rank, network.world_size(), &master.unwrap_or_default())
    }
}

/// Sends the value of this rank to rank 0, and receives all others from it.
fn swap(
    link: &mut Link,
    rank: usize,
    values: &mut [Vec<u8>],
    until: Instant,
    network: &NetworkConfig,
) -> Result<(), ExchangeError> {
    let lost = |source: io::Error| ExchangeError::lost(0, network, source);
    link.send(Kind::Value, &values[rank], until).map_err(lost)?;
    for (of, value) in values.iter_mut().enumerate() {
        if of == rank {
            continue;
        }
        match link.receive(until).map_err(lost)? {
            (Kind::Value, bytes) => *value = bytes,
            (Kind::Refusal, reason) => {
                let (host, reason) = (network.host(0), String::from_utf8_lossy(&reason).into());
                return Err(ExchangeError::Lost { rank: 0, host, reason });
            }
            (kind, _) => return Err(ExchangeError::unexpected(0, network, kind)),
        }
    }
    Ok(())
}

/// Rank 0, after all ranks have joined.
struct Root<'n> {
    links: Vec<Option<Link>>,
    values: Vec<Vec<u8>>,
    network: &'n NetworkConfig,
    until: Instant,
    limit: Duration,
}

impl Root<'_> {
    /// Receives a value from each rank.
    fn collect(&mut self) -> Result<(), ExchangeError> {
        let mut missing: Vec<_> = (1..self.links.len()).collect();
        loop {
            let (links, values, network) = (&mut self.links, &mut self.values, self.network);
            let mut failed = None;
            missing.retain(|&rank| {
                let Some(Some(link)) = links.get_mut(rank) else { return false };
                match link.poll_receive() {
                    Ok(Some((Kind::Value, bytes))) => values[rank] = bytes,
                    Ok(None) => return true,
                    Ok(Some((kind, _))) => {
                        failed = Some(ExchangeError::unexpected(rank, network, kind));
                    }
                    Err(source) => failed = Some(ExchangeError::lost(rank, network, source)),
                }
                false
            });
            if let Some(error) = failed {
                return Err(error);
            }
            let awaited = missing.iter().filter_map(|&rank| links.get(rank)?.as_ref());
            let files: Vec<_> = awaited.map(|link| link.awaited(PollFlags::IN)).collect();
            if files.is_empty() {
                return Ok(());
            }
            let ready = wait_for(&files, self.until);
            if !ready.map_err(|source| ExchangeError::lost(0, network, source))? {
                let (missing, limit) = (network.with_hosts(missing), self.limit);
                let (last_refused, local_only) = (None, None);
                return Err(ExchangeError::Timeout { missing, limit, last_refused, local_only });
            }
        }
    }

    /// Sends the values of all others to each rank. Sends to all ranks, even if one of them has ended.
    fn distribute(&mut self) -> Result<(), ExchangeError> {
        let mut outcome = Ok(());
        for (rank, place) in self.links.iter_mut().enumerate() {
            let Some(link) = place else { continue };
            let others = self.values.iter().enumerate().filter(|(of, _)| *of != rank);
            let sent = others.map(|(_, value)| link.send(Kind::Value, value, self.until));
            if let Err(source) = sent.collect::<Result<(), _>>() {
                outcome = outcome.and(Err(ExchangeError::lost(rank, self.network, source)));
                *place = None;
            }
        }
        outcome
    }
}

/// An error of an exchange.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// The configuration does not contain the rank.
    #[error("rank {rank} is not in the configuration, which has {world_size} ranks from 0")]
    InvalidRank {
        /// The rank.
        rank: usize,
        /// The number of ranks.
        world_size: usize,
    },
    /// A value could not be encoded, or that of another rank could not be decoded.
    #[error("the value of rank {rank} is invalid: {source}")]
    SerdeError {
        /// The rank.
        rank: usize,
        /// The reason.
        source: serde_json::Error,
    },
    /// The value of this rank is too long.
    #[error("the encoded value has {length} bytes, but `max_bytes` is {most}")]
    MessageTooLarge {
        /// The length of the encoded value in bytes.
        length: usize,
        /// The maximum length in bytes.
        most: usize,
    },
    /// Ranks were missing at the time limit.
    #[error(
        "{} did not take part within {limit:?}{}{}",
        list(.missing), refused(.last_refused), after_semicolon(.local_only)
    )]
    Timeout {
        /// The missing ranks and their hosts.
        missing: Vec<(usize, String)>,
        /// The limit.
        limit: Duration,
        /// The last process that was refused, and the reason.
        last_refused: Option<String>,
        /// The reason why ranks on other hosts cannot join, if rank 0 listens at a loopback address.
        local_only: Option<String>,
    },
    /// A rank that had joined has ended, or did not follow the protocol. If it is rank 0, another rank may be the cause.
    #[error("the exchange with rank {rank} on {host} has failed: {reason}")]
    Lost {
        /// The rank.
        rank: usize,
        /// Its host.
        host: String,
        /// The reason.
        reason: String,
    },
    /// This rank could not join.
    #[error(transparent)]
    Join(Error),
}

rdma_types::debug_messages!(enum ExchangeError {
    InvalidRank { rank, world_size }, SerdeError { rank, source }, MessageTooLarge { length, most },
    Timeout { missing, limit, last_refused, local_only }, Lost { rank, host, reason }, Join(it),
});

fn list(ranks: &[(usize, String)]) -> String {
    let each = ranks.iter().map(|(rank, host)| format!("rank {rank} on {host}"));
    each.collect::<Vec<_>>().join(", ")
}

impl ExchangeError {
    fn of(error: Error, network: &NetworkConfig) -> Self {
        match error {
            Error::Missing { ranks, limit, last_refused, local_only, .. } => {
                let missing = network.with_hosts(ranks);
                Self::Timeout { missing, limit, last_refused, local_only }
            }
            other => Self::Join(other),
        }
    }

    fn lost(rank: usize, network: &NetworkConfig, source: io::Error) -> Self {
        let reason = match source.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                "it closed the connection: check its output".to_owned()
            }
            ErrorKind::TimedOut => "it neither sent nor received in time".to_owned(),
            _ => source.to_string(),
        };
        Self::Lost { rank, host: network.host(rank), reason }
    }

    fn unexpected(rank: usize, network: &NetworkConfig, kind: Kind) -> Self {
        let reason = format!("it sent {kind:?} in place of its value");
        Self::Lost { rank, host: network.host(rank), reason }
    }
}

#[cfg(test)]
mod tests;
