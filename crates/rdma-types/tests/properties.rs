//! Properties that hold for every value, checked on random ones.

use std::cmp::Ordering;
use std::time::Duration;

use proptest::prelude::*;
use rdma_types::{AccessFlags, AckTimeout, Gid, Guid, MinRnrTimer, Psn};

const CIRCLE: u32 = 1 << 24;

fn psn() -> impl Strategy<Value = Psn> {
    // Two thirds of the values are near the wrap.
    prop_oneof![any::<u32>(), 0..64_u32, (CIRCLE - 64)..CIRCLE].prop_map(Psn::masked)
}

proptest! {
    #[test]
    fn psn_addition_is_addition_modulo_2_to_the_24(start in psn(), count: u32) {
        let expected = (u64::from(start.get()) + u64::from(count)) % u64::from(CIRCLE);
        prop_assert_eq!(u64::from(start.wrapping_add(count).get()), expected);
        prop_assert_eq!(start.wrapping_add(count).wrapping_sub(count), start);
    }

    #[test]
    fn psn_distance_leads_from_one_to_the_other(a in psn(), b in psn()) {
        prop_assert!(b.distance_from(a) < CIRCLE);
        prop_assert_eq!(a.wrapping_add(b.distance_from(a)), b);
        let offset = b.offset_from(a);
        prop_assert!((-(1 << 23)..1 << 23).contains(&offset));
        let nearer = if offset < 0 {
            a.wrapping_sub(offset.unsigned_abs())
        } else {
            a.wrapping_add(offset.unsigned_abs())
        };
        prop_assert_eq!(nearer, b);
    }

    #[test]
    fn psn_order_is_antisymmetric_and_moves_with_both(a in psn(), gap in 1..1_u32 << 23, by: u32) {
        let b = a.wrapping_add(gap);
        prop_assert_eq!(a.serial_cmp(b), Ordering::Less);
        prop_assert_eq!(b.serial_cmp(a), Ordering::Greater);
        prop_assert!(a.is_before(b) && b.is_after(a) && !b.is_before(a) && !a.is_after(b));
        prop_assert_eq!(a.wrapping_add(by).serial_cmp(b.wrapping_add(by)), Ordering::Less);
    }

    #[test]
    fn psn_holds_24_bits_or_is_refused(number: u32) {
        prop_assert_eq!(Psn::new(number).is_some(), number < CIRCLE);
        prop_assert_eq!(Psn::masked(number).get(), number % CIRCLE);
    }

    #[test]
    fn gid_survives_its_text(bytes: [u8; 16], ipv4: [u8; 4]) {
        for gid in [Gid::from_bytes(bytes), Gid::from_ipv4(ipv4.into())] {
            prop_assert_eq!(gid.to_string().parse::<Gid>(), Ok(gid));
            prop_assert_eq!(Gid::from_parts(gid.subnet_prefix(), gid.interface_id()), gid);
        }
        prop_assert_eq!(Gid::from_ipv4(ipv4.into()).to_ipv4(), Some(ipv4.into()));
    }

    #[test]
    fn gid_parser_agrees_with_itself_on_any_text(text in "[0-9a-f:.]{0,45}") {
        if let Ok(gid) = text.parse::<Gid>() {
            prop_assert_eq!(gid.to_string().parse::<Gid>(), Ok(gid));
        }
    }

    #[test]
    fn guid_survives_its_text(value: u64) {
        let guid = Guid::from_u64(value);
        prop_assert_eq!(guid.to_string().parse::<Guid>(), Ok(guid));
        prop_assert_eq!(Guid::from_be(guid.to_be()), guid);
    }

    #[test]
    fn timers_are_the_shortest_that_last_long_enough(micros in 0..9_000_000_000_u64) {
        let asked = Duration::from_micros(micros);
        match AckTimeout::min_duration_greater_than(asked) {
            Some(found) => {
                prop_assert!(found.duration().unwrap() >= asked);
                if let Some(shorter) = AckTimeout::limited(found.code() - 1) {
                    prop_assert!(shorter.duration().unwrap() < asked);
                }
            }
            None => prop_assert!(AckTimeout::limited(31).unwrap().duration().unwrap() < asked),
        }
        let asked = Duration::from_micros(micros % 655_361);
        prop_assert!(MinRnrTimer::min_duration_greater_than(asked).duration() >= asked);
    }

    #[test]
    fn access_check_is_the_rule_of_the_verbs(bits: u32) {
        let refused = bits & 1 == 0 && bits & 0b1010 != 0;
        prop_assert_eq!(AccessFlags::from_bits_retain(bits).check().is_err(), refused);
    }
}
