//! Send requests in their C form, and the expected outcome of each.

use std::ptr;

use arbitrary::Unstructured;
use rdma_sys::{
    ibv_ah, ibv_mw_bind_info, ibv_qp_type, ibv_send_flags as Flags, ibv_send_wr,
    ibv_send_wr__bindgen_ty_2__bindgen_ty_2 as Atomic,
    ibv_send_wr__bindgen_ty_4__bindgen_ty_1 as Bind, ibv_sge, ibv_wr_opcode as Opcode,
};
use test_support::rig::datagram::QKEY;
use test_support::rig::window::Mw;
use test_support::rig::{REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE};

use super::calls::remote;
use super::end::End;
use super::input::{self, Element, Send};
use super::world::World;

/// The form in which a request is posted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Listed,
    Called,
}

/// The facts known about a request before it is posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Judged {
    /// Whether the request satisfies the rules of its queue pair.
    pub(crate) is_sound: bool,
    /// Whether it is a datagram without a usable address.
    pub(crate) goes_nowhere: bool,
    pub(crate) signaled: bool,
    /// Whether the keys allow it; true where a window decides.
    pub(crate) may_succeed: bool,
}

/// A request and its elements.
pub(crate) struct Built {
    pub(crate) wr: ibv_send_wr,
    pub(crate) sges: Vec<ibv_sge>,
    pub(crate) judged: Judged,
}

/// A window of each type, if the input has them.
pub(crate) type Windows = Option<[Mw; 2]>;

/// The element that a record of the input describes.
pub(crate) fn element(world: &World, record: Element, windows: &Windows) -> ibv_sge {
    ibv_sge {
        addr: world.address(record.zone, record.at),
        length: input::length(record.length),
        lkey: world.lkey(record.key, keys(windows)),
    }
}

/// The claimed number of elements, and the actual ones.
pub(crate) fn elements(
    world: &World,
    input: &mut Unstructured<'_>,
    code: u8,
    windows: &Windows,
) -> (i32, Vec<Element>, Vec<ibv_sge>) {
    let (said, there) = input::count(code);
    let records: Vec<_> = (0..there).map(|_| Element::read(input)).collect();
    let sges = records.iter().map(|record| element(world, *record, windows)).collect();
    (said, records, sges)
}

pub(crate) fn keys(windows: &Windows) -> [u32; 2] {
    windows.as_ref().map_or([0; 2], |windows| [windows[0].key(), windows[1].key_with(1)])
}

pub(crate) fn opcode(code: u8) -> Opcode {
    match code % 20 {
        known @ 0..16 => Opcode(known.into()),
        16 => Opcode(u32::MAX),
        other => Opcode(u32::from(other) << 24),
    }
}

/// The C flags are the lowest bits.
pub(crate) fn flags(code: u8) -> u32 {
    let known = u32::from(code & 0x0f);
    match code & 0xc0 {
        0xc0 => known | 1 << 30,
        0x80 => known | Flags::IBV_SEND_IP_CSUM.0,
        _ => known,
    }
}

fn remote_right(opcode: Opcode) -> u32 {
    match opcode {
        Opcode::IBV_WR_RDMA_WRITE | Opcode::IBV_WR_RDMA_WRITE_WITH_IMM => REMOTE_WRITE,
        Opcode::IBV_WR_RDMA_READ => REMOTE_READ,
        _ if is_atomic(opcode) => REMOTE_ATOMIC,
        _ => 0,
    }
}

fn is_atomic(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::IBV_WR_ATOMIC_CMP_AND_SWP | Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD)
}

fn is_local(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::IBV_WR_LOCAL_INV | Opcode::IBV_WR_BIND_MW)
}

/// The parameters for binding a window to some memory.
pub(crate) fn part(world: &World, record: &Send) -> ibv_mw_bind_info {
    let mr = world.zones.get(usize::from(record.key % 16)).map_or(ptr::null_mut(), |z| z.mr());
    ibv_mw_bind_info {
        mr,
        addr: world.address(record.zone, record.at),
        length: if record.operand == u16::MAX { u64::MAX } else { record.operand.into() },
        mw_access_flags: u32::from(record.number),
    }
}

impl Built {
    /// Returns true if the request fetches bytes from the peer.
    pub(crate) fn fetches(&self) -> bool {
        self.wr.opcode == Opcode::IBV_WR_RDMA_READ || is_atomic(self.wr.opcode)
    }

    /// Reads a request for a queue pair.
    pub(crate) fn read(
        world: &World,
        end: &End,
        windows: &Windows,
        (id, peer, form): (u64, u32, Form),
        input: &mut Unstructured<'_>,
    ) -> (Self, Send) {
        let record = Send::read(input);
        let (num_sge, records, mut sges) = elements(world, input, record.elements, windows);
        let mut wr = ibv_send_wr::default();
        (wr.wr_id, wr.num_sge) = (id, num_sge);
        (wr.opcode, wr.send_flags) = (opcode(record.opcode), flags(record.flags));
        fill(&mut wr, world, &record, windows, peer, end.size.qp_type);
        let total = sges.iter().map(|sge| u64::from(sge.length)).sum::<u64>();
        let is_inline = wr.send_flags & Flags::IBV_SEND_INLINE.0 != 0;
        let mut judged = Judged {
            is_sound: is_sound(&wr, end, (total, form), &record, windows),
            goes_nowhere: end.size.qp_type == ibv_qp_type::IBV_QPT_UD
                && (destination(world, &record).is_null() || !is_send(wr.opcode)),
            signaled: wr.send_flags & Flags::IBV_SEND_SIGNALED.0 != 0,
            may_succeed: true,
        };
        if is_inline && judged.is_sound {
            // The device then reads the data by its address without a key, so the address must be
            // valid.
            for (sge, record) in sges.iter_mut().zip(&records) {
                sge.addr = world.plain(record.at, sge.length);
            }
        }
        judged.may_succeed = may_succeed(world, &wr, &sges, is_inline, end, windows);
        (Self { wr, sges, judged }, record)
    }

    /// The request with its elements, to be posted in a list; valid while `self` lives.
    pub(crate) fn listed(&self) -> ibv_send_wr {
        ibv_send_wr { sg_list: self.sges.as_ptr().cast_mut(), ..self.wr }
    }
}

fn is_send(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::IBV_WR_SEND | Opcode::IBV_WR_SEND_WITH_IMM)
}

/// An address handle, one of another domain, or none.
fn destination(world: &World, record: &Send) -> *mut ibv_ah {
    match record.other % 4 {
        1 => world.ahs[1].0,
        2 => ptr::null_mut(),
        _ => world.ahs[0].0,
    }
}

/// Fills the fields other than the data.
fn fill(
    wr: &mut ibv_send_wr,
    world: &World,
    record: &Send,
    windows: &Windows,
    peer: u32,
    qp_type: ibv_qp_type,
) {
    let key = world.key(record.key, keys(windows));
    let address = world.address(record.zone, record.at);
    let number = world.key(record.number, keys(windows));
    match wr.opcode {
        Opcode::IBV_WR_BIND_MW => {
            let windows = windows.as_ref();
            let mw = match record.other % 4 {
                0 => None,
                1 => windows.map(|windows| windows[0].0),
                _ => windows.map(|windows| windows[1].0),
            };
            let rkey = if record.other & 0x80 == 0 { number } else { key };
            let mw = mw.unwrap_or(ptr::null_mut());
            let bind_info = part(world, record);
            wr.__bindgen_anon_2.bind_mw = Bind { mw, rkey, bind_info };
        }
        opcode if is_atomic(opcode) => {
            let operand = u64::from(record.operand);
            wr.wr.atomic =
                Atomic { remote_addr: address, compare_add: operand, swap: !operand, rkey: key };
        }
        _ => {
            wr.wr.rdma.remote_addr = address;
            wr.wr.rdma.rkey = key;
        }
    }
    if wr.opcode != Opcode::IBV_WR_BIND_MW {
        wr.__bindgen_anon_1.invalidate_rkey = number;
    }
    if qp_type == ibv_qp_type::IBV_QPT_UD {
        wr.wr.ud.ah = destination(world, record);
        wr.wr.ud.remote_qpn = if record.operand % 4 == 3 { record.operand.into() } else { peer };
        wr.wr.ud.remote_qkey = if record.zone % 4 == 3 { 1 << 31 } else { QKEY };
    }
}

/// Returns true if its queue pair can accept the request.
fn is_sound(
    wr: &ibv_send_wr,
    end: &End,
    (total, form): (u64, Form),
    record: &Send,
    windows: &Windows,
) -> bool {
    let known = Flags::IBV_SEND_FENCE.0
        | Flags::IBV_SEND_SIGNALED.0
        | Flags::IBV_SEND_SOLICITED.0
        | Flags::IBV_SEND_INLINE.0;
    let is_inline = wr.send_flags & Flags::IBV_SEND_INLINE.0 != 0;
    // Inline data given by a function call counts as one element, whatever its number of parts.
    let joined = is_inline && form == Form::Called;
    let fits = (joined || (0..=end.size.sge.cast_signed()).contains(&wr.num_sge))
        && (!is_inline || total <= end.size.inline.into());
    let qp_type = end.size.qp_type;
    let allowed = match wr.opcode {
        Opcode::IBV_WR_SEND
        | Opcode::IBV_WR_SEND_WITH_IMM
        | Opcode::IBV_WR_RDMA_WRITE
        | Opcode::IBV_WR_RDMA_WRITE_WITH_IMM => true,
        Opcode::IBV_WR_SEND_WITH_INV => qp_type == ibv_qp_type::IBV_QPT_RC,
        Opcode::IBV_WR_RDMA_READ => end.fetches && !is_inline,
        opcode if is_atomic(opcode) => end.fetches && !is_inline,
        Opcode::IBV_WR_LOCAL_INV => qp_type != ibv_qp_type::IBV_QPT_UD,
        Opcode::IBV_WR_BIND_MW => {
            qp_type != ibv_qp_type::IBV_QPT_UD && windows.is_some() && record.other % 4 > 1
        }
        _ => false,
    };
    wr.send_flags & !known == 0 && fits && allowed
}

/// Returns true if the keys allow the requested access.
fn may_succeed(
    world: &World,
    wr: &ibv_send_wr,
    sges: &[ibv_sge],
    is_inline: bool,
    end: &End,
    windows: &Windows,
) -> bool {
    if is_local(wr.opcode) {
        return true;
    }
    let right = remote_right(wr.opcode);
    let fetches = right & (REMOTE_READ | REMOTE_ATOMIC) != 0;
    let total = sges.iter().map(|sge| u64::from(sge.length)).sum::<u64>();
    let granted = |sge: &ibv_sge| {
        sge.length == 0 || is_inline || world.grants(sge.lkey, sge.addr, sge.length, fetches)
    };
    if total > 1 << 31 || !sges.iter().all(granted) {
        return false;
    }
    let bytes = if is_atomic(wr.opcode) { 8 } else { total };
    if right == 0 || bytes == 0 || end.size.qp_type != ibv_qp_type::IBV_QPT_RC {
        return true;
    }
    let (key, address) = remote(wr);
    let of_window = keys(windows).iter().any(|window| window >> 8 == key >> 8);
    let aligned = !is_atomic(wr.opcode) || address.is_multiple_of(8);
    // Where a zone has its own addresses, the alignment of the memory decides; it is the same.
    of_window || aligned && world.serves(key, address, bytes, right)
}
