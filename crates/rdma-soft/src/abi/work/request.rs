//! Reads a program's work requests.

use std::ffi::c_int;
use std::mem::offset_of;
use std::slice;

use rdma_sys::{ibv_send_flags, ibv_send_wr, ibv_sge};

use super::opcode::opcode;
use crate::abi::memory::mw;
use crate::abi::queue_pair::ah::destination;
use crate::engine::Refusal;
use crate::engine::operation::{Opcode, Operation};
use crate::engine::requester::request::{Payload, Request};
use crate::memory::sge::Sge;
use crate::memory::window::WindowKind;

/// The flags that a request may have.
const SEND_FLAGS: u32 = ibv_send_flags::IBV_SEND_FENCE.0
    | ibv_send_flags::IBV_SEND_SIGNALED.0
    | ibv_send_flags::IBV_SEND_SOLICITED.0
    | ibv_send_flags::IBV_SEND_INLINE.0;

// The engine reads a program's elements in place, so the layouts must match.
const _: () = {
    assert!(size_of::<Sge>() == size_of::<ibv_sge>() && align_of::<Sge>() == align_of::<ibv_sge>());
    assert!(offset_of!(Sge, addr) == offset_of!(ibv_sge, addr));
    assert!(offset_of!(Sge, length) == offset_of!(ibv_sge, length));
    assert!(offset_of!(Sge, lkey) == offset_of!(ibv_sge, lkey));
};

/// Returns the elements of a request if its queue allows that many. A longer list is refused before it is read, as with
/// hardware providers.
///
/// # Safety
///
/// `list` points to `count` elements, which are not written while the result is used. This is not required if `count`
/// is 0, negative, or greater than `most`.
#[inline]
pub(super) unsafe fn elements<'a>(
    list: *const ibv_sge,
    count: c_int,
    most: u32,
) -> Result<&'a [Sge], Refusal> {
    match u32::try_from(count) {
        Ok(0) => Ok(&[]),
        Ok(count) if count <= most => {
            // SAFETY: by this function's contract (SAFETY.md F12). As asserted above, an `Sge` has the layout of an
            // `ibv_sge` (F5), and its fields are the same integers.
            Ok(unsafe { slice::from_raw_parts(list.cast::<Sge>(), count as usize) })
        }
        _ => Err(Refusal::Invalid),
    }
}

/// Reads a program's request, which may have up to `most` elements.
///
/// # Safety
///
/// The request and everything it points to are valid while the result is used.
#[inline]
pub(super) unsafe fn send_request<'a>(
    wr: &ibv_send_wr,
    most: u32,
) -> Result<(Request, Payload<'a>), Refusal> {
    let opcode = opcode(wr.opcode).ok_or(Refusal::Invalid)?;
    // SAFETY: by this function's contract.
    let payload = unsafe { payload(wr, most)? };
    let mut request = without_rest(wr, opcode);
    if opcode.is_special() {
        // SAFETY: by this function's contract.
        let special = unsafe { special(wr, opcode)? };
        request.operation = Operation { solicited: request.operation.solicited, ..special };
    }
    Ok((request, payload))
}

/// Returns the data of a program's request, if its flags are valid.
///
/// # Safety
///
/// The request and everything it points to are valid while the result is used.
#[inline(always)]
pub(super) unsafe fn payload<'a>(wr: &ibv_send_wr, most: u32) -> Result<Payload<'a>, Refusal> {
    if wr.send_flags & !SEND_FLAGS != 0 {
        return Err(Refusal::Invalid);
    }
    // SAFETY: by this function's contract.
    let sges = unsafe { elements(wr.sg_list, wr.num_sge, most)? };
    Ok(if wr.send_flags & ibv_send_flags::IBV_SEND_INLINE.0 != 0 {
        // SAFETY: the memory is readable: it exists and is initialised until the post returns (man ibv_post_send,
        // SAFETY.md F12), and the payload is not used later. A request that waits in a queue has a copy of the bytes,
        // and a payload that refers to the copy. The memory was exposed when its element was made, through the pointer
        // whose address the element contains (F7).
        unsafe { Payload::inline(sges) }
    } else {
        Payload::keyed(sges)
    })
}

/// Returns the parts of an ordinary request, except its data.
#[inline(always)]
pub(super) fn without_rest(wr: &ibv_send_wr, opcode: Opcode) -> Request {
    // SAFETY: the field is initialised in every request, whether or not the opcode uses it (SAFETY.md F12), and any
    // bytes are a valid value (F4).
    let imm = unsafe { wr.__bindgen_anon_1.imm_data };
    // SAFETY: as above (SAFETY.md F4, F12); a SEND does not use the field.
    let remote = unsafe { wr.wr.rdma };
    Request {
        wr_id: wr.wr_id,
        signaled: wr.send_flags & ibv_send_flags::IBV_SEND_SIGNALED.0 != 0,
        fence: wr.send_flags & ibv_send_flags::IBV_SEND_FENCE.0 != 0,
        operation: Operation {
            opcode,
            solicited: wr.send_flags & ibv_send_flags::IBV_SEND_SOLICITED.0 != 0,
            imm,
            remote_address: remote.remote_addr,
            rkey: remote.rkey,
            ..Operation::EMPTY
        },
        ..Request::EMPTY
    }
}

/// Returns the operation of a special request: an atomic, a bind, a local invalidation, or a SEND that invalidates a
/// key. The elements of a bind or a local invalidation have no meaning.
///
/// # Safety
///
/// The request, its window and its region are valid during the call.
#[cold]
unsafe fn special(wr: &ibv_send_wr, opcode: Opcode) -> Result<Operation, Refusal> {
    if opcode.is_atomic() {
        // SAFETY: the field is initialised in an atomic (SAFETY.md F12), and any bytes are a valid value (F4).
        let atomic = unsafe { wr.wr.atomic };
        let remote_address = atomic.remote_addr;
        let (rkey, operand, swap) = (atomic.rkey, atomic.compare_add, atomic.swap);
        return Ok(Operation { opcode, remote_address, rkey, operand, swap, ..Operation::EMPTY });
    }
    if opcode == Opcode::BindWindow {
        // SAFETY: likewise, the field is initialised in a bind (SAFETY.md F4, F12).
        let bind = unsafe { wr.__bindgen_anon_2.bind_mw };
        // SAFETY: by this function's contract.
        let bind = unsafe { mw::bind(bind.mw, WindowKind::Two, bind.rkey, &bind.bind_info)? };
        return Ok(bind.into_operation());
    }
    // SAFETY: as above; the key is stored in host byte order.
    let imm = unsafe { wr.__bindgen_anon_1.invalidate_rkey };
    Ok(Operation { opcode, imm, ..Operation::EMPTY })
}

/// Reads a program's datagram request.
///
/// # Safety
///
/// The request and everything it points to are valid while the result is used. The request is for a datagram queue
/// pair.
#[inline]
pub(super) unsafe fn datagram<'a>(
    wr: &ibv_send_wr,
    most: u32,
) -> Result<(Request, Payload<'a>), Refusal> {
    // SAFETY: by this function's contract.
    let (request, payload) = unsafe { send_request(wr, most)? };
    // SAFETY: the field is initialised in a request for a datagram queue pair (SAFETY.md F12), and any bytes are a
    // valid value (F4).
    let ud = unsafe { wr.wr.ud };
    // SAFETY: by this function's contract; on such a queue pair, the union contains the address handle (SAFETY.md F1).
    let vector = unsafe { destination(ud.ah) };
    let (destination_qpn, qkey) = (ud.remote_qpn & 0x00ff_ffff, ud.remote_qkey);
    Ok((Request { destination_qpn, qkey, ..request }, payload.to(vector)))
}
