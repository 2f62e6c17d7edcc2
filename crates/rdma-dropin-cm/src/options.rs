//! Options of IDs.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use rdma_cm::BindOptions;
use rdma_cm::unmanaged::Route;
use rdma_sys::cm::option::{ACK_TIMEOUT, AFONLY, PATH, REUSEADDR, TOS};
use rdma_sys::ibv_qp_type;
use rdma_types::AckTimeout;

use crate::abi::CmId;
use crate::errors::returned;
use crate::id::{Id, Stage};

/// The options of an ID. The connections of a listener have the same ones.
#[derive(Clone, Copy, Default)]
pub(crate) struct Options {
    /// The time after which an unacknowledged packet is sent again, if the program has set it.
    ack_timeout: Option<AckTimeout>,
    /// The traffic class of packets, if the program has set it.
    tos: Option<u8>,
    /// The options of the port.
    pub(crate) bind: BindOptions,
}

impl Options {
    /// Returns a route with the properties that the program has set.
    pub(crate) fn apply(&self, route: Route) -> Route {
        Route {
            traffic_class: self.tos.unwrap_or(route.traffic_class),
            ack_timeout: self.ack_timeout.unwrap_or(route.ack_timeout),
            ..route
        }
    }
}

/// Sets an option, or returns the error number.
///
/// # Safety
/// The value has this length, or is NULL.
unsafe fn set(
    id: &Id,
    option: (c_int, c_int),
    value: *const c_void,
    length: usize,
) -> Result<(), c_int> {
    let expected = match option {
        TOS | ACK_TIMEOUT => size_of::<u8>(),
        REUSEADDR | AFONLY => size_of::<c_int>(),
        // The software device has no path records. A NIC's are those of the kernel's rdma_cm.
        PATH => return Err(libc::EOPNOTSUPP),
        _ => return Err(libc::ENOSYS),
    };
    if length != expected || value.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: this function's contract. Each value has at least one byte.
    let byte = unsafe { value.cast::<u8>().read() };
    let mut state = id.state();
    match option {
        TOS => state.options.tos = Some(byte),
        ACK_TIMEOUT => {
            let is_reliable = id.qp_type == ibv_qp_type::IBV_QPT_RC;
            let timeout = AckTimeout::from_code(byte).filter(|_| is_reliable);
            state.options.ack_timeout = Some(timeout.ok_or(libc::EINVAL)?);
        }
        _ => {
            // SAFETY: this function's contract: the value has the length of an integer.
            let is_set = unsafe { value.cast::<c_int>().read_unaligned() } != 0;
            // The kernel's rdma_cm sets the options in these states.
            let is_allowed = match option {
                REUSEADDR if is_set => state.stage != Stage::Listening,
                REUSEADDR => state.stage == Stage::New && state.bound.is_none(),
                _ => state.stage == Stage::New,
            };
            if !is_allowed {
                return Err(libc::EINVAL);
            }
            let bind = match option {
                REUSEADDR => state.options.bind.with_shared_port(is_set),
                _ => state.options.bind.with_one_ip_version(is_set),
            };
            state.options.bind = bind;
            for (_, port) in &mut state.ports {
                port.set_options(bind);
            }
        }
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_set_option(
    id: *mut CmId,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: usize,
) -> c_int {
    // SAFETY: the caller passes a live ID (SAFETY.md F1).
    let id = unsafe { Id::of(id) };
    // SAFETY: the caller passes a value of this length (SAFETY.md F1).
    returned(unsafe { set(id, (level, optname), optval, optlen) })
}
