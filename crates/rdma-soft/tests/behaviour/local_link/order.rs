//! The order of the completions of both queues.

use test_support::rig::connect::Side;
use test_support::rig::post::Wr;
use test_support::rig::{Context, Size};

use crate::two_processes::near::{Near, PATIENT};
use crate::two_processes::peer::{LENGTH, Peer};

/// On a NIC, the acknowledgement of a message arrives before the answer of the program that received it.
#[test]
fn a_message_completes_before_its_answer() {
    const COUNT: usize = 2000;
    rdma_soft::install();
    let context = Context::open("soft0");
    let (cq, unused, pd) = (context.cq(4), context.cq(1), context.pd());
    let qp = pd.qp(&cq, &cq, &Size::default());
    let side = Side { qp, send_cq: cq, receive_cq: unused, pd, context };
    let mut near = Near::with(side, Peer::start(), [&PATIENT; 2]);
    near.peer.begin_echoes(COUNT);
    for _ in 0..COUNT {
        near.side.qp.post_receive(1, &[near.memory.sge(0, LENGTH)]);
        near.side.qp.post(&Wr::send(2, &[near.memory.sge(0, 8)]));
        near.side.send_cq.expect_success(2);
        near.side.send_cq.expect_success(1);
    }
    near.peer.finish();
    near.peer.end();
}
