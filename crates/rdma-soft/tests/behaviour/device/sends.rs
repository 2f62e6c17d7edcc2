//! Requests: the choices of this device, and behaviour that only held requests show.

use rdma_sys::{Errno, ibv_send_flags, ibv_sge, ibv_wc_status as Status, ibv_wr_opcode};

use crate::device::rig::map::Mapping;
use crate::device::rig::memory::{deregister, key_of};
use crate::device::rig::post::Wr;
use crate::device::rig::scene::Scene;
use crate::device::rig::{Size, on_each_device};

#[test]
fn message_above_two_gib_is_refused_where_it_is_posted() {
    on_each_device("too-long", |device| {
        let scene = Scene::with(device, &Size { sge: 32, ..Size::default() }, &Default::default());
        // The same bytes 32 times: 2^31 and 32 bytes in all.
        let length = (1 << 26) + 1;
        let memory = Mapping::readable(length);
        let mr = scene.a.pd.try_register(memory.start(), length, 0).unwrap();
        let length = u32::try_from(length).unwrap();
        let sge = ibv_sge { addr: memory.start().addr() as u64, length, lkey: key_of(mr) };
        scene.expect_local_refusal(&Wr::send(1, &[sge; 32]), Status::IBV_WC_LOC_LEN_ERR);
        deregister(mr);
    });
}

/// A request that the post itself refuses: nothing is done, and the queue pair is unchanged.
fn refused_at_the_post(name: &str, spoil: impl Fn(&Scene) -> Wr) {
    on_each_device(name, |device| {
        let scene = Scene::new(device);
        assert_eq!(scene.a.qp.try_post(&spoil(&scene)), Errno::EINVAL.raw());
        assert!(scene.a.send_cq.is_empty() && scene.b.receive_cq.is_empty());
        scene.assert_untouched();
        scene.a.qp.post(&scene.requests()[0]);
        scene.a.send_cq.expect_success(1);
    });
}

#[test]
fn inline_read_is_refused_at_the_post() {
    refused_at_the_post("inline-read", |scene| scene.requests()[2].clone().inline());
}

#[test]
fn unknown_opcode_is_refused_at_the_post() {
    for (name, opcode) in
        [("opcode-unknown", ibv_wr_opcode(999)), ("opcode-tso", ibv_wr_opcode::IBV_WR_TSO)]
    {
        refused_at_the_post(name, |scene| Wr::new(1, opcode, &[scene.at_a.sge(0, 8)]));
    }
}

#[test]
fn unknown_send_flag_is_refused_at_the_post() {
    refused_at_the_post("send-flag", |scene| {
        scene.requests()[0].clone().flags(ibv_send_flags(1 << 20))
    });
}
