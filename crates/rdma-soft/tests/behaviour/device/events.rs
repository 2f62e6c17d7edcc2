//! Events of a port.

use rdma_sys::{ibv_event_type as Event, ibv_port_state};

use crate::device::rig::connect::{Knobs, pair_with};
use crate::device::rig::post::Wr;
use crate::device::rig::{ALL_ACCESS, Size, on_each_device, soft};

#[test]
fn a_port_that_goes_down_cuts_the_connection_until_it_is_up() {
    on_each_device("event-port", |device| {
        let knobs = Knobs { timeout: 14, retries: 7, ..Knobs::default() };
        let (a, b) = pair_with(device, &Size::default(), &knobs);
        let sink = b.pd.register(8, ALL_ACCESS);
        a.qp.post(&Wr::write(1, &[], &sink, 0));
        a.send_cq.expect_success(1);
        soft(device).set_port_up(false);
        soft(device).set_port_up(false);
        assert_eq!(a.context.query_port().state, ibv_port_state::IBV_PORT_DOWN);
        a.qp.post(&Wr::write(2, &[], &sink, 0));
        assert!(a.send_cq.is_empty());
        soft(device).set_port_up(true);
        assert_eq!(a.context.query_port().state, ibv_port_state::IBV_PORT_ACTIVE);
        // A retry succeeds.
        a.send_cq.expect_success(2);
        for side in [&a, &b] {
            let kinds: Vec<_> = side.context.async_events().iter().map(|event| event.0).collect();
            assert_eq!(kinds, [Event::IBV_EVENT_PORT_ERR, Event::IBV_EVENT_PORT_ACTIVE]);
        }
    });
}
