//! Descriptors with which peers access memory that is open for a limited time.

use std::time::{Duration, Instant};

use rdma_mem::RemoteMemoryRegion;

/// Memory of another process that is open to this one for a limited time.
///
/// A message carries the descriptor, either its [bytes](Self::to_bytes) or its serde form (feature `serde`). The
/// encoded descriptor contains the *remaining* time, so clocks are never compared. The receiver counts that time from
/// its own [request](Self::asked_at) for the memory or, without a request, from the arrival of the bytes. The peer's
/// device refuses a request that arrives late, which ends the connection.
///
/// # Examples
/// ```
/// use std::time::{Duration, Instant};
/// use rdma_async::Descriptor;
/// use rdma_mem::AccessFlags;
///
/// # rdma_soft::install();
/// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// # let region = pd.allocate_shared_region(64, AccessFlags::new().with_remote_read())?;
/// let asked = Instant::now();
/// // The answer of the peer.
/// # let answer = Descriptor::new(region.remote(), Duration::from_secs(5)).to_bytes();
/// let descriptor = Descriptor::from_bytes(answer).asked_at(asked);
/// assert!(descriptor.remaining() <= Duration::from_secs(5));
/// // Returns `None` if less than this time is left.
/// assert!(descriptor.remote(Duration::from_millis(1)).is_some());
/// assert!(descriptor.remote(Duration::from_secs(6)).is_none());
/// # Ok::<(), rdma_mem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "Travelling", into = "Travelling"))]
pub struct Descriptor {
    region: RemoteMemoryRegion,
    /// The moment from which the time counts.
    since: Instant,
    time: Duration,
}

impl Descriptor {
    /// The length of [`to_bytes`](Self::to_bytes), in bytes.
    pub const BYTES: usize = RemoteMemoryRegion::BYTES + size_of::<u64>();

    /// Describes memory that is open for this time from now on.
    #[must_use]
    pub fn new(region: RemoteMemoryRegion, time: Duration) -> Self {
        Self { region, since: Instant::now(), time }
    }

    /// Counts the time from the moment when this end requested the memory. This never extends the time.
    #[must_use]
    pub fn asked_at(mut self, asked: Instant) -> Self {
        self.since = self.since.min(asked);
        self
    }

    /// Returns how much time is left.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.time.saturating_sub(self.since.elapsed())
    }

    /// Returns the memory for reads and writes, or `None` if at most `margin` of the time is left. The margin allows
    /// for the time that the request takes to arrive.
    #[must_use]
    pub fn remote(&self, margin: Duration) -> Option<RemoteMemoryRegion> {
        (self.remaining() > margin).then_some(self.region)
    }

    /// Returns the memory, whether or not its time is up.
    pub(crate) const fn region(&self) -> RemoteMemoryRegion {
        self.region
    }

    /// Returns the length of the memory, in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // no region is empty
    pub const fn len(&self) -> usize {
        self.region.length()
    }

    /// Encodes the descriptor for a message to the peer, with the remaining time in microseconds.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let micros = u64::try_from(self.remaining().as_micros()).unwrap_or(u64::MAX);
        let mut bytes = [0; Self::BYTES];
        let (region, time) = bytes.split_at_mut(RemoteMemoryRegion::BYTES);
        region.copy_from_slice(&self.region.to_bytes());
        time.copy_from_slice(&micros.to_be_bytes());
        bytes
    }

    /// Decodes the result of [`to_bytes`](Self::to_bytes). The time counts from now.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let mut region = [0; RemoteMemoryRegion::BYTES];
        let mut time = [0; size_of::<u64>()];
        let (first, rest) = bytes.split_at(RemoteMemoryRegion::BYTES);
        region.copy_from_slice(first);
        time.copy_from_slice(rest);
        let time = Duration::from_micros(u64::from_be_bytes(time));
        Self::new(RemoteMemoryRegion::from_bytes(region), time)
    }
}

/// The form of a descriptor that serde encodes.
#[cfg(feature = "serde")]
#[derive(serde::Serialize, serde::Deserialize)]
struct Travelling {
    region: RemoteMemoryRegion,
    remaining: Duration,
}

#[cfg(feature = "serde")]
impl From<Descriptor> for Travelling {
    fn from(descriptor: Descriptor) -> Self {
        Self { region: descriptor.region, remaining: descriptor.remaining() }
    }
}

#[cfg(feature = "serde")]
impl From<Travelling> for Descriptor {
    fn from(Travelling { region, remaining }: Travelling) -> Self {
        Self::new(region, remaining)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(micros: u64) -> [u8; Descriptor::BYTES] {
        let mut bytes = [7; Descriptor::BYTES];
        bytes[RemoteMemoryRegion::BYTES..].copy_from_slice(&micros.to_be_bytes());
        bytes
    }

    #[test]
    fn the_remaining_time_only_decreases() {
        let hour = Duration::from_secs(3600);
        let here = Descriptor::from_bytes(bytes(3_600_000_000));
        let earlier = here.asked_at(Instant::now().checked_sub(hour / 2).unwrap());
        assert!(here.remaining() <= hour && earlier.remaining() <= hour / 2);
        let later = earlier.asked_at(Instant::now() + hour);
        assert_eq!(later, earlier);
        let before = earlier.remaining();
        let there = Descriptor::from_bytes(earlier.to_bytes());
        assert!(there.remaining() <= before);
        assert!(there.remote(hour / 4).is_some() && there.remote(hour / 2).is_none());
    }

    #[test]
    fn all_times_survive_a_round_trip() {
        let over = Descriptor::from_bytes(bytes(0));
        assert_eq!((over.remaining(), over.remote(Duration::ZERO)), (Duration::ZERO, None));
        let endless = Descriptor::from_bytes(bytes(u64::MAX));
        assert!(endless.remote(Duration::from_secs(1 << 40)).is_some());
        let region = endless.remote(Duration::ZERO).unwrap();
        let longest = Descriptor::new(region, Duration::MAX);
        assert_eq!(longest.to_bytes(), bytes(u64::MAX));
    }

    #[cfg(feature = "serde")]
    #[test]
    fn serde_carries_the_time_that_remains() {
        let here = Descriptor::from_bytes(bytes(1_000_000));
        let text = serde_json::to_string(&here).unwrap();
        let there: Descriptor = serde_json::from_str(&text).unwrap();
        assert_eq!(there.region, here.region);
        assert!(text.contains("remaining") && there.remaining() <= Duration::from_secs(1));
    }
}
