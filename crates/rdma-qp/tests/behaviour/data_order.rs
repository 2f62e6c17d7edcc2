//! The order in which the bytes of a message arrive, as a provider guarantees it: the software device with this query
//! replaced.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::OnceLock;

use rdma_mem::DeviceList;
use rdma_qp::{CompletionQueue, DataOrder, WcOpcode, prelude::*};
use rdma_sys::{Verbs, ibv_qp, ibv_query_qp_data_in_order_flags, ibv_wr_opcode};

type Query = unsafe extern "C" fn(*mut ibv_qp, ibv_wr_opcode, u32) -> c_int;

/// Guarantees whole messages of WRITE, blocks of 128 bytes of READ, and nothing for SEND.
unsafe extern "C" fn answer(_: *mut ibv_qp, opcode: ibv_wr_opcode, flags: u32) -> c_int {
    let caps = ibv_query_qp_data_in_order_flags::IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS.0;
    let asks_for_caps = flags == caps;
    match opcode {
        ibv_wr_opcode::IBV_WR_RDMA_WRITE if asks_for_caps => 3,
        ibv_wr_opcode::IBV_WR_RDMA_WRITE => 1,
        ibv_wr_opcode::IBV_WR_RDMA_READ if asks_for_caps => 2,
        ibv_wr_opcode::IBV_WR_SEND | ibv_wr_opcode::IBV_WR_RDMA_READ => 0,
        _ => std::process::abort(), // never queried
    }
}

/// Queries a device whose provider has that function.
fn orders(table: &'static OnceLock<Verbs>, query: Option<Query>) -> [DataOrder; 4] {
    rdma_soft::install();
    let verbs = table.get_or_init(|| {
        let mut verbs = *rdma_soft::verbs();
        verbs.query_qp_data_in_order = query;
        verbs
    });
    // SAFETY: SAFETY.md F2: the functions are the software device's, and one that only answers.
    let list = unsafe { DeviceList::of(verbs) };
    let context = list.iter().next().unwrap().open().unwrap();
    let cq = CompletionQueue::create(&context, 16).unwrap();
    let pd = context.allocate_pd().unwrap();
    let prepared = pd.create_qp().send_cq(&cq).recv_cq(&cq).build().unwrap();
    let own = prepared.endpoint();
    let qp = prepared.handshake(own).unwrap();
    [WcOpcode::SEND, WcOpcode::RDMA_WRITE, WcOpcode::RDMA_READ, WcOpcode::FETCH_ADD]
        .map(|opcode| qp.data_order(opcode).unwrap())
}

#[test]
fn the_order_of_bytes_is_what_the_device_promises() {
    static TABLE: OnceLock<Verbs> = OnceLock::new();
    let found =
        orders(&TABLE, Some(answer)).map(|order| (order.whole_message, order.aligned_128_bytes));
    assert_eq!(found, [(false, false), (true, true), (false, true), (false, false)]);
}

/// libibverbs before rdma-core 36 has no such query.
#[test]
fn without_the_query_nothing_is_promised() {
    static TABLE: OnceLock<Verbs> = OnceLock::new();
    assert_eq!(orders(&TABLE, None), [DataOrder::default(); 4]);
}
