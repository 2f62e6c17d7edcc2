//! Checks that detect mistakes in a request before the device sees it.
//!
//! Most requests pass a few inlined comparisons. The others are checked by functions that are not inlined.
#![allow(unsafe_code)]

use rdma_mem::{BindError, ProtectionDomain};
use rdma_sys::{ibv_mw, ibv_pd, ibv_wr_opcode};
use rdma_types::QpType;

use crate::post::bounds::Bounds;
use crate::post::error::{PostError, Reason};
use crate::post::service::{check_service, is_atomic};
use crate::qp::queue_pair::QueuePair;
use crate::wr::flags::INLINE;
use crate::wr::queued::QueuedRequest;
use crate::wr::queued_receive::QueuedReceive;

impl QueuedRequest<'_, '_> {
    /// Checks a request of a batch. Unlike a single request, it is already in memory, so the further checks need not be
    /// inlined.
    #[inline(always)]
    pub(crate) fn check_in_batch(&self, qp: &QueuePair) -> Result<(), PostError> {
        if self.passes(qp) { Ok(()) } else { self.check_out_of_line(qp) }
    }

    #[cold]
    #[inline(never)]
    fn check_out_of_line(&self, qp: &QueuePair) -> Result<(), PostError> {
        self.check(qp)
    }

    /// Returns true if the request passes the few comparisons that suffice for most requests. [`check`](Self::check)
    /// repeats them on copies, because taking the request's address would force it into memory first.
    #[inline(always)]
    fn passes(&self, qp: &QueuePair) -> bool {
        let (bytes, remote) = self.bounds.parts();
        match self.domains {
            // Without a loop, because most requests have one element. It is not inline data, which has no domain.
            [domain] => 1 < qp.usual_sge() && bytes <= remote && domain.is_same(qp.pd()),
            domains => {
                let inline = self.wr.send_flags & INLINE != 0;
                self.wr.num_sge.cast_unsigned() < qp.usual_sge()
                    && fits(qp, bytes, remote, inline, domains)
            }
        }
    }

    /// Checks that the queue pair can execute the request. Always inlined: as a call, this check would take twice as
    /// many instructions as a post, because the request would have to be in memory.
    #[inline(always)]
    pub(crate) fn check(&self, qp: &QueuePair) -> Result<(), PostError> {
        let (bounds, domains) = (self.bounds, self.domains);
        let (elements, inline) =
            (self.wr.num_sge.cast_unsigned(), self.wr.send_flags & INLINE != 0);
        let (bytes, remote) = bounds.parts();
        if elements < qp.usual_sge() && fits(qp, bytes, remote, inline, domains) {
            return Ok(());
        }
        let opcode = self.wr.opcode;
        if opcode == ibv_wr_opcode::IBV_WR_BIND_MW && qp.qp_type() != QpType::UD {
            // SAFETY: SAFETY.md F12: a bind sets this field.
            let bind = unsafe { self.wr.bind.assume_init() };
            // SAFETY: SAFETY.md F4: a bind sets this variant.
            let mw = unsafe { bind.bind_mw.mw };
            // SAFETY: SAFETY.md F1: the request borrows its window.
            return unsafe { check_window(mw, qp) };
        }
        // SAFETY: SAFETY.md F4: the field is a plain integer. Each variant that has an address begins with it.
        let address = unsafe { self.wr.wr.rdma.remote_addr };
        let doubtful = Doubtful { opcode, bounds, address, elements, inline, domains };
        let send = matches!(
            opcode,
            ibv_wr_opcode::IBV_WR_SEND
                | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM
                | ibv_wr_opcode::IBV_WR_SEND_WITH_INV
        );
        // Only sends have a destination. `DOUBTFUL` bounds also contain the mark of a destination, but they belong to
        // other requests, such as misaligned atomics.
        if !send || !bounds.has_destination() {
            return doubtful.check(qp, None);
        }
        // SAFETY: SAFETY.md F4: `to` has set both fields.
        let handle = unsafe { self.wr.wr.ud.ah };
        // SAFETY: SAFETY.md F1: the request borrows its handle.
        doubtful.check(qp, Some(unsafe { (*handle).pd }))
    }
}

impl QueuedReceive<'_, '_> {
    /// Checks a receive for a queue in this domain. `most` is the maximum number of elements.
    #[inline]
    pub(crate) fn check(&self, pd: &ProtectionDomain, most: u32) -> Result<(), PostError> {
        let elements = self.wr.num_sge.cast_unsigned();
        if elements <= most && are_of(self.domains, pd) {
            return Ok(());
        }
        Err(refusal(elements, most, self.domains, pd))
    }
}

/// Returns true if the elements fit into the peer's memory. Inline data must also fit into an inline request, and all
/// other elements must belong to the queue pair's domain.
// Takes numbers instead of `Bounds`, which would cost a checked post two more instructions.
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
            // Inline data needs no registration.
            bytes <= u64::from(qp.limits().max_inline_data)
        } else {
            are_of(domains, qp.pd())
        }
}

/// Checks that a window to be bound belongs to the queue pair's domain.
///
/// # Safety
/// The window is live.
#[cold]
#[inline(never)]
unsafe fn check_window(mw: *const ibv_mw, qp: &QueuePair) -> Result<(), PostError> {
    // SAFETY: by this function's contract.
    let pd = unsafe { (*mw).pd };
    if std::ptr::eq(pd, qp.pd().as_raw()) { Ok(()) } else { Err(BindError::WrongDomain.into()) }
}

/// A copy of the fields that the further checks of a request need. If the address of the request itself were taken, the
/// request would have to be in memory before the check.
struct Doubtful<'wr, 'data> {
    opcode: ibv_wr_opcode,
    bounds: Bounds,
    address: u64,
    elements: u32,
    inline: bool,
    domains: &'wr [&'data ProtectionDomain],
}

impl Doubtful<'_, '_> {
    /// Checks a request. `handle` is the domain of its address handle, if it has one.
    #[cold]
    #[inline(never)]
    fn check(self, qp: &QueuePair, handle: Option<*mut ibv_pd>) -> Result<(), PostError> {
        let this = match handle {
            Some(_) => Self { bounds: self.bounds.without_destination(), ..self },
            None => self,
        };
        let Self { opcode, bounds, elements, inline, domains, .. } = this;
        let (bytes, remote) = bounds.parts();
        check_service(qp, opcode, bytes, handle)?;
        let is_read = opcode == ibv_wr_opcode::IBV_WR_RDMA_READ;
        if is_read && elements > 1 && qp.operations().is_iwarp {
            return Err(PostError::new(0, Reason::OneElementPerRead { elements }));
        }
        let fits = fits(qp, bytes, remote, inline, domains);
        if fits && elements <= qp.limits().max_send_sge { Ok(()) } else { Err(this.why(qp)) }
    }

    fn why(self, qp: &QueuePair) -> PostError {
        let Self { opcode, bounds, address, elements, inline, domains } = self;
        let atomic = is_atomic(opcode);
        let limits = qp.limits();
        let (bytes, remote) = bounds.parts();
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

/// Returns true if all known domains are `pd`.
#[inline]
fn are_of(domains: &[&ProtectionDomain], pd: &ProtectionDomain) -> bool {
    domains.iter().all(|domain| domain.is_same(pd))
}

/// Returns the error for a request with too many elements, or with an element from another domain.
#[cold]
#[inline(never)]
fn refusal(
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
