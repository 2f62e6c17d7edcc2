//! The order of the completions of both queues.

use rdma_sys::ibv_qp_type;
use test_support::rig::connect::Side;
use test_support::rig::post::Wr;
use test_support::rig::{Context, Size};

use crate::two_processes::near::PATIENT;
use crate::two_processes::peer::{ACCESS, LENGTH, Peer, bring_up};

/// On a NIC, the acknowledgement of a message arrives before the answer of the program that received it.
#[test]
fn a_message_completes_before_its_answer() {
    const COUNT: usize = 2000;
    rdma_soft::install();
    let mut peer = Peer::start();
    let context = Context::open("soft0");
    let (cq, unused, pd) = (context.cq(4), context.cq(1), context.pd());
    let qp = pd.qp(&cq, &cq, &Size::default());
    let side = Side { qp, send_cq: cq, receive_cq: unused, pd, context };
    let memory = side.pd.register(LENGTH, ACCESS);
    let (far, _) = peer.make(ibv_qp_type::IBV_QPT_RC);
    peer.connect_with(&side.endpoint(), &PATIENT);
    bring_up(&side, &far, &PATIENT);
    peer.begin_echoes(COUNT);
    for _ in 0..COUNT {
        side.qp.post_receive(1, &[memory.sge(0, LENGTH)]);
        side.qp.post(&Wr::send(2, &[memory.sge(0, 8)]));
        side.send_cq.expect_success(2);
        side.send_cq.expect_success(1);
    }
    peer.finish();
    drop(memory);
    peer.end();
}
