//! Requests that are built once and posted many times, so that a loop measures only the device.
#![allow(unsafe_code, clippy::multiple_unsafe_ops_per_block, clippy::undocumented_unsafe_blocks)]
#![allow(dead_code)] // Some benches use only a part.

use std::{hint, ptr, thread};

use rdma_sys::*;

/// A send request with its one element.
#[derive(Clone, Copy)]
pub(crate) struct Prepared {
    wr: ibv_send_wr,
    sge: ibv_sge,
}

// Plain memory: each post sets the list pointer again.
unsafe impl Send for Prepared {}

impl Prepared {
    fn new(opcode: ibv_wr_opcode, sge: ibv_sge) -> Self {
        let mut wr = ibv_send_wr::default();
        wr.opcode = opcode;
        wr.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        wr.num_sge = 1;
        Self { wr, sge }
    }

    pub(crate) fn send(sge: ibv_sge) -> Self {
        Self::new(ibv_wr_opcode::IBV_WR_SEND, sge)
    }

    /// Returns a write of the bytes of `source` to `sink`.
    pub(crate) fn write(source: ibv_sge, sink: ibv_sge) -> Self {
        let mut prepared = Self::new(ibv_wr_opcode::IBV_WR_RDMA_WRITE, source);
        prepared.aim(source, sink);
        prepared
    }

    /// Sets another source and another sink of a write.
    #[inline]
    pub(crate) fn aim(&mut self, source: ibv_sge, sink: ibv_sge) {
        self.sge = source;
        self.wr.wr.rdma.remote_addr = sink.addr;
        self.wr.wr.rdma.rkey = sink.lkey;
    }

    #[inline]
    pub(crate) fn post(&mut self, qp: *mut ibv_qp) {
        self.wr.sg_list = &raw mut self.sge;
        let mut bad = ptr::null_mut();
        let refused = unsafe { ibv_post_send(qp, &raw mut self.wr, &raw mut bad) };
        assert_eq!(refused, 0);
    }
}

/// A receive request with its one element.
#[derive(Clone, Copy)]
pub(crate) struct PreparedReceive {
    wr: ibv_recv_wr,
    sge: ibv_sge,
}

// Safe for the same reason as for `Prepared`.
unsafe impl Send for PreparedReceive {}

impl PreparedReceive {
    pub(crate) fn new(sge: ibv_sge) -> Self {
        let mut wr = ibv_recv_wr::default();
        wr.num_sge = 1;
        Self { wr, sge }
    }

    #[inline]
    pub(crate) fn post(&mut self, qp: *mut ibv_qp) {
        self.wr.sg_list = &raw mut self.sge;
        let mut bad = ptr::null_mut();
        let refused = unsafe { ibv_post_recv(qp, &raw mut self.wr, &raw mut bad) };
        assert_eq!(refused, 0);
    }
}

/// Waits for one completion, which must be a success.
#[inline]
pub(crate) fn poll(cq: *mut ibv_cq, wc: &mut ibv_wc) {
    let mut patience = Patience::default();
    loop {
        let polled = unsafe { ibv_poll_cq(cq, 1, wc) };
        if polled == 1 {
            break;
        }
        assert_eq!(polled, 0);
        patience.spin();
    }
    assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS);
}

/// Spins as long as the other thread is likely to run, then yields the core.
#[derive(Default)]
pub(crate) struct Patience(u32);

impl Patience {
    #[inline]
    pub(crate) fn spin(&mut self) {
        self.0 += 1;
        if self.0.is_multiple_of(1_000) {
            thread::yield_now();
        } else {
            hint::spin_loop();
        }
    }
}
