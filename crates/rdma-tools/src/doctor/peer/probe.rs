//! One end of a probe: a reliable queue pair that transfers a small message and one that fills a
//! packet.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use rdma::channel::{Channel, ChannelBuilder, CreateChannel as _, PreparedChannel, TransportError};
use rdma::device::{Context, GidEntry, PortState};
use rdma::memory::ProtectionDomain;
use rdma::qp::{AckTimeout, MaxAckRetries, QueuePairEndpoint};

use super::super::device::CLASS;
use super::super::root::Root;

/// The length of the small message, in bytes.
const SMALL: usize = 16;

/// The value of every byte in the messages.
const PATTERN: u8 = 0x5a;

/// The time limit for sending or receiving each of the two messages.
const LIMIT: Duration = Duration::from_secs(4);

/// The time limit for receives that are still in flight at the end of the scope. After it, they are
/// flushed, and the flush has the same limit.
const DRAIN: Duration = Duration::from_millis(200);

/// The timeout after which a lost packet is retransmitted.
const ACK_TIMEOUT: Duration = Duration::from_millis(60);
const RETRIES: u8 = 3;

/// A port used for probes.
#[derive(Debug)]
pub(crate) struct Prober {
    pub(crate) context: Context,
    pub(crate) port: u8,
    pd: ProtectionDomain,
    gids: Vec<GidEntry>,
}

impl Prober {
    /// Creates a prober on the first active port of the device.
    pub(crate) fn new(context: Context) -> anyhow::Result<Self> {
        let ports = context.query_device()?.port_count;
        let port = (1..=ports).find(|&port| {
            context.query_port(port).is_ok_and(|port| port.state == PortState::ACTIVE)
        });
        let name = context.device().name();
        let port = port.with_context(|| format!("the device {name} has no active port"))?;
        let (pd, gids) = (context.allocate_pd()?, context.gid_table()?);
        Ok(Self { context, port, pd, gids })
    }

    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.context.device().name(), self.port)
    }

    /// Returns the endpoint that the port offers to this peer. It lists the port's GIDs, or the
    /// likeliest ones if there are more than an endpoint can hold.
    pub(crate) fn offer(&self, own: IpAddr, peer: IpAddr) -> anyhow::Result<QueuePairEndpoint> {
        let mut prepared = self.builder().build()?;
        prepared.set_stream_addresses(own.to_canonical(), peer.to_canonical());
        Ok(prepared.endpoint())
    }

    /// Prepares a queue pair that uses one GID of the offer. If `gid` is `None` (InfiniBand with
    /// LIDs), no GID is selected.
    pub(crate) fn prepare(
        &self,
        offer: &QueuePairEndpoint,
        gid: Option<usize>,
    ) -> anyhow::Result<PreparedChannel> {
        let Some(place) = gid else { return Ok(self.builder().build()?) };
        let gid = offer.gids().get(place).with_context(|| format!("no GID {place} was offered"))?;
        let entry = self.gids.iter().find(|entry| {
            (entry.port, entry.gid, entry.gid_type) == (self.port, gid.gid, gid.gid_type)
        });
        let entry = entry.with_context(|| format!("the port no longer has the GID {}", gid.gid))?;
        Ok(self.builder().gid_index(u8::try_from(entry.index)?).build()?)
    }

    fn builder(&self) -> ChannelBuilder<'_> {
        let timeout = AckTimeout::min_duration_greater_than(ACK_TIMEOUT);
        self.pd
            .create_channel()
            .port(self.port)
            .ack_timeout(timeout.unwrap_or_default())
            .max_ack_retries(MaxAckRetries::limited(RETRIES).unwrap_or_default())
            .drain_timeout(DRAIN)
    }

    /// Sends both messages to the peer.
    pub(crate) fn send(&self, mut channel: Channel, mtu: usize) -> anyhow::Result<()> {
        let mut memory = self.pd.allocate_region(mtu)?;
        memory.fill(PATTERN);
        let small = memory.get_ref(0, SMALL).context("an MTU of less than 16 bytes")?;
        channel.within(LIMIT).send_from(small).context("a message of 16 bytes")?;
        let sent = channel.within(LIMIT).send_from(&memory);
        sent.with_context(|| format!("a message of {mtu} bytes, the MTU"))
    }

    /// Posts receives for both messages, and calls `exchange`, which returns true if the peer
    /// reports that both were acknowledged. If it does, waits for the receives and checks the
    /// bytes. The inner error is the reason why the probe failed.
    pub(crate) fn receive(
        &self,
        mut channel: Channel,
        mtu: usize,
        exchange: impl FnOnce() -> anyhow::Result<bool>,
    ) -> anyhow::Result<Result<(), String>> {
        let (mut small, mut large) =
            (self.pd.allocate_region(SMALL)?, self.pd.allocate_region(mtu)?);
        let mut sent = Ok(false);
        let received = channel.scope(|scope| {
            let first = scope.receive_into(small.as_slice_mut())?;
            let second = scope.receive_into(large.as_slice_mut())?;
            sent = exchange();
            // If the peer's messages were acknowledged, they have arrived.
            if matches!(sent, Ok(true)) {
                first.done(LIMIT)?;
                second.done(LIMIT)?;
            }
            Ok::<_, TransportError>(())
        });
        if !sent? {
            return Ok(Err("the peer's messages were not acknowledged".to_owned()));
        }
        let is_whole = || small.iter().chain(large.iter()).all(|byte| *byte == PATTERN);
        Ok(match received {
            Ok(()) if is_whole() => Ok(()),
            Ok(()) => Err("the bytes of the messages differ from those sent".to_owned()),
            Err(error) => Err(error.flatten().to_string()),
        })
    }

    /// Returns the hardware counters of the port.
    pub(crate) fn counters(&self) -> Counters {
        let folder =
            format!("{CLASS}/{}/ports/{}/hw_counters", self.context.device().name(), self.port);
        let values = Root::of_this_machine().map_or_else(
            |_| Vec::new(),
            |root| {
                let values = root.names(&folder).into_iter().filter_map(|name| {
                    let value = *root.value(&format!("{folder}/{name}")).value()?;
                    Some((name, value))
                });
                values.collect()
            },
        );
        Counters { values, read_at: Instant::now() }
    }

    /// Lists the counters that have changed since an earlier reading, such as `out_of_sequence +3`.
    /// Waits until the kernel reads the device again.
    pub(crate) fn changes_since(&self, before: &Counters) -> String {
        thread::sleep(before.lifespan().saturating_sub(before.read_at.elapsed()));
        self.counters().since(before)
    }
}

/// The file in `hw_counters` that states how many milliseconds the kernel keeps the values that it
/// has read from the device (`lifespan_show` in `drivers/infiniband/core/sysfs.c`).
const LIFESPAN: &str = "lifespan";

/// An upper limit for the `lifespan`, which root can set to any value.
const LONGEST_LIFESPAN: Duration = Duration::from_secs(1);

/// The kernel counts the `lifespan` in ticks, which take at most this time.
const TICK: Duration = Duration::from_millis(10);

/// The names and values of the counters in `hw_counters`.
#[derive(Debug)]
pub(crate) struct Counters {
    values: Vec<(String, u64)>,
    read_at: Instant,
}

impl Counters {
    /// Returns the time after which another reading shows the current values.
    fn lifespan(&self) -> Duration {
        let stated = self.values.iter().find(|(name, _)| name == LIFESPAN);
        stated.map_or(Duration::ZERO, |(_, value)| {
            LONGEST_LIFESPAN.min(Duration::from_millis(*value)) + 2 * TICK
        })
    }

    fn since(&self, before: &Self) -> String {
        if self.values.is_empty() {
            return "no hw_counters".to_owned();
        }
        let changes = self.values.iter().filter_map(|(name, value)| {
            let (_, earlier) = before.values.iter().find(|(of, _)| of == name)?;
            (value != earlier && name != LIFESPAN)
                .then(|| format!("{name} +{}", value.wrapping_sub(*earlier)))
        });
        let changes: Vec<_> = changes.take(64).collect();
        if changes.is_empty() { "no counter changed".to_owned() } else { changes.join(", ") }
    }
}

/// Returns the path MTU between two ends, in bytes.
pub(crate) fn path_mtu(own: &QueuePairEndpoint, peer: &QueuePairEndpoint) -> anyhow::Result<usize> {
    usize::try_from(own.mtu().min(peer.mtu()).bytes()).map_err(|error| anyhow!(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(values: &[(&str, u64)]) -> Counters {
        let values = values.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        Counters { values, read_at: Instant::now() }
    }

    #[test]
    fn counters_that_changed_are_named_with_the_difference() {
        let before = counters(&[("lifespan", 10), ("sent", 7), ("lost", 1)]);
        let after = counters(&[("lifespan", 12), ("sent", 9), ("lost", 1), ("new", 3)]);
        assert_eq!(after.since(&before), "sent +2");
        assert_eq!(before.since(&before), "no counter changed");
        assert_eq!(counters(&[]).since(&before), "no hw_counters");
    }

    /// The kernel would return the earlier values again if they were read sooner.
    #[test]
    fn another_reading_is_made_after_the_lifespan() {
        let lifespan = |values| counters(values).lifespan();
        assert_eq!(lifespan(&[]), Duration::ZERO);
        assert_eq!(lifespan(&[("sent", 7)]), Duration::ZERO);
        assert_eq!(lifespan(&[("lifespan", 12), ("sent", 7)]), Duration::from_millis(32));
        assert_eq!(lifespan(&[("lifespan", u64::MAX)]), Duration::from_millis(1020));
    }
}
