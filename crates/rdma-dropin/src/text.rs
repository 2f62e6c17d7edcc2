//! Names of values.
#![allow(unsafe_code)]

use std::ffi::c_char;

use rdma_sys::{
    functions, ibv_event_type, ibv_node_type, ibv_port_state, ibv_wc_status, ibv_wr_opcode,
};

use crate::provider::soft;

/// Defines functions that return the texts of the software devices, which are those of libibverbs.
macro_rules! texts {
    ($($name:ident($value:ident: $type:ty) => $verb:ident;)+) => {$(
        const _: functions::$name = $name;
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($value: $type) -> *const c_char {
            // SAFETY: forwards the call with the caller's promises (SAFETY.md F1, F2).
            unsafe { (soft().$verb)($value) }
        }
    )+};
}

texts! {
    ibv_wc_status_str(status: ibv_wc_status) => wc_status_str;
    ibv_event_type_str(event: ibv_event_type) => event_type_str;
    ibv_node_type_str(node_type: ibv_node_type) => node_type_str;
    ibv_port_state_str(port_state: ibv_port_state) => port_state_str;
}

/// One of the private symbols of libibverbs.
#[unsafe(no_mangle)]
extern "C" fn ibv_wr_opcode_str(opcode: ibv_wr_opcode) -> *const c_char {
    let name = match opcode.0 {
        0 => c"rdma-write",
        1 => c"rdma-write-with-imm",
        2 => c"send",
        3 => c"send-with-imm",
        4 => c"rdma-read",
        5 => c"atomic-cmp-and-swp",
        6 => c"atomic-fetch-and-add",
        7 => c"local-inv",
        8 => c"bind-mw",
        9 => c"send-with-inv",
        10 => c"tso",
        11 => c"driver1",
        14 => c"flush",
        15 => c"atomic-write",
        _ => c"unknown",
    };
    name.as_ptr()
}
