//! Generates scripts, from a seed or from bytes.

use fastrand::Rng;

use crate::choices::Choices;
use crate::script::{
    Connection, GROUPS, Kind, Operation, SLOTS, Script, ScriptRequest, Service, Settings, Weather,
    Window,
};

/// The severity of a script's faults.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Season {
    /// No faults.
    Clear,
    /// Only few packets are lost, so no request fails.
    Rain,
    /// Any fault may happen.
    Storm,
}

impl Season {
    pub(crate) fn choose(rng: &mut Choices<'_>) -> Self {
        match rng.u32(..10) {
            0..3 => Self::Clear,
            3..6 => Self::Rain,
            _ => Self::Storm,
        }
    }
}

/// Returns the script for a seed. The same seed always gives the same script.
pub(crate) fn script(seed: u64) -> Script {
    make(seed, Choices::OfSeed(Rng::with_seed(seed)), LONGEST, None)
}

/// Returns the script decoded from the bytes. Whatever the bytes are, the script can be run and is
/// short.
pub(crate) fn script_of(bytes: &[u8]) -> Script {
    let mut choices = Choices::OfBytes(bytes);
    let seed = choices.u32(..).into();
    make(seed, choices, SHORT, Some(PACKETS))
}

/// The maximum length of a message, in bytes.
const LONGEST: usize = 150_000;
/// The maximum length of a message in a script from bytes.
const SHORT: usize = 8_192;
/// The maximum number of packets that a script from bytes sends.
const PACKETS: u64 = 2_000;

fn make(seed: u64, mut rng: Choices<'_>, most: usize, packets: Option<u64>) -> Script {
    let season = Season::choose(&mut rng);
    let devices = rng.usize(2..=4);
    let longest = match rng.u32(..20) {
        0 => rng.usize(65_536..150_000),
        1..4 => rng.usize(16_384..65_536),
        4..10 => rng.usize(4_097..16_384),
        _ => rng.usize(64..=4_096),
    };
    let longest = longest.min(most);
    let connections: Vec<_> =
        (0..rng.usize(1..=4)).map(|_| connection(&mut rng, devices, season)).collect();
    let datagrams = match rng.u32(..3) {
        0 => (0..rng.usize(2..=3)).map(|_| rng.usize(..devices)).collect(),
        _ => Vec::new(),
    };
    let weather = weather(&mut rng, season);
    let infiniband = rng.u32(..3) == 0;
    let settings = Settings { infiniband, devices, weather, longest, connections, datagrams };
    let mut generator = Generator { rng, season, settings, operations: Vec::new() };
    generator.operations();
    let Generator { settings, operations, .. } = generator;
    Script { seed, settings, operations, packets }
}

fn connection(rng: &mut Choices<'_>, devices: usize, season: Season) -> Connection {
    let service = if rng.u32(..5) == 0 { Service::Unreliable } else { Service::Reliable };
    let storm = season == Season::Storm;
    let a = rng.usize(..devices);
    // A device is occasionally connected to itself.
    let b = if rng.u32(..12) == 0 { a } else { (a + rng.usize(1..devices)) % devices };
    let psn = match rng.u32(..4) {
        0 => 0x00ff_ffff - rng.u32(..200),
        1 => rng.u32(..3),
        _ => rng.u32(..1 << 24),
    };
    let timeout = match season {
        Season::Clear => rng.u8(16..20),
        Season::Rain => rng.u8(11..14),
        Season::Storm => rng.u8(5..13),
    };
    // A few queue pairs wait indefinitely.
    let for_ever = rng.u32(..8) == 0;
    Connection {
        devices: [a, b],
        service,
        mtu: 256 << rng.u32(..5),
        psn,
        timeout: if for_ever { 0 } else { timeout },
        retries: if storm && !for_ever { rng.u8(0..=7) } else { 7 },
        rnr_retries: if storm && !for_ever && rng.bool() { rng.u8(0..7) } else { 7 },
        min_rnr_timer: rng.u8(1..12),
        rd_atomic: if rng.bool() { rng.u8(1..=3) } else { 16 },
        sends: rng.u32(4..=64),
        receives: rng.u32(2..=32),
        shared: [rng.u32(..4) == 0, rng.u32(..4) == 0],
    }
}

pub(crate) fn weather(rng: &mut Choices<'_>, season: Season) -> Weather {
    let latency_ns = if rng.bool() { rng.u64(1..3_000) } else { rng.u64(3_000..20_000) };
    let jitter_ns = if rng.bool() { 0 } else { rng.u64(..10_000) };
    let gigabit = [0, 10, 25, 100, 400][rng.usize(..5)];
    let bits_per_second = gigabit * 1_000_000_000;
    let calm = Weather { latency_ns, jitter_ns, bits_per_second, ..Weather::CLEAR };
    let mut some = |most: u32| if rng.bool() { rng.u32(..=most) } else { 0 };
    match season {
        Season::Clear => calm,
        Season::Rain => Weather {
            loss: some(50),
            duplication: some(50),
            reordering: some(50),
            corruption: some(50),
            ..calm
        },
        Season::Storm => Weather {
            loss: some(1_500),
            duplication: some(1_000),
            reordering: some(1_500),
            corruption: some(500),
            ..calm
        },
    }
}

struct Generator<'a> {
    rng: Choices<'a>,
    season: Season,
    settings: Settings,
    operations: Vec<Operation>,
}

impl Generator<'_> {
    fn operations(&mut self) {
        for end in 0..self.settings.ends() {
            // Receives that are not posted here are posted late, below or at the end.
            if self.rng.u32(..5) > 0 {
                self.receive(end);
            }
        }
        for end in 2 * self.settings.connections.len()..self.settings.ends() {
            if self.rng.bool() {
                let group = self.rng.usize(..GROUPS);
                self.operations.push(Operation::Join { end, group });
            }
        }
        for _ in 0..self.rng.usize(20..200) {
            if !self.rng.go_on() {
                return;
            }
            match self.rng.u32(..100) {
                0..60 => self.posts(),
                60..67 => self.windows(),
                67..70 => self.groups(),
                70..85 => self.pass(),
                85..95 => {
                    let end = self.rng.usize(..self.settings.ends());
                    self.receive(end);
                }
                _ if self.season == Season::Storm => self.fault(),
                95..98 if self.season == Season::Rain => self.link(),
                _ => self.pass(),
            }
        }
    }

    fn receive(&mut self, end: usize) {
        let (count, elements) = (self.rng.usize(1..=16), self.rng.usize(1..=3));
        self.operations.push(Operation::Receive { end, count, elements });
    }

    fn pass(&mut self) {
        let nanoseconds = match self.rng.u32(..10) {
            0..4 => self.rng.u64(..2_000),
            4..8 => self.rng.u64(2_000..50_000),
            8 => self.rng.u64(50_000..1_000_000),
            _ => self.rng.u64(1_000_000..20_000_000),
        };
        self.operations.push(Operation::Pass { nanoseconds });
    }

    /// Generates a few requests of one queue pair.
    fn posts(&mut self) {
        let end = self.rng.usize(..self.settings.ends());
        let receiver = self.settings.connections.get(end / 2).map_or(end, |_| end ^ 1);
        if self.rng.u32(..3) > 0 {
            self.receive(receiver);
        }
        for _ in 0..self.rng.usize(1..=8) {
            let request = self.request(end);
            self.operations.push(Operation::Post { end, request });
        }
    }

    /// Generates an operation of a queue pair on its own windows.
    fn windows(&mut self) {
        let end = self.rng.usize(..self.settings.ends());
        let slot = self.rng.usize(..SLOTS);
        match self.rng.u32(..10) {
            0..6 => self.local(end, Kind::Bind),
            6..9 => self.local(end, Kind::Invalidate),
            _ => self.operations.push(Operation::Deallocate { end, slot }),
        }
        // Usually lets the operation complete first, so that the outcome of later ones is known.
        if self.rng.u32(..3) > 0 {
            self.pass();
        }
    }

    fn local(&mut self, end: usize, kind: Kind) {
        let request = ScriptRequest { kind, window: Some(self.window()), ..self.request(end) };
        self.operations.push(Operation::Post { end, request });
    }

    fn window(&mut self) -> Window {
        let longest = self.settings.longest;
        let rng = &mut self.rng;
        let whole = rng.u32(..3) > 0;
        let storm = self.season == Season::Storm;
        Window {
            slot: rng.usize(..SLOTS),
            back: if storm && rng.u32(..6) == 0 { rng.usize(..3) } else { 0 },
            careful: !storm || rng.u32(..4) > 0,
            from: if whole { 0 } else { rng.usize(..=longest) },
            bytes: if whole { usize::MAX } else { rng.usize(1..=2 * longest) },
            rights: if rng.u32(..3) > 0 { u8::MAX } else { rng.u8(..8) },
            edge: (rng.u32(..4) == 0).then(|| storm && rng.bool()),
        }
    }

    /// Makes a datagram queue pair join or leave a group.
    fn groups(&mut self) {
        let first = 2 * self.settings.connections.len();
        if self.settings.datagrams.is_empty() {
            return self.pass();
        }
        let end = self.rng.usize(first..self.settings.ends());
        let group = self.rng.usize(..GROUPS);
        self.operations.push(match self.rng.bool() {
            true => Operation::Join { end, group },
            false => Operation::Leave { end, group },
        });
    }

    fn request(&mut self, end: usize) -> ScriptRequest {
        let ends = self.settings.ends();
        let connection = self.settings.connections.get(end / 2).copied();
        let service = connection.map_or(Service::Datagram, |connection| connection.service);
        let kind = match (service, self.rng.u32(..20)) {
            (Service::Datagram, _) | (_, 0..6) => Kind::Send,
            (_, 6..11) | (Service::Unreliable, _) => Kind::Write,
            (_, 11..15) => Kind::Read,
            (_, 15..18) => Kind::FetchAdd,
            _ => Kind::CompareSwap,
        };
        let mtu = connection.map_or(1024, |connection| connection.mtu) as usize;
        let length = self.length(mtu);
        let datagrams = 2 * self.settings.connections.len();
        let window = self.rng.u32(..3) == 0 && service == Service::Reliable;
        let window = window.then(|| self.window());
        let rng = &mut self.rng;
        let group = service == Service::Datagram && rng.u32(..3) == 0;
        ScriptRequest {
            kind,
            length,
            at: match kind {
                Kind::FetchAdd | Kind::CompareSwap => rng.usize(..4),
                _ => rng.usize(..=self.settings.longest),
            },
            immediate: kind != Kind::Read && rng.u32(..4) == 0,
            fenced: rng.u32(..8) == 0,
            signaled: rng.u32(..3) > 0,
            inline: rng.u32(..4) == 0,
            elements: rng.usize(1..=3),
            // Only few SENDs invalidate windows, because other requests may be using these.
            window: window.filter(|_| kind != Kind::Send || rng.bool()),
            group: group.then(|| rng.usize(..GROUPS)),
            to: if service == Service::Datagram { rng.usize(datagrams..ends) } else { usize::MAX },
        }
    }

    fn length(&mut self, mtu: usize) -> usize {
        let longest = self.settings.longest;
        let rng = &mut self.rng;
        let length = match rng.u32(..20) {
            0 => 0,
            1..7 => rng.usize(1..64),
            7..12 => (mtu * rng.usize(1..=4) + rng.usize(..=2)).saturating_sub(1),
            _ => rng.usize(..=longest),
        };
        length.min(longest)
    }

    fn link(&mut self) {
        let devices = self.settings.devices;
        let (from, to) = (self.rng.usize(..devices), self.rng.usize(..devices));
        let weather = weather(&mut self.rng, self.season);
        self.operations.push(Operation::Link { from, to, weather });
    }

    fn fault(&mut self) {
        let (devices, ends) = (self.settings.devices, self.settings.ends());
        let device = self.rng.usize(..devices);
        let end = self.rng.usize(..ends);
        match self.rng.u32(..24) {
            0..6 => self.link(),
            6..10 => {
                let (from, to) = (device, self.rng.usize(..devices));
                let both = self.rng.bool();
                self.cut(from, to, both);
            }
            10..13 => {
                self.operations.push(Operation::Port { device, up: false });
                self.posts();
                self.pass();
                self.operations.push(Operation::Port { device, up: true });
            }
            13 => self.operations.push(Operation::Die { device }),
            14..17 => self.operations.push(Operation::Deregister { end }),
            17..19 => self.operations.push(Operation::Error { end }),
            _ => {
                let connection = self.rng.usize(..self.settings.connections.len());
                self.operations.push(Operation::Reconnect { connection });
            }
        }
    }

    /// Cuts a link. Usually restores it later.
    fn cut(&mut self, from: usize, to: usize, both: bool) {
        let link = |from, to, weather| Operation::Link { from, to, weather };
        self.operations.push(link(from, to, Weather::CUT));
        if both {
            self.operations.push(link(to, from, Weather::CUT));
        }
        for _ in 0..self.rng.usize(..3) {
            self.posts();
        }
        self.pass();
        if self.rng.u32(..5) > 0 {
            let weather = weather(&mut self.rng, self.season);
            self.operations.push(link(from, to, weather));
            self.operations.push(link(to, from, weather));
        }
    }
}
