//! The devices, which inputs share, and the memory of their requests, which is refilled for each input.
//!
//! The memory has zones with different registrations, and guards between them.

use std::ptr;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use rdma_soft::{Builder, Network, Schedule, SoftDevice};
use rdma_sys::ibv_mr;
use test_support::rig::connect::{Endpoint, endpoint};
use test_support::rig::datagram::Ah;
use test_support::rig::memory::{key_of, rkey_of};
use test_support::rig::{
    ALL_ACCESS, Context, Cq, LOCAL_WRITE, MW_BIND, Mr, Pd, REMOTE_READ, Size, ZERO_BASED,
};

pub(crate) const ZONE: usize = 2048;
const GUARD: usize = 64;
const ZONES: usize = 8;
const MEMORY: usize = GUARD + ZONES * (ZONE + GUARD);

/// The rights that the keys of each zone grant. One zone is not registered.
const RIGHTS: [Option<u32>; ZONES] = [
    Some(ALL_ACCESS),
    Some(REMOTE_READ),
    Some(LOCAL_WRITE | MW_BIND),
    Some(ALL_ACCESS),
    None,
    Some(ALL_ACCESS),
    Some(ALL_ACCESS | ZERO_BASED),
    Some(0),
];
/// The zone registered in another domain.
const FOREIGN: usize = 3;
/// The zone at the end of the address space.
const HIGH: usize = 5;
/// The zone whose addresses begin at 0.
const ZERO: usize = 6;

/// A zone and its keys.
pub(crate) struct Zone {
    rights: u32,
    pub(crate) key: u32,
    pub(crate) rkey: u32,
    pub(crate) base: u64,
    mr: usize,
    own: bool,
}

impl Zone {
    fn new([pd, other]: [&Pd; 2], memory: &Mr, number: usize) -> Self {
        let start = memory.start().wrapping_add(place(number));
        let base = match number {
            HIGH => 0_u64.wrapping_sub(ZONE as u64 + 8),
            ZERO => 0,
            _ => start.addr() as u64,
        };
        let Some(rights) = RIGHTS[number] else {
            return Self { rights: 0, key: 0, rkey: 0, base, mr: 0, own: false };
        };
        let pd = if number == FOREIGN { other } else { pd };
        let mr = match number {
            HIGH => pd.try_register_range_at(start, ZONE, base, rights),
            _ => pd.try_register(start, ZONE, rights),
        };
        let mr = mr.unwrap_or_else(|errno| panic!("zone {number}: {errno}"));
        let (key, rkey) = (key_of(mr), rkey_of(mr));
        Self { rights, key, rkey, base, mr: mr.expose_provenance(), own: number != FOREIGN }
    }

    /// Returns NULL if the zone is not registered.
    pub(crate) fn mr(&self) -> *mut ibv_mr {
        ptr::with_exposed_provenance_mut(self.mr)
    }

    fn covers(&self, address: u64, length: u64) -> bool {
        let end = u128::from(address) + u128::from(length);
        self.own && address >= self.base && end <= u128::from(self.base) + ZONE as u128
    }
}

fn place(zone: usize) -> usize {
    GUARD + zone * (ZONE + GUARD)
}

/// A device, and the objects that all inputs use.
pub(crate) struct World {
    pub(crate) ahs: [Ah; 2],
    pub(crate) zones: [Zone; ZONES],
    memory: Mr,
    before: Vec<u8>,
    /// The send and receive completion queues of each queue pair.
    pub(crate) queues: [[Cq; 2]; 2],
    pub(crate) pd: Pd,
    _other: Pd,
    pub(crate) here: Endpoint,
    pub(crate) context: Context,
    pub(crate) soft: SoftDevice,
    /// The network of the device that sends packets.
    pub(crate) network: Option<Network>,
    pub(crate) held: bool,
}

impl World {
    /// Locks the device that executes within a post, the one that holds requests back, or the one that sends packets.
    pub(crate) fn lock(device: u8) -> MutexGuard<'static, Self> {
        static IMMEDIATE: LazyLock<Mutex<World>> =
            LazyLock::new(|| Mutex::new(World::new(Builder::new("fuzz-immediate"), None, false)));
        static HELD: LazyLock<Mutex<World>> = LazyLock::new(|| {
            let builder = Builder::new("fuzz-held").schedule(Schedule::Held);
            Mutex::new(World::new(builder, None, true))
        });
        static WIRE: LazyLock<Mutex<World>> = LazyLock::new(|| {
            let network = Network::simulated(1);
            let builder = Builder::new("fuzz-wire").network(&network);
            Mutex::new(World::new(builder, Some(network), false))
        });
        let world = [&IMMEDIATE, &HELD, &WIRE][usize::from(device % 3)];
        world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn new(builder: Builder, network: Option<Network>, held: bool) -> Self {
        let soft = builder.install().expect("the name is unused");
        let context = Context::open(soft.name());
        let (pd, other) = (context.pd(), context.pd());
        let queues = [[(); 2]; 2].map(|both| both.map(|()| context.cq(256)));
        let here = {
            let qp = pd.qp(&queues[0][0], &queues[0][1], &Size::default());
            endpoint(&context, &qp)
        };
        let memory = other.register(MEMORY, 0);
        let zones = std::array::from_fn(|number| Zone::new([&pd, &other], &memory, number));
        let ahs = [&pd, &other].map(|pd| pd.ah_to(&here, &here));
        let before = (0..MEMORY).map(|at| 0x10 + (at / 8 % 199) as u8).collect();
        Self {
            ahs,
            zones,
            memory,
            before,
            queues,
            pd,
            _other: other,
            here,
            context,
            soft,
            network,
            held,
        }
    }

    /// Fills the memory.
    pub(crate) fn prepare(&self) {
        self.memory.copy_in(0, &self.before);
        for queue in self.queues.iter().flatten() {
            assert!(queue.is_empty(), "the previous input has left completions");
        }
    }

    /// Checks that nothing has changed except where access was granted.
    pub(crate) fn check_memory(&self) {
        let after = self.memory.bytes();
        let mut from = 0;
        let writable = |zone: &usize| self.zones[*zone].own && self.writable(*zone);
        for zone in (0..ZONES).filter(writable) {
            assert_eq!(after[from..place(zone)], self.before[from..place(zone)], "zone {zone}");
            from = place(zone) + ZONE;
        }
        assert_eq!(after[from..], self.before[from..], "after the last zone");
    }

    fn writable(&self, zone: usize) -> bool {
        self.zones[zone].rights & LOCAL_WRITE != 0
    }

    /// The address of initialised memory of this process, which needs no key.
    pub(crate) fn plain(&self, at: u16, length: u32) -> u64 {
        let room = MEMORY - length as usize;
        self.memory.address() + (usize::from(at) % room) as u64
    }

    /// An address in a zone, past its end, or elsewhere.
    pub(crate) fn address(&self, zone: u8, at: u16) -> u64 {
        let within = u64::from(at) % (ZONE as u64 + 16);
        match zone % 16 {
            zone @ 0..8 => self.zones[usize::from(zone)].base.wrapping_add(within),
            8 => within,
            9 => self.zones[usize::from(zone / 16 % 8)].base.wrapping_sub(1 + within % 64),
            10 => u64::MAX - within,
            11 => 0xdead_0000 + within,
            12 => 1 << 47,
            // Aligned, for atomics.
            _ => self.zones[0].base.next_multiple_of(8) + (within & !7),
        }
    }

    /// A key of a zone or window, a similar one, or none.
    pub(crate) fn key(&self, code: u8, windows: [u32; 2]) -> u32 {
        match code % 16 {
            zone @ 0..8 => self.zones[usize::from(zone)].rkey,
            n @ 8..10 => windows[usize::from(n - 8)],
            10 => rdma_sys::ibv_inc_rkey(windows[1]),
            11 => 0,
            12 => u32::MAX,
            13 => self.zones[0].rkey ^ 0x100,
            14 => self.zones[0].rkey ^ 1,
            _ => self.zones[0].rkey,
        }
    }

    pub(crate) fn lkey(&self, code: u8, windows: [u32; 2]) -> u32 {
        match code % 16 {
            zone @ 0..8 => self.zones[usize::from(zone)].key,
            other => self.key(other, windows),
        }
    }

    /// Returns true if the key lets the device use that local memory.
    pub(crate) fn grants(&self, key: u32, address: u64, length: u32, write: bool) -> bool {
        let right = if write { LOCAL_WRITE } else { 0 };
        self.zones.iter().any(|zone| {
            zone.key == key && zone.covers(address, length.into()) && zone.rights & right == right
        })
    }

    /// Returns true if the key gives the peer that right to the memory.
    pub(crate) fn serves(&self, rkey: u32, address: u64, length: u64, right: u32) -> bool {
        self.zones.iter().any(|zone| {
            zone.rkey == rkey && zone.covers(address, length) && zone.rights & right == right
        })
    }
}
