//! SEND, RDMA WRITE and RDMA READ between two queue pairs, on both links, under both schedules that
//! finish by themselves.

use rdma_sys::{ibv_sge, ibv_wc_flags, ibv_wc_opcode};

use crate::rig::connect::pair;
use crate::rig::post::Wr;
use crate::rig::{ALL_ACCESS, LOCAL_WRITE, REMOTE_READ, imm_of, on_each_device};

#[test]
fn write_puts_bytes_into_the_peers_memory() {
    on_each_device("write", |device| {
        let (a, b) = pair(device);
        let source = a.pd.register_filled((0..100).collect(), 0);
        let sink = b.pd.register(100, ALL_ACCESS);
        a.qp.post(&Wr::write(1, &[source.sge(0, 60), source.sge(60, 40)], &sink, 0));
        let wc = a.send_cq.expect_success(1);
        assert_eq!(wc.opcode, ibv_wc_opcode::IBV_WC_RDMA_WRITE);
        assert_eq!(wc.qp_num, a.qp.number());
        assert!(b.receive_cq.is_empty(), "a write is silent at its target");
        assert_eq!(sink.deregister(), (0..100).collect::<Vec<u8>>());
    });
}

#[test]
fn read_fetches_bytes_from_the_peers_memory() {
    on_each_device("read", |device| {
        let (a, b) = pair(device);
        let sink = a.pd.register(100, LOCAL_WRITE);
        let source = b.pd.register_filled((0..100).collect(), REMOTE_READ);
        let sges: [ibv_sge; 2] = [sink.sge(50, 50), sink.sge(0, 25)];
        a.qp.post(&Wr::read(9, &sges, &source, 25));
        let wc = a.send_cq.expect_success(9);
        assert_eq!((wc.opcode, wc.byte_len), (ibv_wc_opcode::IBV_WC_RDMA_READ, 75));
        let sink = sink.deregister();
        assert_eq!(sink[50..], (25..75).collect::<Vec<u8>>());
        assert_eq!(sink[..25], (75..100).collect::<Vec<u8>>());
        assert_eq!(sink[25..50], [0; 25]);
    });
}

#[test]
fn send_fills_the_oldest_receive_request() {
    on_each_device("send", |device| {
        let (a, b) = pair(device);
        let source = a.pd.register_filled(b"hello, world".to_vec(), 0);
        let sink = b.pd.register(64, LOCAL_WRITE);
        b.qp.post_receive(1, &[sink.sge(0, 3), sink.sge(8, 24)]);
        b.qp.post_receive(2, &[sink.sge(32, 32)]);
        a.qp.post(&Wr::send(3, &[source.sge(0, 12)]));
        a.qp.post(&Wr::send(4, &[source.sge(7, 5)]).with_imm(0x1234_5678_u32.to_be()));
        let (first, second) = (b.receive_cq.expect_success(1), b.receive_cq.expect_success(2));
        assert_eq!((first.byte_len, first.opcode), (12, ibv_wc_opcode::IBV_WC_RECV));
        assert_eq!(first.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0, 0);
        assert_eq!((second.byte_len, second.opcode), (5, ibv_wc_opcode::IBV_WC_RECV));
        assert_ne!(second.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0, 0);
        assert_eq!(u32::from_be(imm_of(&second)), 0x1234_5678);
        a.send_cq.expect_success(3);
        a.send_cq.expect_success(4);
        let sink = sink.deregister();
        assert_eq!(
            (&sink[..3], &sink[8..17], &sink[32..37]),
            (&b"hel"[..], &b"lo, world"[..], &b"world"[..])
        );
    });
}
