//! Connects queue pairs to each other.

pub mod iwarp;

use rdma_sys::{ibv_qp_attr_mask as Mask, *};

use super::device::{Row, gid_table};
use super::post::Wr;
use super::{ALL_ACCESS, Context, Cq, Pd, Qp, REMOTE_ATOMIC, Size, provider, verbs};

/// The address of a queue pair.
#[derive(Clone, Copy)]
pub struct Endpoint {
    pub qpn: u32,
    pub lid: u16,
    pub gid: ibv_gid,
    pub gid_index: u8,
    pub ethernet: bool,
}

/// The options of a connection that tests may change.
#[derive(Clone, Copy)]
pub struct Knobs {
    pub access: u32,
    pub mtu: ibv_mtu,
    pub psn: u32,
    pub timeout: u8,
    pub retries: u8,
    pub rnr_retries: u8,
    pub min_rnr_timer: u8,
    pub rd_atomic: u8,
}

impl Knobs {
    /// Returns options with which a requester soon gives up, for requests that should time out. If
    /// the provider is slow, returns the default options instead.
    pub fn prompt() -> Self {
        let patient = Self::default();
        if provider().slow { patient } else { Self { timeout: 8, retries: 2, ..patient } }
    }
}

/// The default options make a requester wait as long as a thread that handles its packets may be
/// delayed.
impl Default for Knobs {
    fn default() -> Self {
        Self {
            access: ALL_ACCESS,
            mtu: ibv_mtu::IBV_MTU_1024,
            psn: 7,
            timeout: 16,
            retries: 7,
            rnr_retries: 7,
            min_rnr_timer: 1,
            rd_atomic: 4,
        }
    }
}

/// Returns the index of the port's first IPv4-mapped GID for RoCE v2, or 0 if there is none.
/// Link-local GIDs are avoided, because they cannot reach such a GID.
fn gid_index(context: &Context) -> u8 {
    let mapped =
        |row: &Row| row.kind == ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0 && row.gid.is_ipv4_mapped();
    let rows = gid_table(context, 256, 0).unwrap();
    rows.iter().find(|row| mapped(row)).map_or(0, |row| row.index.try_into().unwrap())
}

pub fn endpoint(context: &Context, qp: &Qp) -> Endpoint {
    endpoint_with_gid(context, qp, gid_index(context))
}

pub fn endpoint_with_gid(context: &Context, qp: &Qp, gid_index: u8) -> Endpoint {
    let mut port = ibv_port_attr::default();
    assert_eq!(unsafe { ibv_query_port(verbs(), context.0, 1, &raw mut port) }, 0);
    let ethernet = u32::from(port.link_layer) == IBV_LINK_LAYER_ETHERNET;
    let mut gid = ibv_gid::default();
    let index = if ethernet { gid_index } else { 0 };
    assert_eq!(unsafe { (verbs().query_gid)(context.0, 1, index.into(), &raw mut gid) }, 0);
    Endpoint { qpn: qp.number(), lid: port.lid, gid, gid_index: index, ethernet }
}

pub const INIT: u32 = Mask::IBV_QP_STATE.0
    | Mask::IBV_QP_PKEY_INDEX.0
    | Mask::IBV_QP_PORT.0
    | Mask::IBV_QP_ACCESS_FLAGS.0;
pub const RTR: u32 = Mask::IBV_QP_STATE.0
    | Mask::IBV_QP_AV.0
    | Mask::IBV_QP_PATH_MTU.0
    | Mask::IBV_QP_DEST_QPN.0
    | Mask::IBV_QP_RQ_PSN.0
    | Mask::IBV_QP_MAX_DEST_RD_ATOMIC.0
    | Mask::IBV_QP_MIN_RNR_TIMER.0;
pub const RTS: u32 = Mask::IBV_QP_STATE.0
    | Mask::IBV_QP_TIMEOUT.0
    | Mask::IBV_QP_RETRY_CNT.0
    | Mask::IBV_QP_RNR_RETRY.0
    | Mask::IBV_QP_SQ_PSN.0
    | Mask::IBV_QP_MAX_QP_RD_ATOMIC.0;

/// Like [`RTR`], but for unreliable connections.
pub const UC_RTR: u32 = Mask::IBV_QP_STATE.0
    | Mask::IBV_QP_AV.0
    | Mask::IBV_QP_PATH_MTU.0
    | Mask::IBV_QP_DEST_QPN.0
    | Mask::IBV_QP_RQ_PSN.0;
/// Like [`RTS`], but for unreliable connections and datagrams.
pub const UNRELIABLE_RTS: u32 = Mask::IBV_QP_STATE.0 | Mask::IBV_QP_SQ_PSN.0;

/// Returns the attributes with which `own` goes through INIT, RTR and RTS to connect to `peer`. The
/// caller must set the state.
pub fn attributes(own: &Endpoint, peer: &Endpoint, knobs: &Knobs) -> ibv_qp_attr {
    let mut attr = ibv_qp_attr::default();
    attr.port_num = 1;
    attr.qp_access_flags = knobs.access;
    attr.path_mtu = knobs.mtu;
    attr.dest_qp_num = peer.qpn;
    attr.rq_psn = knobs.psn;
    attr.sq_psn = knobs.psn;
    attr.max_rd_atomic = knobs.rd_atomic;
    attr.max_dest_rd_atomic = knobs.rd_atomic;
    attr.min_rnr_timer = knobs.min_rnr_timer;
    attr.timeout = knobs.timeout;
    attr.retry_cnt = knobs.retries;
    attr.rnr_retry = knobs.rnr_retries;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.dlid = peer.lid;
    if own.ethernet {
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.dgid = peer.gid;
        attr.ah_attr.grh.sgid_index = own.gid_index;
        attr.ah_attr.grh.hop_limit = 64;
    }
    attr
}

/// Moves the queue pair to this state. `mask` selects the attributes to set.
fn step(qp: &Qp, attr: &ibv_qp_attr, qp_state: ibv_qp_state, mask: u32) {
    assert_eq!(qp.modify(ibv_qp_attr { qp_state, ..*attr }, mask), 0);
}

pub fn to_init(qp: &Qp, attr: &ibv_qp_attr) {
    step(qp, attr, ibv_qp_state::IBV_QPS_INIT, INIT);
}

pub fn to_rtr(qp: &Qp, attr: &ibv_qp_attr) {
    step(qp, attr, ibv_qp_state::IBV_QPS_RTR, RTR);
}

pub fn to_rts(qp: &Qp, attr: &ibv_qp_attr) {
    step(qp, attr, ibv_qp_state::IBV_QPS_RTS, RTS);
}

/// Connects a queue pair of an unreliable connection. The right to execute atomics is removed,
/// because unreliable connections do not have it.
pub fn connect_unreliably(qp: &Qp, own: &Endpoint, peer: &Endpoint, knobs: &Knobs) {
    let knobs = Knobs { access: knobs.access & !REMOTE_ATOMIC, ..*knobs };
    let attr = attributes(own, peer, &knobs);
    to_init(qp, &attr);
    step(qp, &attr, ibv_qp_state::IBV_QPS_RTR, UC_RTR);
    step(qp, &attr, ibv_qp_state::IBV_QPS_RTS, UNRELIABLE_RTS);
}

pub fn connect(qp: &Qp, own: &Endpoint, peer: &Endpoint, knobs: &Knobs) {
    let attr = attributes(own, peer, knobs);
    to_init(qp, &attr);
    to_rtr(qp, &attr);
    to_rts(qp, &attr);
}

/// One side of a connection. The fields are dropped in their order: the queue pair first, the
/// context last.
pub struct Side {
    pub qp: Qp,
    pub send_cq: Cq,
    pub receive_cq: Cq,
    pub pd: Pd,
    pub context: Context,
}

impl Side {
    pub fn new(device: &str, size: &Size, cq_capacity: i32) -> Self {
        let context = Context::open(device);
        let (send_cq, receive_cq) = (context.cq(cq_capacity), context.cq(cq_capacity));
        let pd = context.pd();
        let qp = pd.qp(&send_cq, &receive_cq, size);
        Self { qp, send_cq, receive_cq, pd, context }
    }

    pub fn endpoint(&self) -> Endpoint {
        endpoint(&self.context, &self.qp)
    }

    /// Posts a request, and checks that it fails because the peer does not answer.
    #[track_caller]
    pub fn expect_unreachable(&self) {
        self.qp.post(&Wr::send(77, &[]));
        self.send_cq.expect(77, ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
        self.qp.wait_for_error();
        assert!(self.send_cq.is_empty());
    }
}

/// Creates two connected queue pairs on one device.
pub fn pair(device: &str) -> (Side, Side) {
    pair_with(device, &Size::default(), &Knobs::default())
}

/// Sends an empty message from A to B. After that, A knows its peer, so it may use a fast path.
#[track_caller]
pub fn acquaint(a: &Side, b: &Side) {
    b.qp.post_receive(1, &[]);
    a.qp.post(&Wr::send(1, &[]));
    a.send_cq.expect_success(1);
    b.receive_cq.expect_success(1);
}

pub fn pair_with(device: &str, size: &Size, knobs: &Knobs) -> (Side, Side) {
    let (a, b) = (Side::new(device, size, 256), Side::new(device, size, 256));
    connect_sides(&a, &b, knobs);
    (a, b)
}

/// Connects two queue pairs. On iWARP, the kernel's rdma_cm connects them.
pub fn connect_sides(a: &Side, b: &Side, knobs: &Knobs) {
    if iwarp::is_iwarp(&a.context) {
        return iwarp::connect(a, b, knobs);
    }
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    connect(&a.qp, &at_a, &at_b, knobs);
    connect(&b.qp, &at_b, &at_a, knobs);
}

/// Waits until everything that the device's queue pairs have sent has arrived, even if they were
/// destroyed since. To do so, sends a message on a new connection, which arrives last.
#[track_caller]
pub fn expect_nothing_under_way(device: &str) {
    let (a, b) = pair(device);
    acquaint(&a, &b);
}

/// Checks that a message and a write from A to B succeed.
#[track_caller]
pub fn expect_traffic(a: &Side, b: &Side) {
    let memory = b.pd.register(8, ALL_ACCESS);
    b.qp.post_receive(1, &[]);
    a.qp.post(&Wr::send(2, &[]));
    a.qp.post(&Wr::write(3, &[], &memory, 0));
    a.send_cq.expect_success(2);
    a.send_cq.expect_success(3);
    b.receive_cq.expect_success(1);
}
