//! Posts work requests.

use std::ptr;

use rdma_sys::*;

use super::{Mr, Qp};

/// A send request, together with its elements.
#[derive(Clone)]
pub struct Wr {
    pub wr: ibv_send_wr,
    pub sges: Vec<ibv_sge>,
}

impl Wr {
    pub fn new(wr_id: u64, opcode: ibv_wr_opcode, sges: &[ibv_sge]) -> Self {
        let mut wr = ibv_send_wr::default();
        wr.wr_id = wr_id;
        wr.opcode = opcode;
        wr.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        Self { wr, sges: sges.to_vec() }
    }

    pub fn send(wr_id: u64, sges: &[ibv_sge]) -> Self {
        Self::new(wr_id, ibv_wr_opcode::IBV_WR_SEND, sges)
    }

    pub fn write(wr_id: u64, sges: &[ibv_sge], to: &Mr, offset: usize) -> Self {
        let address = to.address() + offset as u64;
        Self::new(wr_id, ibv_wr_opcode::IBV_WR_RDMA_WRITE, sges).remote(address, to.rkey())
    }

    pub fn read(wr_id: u64, sges: &[ibv_sge], from: &Mr, offset: usize) -> Self {
        let address = from.address() + offset as u64;
        Self::new(wr_id, ibv_wr_opcode::IBV_WR_RDMA_READ, sges).remote(address, from.rkey())
    }

    pub fn remote(mut self, address: u64, rkey: u32) -> Self {
        self.wr.wr.rdma.remote_addr = address;
        self.wr.wr.rdma.rkey = rkey;
        self
    }

    /// Returns a request that adds to an eight-byte word at `offset` in `word`. The elements
    /// receive the previous value.
    pub fn fetch_add(wr_id: u64, sges: &[ibv_sge], word: &Mr, offset: usize, add: u64) -> Self {
        let opcode = ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
        Self::new(wr_id, opcode, sges).atomic(word, offset, add, 0)
    }

    /// Returns a request that stores `swap` in an eight-byte word at `offset` in `word` if the word
    /// equals `compare`. The elements receive the previous value.
    pub fn compare_and_swap(
        wr_id: u64,
        sges: &[ibv_sge],
        word: &Mr,
        offset: usize,
        [compare, swap]: [u64; 2],
    ) -> Self {
        let opcode = ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
        Self::new(wr_id, opcode, sges).atomic(word, offset, compare, swap)
    }

    /// Sets the operands of an atomic, and its target: an eight-byte word at `offset` in `word`.
    pub fn atomic(self, word: &Mr, offset: usize, operand: u64, swap: u64) -> Self {
        self.atomic_at(word.address() + offset as u64, word.rkey(), operand, swap)
    }

    pub fn atomic_at(mut self, address: u64, rkey: u32, operand: u64, swap: u64) -> Self {
        let compare_add = operand;
        self.wr.wr.atomic = ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
            remote_addr: address,
            compare_add,
            swap,
            rkey,
        };
        self
    }

    /// Adds immediate data to a SEND or a WRITE. The number is in network order, as in C.
    pub fn with_imm(mut self, imm: u32) -> Self {
        self.wr.opcode = match self.wr.opcode {
            ibv_wr_opcode::IBV_WR_SEND => ibv_wr_opcode::IBV_WR_SEND_WITH_IMM,
            _ => ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
        };
        self.wr.__bindgen_anon_1.imm_data = imm;
        self
    }

    pub fn flags(mut self, flags: ibv_send_flags) -> Self {
        self.wr.send_flags |= flags.0;
        self
    }

    pub fn unsignaled(mut self) -> Self {
        self.wr.send_flags &= !ibv_send_flags::IBV_SEND_SIGNALED.0;
        self
    }

    pub fn inline(self) -> Self {
        self.flags(ibv_send_flags::IBV_SEND_INLINE)
    }

    pub fn fenced(self) -> Self {
        self.flags(ibv_send_flags::IBV_SEND_FENCE)
    }
}

/// The index that is returned if the provider does not report which request it refused.
pub const NOT_SAID: usize = usize::MAX;

/// Returns the index of the refused request in the list, or [`NOT_SAID`].
unsafe fn place<T>(first: *const T, bad: *const T) -> usize {
    if bad.is_null() {
        return NOT_SAID;
    }
    usize::try_from(unsafe { bad.offset_from(first) }).unwrap()
}

impl Qp {
    /// Posts one request. Returns 0 or an error number. Allocates nothing, so that benches measure the device.
    pub fn try_post(&self, wr: &Wr) -> i32 {
        let (mut wr, sges) = (wr.wr, &wr.sges);
        wr.next = ptr::null_mut();
        wr.sg_list = sges.as_ptr().cast_mut();
        wr.num_sge = i32::try_from(sges.len()).unwrap();
        let mut bad = ptr::null_mut();
        unsafe { ibv_post_send(self.0, &raw mut wr, &raw mut bad) }
    }

    #[track_caller]
    pub fn post(&self, wr: &Wr) {
        assert_eq!(self.try_post(wr), 0);
    }

    /// Posts a list of requests in one call. If it is refused, returns the number of requests that
    /// were posted and the error number.
    pub fn try_post_list(&self, wrs: &[Wr]) -> Result<(), (usize, i32)> {
        let mut list: Vec<ibv_send_wr> = wrs.iter().map(|wr| wr.wr).collect();
        for (n, wr) in wrs.iter().enumerate() {
            list[n].sg_list = wr.sges.as_ptr().cast_mut();
            list[n].num_sge = i32::try_from(wr.sges.len()).unwrap();
        }
        let base = list.as_mut_ptr();
        for n in 1..wrs.len() {
            unsafe { (*base.add(n - 1)).next = base.add(n) };
        }
        let mut bad = ptr::null_mut();
        let errno = unsafe { ibv_post_send(self.0, base, &raw mut bad) };
        if errno == 0 {
            return Ok(());
        }
        Err((unsafe { place(base, bad) }, errno))
    }

    /// Posts one receive. Returns 0 or an error number. Allocates nothing, like [`try_post`](Self::try_post).
    pub fn try_post_receive(&self, wr_id: u64, sges: &[ibv_sge]) -> i32 {
        let mut wr = ibv_recv_wr::default();
        wr.wr_id = wr_id;
        wr.sg_list = sges.as_ptr().cast_mut();
        wr.num_sge = i32::try_from(sges.len()).unwrap();
        let mut bad = ptr::null_mut();
        let errno = unsafe { ibv_post_recv(self.0, &raw mut wr, &raw mut bad) };
        assert!(errno != 0 || bad.is_null(), "no request was refused");
        errno
    }

    /// Posts a list of receives in one call. If it is refused, returns the number of receives that
    /// were posted and the error number.
    pub fn try_post_receive_list(
        &self,
        requests: &[(u64, &[ibv_sge])],
    ) -> Result<(), (usize, i32)> {
        receive_list(requests, |list, bad| unsafe { ibv_post_recv(self.0, list, bad) })
    }

    #[track_caller]
    pub fn post_receive(&self, wr_id: u64, sges: &[ibv_sge]) {
        assert_eq!(self.try_post_receive(wr_id, sges), 0);
    }
}

/// Posts a list of receives with the function `post`. If it is refused, returns the number of
/// receives that were posted and the error number.
pub(crate) fn receive_list(
    requests: &[(u64, &[ibv_sge])],
    post: impl FnOnce(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> i32,
) -> Result<(), (usize, i32)> {
    let mut list = vec![ibv_recv_wr::default(); requests.len()];
    for (wr, (wr_id, sges)) in list.iter_mut().zip(requests) {
        wr.wr_id = *wr_id;
        wr.sg_list = sges.as_ptr().cast_mut();
        wr.num_sge = i32::try_from(sges.len()).unwrap();
    }
    let base = list.as_mut_ptr();
    for n in 1..requests.len() {
        unsafe { (*base.add(n - 1)).next = base.add(n) };
    }
    let mut bad = ptr::null_mut();
    let errno = post(base, &raw mut bad);
    if errno == 0 {
        assert!(bad.is_null(), "bad_wr is set if and only if a post is refused");
        return Ok(());
    }
    Err((unsafe { place(base, bad) }, errno))
}
