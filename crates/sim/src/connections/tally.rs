//! The fates of messages (MADs).

use std::fmt::{self, Display};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rdma_soft::{Network, SentPacket};

/// The messages of the communication manager, in the order of their attributes, which begin at `FIRST`.
const NAMES: [&str; 9] =
    ["REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP"];
const FIRST: u16 = 0x10;

/// The numbers of messages by their fates: sent, lost (or damaged), repeated, delayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fates([[u64; 4]; NAMES.len()]);

const FATES: [&str; 4] = ["sent", "lost", "repeated", "delayed"];

impl Fates {
    pub(super) fn add(&mut self, other: &Self) {
        for (own, more) in self.0.iter_mut().flatten().zip(other.0.iter().flatten()) {
            *own += more;
        }
    }

    /// Returns the fates that no message of a kind had.
    pub(super) fn missing(&self) -> Vec<String> {
        let rows = NAMES.iter().zip(&self.0);
        let cells = rows.flat_map(|(name, counts)| {
            FATES.iter().zip(counts).map(move |(fate, count)| (name, fate, count))
        });
        cells
            .filter(|(.., count)| **count == 0)
            .map(|(name, fate, _)| format!("no {name} was {fate}"))
            .collect()
    }

    fn note(&mut self, packet: &SentPacket<'_>, usual: Duration) {
        let Some(&[high, low]) = packet.payload.get(16..18) else { return };
        let kind = u16::from_be_bytes([high, low]).wrapping_sub(FIRST);
        let Some([sent, lost, repeated, delayed]) = self.0.get_mut(usize::from(kind)) else {
            return;
        };
        *sent += 1;
        *lost += u64::from(packet.arrives.is_none() || packet.is_damaged);
        *repeated += u64::from(packet.repeated.is_some());
        let is_late = |at: Duration| at > packet.sent + 2 * usual;
        *delayed += u64::from(packet.arrives.into_iter().chain(packet.repeated).any(is_late));
    }
}

impl Display for Fates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, [sent, lost, repeated, delayed]) in NAMES.iter().zip(self.0) {
            writeln!(
                f,
                "{name:<9}{sent:>9} sent{lost:>8} lost{repeated:>8} repeated{delayed:>8} delayed"
            )?;
        }
        Ok(())
    }
}

/// Counts the fates of a network's messages.
#[derive(Default)]
pub(super) struct Tally {
    fates: Mutex<Fates>,
    /// Whether messages are lost because their sender is dead.
    is_paused: AtomicBool,
}

impl Tally {
    /// Counts the messages of a network, whose links have this latency.
    pub(super) fn of(network: &Network, latency: Duration) -> Arc<Self> {
        let tally = Arc::new(Self::default());
        let noting = Arc::clone(&tally);
        network.observe(move |packet| {
            if !noting.is_paused.load(Ordering::Relaxed) {
                let mut fates = noting.fates.lock().unwrap_or_else(PoisonError::into_inner);
                fates.note(packet, latency);
            }
        });
        tally
    }

    pub(super) fn pause(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Ordering::Relaxed);
    }

    pub(super) fn fates(&self) -> Fates {
        *self.fates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
