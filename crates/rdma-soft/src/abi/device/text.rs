//! Names for the values of enums. Every value has one, because C programs print the names unchecked.

use std::ffi::{CStr, c_char};

use rdma_sys::{ibv_event_type, ibv_node_type, ibv_port_state, ibv_wc_status};
use rdma_types::{AsyncEventKind, NodeType, PortState, WcStatus};

fn or_unknown(text: Option<&'static CStr>) -> *const c_char {
    text.unwrap_or(c"unknown").as_ptr()
}

pub(crate) extern "C" fn wc_status_str(status: ibv_wc_status) -> *const c_char {
    or_unknown(WcStatus::from_raw(status.0).c_text())
}

pub(crate) extern "C" fn event_type_str(event: ibv_event_type) -> *const c_char {
    or_unknown(AsyncEventKind::from_raw(event.0).c_text())
}

pub(crate) extern "C" fn node_type_str(node: ibv_node_type) -> *const c_char {
    or_unknown(NodeType::from_raw(node.0).c_text())
}

pub(crate) extern "C" fn port_state_str(state: ibv_port_state) -> *const c_char {
    or_unknown(PortState::from_raw(state.0).c_text())
}
