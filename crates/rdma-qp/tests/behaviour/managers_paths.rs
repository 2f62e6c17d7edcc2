//! The attributes of a connection manager's path reach the device: the software device, with a function that notes
//! them.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::c_int;
use std::sync::OnceLock;

use rdma_mem::{AccessFlags, Context, DeviceList, Mtu};
use rdma_qp::{AckTimeout, CompletionQueue, MaxAckRetries, QpState, QueuePair, prelude::*};
use rdma_sys::{
    Verbs, ibv_ah_attr, ibv_context, ibv_gid, ibv_global_route, ibv_mtu, ibv_port_attr, ibv_qp,
    ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr, verbs_get_ctx,
};

thread_local! {
    /// The attributes of each transition of this thread's queue pair.
    static NOTED: RefCell<Vec<(ibv_qp_attr, ibv_qp_attr_mask)>> = const { RefCell::new(Vec::new()) };
}

/// Notes the attributes. The software device has one port and one partition, which replace those of the caller.
unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: SAFETY.md F1: the caller's own contract.
    let mut attributes = unsafe { attr.read() };
    NOTED.with_borrow_mut(|noted| noted.push((attributes, ibv_qp_attr_mask(mask.cast_unsigned()))));
    (attributes.port_num, attributes.ah_attr.port_num, attributes.pkey_index) = (1, 1, 0);
    // SAFETY: SAFETY.md F1: the caller's own contract; the attributes are a copy of its own.
    unsafe { (rdma_soft::verbs().modify_qp)(qp, &raw mut attributes, mask) }
}

/// Opens `soft0` with the function above.
fn open() -> Context {
    static TABLE: OnceLock<Verbs> = OnceLock::new();
    rdma_soft::install();
    let verbs = TABLE.get_or_init(|| {
        let mut verbs = *rdma_soft::verbs();
        verbs.modify_qp = modify_qp;
        verbs
    });
    // SAFETY: SAFETY.md F2: the functions are the software device's, or call it.
    let list = unsafe { DeviceList::of(verbs) };
    list.iter().find(|device| device.name() == "soft0").unwrap().open().unwrap()
}

/// Returns the noted transitions. There must be `COUNT`.
fn noted<const COUNT: usize>() -> [(ibv_qp_attr, ibv_qp_attr_mask); COUNT] {
    NOTED.take().try_into().unwrap_or_else(|noted: Vec<_>| panic!("{} transitions", noted.len()))
}

/// Returns the device's attributes of a queue pair.
fn queried(context: &Context, qp: &QueuePair) -> ibv_qp_attr {
    let (mut attributes, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
    let all = ibv_qp_attr_mask::IBV_QP_AV | ibv_qp_attr_mask::IBV_QP_PATH_MTU;
    let mask = c_int::try_from(all.0).unwrap();
    // SAFETY: SAFETY.md F1: a live queue pair, and two values to write.
    let failure = unsafe {
        (context.verbs().query_qp)(qp.as_raw(), &raw mut attributes, mask, &raw mut init)
    };
    assert_eq!(failure, 0);
    attributes
}

/// Returns attributes that differ from their defaults, for a peer with this QPN.
fn path(context: &Context, peer: u32) -> [ibv_qp_attr; 3] {
    let gid = context.gid_table().unwrap()[1];
    let grh = ibv_global_route {
        dgid: ibv_gid { raw: gid.gid.to_bytes() },
        flow_label: 0xa_bcde,
        sgid_index: u8::try_from(gid.index).unwrap(),
        hop_limit: 7,
        traffic_class: 0x24,
    };
    let ah_attr = ibv_ah_attr {
        grh,
        dlid: 0x1234,
        sl: 5,
        src_path_bits: 3,
        static_rate: 6,
        is_global: 1,
        port_num: 2,
    };
    let init = ibv_qp_attr { port_num: 2, pkey_index: 9, ..Default::default() };
    let rtr = ibv_qp_attr {
        ah_attr,
        path_mtu: ibv_mtu::IBV_MTU_512,
        dest_qp_num: peer,
        rq_psn: 0x11_1111,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 31,
        ..Default::default()
    };
    let rts = ibv_qp_attr {
        sq_psn: 0x22_2222,
        max_rd_atomic: 2,
        timeout: 31,
        retry_cnt: 1,
        rnr_retry: 1,
        ..Default::default()
    };
    [init, rtr, rts]
}

fn vector(of: &ibv_ah_attr) -> impl PartialEq + std::fmt::Debug + use<> {
    let ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num } = *of;
    let ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class } = grh;
    let route = (dgid.to_bytes(), flow_label, sgid_index, hop_limit, traffic_class);
    (route, dlid, sl, src_path_bits, static_rate, is_global, port_num)
}

#[test]
fn the_attributes_of_a_managers_path_reach_the_device() {
    let context = open();
    let cq = CompletionQueue::create(&context, 16).unwrap();
    let pd = context.allocate_pd().unwrap();
    for own_class in [None, Some(0x68)] {
        let ack_timeout = AckTimeout::from_code(12).unwrap();
        let retries = MaxAckRetries::limited(5).unwrap();
        let builder = pd.create_qp().send_cq(&cq).recv_cq(&cq);
        let mut prepared =
            builder.ack_timeout(ack_timeout).max_ack_retries(retries).build().unwrap();
        own_class.iter().for_each(|class| prepared.set_traffic_class(*class));
        let path = path(&context, prepared.endpoint().qpn().get());
        NOTED.take();
        let qp = prepared.connect_managed(&path).unwrap();

        let [init, rtr, rts] = noted();
        let has = |(_, mask): &(_, ibv_qp_attr_mask), flag: ibv_qp_attr_mask| mask.0 & flag.0 != 0;
        assert!(has(&init, ibv_qp_attr_mask::IBV_QP_PKEY_INDEX));
        assert!(has(&init, ibv_qp_attr_mask::IBV_QP_PORT));
        assert_eq!((init.0.port_num, init.0.pkey_index), (2, 9));
        assert!(has(&rtr, ibv_qp_attr_mask::IBV_QP_AV));
        let mut expected = path[1].ah_attr;
        expected.grh.traffic_class = own_class.unwrap_or(expected.grh.traffic_class);
        assert_eq!(vector(&rtr.0.ah_attr), vector(&expected));
        assert_eq!((rtr.0.path_mtu, rtr.0.rq_psn), (ibv_mtu::IBV_MTU_512, 0x11_1111));
        assert_eq!((rtr.0.dest_qp_num, rtr.0.max_dest_rd_atomic), (path[1].dest_qp_num, 1));
        assert_eq!((rts.0.sq_psn, rts.0.max_rd_atomic), (0x22_2222, 2));
        // The timers and retries are the builder's.
        assert_eq!((rts.0.timeout, rts.0.retry_cnt), (12, 5));

        let device = queried(&context, &qp);
        expected.port_num = 1;
        assert_eq!(vector(&device.ah_attr), vector(&expected));
        let (state, peer) = (qp.query().unwrap(), qp.peer().unwrap());
        assert_eq!((state.state, state.mtu), (QpState::RTS, Some(Mtu::MTU512)));
        assert_eq!((peer.mtu, peer.max_rd_atomic, peer.max_dest_rd_atomic), (Mtu::MTU512, 2, 1));
        assert_eq!((peer.send_psn.get(), peer.recv_psn.get()), (0x22_2222, 0x11_1111));
    }
}

/// The device's own function.
static QUERY_PORT: OnceLock<QueryPort> = OnceLock::new();

type QueryPort = unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int;

/// Reports more partitions than the software device has.
unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attributes: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    // SAFETY: SAFETY.md F1: the caller's own contract.
    let failure = unsafe { QUERY_PORT.get().unwrap()(context, port, attributes, size) };
    // SAFETY: SAFETY.md F1: the device's function has written the attributes.
    unsafe { (*attributes).pkey_tbl_len = 16 };
    failure
}

#[test]
fn a_queue_pair_that_is_only_initialized_has_the_builders_attributes() {
    let context = open();
    // SAFETY: SAFETY.md F1: a live context.
    let verbs = unsafe { verbs_get_ctx(context.as_raw()) };
    // SAFETY: SAFETY.md F1: the software device's extended context, which no other code uses yet.
    let verbs = unsafe { &mut *verbs };
    let _ = QUERY_PORT.set(verbs.query_port.replace(query_port).unwrap());
    let cq = CompletionQueue::create(&context, 16).unwrap();
    let pd = context.allocate_pd().unwrap();
    let access = AccessFlags::new().with_remote_read();
    let builder = pd.create_qp().send_cq(&cq).recv_cq(&cq).access(access).pkey_index(9);
    let prepared = builder.build().unwrap();
    NOTED.take();
    let qp = prepared.initialize().unwrap();
    let [(init, _)] = noted();
    assert_eq!((init.port_num, init.pkey_index, init.qp_access_flags), (1, 9, access.bits()));
    assert_eq!(qp.state().unwrap(), QpState::INIT);
}
