//! Datagram queue pairs and address handles.

use rdma_sys::{ibv_qp_attr_mask as Mask, *};
use rdma_types::Gid;

use super::connect::{Endpoint, Side, UNRELIABLE_RTS};
use super::post::Wr;
use super::{ALL_ACCESS, Context, Mr, Pd, Qp, Size, errno, verbs};

pub const QKEY: u32 = 0x1122_3344;
/// The length of the header before each received message, in bytes.
pub const HEADER: usize = 40;
/// The maximum length of a message, in bytes.
pub const MTU: usize = 4096;

pub const UD_INIT: u32 =
    Mask::IBV_QP_STATE.0 | Mask::IBV_QP_PKEY_INDEX.0 | Mask::IBV_QP_PORT.0 | Mask::IBV_QP_QKEY.0;

pub fn size() -> Size {
    Size { qp_type: ibv_qp_type::IBV_QPT_UD, ..Size::default() }
}

/// Moves the queue pair from the previous state to this one.
pub fn step(qp: &Qp, state: ibv_qp_state, qkey: u32) {
    let mut attr = ibv_qp_attr { qp_state: state, port_num: 1, qkey, ..Default::default() };
    attr.sq_psn = 5;
    let mask = match state {
        ibv_qp_state::IBV_QPS_INIT => UD_INIT,
        ibv_qp_state::IBV_QPS_RTR => Mask::IBV_QP_STATE.0,
        _ => UNRELIABLE_RTS,
    };
    assert_eq!(qp.modify(attr, mask), 0);
}

pub fn activate(qp: &Qp, qkey: u32) {
    for state in [ibv_qp_state::IBV_QPS_INIT, ibv_qp_state::IBV_QPS_RTR, ibv_qp_state::IBV_QPS_RTS]
    {
        step(qp, state, qkey);
    }
}

/// Creates a side that can send and receive datagrams.
pub fn side(device: &str) -> Side {
    let side = Side::new(device, &size(), 256);
    activate(&side.qp, QKEY);
    side
}

/// An address handle.
pub struct Ah(pub *mut ibv_ah);

unsafe impl Send for Ah {}
unsafe impl Sync for Ah {}

impl Ah {
    pub fn destroy(self) {
        drop(self);
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        assert_eq!(unsafe { (verbs().destroy_ah)(self.0) }, 0);
    }
}

/// Returns the attributes of the path from one end to another. Without `global`, the path uses only
/// LIDs.
pub fn vector(from: &Endpoint, to: &Endpoint, global: bool) -> ibv_ah_attr {
    let mut attr = ibv_ah_attr { port_num: 1, dlid: to.lid, sl: 3, ..Default::default() };
    if global {
        attr.is_global = 1;
        attr.grh = ibv_global_route {
            dgid: to.gid,
            sgid_index: from.gid_index,
            flow_label: 0x000a_bcde,
            hop_limit: 61,
            traffic_class: 0x2c,
        };
    }
    attr
}

impl Pd {
    pub fn try_ah(&self, mut attr: ibv_ah_attr) -> Result<Ah, Errno> {
        let ah = unsafe { (verbs().create_ah)(self.0, &raw mut attr) };
        if ah.is_null() { Err(errno()) } else { Ok(Ah(ah)) }
    }

    pub fn ah(&self, attr: ibv_ah_attr) -> Ah {
        self.try_ah(attr).unwrap()
    }

    /// Returns a handle for the path from one end to another. It uses GIDs if the link layer is
    /// Ethernet, and LIDs otherwise.
    pub fn ah_to(&self, from: &Endpoint, to: &Endpoint) -> Ah {
        self.ah(vector(from, to, from.ethernet))
    }

    /// Returns a handle for the sender of a received message, created from the message's completion
    /// and header.
    pub fn try_ah_from(&self, wc: &ibv_wc, header: &[u8]) -> Result<Ah, Errno> {
        let (mut wc, mut header) = (*wc, header.to_vec());
        let header = header.as_mut_ptr().cast();
        let ah = unsafe { (verbs().create_ah_from_wc)(self.0, &raw mut wc, header, 1) };
        if ah.is_null() { Err(errno()) } else { Ok(Ah(ah)) }
    }
}

impl Context {
    pub fn ah_attributes(&self, wc: &ibv_wc, header: &[u8]) -> Result<ibv_ah_attr, Errno> {
        let (mut wc, mut header) = (*wc, header.to_vec());
        let mut attr = ibv_ah_attr::default();
        let place = header.as_mut_ptr().cast();
        let init = verbs().init_ah_from_wc;
        match unsafe { init(self.0, 1, &raw mut wc, place, &raw mut attr) } {
            0 => Ok(attr),
            -1 => Err(errno()),
            other => panic!("{other}"),
        }
    }
}

impl Qp {
    /// Joins a multicast group. Returns 0 or an error number.
    pub fn attach(&self, group: &ibv_gid, lid: u16) -> i32 {
        unsafe { (verbs().attach_mcast)(self.0, group, lid) }
    }

    /// Leaves a multicast group. Returns 0 or an error number.
    pub fn detach(&self, group: &ibv_gid, lid: u16) -> i32 {
        unsafe { (verbs().detach_mcast)(self.0, group, lid) }
    }
}

pub fn gid_of(gid: &ibv_gid) -> Gid {
    unsafe { gid.raw }.into()
}

/// Changes a GID to one that no port has.
pub fn changed(gid: &ibv_gid) -> ibv_gid {
    let mut raw = gid_of(gid).to_bytes();
    raw[15] ^= 1;
    ibv_gid { raw }
}

impl Wr {
    pub fn to(mut self, ah: &Ah, qpn: u32, qkey: u32) -> Self {
        self.wr.wr.ud.ah = ah.0;
        self.wr.wr.ud.remote_qpn = qpn;
        self.wr.wr.ud.remote_qkey = qkey;
        self
    }
}

/// A sender and a receiver, each with memory for a whole datagram. A's bytes are 0xaa, and B's are
/// 0xbb.
pub struct Pair {
    pub at_a: Mr,
    pub at_b: Mr,
    pub a: Side,
    pub b: Side,
}

impl Pair {
    pub fn new(device: &str) -> Self {
        let (a, b) = (side(device), side(device));
        let at_a = a.pd.register_filled(vec![0xaa; MTU + 1], ALL_ACCESS);
        let at_b = b.pd.register_filled(vec![0xbb; HEADER + MTU], ALL_ACCESS);
        Self { at_a, at_b, a, b }
    }

    pub fn ah(&self) -> Ah {
        self.a.pd.ah_to(&self.a.endpoint(), &self.b.endpoint())
    }

    pub fn receive(&self, wr_id: u64, length: usize) {
        self.b.qp.post_receive(wr_id, &[self.at_b.sge(0, length)]);
    }

    pub fn send(&self, wr_id: u64, length: usize) -> Wr {
        Wr::send(wr_id, &[self.at_a.sge(0, length)])
    }

    /// Returns a message to B with B's Q_Key.
    pub fn good(&self, ah: &Ah, wr_id: u64, length: usize) -> Wr {
        self.send(wr_id, length).to(ah, self.b.qp.number(), QKEY)
    }

    /// Posts a message, and checks that it is lost: the send completes, but nothing changes at B.
    #[track_caller]
    pub fn expect_lost(&self, wr: &Wr) {
        self.a.qp.post(wr);
        self.a.send_cq.expect_success(wr.wr.wr_id);
        assert!(self.b.receive_cq.is_empty());
        self.at_b.assert_filled(0xbb);
        self.a.qp.assert_ready();
    }

    /// Posts a message, and checks that it arrives. Returns the completion of the receive.
    #[track_caller]
    pub fn expect_sent(&self, wr: &Wr, receive: u64) -> ibv_wc {
        self.a.qp.post(wr);
        self.a.send_cq.expect_success(wr.wr.wr_id);
        self.b.receive_cq.expect_success(receive)
    }
}
