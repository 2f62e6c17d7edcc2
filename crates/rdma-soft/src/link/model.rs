//! The behaviour of a simulated link: delays and faults of packets.

use std::time::Duration;

use crate::fabric::clock::Time;
use crate::fabric::random::SplitMix;

/// The maximum extra delay of a packet that others overtake, as a multiple of the link's latency.
const HELD_BACK: u32 = 8;
/// The shortest travel time of a packet.
const SHORTEST: Duration = Duration::from_nanos(1);

/// The behaviour of a link in a [`Network`](crate::Network), in one direction. It determines how long packets take, and
/// how many are lost, duplicated, delayed or damaged.
///
/// Each probability applies to every packet independently. Values are clamped to the range from 0 to 1.
///
/// ```
/// use std::time::Duration;
/// use rdma_soft::LinkModel;
///
/// let between_cities = LinkModel::new()
///     .latency(Duration::from_millis(5))
///     .jitter(Duration::from_micros(200))
///     .bandwidth(10_000_000_000)
///     .loss(0.001);
/// # let _ = between_cities;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a model does nothing until it is given to a network"]
pub struct LinkModel {
    latency: Duration,
    jitter: Duration,
    bits_per_second: u64,
    loss: Probability,
    duplication: Probability,
    reordering: Probability,
    corruption: Probability,
}

impl LinkModel {
    /// Creates a link with a latency of 1 us and 100 Gbit/s that loses nothing.
    pub const fn new() -> Self {
        Self {
            latency: Duration::from_micros(1),
            jitter: Duration::ZERO,
            bits_per_second: 100_000_000_000,
            loss: Probability::NEVER,
            duplication: Probability::NEVER,
            reordering: Probability::NEVER,
            corruption: Probability::NEVER,
        }
    }

    /// Creates a link on which nothing arrives, like a cut cable.
    pub const fn cut() -> Self {
        Self { loss: Probability::ALWAYS, ..Self::new() }
    }

    /// Sets the time from the end of a packet's transmission to its arrival. It is at least 1 ns.
    pub const fn latency(mut self, latency: Duration) -> Self {
        self.latency = latency;
        self
    }

    /// Delays each packet by an additional random time of at most `most`. Packets stay in order.
    pub const fn jitter(mut self, most: Duration) -> Self {
        self.jitter = most;
        self
    }

    /// Sets the number of bits per second. A packet waits until earlier ones have been sent. 0 means no limit.
    ///
    /// Each packet counts as 58 bytes more than its payload, whatever its headers are. This is the size of Ethernet,
    /// IPv4, UDP and BTH headers and the ICRC.
    pub const fn bandwidth(mut self, bits_per_second: u64) -> Self {
        self.bits_per_second = bits_per_second;
        self
    }

    /// Sets the probability that a packet is lost.
    pub fn loss(mut self, probability: f64) -> Self {
        self.loss = Probability::new(probability);
        self
    }

    /// Sets the probability that a packet arrives twice.
    pub fn duplication(mut self, probability: f64) -> Self {
        self.duplication = Probability::new(probability);
        self
    }

    /// Sets the probability that a packet takes up to nine times the latency, so that others can overtake it. The
    /// jitter is added to this.
    pub fn reordering(mut self, probability: f64) -> Self {
        self.reordering = Probability::new(probability);
        self
    }

    /// Sets the probability that up to three bits of a packet are flipped. The receiver drops the packet because its
    /// ICRC is wrong, unless the bits are in fields that may change in transit.
    pub fn corruption(mut self, probability: f64) -> Self {
        self.corruption = Probability::new(probability);
        self
    }
}

impl Default for LinkModel {
    fn default() -> Self {
        Self::new()
    }
}

/// A probability in units of 2^-32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Probability(u64);

impl Probability {
    const NEVER: Self = Self(0);
    const ALWAYS: Self = Self(1 << 32);

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is in range")]
    fn new(probability: f64) -> Self {
        // NaN becomes 0.
        Self((probability.clamp(0.0, 1.0) * 4_294_967_296.0) as u64)
    }

    fn occurs(self, random: &mut SplitMix) -> bool {
        // A probability of 0 draws no random number, so a fault that is off does not influence when the others occur.
        self.0 > 0 && u64::from(random.next_u32()) < self.0
    }
}

/// The fate of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Fate {
    /// The time at which the packet arrives, if it does.
    pub(crate) arrives: Option<Time>,
    /// The time at which the duplicate arrives, if there is one.
    pub(crate) again: Option<Time>,
    /// The number of flipped bits.
    pub(crate) flipped: u32,
}

/// One direction of a link, and the state of its transmission.
#[derive(Debug, Default)]
pub(crate) struct Direction {
    /// The direction's own model. If it has none, the network's model applies.
    pub(crate) model: Option<LinkModel>,
    /// The time at which the last packet is completely sent.
    busy_until: Option<Time>,
    /// The arrival time of the last packet that was not reordered.
    last: Option<Time>,
}

impl Direction {
    /// Sends a packet of `bytes` bytes, and returns its fate.
    pub(crate) fn send(
        &mut self,
        model: &LinkModel,
        bytes: u64,
        now: Time,
        random: &mut SplitMix,
    ) -> Fate {
        let nanoseconds = bytes.saturating_mul(8_000_000_000).checked_div(model.bits_per_second);
        let left = self.busy_until.map_or(now, |busy| busy.max(now))
            + Duration::from_nanos(nanoseconds.unwrap_or(0));
        self.busy_until = Some(left);
        if model.loss.occurs(random) {
            return Fate::default();
        }
        let arrives = |direction: &mut Self, random: &mut SplitMix| {
            let arrives = left + model.latency.max(SHORTEST) + part(model.jitter, random);
            if model.reordering.occurs(random) {
                return arrives
                    + part(model.latency.max(SHORTEST).saturating_mul(HELD_BACK), random);
            }
            let arrives = direction.last.map_or(arrives, |last| last.max(arrives));
            direction.last = Some(arrives);
            arrives
        };
        let first = arrives(self, random);
        let again = model.duplication.occurs(random).then(|| arrives(self, random));
        let flipped = if model.corruption.occurs(random) { 1 + random.below(3) } else { 0 };
        Fate { arrives: Some(first), again, flipped }
    }
}

/// Returns a random duration of at most `most`.
fn part(most: Duration, random: &mut SplitMix) -> Duration {
    match u64::try_from(most.as_nanos()) {
        Ok(0) => Duration::ZERO,
        Ok(most) => Duration::from_nanos(random.next_u64() % most.saturating_add(1).max(1)),
        Err(_) => most,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Returns the fates of packets of a thousand bytes that are all sent at the beginning.
    fn send(model: LinkModel, packets: usize) -> Vec<Fate> {
        let (mut direction, mut random) = (Direction::default(), SplitMix::new(1));
        let mut send = || direction.send(&model, 1000, Time::BEGINNING, &mut random);
        (0..packets).map(|_| send()).collect()
    }

    fn arrival(fate: &Fate) -> Duration {
        fate.arrives.map_or(Duration::MAX, |at| at.since(Time::BEGINNING))
    }

    #[test]
    fn packets_queue_in_order_and_take_the_latency() {
        // A thousand bytes take a millisecond.
        let fates = send(LinkModel::new().latency(7 * MS).bandwidth(8_000_000), 3);
        assert_eq!(fates.iter().map(arrival).collect::<Vec<_>>(), [8 * MS, 9 * MS, 10 * MS]);
    }

    #[test]
    fn without_a_limit_nothing_waits() {
        let fates = send(LinkModel::new().latency(MS).bandwidth(0), 2);
        assert_eq!(fates.iter().map(arrival).collect::<Vec<_>>(), [MS; 2]);
    }

    #[test]
    fn jitter_keeps_the_order_and_reordering_does_not() {
        let order = |model: LinkModel| {
            let fates = send(model.bandwidth(0), 1000);
            fates.iter().map(arrival).collect::<Vec<_>>()
        };
        let jitter = order(LinkModel::new().jitter(MS));
        assert!(jitter.is_sorted() && jitter[0] < jitter[999]);
        let held_back = order(LinkModel::new().reordering(0.1));
        assert!(!held_back.is_sorted());
        assert!(held_back.iter().all(|&arrival| arrival <= 9 * Duration::from_micros(1)));
    }

    /// Arrival times saturate at the end of time.
    #[test]
    fn no_latency_is_too_long() {
        let longest = LinkModel::new().latency(Duration::MAX).jitter(Duration::MAX);
        for fate in send(longest.reordering(1.0).duplication(1.0), 10) {
            assert_eq!([fate.arrives, fate.again], [Some(Time::END); 2]);
        }
    }

    #[test]
    fn faults_occur_with_their_probabilities() {
        let count = |model: LinkModel, fault: fn(&Fate) -> bool| {
            send(model, 100_000).iter().filter(|fate| fault(fate)).count()
        };
        let (new, p) = (LinkModel::new(), 0.05);
        let lost: fn(&Fate) -> bool = |fate| fate.arrives.is_none();
        let twice: fn(&Fate) -> bool = |fate| fate.again.is_some();
        let damaged: fn(&Fate) -> bool = |fate| fate.flipped > 0;
        for (model, fault) in
            [(new.loss(p), lost), (new.duplication(p), twice), (new.corruption(p), damaged)]
        {
            let count = count(model, fault);
            assert!((4_700..5_300).contains(&count), "{model:?}: {count}");
            assert_eq!(send(new, 1000).iter().filter(|fate| fault(fate)).count(), 0);
        }
        assert_eq!(count(LinkModel::cut(), lost), 100_000);
        assert_eq!(count(new.loss(-1.0), lost) + count(new.loss(f64::NAN), lost), 0);
        assert_eq!(count(new.loss(7.0), lost), 100_000);
    }
}
