//! Two connected queue pairs. Each side has posted one receive, and owns memory that the peer may
//! access. Most cases of refused requests use this scene.

use rdma_sys::ibv_wc_status as Status;

use super::connect::{Knobs, Side, pair_with};
use super::post::Wr;
use super::{ALL_ACCESS, Mr, Size};

pub struct Scene {
    pub at_a: Mr,
    pub at_b: Mr,
    pub a: Side,
    pub b: Side,
}

pub const BYTES: usize = 64;
pub const AT_A: u8 = 0xaa;
pub const AT_B: u8 = 0xbb;
/// The ID of A's receive.
pub const RECEIVE_A: u64 = 1001;
/// The ID of B's receive.
pub const RECEIVE_B: u64 = 1002;

impl Scene {
    pub fn new(device: &str) -> Self {
        Self::with(device, &Size::default(), &Knobs::default())
    }

    pub fn with(device: &str, size: &Size, knobs: &Knobs) -> Self {
        let (a, b) = pair_with(device, size, knobs);
        let at_a = a.pd.register_filled(vec![AT_A; BYTES], ALL_ACCESS);
        let at_b = b.pd.register_filled(vec![AT_B; BYTES], ALL_ACCESS);
        a.qp.post_receive(RECEIVE_A, &[at_a.sge(0, BYTES)]);
        b.qp.post_receive(RECEIVE_B, &[at_b.sge(0, BYTES)]);
        Self { at_a, at_b, a, b }
    }

    /// Returns requests that A can post: WRITE, WRITE with immediate, READ and SEND. Each uses 32
    /// bytes of both sides' memory.
    pub fn requests(&self) -> [Wr; 4] {
        let local = [self.at_a.sge(8, 32)];
        let write = Wr::write(1, &local, &self.at_b, 16);
        let read = Wr::read(1, &local, &self.at_b, 16);
        [write.clone(), write.with_imm(5), read, Wr::send(1, &local)]
    }

    /// Posts a request at A, and checks that B refuses it. A's completion has `status`, both queue
    /// pairs are in error, their receives are flushed, and nothing was copied.
    #[track_caller]
    pub fn expect_remote_refusal(&self, wr: &Wr, status: Status) {
        self.a.qp.post(wr);
        self.a.send_cq.expect(wr.wr.wr_id, status);
        self.a.qp.wait_for_error();
        self.b.qp.wait_for_error();
        self.a.receive_cq.expect_flushed([RECEIVE_A]);
        self.b.receive_cq.expect_flushed([RECEIVE_B]);
        assert!(self.a.send_cq.is_empty() && self.b.send_cq.is_empty());
        self.assert_untouched();
    }

    /// Posts a request at A, and checks that A itself refuses it with `status` and that B is not
    /// affected.
    #[track_caller]
    pub fn expect_local_refusal(&self, wr: &Wr, status: Status) {
        assert_eq!(self.local_refusal(wr), status);
    }

    /// Like [`expect_local_refusal`](Self::expect_local_refusal), but accepts any error. Returns
    /// its status.
    #[track_caller]
    pub fn local_refusal(&self, wr: &Wr) -> Status {
        self.a.qp.post(wr);
        let wc = self.a.send_cq.next();
        assert_eq!(wc.wr_id, wr.wr.wr_id);
        assert_ne!(wc.status, Status::IBV_WC_SUCCESS);
        self.a.qp.wait_for_error();
        self.a.receive_cq.expect_flushed([RECEIVE_A]);
        self.b.qp.assert_ready();
        assert!(self.b.receive_cq.is_empty());
        self.assert_untouched();
        wc.status
    }

    #[track_caller]
    pub fn assert_untouched(&self) {
        self.at_a.assert_filled(AT_A);
        self.at_b.assert_filled(AT_B);
    }
}
