//! The guarantees of the schedules: nothing in flight after a post, or something, and in the end everything is done.

use rdma_soft::{Builder, Schedule};

use crate::device::rig::connect::{Knobs, Side, connect};
use crate::device::rig::post::Wr;
use crate::device::rig::scene::Scene;
use crate::device::rig::{ALL_ACCESS, Size, soft, until};

/// Posts a hundred requests one at a time, and polls only at the end. Returns the number of posts after which something
/// was in flight.
fn in_flight_after_posts(device: &str, schedule: Schedule) -> usize {
    Builder::new(device).schedule(schedule).install().unwrap();
    let scene = Scene::new(device);
    let mut counted = 0;
    for round in 0..10 {
        for n in 0..10 {
            let id = 10 * round + n;
            scene.a.qp.post(&Wr::write(id, &[scene.at_a.sge(0, 8)], &scene.at_b, 0));
            counted += usize::from(soft(device).in_flight(scene.a.qp.qpn()) > 0);
        }
        until("execution without a poll", || soft(device).in_flight(scene.a.qp.qpn()) == 0);
        for n in 0..10 {
            scene.a.send_cq.expect_success(10 * round + n);
        }
    }
    counted
}

#[test]
fn immediate_device_has_nothing_in_flight_after_a_post() {
    assert_eq!(in_flight_after_posts("schedule-immediate", Schedule::Immediate), 0);
}

#[test]
fn deferred_device_has_requests_in_flight_and_ends_them_by_itself() {
    for seed in 0..5 {
        let name = format!("schedule-deferred-{seed}");
        let counted = in_flight_after_posts(&name, Schedule::Deferred { seed });
        assert!(counted > 10, "seed {seed}: after {counted} of 100 posts");
    }
}

/// The first request waits without limit for a peer that did not exist, so that nothing else retries it.
#[test]
fn requests_left_by_a_release_on_an_immediate_device_continue_by_themselves() {
    let device = Builder::new("schedule-release").install().unwrap();
    let [a, b] = [(); 2].map(|()| Side::new(device.name(), &Size::default(), 64));
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let knobs = Knobs { timeout: 0, ..Knobs::default() };
    connect(&a.qp, &at_a, &at_b, &knobs);
    let sink = b.pd.register(8, ALL_ACCESS);
    for n in 0..3 {
        a.qp.post(&Wr::write(n, &[], &sink, 0));
    }
    connect(&b.qp, &at_b, &at_a, &knobs);
    let qpn = a.qp.qpn();
    assert_eq!((device.in_flight(qpn), device.release(qpn, 1)), (3, 1));
    until("the rest", || device.in_flight(qpn) == 0);
    for n in 0..3 {
        a.send_cq.expect_success(n);
    }
}
