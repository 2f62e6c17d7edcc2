//! A plain request, alone in its post, once the peer is known: it takes a fast path. The suite verifies that it obeys
//! the rules of the verbs, in cases that have sent a message before.

use crate::device::rig::connect::{Knobs, Side, acquaint, connect_sides};
use crate::device::rig::post::Wr;
use crate::device::rig::{ALL_ACCESS, Size, on_each_device, until};

/// By the post itself: no other call that could do it is made.
#[test]
fn a_write_whose_completion_is_lost_is_reported_at_once() {
    on_each_device("single-overflow", |device| {
        let size = Size::default();
        let (a, b) = (Side::new(device, &size, 1), Side::new(device, &size, 256));
        connect_sides(&a, &b, &Knobs::default());
        acquaint(&a, &b);
        let (source, sink) = (a.pd.register(8, 0), b.pd.register(8, ALL_ACCESS));
        assert!(!a.context.has_async_events());
        for n in 0..2 {
            a.qp.post(&Wr::write(n, &[source.sge(0, 8)], &sink, 0));
        }
        until("the event", || a.context.has_async_events());
        a.qp.wait_for_error();
    });
}
