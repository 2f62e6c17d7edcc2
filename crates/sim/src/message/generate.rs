//! Generates scripts from seeds.

use fastrand::Rng;

use super::script::{By, Connection, Limits, Operation, Script, Settings};
use crate::choices::Choices;
use crate::generate::{Season, weather};
use crate::script::Weather;

/// Returns the script for a seed. The same seed always gives the same script.
pub(crate) fn script(seed: u64) -> Script {
    let mut rng = Choices::OfSeed(Rng::with_seed(seed));
    let season = Season::choose(&mut rng);
    let devices = rng.usize(2..=3);
    let connections = (0..rng.usize(1..=3)).map(|_| connection(&mut rng, devices)).collect();
    let storm = season == Season::Storm;
    let settings = Settings {
        devices,
        infiniband: rng.u32(..3) == 0,
        deferred: rng.u32(..3) == 0,
        weather: weather(&mut rng, season),
        timeout: if season == Season::Clear { rng.u8(16..20) } else { rng.u8(11..14) },
        retries: if storm { rng.u8(0..=7) } else { 7 },
        connections,
    };
    let mut generator = Generator { rng, season, settings, operations: Vec::new() };
    generator.operations();
    let Generator { settings, operations, .. } = generator;
    Script { seed, settings, operations }
}

fn connection(rng: &mut Choices<'_>, devices: usize) -> Connection {
    let a = rng.usize(..devices);
    // A device is occasionally connected to itself.
    let b = if rng.u32(..12) == 0 { a } else { (a + rng.usize(1..devices)) % devices };
    let is_stream = rng.u32(..3) == 0;
    let is_hostile = rng.u32(..10) == 0;
    Connection { devices: [a, b], is_stream, is_hostile, limits: [limits(rng), limits(rng)] }
}

fn limits(rng: &mut Choices<'_>) -> Limits {
    let frame_bytes = match rng.u32(..4) {
        0 => rng.u32(64..=200),
        1 => rng.u32(200..=2_000),
        _ => rng.u32(2_000..=16_384),
    };
    let is_small = rng.bool();
    Limits {
        receives: if is_small { rng.u32(1..=6) } else { rng.u32(8..=32) },
        sends: if is_small { rng.u32(4..=8) } else { rng.u32(8..=24) },
        frame_bytes,
        window_bytes: frame_bytes * if rng.bool() { rng.u32(2..=4) } else { rng.u32(4..=32) },
        max_message: if rng.u32(..8) == 0 { rng.u32(..100_000) } else { 1 << 20 },
        eager_bytes: if rng.bool() { rng.u32(8..=1_000) } else { rng.u32(1_000..=100_000) }
            .min(frame_bytes * FRAMES),
        offer_bytes: lent(rng),
        fetch_bytes: lent(rng),
        operations: if rng.u32(..6) == 0 { rng.u32(1..=20) } else { OPERATIONS },
        calls: if rng.u32(..4) == 0 { rng.u32(1..=4) } else { 256 },
    }
}

/// Returns the number of bytes that are lent or fetched at a time.
fn lent(rng: &mut Choices<'_>) -> u32 {
    match rng.u32(..8) {
        0 => 0,
        1..4 => rng.u32(1..=100_000),
        _ => rng.u32(100_000..=600_000),
    }
}

/// A number of operations that no end reaches.
const OPERATIONS: u32 = 4_096;
/// The maximum length of a message, in bytes.
const LONGEST: usize = 300_000;
/// The maximum number of frames of a message or of one write. This is several times the credit of any connection. More
/// frames repeat the same states, and would take most of the time of all workloads.
const FRAMES: u32 = 256;

struct Generator<'a> {
    rng: Choices<'a>,
    season: Season,
    settings: Settings,
    operations: Vec<Operation>,
}

impl Generator<'_> {
    fn operations(&mut self) {
        for _ in 0..self.rng.usize(20..250) {
            let end = self.end();
            match self.rng.u32(..100) {
                0..38 => self.send(end),
                38..50 => self.receive(end),
                50..60 => self.answer(end),
                60..64 => {
                    let nth = self.rng.usize(..16);
                    self.operations.push(Operation::Cancel { end, nth });
                }
                64..67 => {
                    let count = self.rng.usize(..4);
                    self.operations.push(Operation::Keep { end, count });
                }
                67..70 => self.operations.push(Operation::Interrupt { end }),
                70..73 => self.overtake(end),
                73..95 => self.pass(),
                95 if self.rng.bool() => self.end_of(end),
                96..98 if self.season == Season::Rain => self.link(),
                96..100 if self.season == Season::Storm => self.fault(end),
                _ => self.pass(),
            }
        }
        // No later operation of the end processes what it does not await.
        for connection in 0..self.settings.connections.len() {
            let end = 2 * connection + self.rng.usize(..2);
            self.overtake(end);
        }
    }

    fn end(&mut self) -> usize {
        self.rng.usize(..2 * self.settings.connections.len())
    }

    fn send(&mut self, end: usize) {
        if self.settings.is_hostile(end) {
            for _ in 0..self.rng.usize(1..=12) {
                let seed = self.rng.u64(..);
                self.operations.push(Operation::Frame { end, seed });
            }
            return;
        }
        if self.settings.connections[end / 2].is_stream {
            let most = 1 << self.rng.u32(4..20);
            let length = self.rng.usize(1..=most).min(self.frame_bytes(end) * FRAMES as usize);
            return self.operations.push(Operation::Write { end, length });
        }
        for _ in 0..self.rng.usize(1..=12) {
            let length = self.length(end);
            let by = match self.rng.u32(..8) {
                0 | 1 => {
                    // An empty request cannot be distinguished from others.
                    self.operations.push(Operation::Call { end, length: length.max(8) });
                    continue;
                }
                2 => By::SendBuffer,
                3..6 => By::Post,
                _ => By::Send,
            };
            self.operations.push(Operation::Send { end, length, by });
        }
        if self.rng.u32(..4) == 0 {
            let exits = self.rng.u32(..16) == 0;
            self.operations.push(Operation::Flush { end, exits });
        }
        if self.rng.u32(..3) > 0 {
            self.receive(end ^ 1);
        }
    }

    /// Returns the limits of an end, and those of its peer.
    fn limits(&self, end: usize) -> [&Limits; 2] {
        let limits = &self.settings.connections[end / 2].limits;
        [&limits[end % 2], &limits[1 - end % 2]]
    }

    fn frame_bytes(&self, end: usize) -> usize {
        let [own, peer] = self.limits(end);
        own.frame_bytes.min(peer.frame_bytes) as usize
    }

    fn length(&mut self, end: usize) -> usize {
        let [own, peer] = self.limits(end);
        let is_ordered = own.operations == OPERATIONS;
        let eager = own.eager_bytes as usize;
        let is_lent = own.offer_bytes > 0 && peer.fetch_bytes > 0;
        let frame = self.frame_bytes(end);
        let longest = if is_lent { LONGEST } else { LONGEST.min(frame * FRAMES as usize) };
        let rng = &mut self.rng;
        let length = match rng.u32(..20) {
            // An empty message cannot be distinguished from others, so their order must be known.
            0 if is_ordered => return 0,
            1..8 => rng.usize(8..=200),
            8..11 => frame * rng.usize(1..=3) - rng.usize(..=40),
            11..13 => eager + rng.usize(..=2),
            13..17 => rng.usize(8..=10_000),
            _ => rng.usize(8..=LONGEST),
        };
        length.clamp(8, longest)
    }

    fn receive(&mut self, end: usize) {
        let count = if self.rng.bool() { self.rng.usize(1..=4) } else { self.rng.usize(4..=40) };
        self.operations.push(Operation::Receive { end, count });
    }

    fn answer(&mut self, end: usize) {
        for _ in 0..self.rng.usize(1..=6) {
            let length = (self.rng.u32(..8) > 0).then(|| self.length(end));
            let nth = self.rng.usize(..8);
            self.operations.push(Operation::Answer { end, nth, length });
        }
    }

    /// Lets an end call its peer. The acknowledgement of the request may be lost, and the reply may arrive before the
    /// request is sent again.
    fn overtake(&mut self, end: usize) {
        let Connection { devices, is_stream, is_hostile, .. } = self.settings.connections[end / 2];
        if is_stream || is_hostile {
            return self.pass();
        }
        self.receive(end ^ 1);
        self.pass();
        let nanoseconds = 1 << self.rng.u32(10..18);
        let (from, to) = (devices[1 - end % 2], devices[end % 2]);
        self.operations.extend([
            Operation::Call { end, length: 8 },
            Operation::Blink { from, to, nanoseconds },
            Operation::Answer { end: end ^ 1, nth: 0, length: Some(8) },
        ]);
    }

    fn pass(&mut self) {
        let nanoseconds = match self.rng.u32(..12) {
            0..5 => self.rng.u64(..2_000),
            5..10 => self.rng.u64(2_000..100_000),
            10 => self.rng.u64(100_000..2_000_000),
            _ => self.rng.u64(2_000_000..50_000_000),
        };
        self.operations.push(Operation::Pass { nanoseconds });
    }

    /// Lets an end finish, or leave.
    fn end_of(&mut self, end: usize) {
        self.operations.push(match self.rng.bool() {
            _ if self.settings.is_hostile(end) => Operation::Kill { end },
            true => Operation::Finish { end, exits: self.rng.bool() },
            false => Operation::Leave { end },
        });
    }

    fn link(&mut self) {
        let devices = self.settings.devices;
        let (from, to) = (self.rng.usize(..devices), self.rng.usize(..devices));
        let weather = match self.season {
            Season::Storm if self.rng.u32(..4) == 0 => Weather::CUT,
            season => weather(&mut self.rng, season),
        };
        self.operations.push(Operation::Link { from, to, weather });
    }

    fn fault(&mut self, end: usize) {
        let device = self.rng.usize(..self.settings.devices);
        match self.rng.u32(..8) {
            0..4 => self.link(),
            4 | 5 => self.operations.push(Operation::Kill { end }),
            _ => {
                self.operations.push(Operation::Port { device, up: false });
                self.pass();
                self.operations.push(Operation::Port { device, up: true });
            }
        }
    }
}
