//! The requests that a thread is building.

use std::ffi::c_int;

use rdma_sys::{
    ibv_ah, ibv_data_buf, ibv_qp_create_send_ops_flags as Operation, ibv_send_flags, ibv_send_wr,
    ibv_send_wr__bindgen_ty_2__bindgen_ty_3 as Destination, ibv_sge,
};

use crate::engine::Refusal;
use crate::engine::critical_region::CriticalRegion;
use crate::engine::queue_pair::capacity::{Capacity, Init};
use crate::engine::queue_pair::service::Service;
use crate::engine::requester::queue::take_inline;
use crate::engine::requester::request::Payload;
use crate::memory::room::Room;
use crate::memory::sge::Sge;

pub(super) const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;

/// The requests that a thread is building, in memory that was allocated with the queue pair. The first error is kept.
/// After an error, no request of the batch is posted.
pub(crate) struct Batch {
    /// The operations that the queue pair was created to post.
    operations: u64,
    /// Whether each request has its own destination.
    pub(super) datagrams: bool,
    pub(super) capacity: Capacity,
    wrs: Vec<ibv_send_wr>,
    sges: Vec<ibv_sge>,
    inline: Box<[u8]>,
    inlined: usize,
    /// Whether the data of the last request has been set.
    with_data: bool,
    refused: Option<Refusal>,
}

impl Batch {
    /// Creates the empty batch of a queue pair.
    pub(crate) fn region(
        operations: u64,
        init: &Init,
    ) -> Result<Box<CriticalRegion<Self>>, Refusal> {
        let capacity = init.capacity;
        let requests = capacity.send_wr as usize;
        // All memory is reserved before any is touched, so that a refused call has used none.
        let wrs = Room::new(requests)?;
        let sges = Room::each(requests, capacity.send_sge as usize)?;
        let inline = Room::each(requests, capacity.inline as usize)?;
        Ok(Box::new(CriticalRegion::new(Self {
            operations,
            datagrams: init.service == Service::UnreliableDatagram,
            capacity,
            wrs: wrs.list(),
            sges: sges.list(),
            inline: inline.filled(|| 0),
            inlined: 0,
            with_data: false,
            refused: None,
        })))
    }

    pub(super) fn clear(&mut self) {
        self.wrs.clear();
        self.sges.clear();
        self.inlined = 0;
        self.refused = None;
    }

    pub(super) fn refuse(&mut self, refusal: Refusal) {
        self.refused.get_or_insert(refusal);
    }

    pub(super) fn begin(&mut self, operation: Operation, wr: ibv_send_wr) {
        if self.operations & u64::from(operation.0) == 0 {
            self.refuse(Refusal::Unsupported);
        } else if self.wrs.len() == self.capacity.send_wr as usize {
            self.refuse(Refusal::NoRoom);
        } else {
            self.wrs.push(wr);
            self.with_data = false;
        }
    }

    /// Sets the destination of the last request.
    pub(super) fn address(&mut self, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) {
        match self.wrs.last_mut() {
            Some(wr) if self.datagrams && self.refused.is_none() => {
                wr.wr.ud = Destination { ah, remote_qpn, remote_qkey };
            }
            _ => self.refuse(Refusal::Invalid),
        }
    }

    /// Sets the elements of the last request, at most once. The queue pair's limit on their number ensures that the
    /// memory suffices.
    pub(super) fn attach(&mut self, sges: &[ibv_sge], flags: u32) {
        let fits = self.takes(sges.len());
        match self.wrs.last_mut() {
            Some(wr) if self.refused.is_none() && !self.with_data && fits => {
                self.sges.extend_from_slice(sges);
                wr.num_sge = c_int::try_from(sges.len()).unwrap_or(c_int::MAX);
                wr.send_flags |= flags;
                self.with_data = true;
            }
            _ => self.refuse(Refusal::Invalid),
        }
    }

    /// Returns true if a request may have `count` elements.
    pub(super) fn takes(&self, count: usize) -> bool {
        count <= self.capacity.send_sge as usize
    }

    /// Copies the data of the last request.
    ///
    /// # Safety
    ///
    /// The buffers are readable.
    pub(super) unsafe fn attach_inline(&mut self, buffers: &[ibv_data_buf]) {
        let room = self.inlined..self.inlined + self.capacity.inline as usize;
        let Some(mut left) = self.inline.get_mut(room) else {
            return self.refuse(Refusal::Invalid);
        };
        let mut whole =
            ibv_sge { addr: left.as_mut_ptr().expose_provenance() as u64, ..ibv_sge::default() };
        for buffer in buffers {
            let Some(length) =
                u32::try_from(buffer.length).ok().filter(|&n| n as usize <= left.len())
            else {
                return self.refuse(Refusal::Invalid);
            };
            let source = [Sge { addr: buffer.addr.expose_provenance() as u64, length, lkey: 0 }];
            // SAFETY: by this function's contract, the bytes are readable (SAFETY.md F12); they were exposed above
            // (F7).
            take_inline(left, unsafe { Payload::inline(&source) });
            left = &mut left[length as usize..];
            whole.length += length;
        }
        self.inlined += whole.length as usize;
        self.attach(&[whole], INLINE);
    }

    /// Returns the requests in the form that `ibv_post_send` takes, each with its own elements, or returns the first
    /// error.
    pub(super) fn requests(&mut self) -> Result<&[ibv_send_wr], Refusal> {
        if let Some(refused) = self.refused {
            return Err(refused);
        }
        let mut sges = self.sges.as_mut_ptr();
        for wr in &mut self.wrs {
            wr.sg_list = sges;
            sges = sges.wrapping_add(usize::try_from(wr.num_sge).unwrap_or(0));
        }
        // Exposes a new pointer for later reads of inline data. Borrows since the last call of `attach_inline` have
        // invalidated the pointer that it exposed.
        self.inline.as_ptr().expose_provenance();
        Ok(&self.wrs)
    }
}
