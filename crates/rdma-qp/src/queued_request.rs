//! Requests in the form of C, ready to be posted in a list.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::null_mut;

use rdma_mem::{
    BindError, GatherElement, InlineElement, ProtectionDomain, RemoteMemoryRegion, ScatterElement,
};
use rdma_sys::{
    ibv_mw, ibv_pd, ibv_send_wr, ibv_send_wr__bindgen_ty_1, ibv_send_wr__bindgen_ty_2,
    ibv_send_wr__bindgen_ty_2__bindgen_ty_1, ibv_send_wr__bindgen_ty_2__bindgen_ty_3,
    ibv_send_wr__bindgen_ty_3, ibv_send_wr__bindgen_ty_3__bindgen_ty_1, ibv_send_wr__bindgen_ty_4,
    ibv_send_wr__bindgen_ty_4__bindgen_ty_2, ibv_sge, ibv_wr_opcode,
};

use rdma_types::{QpType, WcOpcode};

use crate::post_error::Reason;
use crate::service::check_service;
use crate::work_request::{Data, Destination, INLINE, SIGNALED};
use crate::{PostError, QueuePair, ReadWorkRequest, SendWorkRequest, WriteWorkRequest};

/// A request of the send queue, of any kind, with its number: what
/// [`QueuePair::post_batch`](crate::QueuePair::post_batch) takes a slice of.
///
/// Made by `with_id` of each request.
#[doc(alias = "ibv_send_wr")]
#[repr(C)]
pub struct QueuedRequest<'wr, 'data> {
    pub(crate) wr: ibv_send_wr,
    /// How many bytes the elements have; of a datagram and [`TO`].
    pub(crate) bytes: u64,
    /// How many bytes the peer's memory has.
    pub(crate) remote: u64,
    /// The domains of its elements, as far as they are known.
    domains: &'wr [&'data ProtectionDomain],
    borrow: PhantomData<(Data<'wr, 'data>, &'wr mut [ScatterElement<'data>])>,
}

// SAFETY: SAFETY.md F12: it stands for numbers and borrows of an array, of a handle or of a window, which are
// `Send`. The pointers to other requests are set in one call and not used after it.
unsafe impl Send for QueuedRequest<'_, '_> {}
// SAFETY: SAFETY.md F12: nothing is done through `&self`.
unsafe impl Sync for QueuedRequest<'_, '_> {}

/// The elements of a request, as C has them, and what is known of them.
pub(crate) struct Elements<'wr, 'data> {
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
    pub(crate) bytes: u64,
    pub(crate) domains: &'wr [&'data ProtectionDomain],
    /// The flag of inline data, if it is that.
    inline: u32,
}

impl<'wr, 'data> Elements<'wr, 'data> {
    #[inline]
    fn of(data: Data<'wr, 'data>, domains: &'wr [&'data ProtectionDomain]) -> Self {
        match data {
            Data::Keyed(elements) => Self::gathered(elements, domains),
            Data::Inline(elements) => Self::inline(elements, domains),
        }
    }

    #[inline]
    fn inline(
        elements: &'wr [InlineElement<'wr>],
        domains: &'wr [&'data ProtectionDomain],
    ) -> Self {
        let bytes = elements.iter().map(|element| u64::from(element.length())).sum();
        let sg_list = elements.as_ptr().cast_mut().cast();
        Self { sg_list, num_sge: count(elements.len()), bytes, domains, inline: INLINE }
    }

    #[inline]
    pub(crate) fn gathered(
        elements: &'wr [GatherElement<'data>],
        domains: &'wr [&'data ProtectionDomain],
    ) -> Self {
        let bytes = elements.iter().map(|element| u64::from(element.length())).sum();
        // C has no `const` here, and does not write.
        let sg_list = elements.as_ptr().cast_mut().cast();
        Self { sg_list, num_sge: count(elements.len()), bytes, domains, inline: 0 }
    }

    #[inline]
    pub(crate) fn scattered(
        elements: &'wr mut [ScatterElement<'data>],
        domains: &'wr [&'data ProtectionDomain],
    ) -> Self {
        let bytes = elements.iter().map(|element| u64::from(element.length())).sum();
        let sg_list = elements.as_mut_ptr().cast();
        Self { sg_list, num_sge: count(elements.len()), bytes, domains, inline: 0 }
    }
}

/// The length as C has it. What does not fit is more than any device takes, and is refused by it.
#[inline]
fn count(elements: usize) -> c_int {
    c_int::try_from(elements).unwrap_or(c_int::MAX)
}

impl<'wr, 'data> QueuedRequest<'wr, 'data> {
    /// A request without immediate and remote memory.
    #[inline]
    pub(crate) fn new(
        wr_id: u64,
        opcode: ibv_wr_opcode,
        send_flags: u32,
        elements: Elements<'wr, 'data>,
    ) -> Self {
        let Elements { sg_list, num_sge, bytes, domains, inline } = elements;
        // Each part by itself, and of a union no more than is used: zeros for the whole would be made
        // elsewhere first and copied then, which takes longer than the post.
        let wr = ibv_send_wr {
            wr_id,
            next: null_mut(),
            sg_list,
            num_sge,
            opcode,
            send_flags: send_flags | inline,
            __bindgen_anon_1: ibv_send_wr__bindgen_ty_1 { imm_data: 0 },
            wr: ibv_send_wr__bindgen_ty_2 {
                rdma: ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: 0, rkey: 0 },
            },
            qp_type: ibv_send_wr__bindgen_ty_3 {
                xrc: ibv_send_wr__bindgen_ty_3__bindgen_ty_1 { remote_srqn: 0 },
            },
            __bindgen_anon_2: ibv_send_wr__bindgen_ty_4 {
                tso: ibv_send_wr__bindgen_ty_4__bindgen_ty_2 { hdr: null_mut(), hdr_sz: 0, mss: 0 },
            },
        };
        Self { wr, bytes, remote: u64::MAX, domains, borrow: PhantomData }
    }

    #[inline]
    fn immediate(mut self, immediate: Option<u32>) -> Self {
        self.wr.__bindgen_anon_1.imm_data = immediate.unwrap_or(0).to_be();
        self
    }

    #[inline]
    fn to(mut self, destination: Option<Destination<'wr>>) -> Self {
        if let Some(Destination { handle, qpn, qkey }) = destination {
            self.wr.wr.ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
                ah: handle.as_raw(),
                remote_qpn: qpn.get(),
                remote_qkey: qkey,
            };
            // So that the one check of each post fails, which then looks closer.
            (self.bytes, self.remote) = (self.bytes | TO, 0);
        }
        self
    }

    #[inline]
    fn rdma(mut self, remote: RemoteMemoryRegion) -> Self {
        let (remote_addr, rkey) = (remote.address(), remote.rkey().get());
        self.wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
        self.remote = remote.length() as u64;
        self
    }

    /// The number that its completion will have.
    #[inline]
    #[must_use]
    pub const fn wr_id(&self) -> u64 {
        self.wr.wr_id
    }

    /// What it is, as the completion says it if it succeeds.
    #[inline]
    #[must_use]
    pub const fn opcode(&self) -> WcOpcode {
        match self.wr.opcode {
            ibv_wr_opcode::IBV_WR_RDMA_WRITE | ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => {
                WcOpcode::RDMA_WRITE
            }
            ibv_wr_opcode::IBV_WR_RDMA_READ => WcOpcode::RDMA_READ,
            ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP => WcOpcode::COMP_SWAP,
            ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => WcOpcode::FETCH_ADD,
            ibv_wr_opcode::IBV_WR_LOCAL_INV => WcOpcode::LOCAL_INV,
            ibv_wr_opcode::IBV_WR_BIND_MW => WcOpcode::BIND_MW,
            _ => WcOpcode::SEND,
        }
    }

    /// Gives it another number.
    #[inline]
    pub const fn set_wr_id(&mut self, wr_id: u64) {
        self.wr.wr_id = wr_id;
    }

    /// Whether success shall make a completion; as of [`WriteWorkRequest::signaled`].
    #[inline]
    pub const fn set_signaled(&mut self, signaled: bool) {
        let others = self.wr.send_flags & !SIGNALED;
        self.wr.send_flags = if signaled { others | SIGNALED } else { others };
    }

    /// Whether success makes a completion.
    #[inline]
    #[must_use]
    pub const fn is_signaled(&self) -> bool {
        self.wr.send_flags & SIGNALED != 0
    }

    /// Whether the queue pair can be known not to be able to do it.
    #[inline]
    pub(crate) fn check(&self, qp: &QueuePair) -> Result<(), PostError> {
        let (bytes, remote, domains) = (self.bytes, self.remote, self.domains);
        let (elements, inline) =
            (self.wr.num_sge.cast_unsigned(), self.wr.send_flags & INLINE != 0);
        if elements < qp.usual_sge() && fits(qp, bytes, remote, inline, domains) {
            return Ok(());
        }
        let opcode = self.wr.opcode;
        if opcode == ibv_wr_opcode::IBV_WR_BIND_MW && qp.qp_type() != QpType::UD {
            // SAFETY: SAFETY.md F4: as the opcode says.
            let mw = unsafe { self.wr.__bindgen_anon_2.bind_mw.mw };
            // SAFETY: SAFETY.md F1: the request borrows its window.
            return unsafe { check_window(mw, qp) };
        }
        // SAFETY: SAFETY.md F4: plain numbers, with the address first wherever there is one.
        let address = unsafe { self.wr.wr.rdma.remote_addr };
        let doubtful = Doubtful { opcode, bytes, remote, address, elements, inline, domains };
        let send = matches!(
            opcode,
            ibv_wr_opcode::IBV_WR_SEND
                | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM
                | ibv_wr_opcode::IBV_WR_SEND_WITH_INV
        );
        // Others have no destination, and more bytes than there are where something is wrong with them.
        if !send || bytes & TO == 0 {
            return doubtful.check(qp, None);
        }
        // SAFETY: SAFETY.md F4: `to` has set both.
        let handle = unsafe { self.wr.wr.ud.ah };
        // SAFETY: SAFETY.md F1: the request borrows its handle.
        doubtful.check(qp, Some(unsafe { (*handle).pd }))
    }
}

/// Set in the number of bytes, which is never so large, of a send that says where it goes.
const TO: u64 = 1 << 63;

/// Whether the peer's memory, or an inline request, has room for the elements, and all are of one domain.
#[inline]
fn fits(
    qp: &QueuePair,
    bytes: u64,
    remote: u64,
    inline: bool,
    domains: &[&ProtectionDomain],
) -> bool {
    bytes <= remote
        && if inline {
            // Needs no registration.
            bytes <= u64::from(qp.limits().max_inline_data)
        } else {
            are_of(domains, qp.pd())
        }
}

/// That a window to be bound is of the queue pair's domain.
///
/// # Safety
/// The window is live.
#[cold]
#[inline(never)]
unsafe fn check_window(mw: *const ibv_mw, qp: &QueuePair) -> Result<(), PostError> {
    // SAFETY: this function's contract.
    let pd = unsafe { (*mw).pd };
    if std::ptr::eq(pd, qp.pd().as_raw()) { Ok(()) } else { Err(BindError::WrongDomain.into()) }
}

/// What is looked at when a request, or its queue pair, is not as most are. A copy: of a request whose
/// address is given away, all would have to be in memory before it is checked.
struct Doubtful<'wr, 'data> {
    opcode: ibv_wr_opcode,
    bytes: u64,
    remote: u64,
    address: u64,
    elements: u32,
    inline: bool,
    domains: &'wr [&'data ProtectionDomain],
}

impl Doubtful<'_, '_> {
    /// With the domain of its address handle, if it has one.
    #[cold]
    #[inline(never)]
    fn check(self, qp: &QueuePair, handle: Option<*mut ibv_pd>) -> Result<(), PostError> {
        let this = match handle {
            Some(_) => Self { bytes: self.bytes & !TO, remote: u64::MAX, ..self },
            None => self,
        };
        check_service(qp, this.opcode, this.bytes, handle)?;
        let Self { bytes, remote, elements, inline, domains, .. } = this;
        let fits = fits(qp, bytes, remote, inline, domains);
        if fits && elements <= qp.limits().max_send_sge { Ok(()) } else { Err(this.why(qp)) }
    }

    fn why(self, qp: &QueuePair) -> PostError {
        let Self { opcode, bytes, remote, address, elements, inline, domains } = self;
        let atomic = matches!(
            opcode,
            ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP | ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD
        );
        let limits = qp.limits();
        if bytes <= remote && inline && elements <= limits.max_send_sge {
            PostError::new(0, Reason::TooMuchInline { bytes, most: limits.max_inline_data })
        } else if bytes <= remote {
            refusal(elements, limits.max_send_sge, domains, qp.pd())
        } else if atomic && !address.is_multiple_of(8) {
            PostError::new(0, Reason::Misaligned { address })
        } else if atomic && bytes != 8 {
            PostError::new(0, Reason::AtomicResult)
        } else {
            PostError::new(0, Reason::RemoteTooShort { elements: bytes, remote })
        }
    }
}

/// Whether all domains that are known are this one.
#[inline]
pub(crate) fn are_of(domains: &[&ProtectionDomain], pd: &ProtectionDomain) -> bool {
    domains.iter().all(|domain| domain.is_same(pd))
}

/// Why so many elements of these domains are refused.
#[cold]
#[inline(never)]
pub(crate) fn refusal(
    elements: u32,
    most: u32,
    domains: &[&ProtectionDomain],
    pd: &ProtectionDomain,
) -> PostError {
    let foreign = domains.iter().position(|domain| !domain.is_same(pd));
    PostError::new(
        0,
        match foreign {
            Some(element) if elements <= most => Reason::WrongDomain { element },
            _ => Reason::TooManyElements { elements, most },
        },
    )
}

impl<'wr, 'data> SendWorkRequest<'wr, 'data> {
    /// The request, for a batch, with the number that its completion will have.
    #[inline]
    #[must_use]
    pub fn with_id(self, wr_id: u64) -> QueuedRequest<'wr, 'data> {
        let opcode = match self.immediate {
            None => ibv_wr_opcode::IBV_WR_SEND,
            Some(_) => ibv_wr_opcode::IBV_WR_SEND_WITH_IMM,
        };
        let elements = Elements::of(self.data, self.domains);
        let request = QueuedRequest::new(wr_id, opcode, self.flags, elements);
        request.immediate(self.immediate).to(self.destination)
    }
}

impl<'wr, 'data> WriteWorkRequest<'wr, 'data> {
    /// The request, for a batch, with the number that its completion will have.
    #[inline]
    #[must_use]
    pub fn with_id(self, wr_id: u64) -> QueuedRequest<'wr, 'data> {
        let opcode = match self.immediate {
            None => ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            Some(_) => ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
        };
        let elements = Elements::of(self.data, self.domains);
        let request = QueuedRequest::new(wr_id, opcode, self.flags, elements);
        request.immediate(self.immediate).rdma(self.remote)
    }
}

impl<'wr, 'data> ReadWorkRequest<'wr, 'data> {
    /// The request, for a batch, with the number that its completion will have.
    #[inline]
    #[must_use]
    pub fn with_id(self, wr_id: u64) -> QueuedRequest<'wr, 'data> {
        let elements = Elements::scattered(self.elements, self.domains);
        let opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
        QueuedRequest::new(wr_id, opcode, self.flags, elements).rdma(self.remote)
    }
}

impl fmt::Debug for QueuedRequest<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuedRequest")
            .field("wr_id", &self.wr_id())
            .field("opcode", &self.wr.opcode.0)
            .field("bytes", &(self.bytes & !TO))
            .finish_non_exhaustive()
    }
}
