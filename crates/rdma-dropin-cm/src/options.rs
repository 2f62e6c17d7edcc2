//! Options of IDs.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use crate::abi::CmId;
use crate::errors::fail;
use crate::id::Id;

/// The levels of options.
const LEVEL_ID: c_int = 0;
const LEVEL_IB: c_int = 1;
/// The options of `LEVEL_ID`.
const TOS: c_int = 0;
const REUSE_ADDRESS: c_int = 1;
const ADDRESS_FAMILY_ONLY: c_int = 2;
const ACK_TIMEOUT: c_int = 3;
/// The option of `LEVEL_IB`.
const PATH: c_int = 1;

/// The code of 67 ms.
const DEFAULT_ACK_TIMEOUT: u8 = 14;
/// The greatest code of a timeout, which has 5 bits.
const MAX_TIMEOUT: u8 = 31;

/// The options of an ID that change something. The connections of a listener have the same ones.
#[derive(Clone, Copy)]
pub(crate) struct Options {
    /// The code of the time after which an unacknowledged packet is sent again.
    pub(crate) ack_timeout: u8,
}

impl Default for Options {
    fn default() -> Self {
        Self { ack_timeout: DEFAULT_ACK_TIMEOUT }
    }
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
    let length = match (level, optname) {
        (LEVEL_ID, TOS | ACK_TIMEOUT) => size_of::<u8>(),
        (LEVEL_ID, REUSE_ADDRESS | ADDRESS_FAMILY_ONLY) => size_of::<c_int>(),
        // The software device has no path records. A NIC's are those of the kernel's rdma_cm.
        (LEVEL_IB, PATH) => return fail(libc::EOPNOTSUPP),
        _ => return fail(libc::ENOSYS),
    };
    if optlen != length || optval.is_null() {
        return fail(libc::EINVAL);
    }
    if (level, optname) == (LEVEL_ID, ACK_TIMEOUT) {
        // SAFETY: the caller passes a value of this length (SAFETY.md F1).
        let code = unsafe { optval.cast::<u8>().read() };
        if code > MAX_TIMEOUT {
            return fail(libc::EINVAL);
        }
        id.state().options.ack_timeout = code;
    }
    // The type of service has no meaning for the software device. Ports are free when their listener ends, and each IP
    // version has its own listeners, so the other two options change nothing.
    0
}
