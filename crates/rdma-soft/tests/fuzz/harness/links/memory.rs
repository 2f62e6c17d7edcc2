//! The memory of the attacked queue pairs: zones with different registrations, and guards between them. It is refilled
//! for each input.

use rdma_sys::ibv_sge;
use test_support::rig::memory::{key_of, rkey_of};
use test_support::rig::{ALL_ACCESS, LOCAL_WRITE, Mr, Pd, REMOTE_READ};

const GUARD: usize = 64;
/// The bytes that one receive or READ may write; slots are separated by gaps.
pub(crate) const ROOM: usize = 1008;
const SLOT: usize = 1024;

/// Peers may access it in any way.
pub(crate) const SHARED: usize = 0;
/// Buffers of receives.
pub(crate) const RECEIVES: usize = 2;
/// Destinations of READs and atomics.
pub(crate) const SINKS: usize = 3;
/// Sources of sends.
pub(crate) const SOURCES: usize = 4;
/// Never named by any packet or request.
const PRIVATE: usize = 5;
const ZONES: usize = 6;

const SLOTS: [usize; ZONES] = [8, 4, 32, 8, 8, 2];
/// In the second zone peers may only read.
const RIGHTS: [u32; ZONES] = [ALL_ACCESS, REMOTE_READ, LOCAL_WRITE, LOCAL_WRITE, 0, LOCAL_WRITE];

#[derive(Clone, Copy)]
struct Zone {
    begin: usize,
    length: usize,
    key: u32,
    rkey: u32,
    /// The registration stays, and a leak checker finds it here.
    _mr: usize,
}

pub(crate) struct Memory {
    zones: [Zone; ZONES],
    memory: Mr,
    before: Vec<u8>,
    /// The bytes that no sent packet may contain; they differ for each input.
    secret: [u8; 16],
    /// The bytes that an unrelated connection has carried since, which are in the device's buffers.
    carried: [u8; 16],
    /// A key of another domain.
    foreign: u32,
}

impl Memory {
    pub(crate) fn new(pd: &Pd, other: &Pd, foreign: u32) -> Self {
        let mut end = GUARD;
        let places = SLOTS.map(|slots| {
            let begin = end;
            end += slots * SLOT + GUARD;
            (begin, slots * SLOT)
        });
        let memory = other.register(end, 0);
        let zones = std::array::from_fn(|number| {
            let (begin, length) = places[number];
            let start = memory.start().wrapping_add(begin);
            let mr = pd.try_register(start, length, RIGHTS[number]);
            let mr = mr.unwrap_or_else(|errno| panic!("zone {number}: {errno}"));
            let (key, rkey) = (key_of(mr), rkey_of(mr));
            Zone { begin, length, key, rkey, _mr: mr.expose_provenance() }
        });
        let before = (0..end).map(|at| 0x10 + (at / 8 % 199) as u8).collect();
        let mut memory = Self { zones, memory, before, secret: [0; 16], carried: [0; 16], foreign };
        memory.carry(0);
        memory
    }

    /// Returns bytes that occur nowhere else.
    fn secret(&self, input: u64, salt: u64) -> [u8; 16] {
        let mix = |n: u64| {
            let n = (input << 2 | salt) ^ n << 32;
            n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ self.memory.address()
        };
        let (low, high) = (mix(u64::from(std::process::id())), mix(u64::from(self.foreign)));
        (u128::from(high) << 64 | u128::from(low)).to_le_bytes()
    }

    /// Returns the bytes that an unrelated connection carries next.
    pub(crate) fn carry(&mut self, input: u64) -> [u8; 16] {
        self.carried = self.secret(input, 1);
        self.carried
    }

    /// Fills the memory.
    pub(crate) fn prepare(&mut self, input: u64) {
        self.secret = self.secret(input, 0);
        let zone = self.zones[PRIVATE];
        for part in self.before[zone.begin..zone.begin + zone.length].chunks_exact_mut(16) {
            part.copy_from_slice(&self.secret);
        }
        self.memory.copy_in(0, &self.before);
    }

    /// Checks that nothing has changed except where access was granted.
    pub(crate) fn check(&self) {
        let (after, mut from) = (self.memory.bytes(), 0);
        let mut same = |to: usize, next: usize| {
            assert_eq!(after[from..to], self.before[from..to], "at {from}");
            from = next;
        };
        let shared = self.zones[SHARED];
        same(shared.begin, shared.begin + shared.length);
        for zone in [RECEIVES, SINKS].map(|zone| self.zones[zone]) {
            for slot in (zone.begin..zone.begin + zone.length).step_by(SLOT) {
                same(slot, slot + ROOM);
            }
        }
        same(after.len(), 0);
        let found = has(&after, &self.carried);
        assert!(!found, "another connection's bytes are in the memory that a stranger wrote to");
    }

    /// Checks that a packet which the device has sent contains no private bytes.
    pub(crate) fn check_sent(&self, packet: &[u8]) {
        assert!(!has(packet, &self.secret), "private memory was sent");
        assert!(!has(packet, &self.carried), "another connection's bytes were sent to a stranger");
    }

    /// A slot of a zone.
    pub(crate) fn slot(&self, zone: usize, number: u64, length: usize) -> ibv_sge {
        let Zone { begin, key, .. } = self.zones[zone];
        let at = begin + (number as usize % SLOTS[zone]) * SLOT;
        ibv_sge { lkey: key, ..self.memory.sge(at, length) }
    }

    pub(crate) fn length(&self, zone: usize) -> usize {
        self.zones[zone].length
    }

    pub(crate) fn source(&self, at: u16, length: u16) -> ibv_sge {
        let Zone { begin, length: all, key, .. } = self.zones[SOURCES];
        let half = all / 2;
        let at = begin + usize::from(at) % half;
        ibv_sge { lkey: key, ..self.memory.sge(at, usize::from(length) % (half + 1)) }
    }

    /// An address that a packet names: in a zone, just past its end, or elsewhere.
    pub(crate) fn address(&self, code: u8, at: u16) -> u64 {
        let base = |zone: usize| self.memory.address() + self.zones[zone].begin as u64;
        let at = u64::from(at);
        match (code ^ code >> 3) % 8 {
            zone @ 0..6 => {
                let zone = usize::from(zone);
                base(zone) + at % (self.zones[zone].length as u64 + 16)
            }
            6 => base(SHARED) - 1 - at % 64,
            _ => u64::MAX - at,
        }
    }

    /// A key of a zone, a similar one, one of another domain, or none.
    pub(crate) fn key(&self, code: u8) -> u32 {
        match code % 8 {
            zone @ 0..6 if code < 0xc0 => self.zones[usize::from(zone)].rkey,
            zone @ 0..6 => self.zones[usize::from(zone)].key ^ 1 << (zone * 4),
            6 => self.foreign,
            _ => 0,
        }
    }
}

fn has(bytes: &[u8], secret: &[u8; 16]) -> bool {
    bytes.windows(16).any(|part| part == secret)
}
