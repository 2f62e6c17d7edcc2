//! Queue pair numbers: the choices of this device.

use std::collections::HashSet;

use rdma_soft::{Builder, Limits};

use crate::device::rig::connect::Side;
use crate::device::rig::{Context, Size, open_default};

/// The numbers of queue pairs that exist one at a time.
fn one_after_another(device: &str, count: usize) -> Vec<u32> {
    let side = Side::new(device, &Size::default(), 8);
    let number = || side.pd.qp(&side.send_cq, &side.receive_cq, &Size::default()).qpn().get();
    (0..count).map(|_| number()).collect()
}

#[test]
fn numbers_are_not_next_to_the_last_one() {
    open_default("soft0");
    let numbers = one_after_another("soft0", 1_000);
    let near = numbers.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) < 8).count();
    assert!(near < 50, "{near} of 1,000 are next to the previous one");
}

#[test]
fn number_of_a_destroyed_queue_pair_is_not_reused_soon() {
    Builder::new("one-queue-pair").limits(Limits::default().max_qp(2)).install().unwrap();
    let numbers = one_after_another("one-queue-pair", 5_000);
    assert_eq!(numbers.iter().collect::<HashSet<_>>().len(), numbers.len());
}

#[test]
fn devices_begin_with_different_numbers() {
    let first = |n| {
        let name = format!("first-number-{n}");
        Builder::new(&name).install().unwrap();
        let context = Context::open(&name);
        let (pd, cq) = (context.pd(), context.cq(1));
        pd.qp(&cq, &cq, &Size::default()).qpn().get() >> 12
    };
    let slots: HashSet<u32> = (0..20).map(first).collect();
    assert!(slots.len() > 15, "{slots:?}");
}
