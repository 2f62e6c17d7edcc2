//! Tests that a peer cannot derive secrets from public values.

use super::*;
use crate::device::Device;
use crate::device::gid_place::GidPlace;
use crate::device::subnet::Subnet;
use crate::limits::Limits;
use crate::link::Link;
use crate::memory::region::Region;
use crate::schedule::Schedule;

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the state of SplitMix that produced this output. Each step of the generator can be inverted.
fn state_behind(output: u64) -> u64 {
    const BACK: [u64; 2] = [inverse(0x94d0_49bb_1331_11eb), inverse(0xbf58_476d_1ce4_e5b9)];
    let z = (output ^ output >> 31 ^ output >> 62).wrapping_mul(BACK[0]);
    let z = (z ^ z >> 27 ^ z >> 54).wrapping_mul(BACK[1]);
    z ^ z >> 30 ^ z >> 60
}

/// Returns the inverse of an odd number modulo 2^64, by Newton's method.
const fn inverse(odd: u64) -> u64 {
    let (mut x, mut right_bits) = (odd, 3);
    while right_bits < 64 {
        x = x.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(x)));
        right_bits *= 2;
    }
    x
}

static SUBNET: Subnet = Subnet::new();

fn device(gids: Vec<GidPlace>, seed: &Seed) -> Device {
    let (name, limits) = ("attacked".to_owned(), Limits::default());
    Device::new(&SUBNET, name, Link::Ethernet, gids, limits, Schedule::Immediate, seed)
}

fn first_key(device: &Device) -> u32 {
    let region = Region { address: 1, iova: 1, length: 1, access: 1, scope: 1 };
    device.memory.regions.insert(&region).unwrap()
}

/// A link-local GID contains 40 bits of an output, and an IPv4-mapped one 27 bits of the next. If a device drew its
/// GIDs and its keys from SplitMix, trying the remaining 24 bits would reveal all keys. This test shows only that this
/// one attack fails. For all other attacks, the device relies on ChaCha20.
#[test]
fn the_attack_on_splitmix_does_not_reveal_the_keys() {
    let device = device(GidPlace::usual(Link::Ethernet), &Seeds::System.draw().unwrap());
    let guid = device.guid().to_u64().to_be_bytes();
    let ipv4 = device.identity.gids[2].gid.to_ipv4().unwrap().to_bits() & 0x07ff_ffff;
    let known = [0, guid[1], guid[2], guid[5], guid[6], guid[7], 0, 0];
    let (known, key) = (u64::from_be_bytes(known), first_key(&device));
    for guess in 0..1_u64 << 24 {
        let output = known | guess >> 16 << 56 | guess & 0xffff;
        let mut stolen = SplitMix::new(state_behind(output));
        if stolen.next_u32() & 0x07ff_ffff != ipv4 {
            continue;
        }
        // The subnet and the first queue pair number are drawn between the addresses and the keys.
        let masks: [u32; 4] = std::array::from_fn(|_| stolen.next_u32() & 0x00ff_ffff);
        assert!(!masks.contains(&(key >> 8)), "state {guess:#x} reveals key {key:#x}");
    }
}

#[test]
fn the_attack_breaks_splitmix() {
    let mut rng = SplitMix::new(77);
    assert_eq!(state_behind(rng.next_u64()), 77_u64.wrapping_add(GOLDEN));
    assert_eq!(SplitMix::new(state_behind(rng.next_u64())).next_u64(), rng.next_u64());
}

/// Keeps a device forever, as programs do, in a static where a leak checker finds it.
fn kept(device: Device) -> &'static Device {
    static KEPT: Mutex<Vec<&Device>> = Mutex::new(Vec::new());
    let device: &'static Device = Box::leak(Box::new(device));
    locked(&KEPT).push(device);
    device
}

#[test]
fn one_seed_makes_one_device_and_the_system_s_seeds_differ() {
    let of = |seed| {
        let device = kept(device(GidPlace::usual(Link::Ethernet), &seed));
        (device.guid(), first_key(device), device.reserve_qpn().unwrap())
    };
    assert_eq!(of(Seed::new(7)), of(Seed::new(7)));
    let [one, other] = [(); 2].map(|()| of(Seeds::System.draw().unwrap()));
    assert!(one.0 != other.0 && one.1 != other.1 && one.2 != other.2, "{one:x?} {other:x?}");
}

/// Drawing numbers for one purpose does not change the numbers for another.
#[test]
fn secrets_do_not_depend_on_draws_of_the_identity() {
    let seed = Seed::new(9);
    let (mut plain, mut redrawn) = (device(Vec::new(), &seed), device(Vec::new(), &seed));
    plain.identity.redraw(Link::Ethernet);
    (0..9).for_each(|_| redrawn.identity.redraw(Link::Ethernet));
    assert_ne!(plain.guid(), redrawn.guid());
    assert_eq!(first_key(&plain), first_key(&redrawn));
    let [plain, redrawn] = [plain, redrawn].map(kept);
    assert_eq!(plain.reserve_qpn(), redrawn.reserve_qpn());
}

#[test]
fn purposes_draw_different_numbers() {
    let seed = Seed::new(1);
    let purposes = [Purpose::Identity, Purpose::Keys, Purpose::QueuePairNumbers];
    let mut drawn = purposes.map(|purpose| {
        let mut stream = seed.stream(purpose);
        std::array::from_fn::<u64, 64, _>(|_| stream.next_u64())
    });
    let all = drawn.as_flattened_mut();
    all.sort_unstable();
    assert!(all.windows(2).all(|pair| pair[0] != pair[1]));
}

#[test]
fn a_seed_is_not_printed() {
    let (seed, mut stream) = (Seed::new(0xab), Seed::new(0xab).stream(Purpose::Keys));
    let next = stream.next_u32();
    let printed = format!("{seed:?} {stream:?}");
    assert!(!printed.contains("171") && !printed.contains(&next.to_string()), "{printed}");
}

#[test]
fn below_stays_below_and_reaches_every_number() {
    let (mut random, mut rng) = (Seed::new(1).stream(Purpose::Keys), SplitMix::new(1));
    for below in
        [&mut |n| random.below(n), &mut |n| rng.below(n)] as [&mut dyn FnMut(u32) -> u32; 2]
    {
        let mut seen = [0; 3];
        (0..1000).for_each(|_| seen[below(3) as usize] += 1);
        assert!(seen.iter().all(|&times| times > 200), "{seen:?}");
        assert_eq!(below(0), 0);
    }
}

#[test]
fn a_shuffle_permutes_the_list() {
    let mut random = Seed::new(1).stream(Purpose::Keys);
    let mut list: Vec<u32> = (0..100).collect();
    random.shuffle(&mut list);
    let in_place = list.iter().zip(0..).filter(|&(&now, before)| now == before).count();
    assert!(in_place < 10, "{in_place} of 100");
    list.sort_unstable();
    assert!(list.iter().copied().eq(0..100));
    random.shuffle::<u32>(&mut []);
}

#[test]
fn equal_seeds_of_schedules_agree() {
    let (mut a, mut b) = (SplitMix::new(7), SplitMix::new(7));
    assert!((0..100).all(|_| a.next_u64() == b.next_u64()));
}

#[test]
fn every_order_of_a_list_occurs() {
    let mut random = Seed::new(1).stream(Purpose::QueuePairNumbers);
    let mut found = std::collections::HashMap::new();
    for _ in 0..6000 {
        let mut list = [0, 1, 2];
        random.shuffle(&mut list);
        *found.entry(list).or_insert(0) += 1;
    }
    assert_eq!(found.len(), 6, "{found:?}");
    assert!(found.values().all(|times| (800..1200).contains(times)), "{found:?}");
}
