//! Shared receive queues, and a server whose queue pairs use one.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // Like the rig.

use rdma_sys::*;

use super::connect::{Knobs, Side, connect, endpoint};
use super::post::receive_list;
use super::{Context, Cq, Pd, Qp, Size, errno, verbs};

pub struct Srq(pub *mut ibv_srq);

unsafe impl Send for Srq {}
unsafe impl Sync for Srq {}

impl Pd {
    /// Creates a shared receive queue. Returns it with the sizes that the device has chosen.
    pub fn try_srq(&self, max_wr: u32, max_sge: u32) -> Result<(Srq, (u32, u32)), Errno> {
        self.try_srq_with_limit(max_wr, max_sge, 0)
    }

    /// Like [`try_srq`](Self::try_srq), but also passes a limit, which has no effect on creation
    /// (man ibv_create_srq).
    pub fn try_srq_with_limit(
        &self,
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
    ) -> Result<(Srq, (u32, u32)), Errno> {
        let mut init = ibv_srq_init_attr::default();
        init.attr = ibv_srq_attr { max_wr, max_sge, srq_limit };
        let srq = unsafe { (verbs().create_srq)(self.0, &raw mut init) };
        if srq.is_null() {
            return Err(errno());
        }
        Ok((Srq(srq), (init.attr.max_wr, init.attr.max_sge)))
    }

    pub fn srq(&self, max_wr: u32, max_sge: u32) -> Srq {
        let (srq, sizes) = self.try_srq(max_wr, max_sge).unwrap();
        assert!(sizes.0 >= max_wr && sizes.1 >= max_sge, "{sizes:?}");
        srq
    }

    pub fn qp_with_srq(&self, send: &Cq, receive: &Cq, size: &Size, srq: &Srq) -> Qp {
        let mut init = Self::qp_init(send, receive, size);
        init.srq = srq.0;
        self.try_qp_of(&mut init).unwrap()
    }
}

impl Qp {
    /// Posts a receive to the queue pair itself, not to its shared queue. Returns the error number,
    /// and whether this request is reported as the refused one.
    pub fn try_post_own_receive(&self) -> (i32, bool) {
        let (mut wr, mut bad) = (ibv_recv_wr::default(), std::ptr::null_mut());
        let errno = unsafe { ibv_post_recv(self.0, &raw mut wr, &raw mut bad) };
        (errno, std::ptr::eq(bad, &raw const wr))
    }
}

impl Srq {
    pub fn query(&self) -> ibv_srq_attr {
        let mut attr = ibv_srq_attr::default();
        assert_eq!(unsafe { (verbs().query_srq)(self.0, &raw mut attr) }, 0);
        attr
    }

    pub fn limit(&self) -> u32 {
        self.query().srq_limit
    }

    /// Modifies the queue. Returns 0 or an error number.
    pub fn modify(&self, max_wr: u32, srq_limit: u32, mask: ibv_srq_attr_mask) -> i32 {
        let mut attr = ibv_srq_attr { max_wr, max_sge: 0, srq_limit };
        unsafe { (verbs().modify_srq)(self.0, &raw mut attr, mask.0.cast_signed()) }
    }

    #[track_caller]
    pub fn set_limit(&self, limit: u32) {
        assert_eq!(self.modify(0, limit, ibv_srq_attr_mask::IBV_SRQ_LIMIT), 0);
    }

    /// Posts a list of receives in one call. If it is refused, returns the number of receives that
    /// were posted and the error number.
    pub fn try_post_list(&self, requests: &[(u64, &[ibv_sge])]) -> Result<(), (usize, i32)> {
        receive_list(requests, |list, bad| unsafe { ibv_post_srq_recv(self.0, list, bad) })
    }

    /// Posts one receive. Returns 0 or an error number.
    pub fn try_post(&self, wr_id: u64, sges: &[ibv_sge]) -> i32 {
        self.try_post_list(&[(wr_id, sges)]).map_or_else(|(_, errno)| errno, |()| 0)
    }

    #[track_caller]
    pub fn post(&self, wr_id: u64, sges: &[ibv_sge]) {
        assert_eq!(self.try_post(wr_id, sges), 0);
    }

    /// Posts receives with IDs from `first` on until the queue is full. Returns their number.
    pub fn fill(&self, first: u64) -> u64 {
        let mut count = 0;
        loop {
            match self.try_post(first + count, &[]) {
                0 => count += 1,
                errno => {
                    assert_eq!(errno, Errno::ENOMEM.raw());
                    return count;
                }
            }
        }
    }

    /// Checks that destroying the queue is refused. Returns the error number.
    pub fn try_destroy(&self) -> i32 {
        let refused = unsafe { (verbs().destroy_srq)(self.0) };
        assert_ne!(refused, 0);
        refused
    }

    /// Returns the address by which asynchronous events identify the queue.
    pub fn name(&self) -> usize {
        self.0.addr()
    }
}

/// A reference to a shared receive queue that another thread may destroy.
#[derive(Clone, Copy)]
pub struct SrqName(*mut ibv_srq);

unsafe impl Send for SrqName {}

impl SrqName {
    pub fn of(srq: &Srq) -> Self {
        Self(srq.0)
    }

    pub fn acknowledge_limit(self) {
        let mut event = ibv_async_event {
            element: ibv_async_event__bindgen_ty_1 { srq: self.0 },
            event_type: ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED,
        };
        unsafe { (verbs().ack_async_event)(&raw mut event) }
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        assert_eq!(unsafe { (verbs().destroy_srq)(self.0) }, 0);
    }
}

/// Queue pairs that share a receive queue, and their completion queues. The fields are dropped in
/// the order of their declaration.
pub struct Server {
    pub qps: Vec<Qp>,
    pub srq: Srq,
    pub send_cq: Cq,
    pub receive_cq: Cq,
    pub pd: Pd,
    pub context: Context,
}

impl Server {
    /// Creates a server without queue pairs, whose shared queue can hold `max_wr` receives.
    pub fn new(device: &str, max_wr: u32) -> Self {
        let context = Context::open(device);
        let (send_cq, receive_cq) = (context.cq(256), context.cq(256));
        let pd = context.pd();
        let srq = pd.srq(max_wr, 4);
        Self { qps: Vec::new(), srq, send_cq, receive_cq, pd, context }
    }

    /// Creates a queue pair in this domain, whose receives complete in `receive_cq`, and connects
    /// it to a client.
    pub fn qp(&self, pd: &Pd, receive_cq: &Cq, client: &Side) -> Qp {
        let qp = pd.qp_with_srq(&self.send_cq, receive_cq, &Size::default(), &self.srq);
        self.connect(&qp, client, &Knobs::default());
        qp
    }

    /// Resets a queue pair and a client, and connects them to each other.
    pub fn connect(&self, qp: &Qp, client: &Side, knobs: &Knobs) {
        client.qp.to_reset();
        qp.to_reset();
        let (there, here) = (client.endpoint(), endpoint(&self.context, qp));
        connect(&client.qp, &there, &here, knobs);
        connect(qp, &here, &there, knobs);
    }

    /// Creates a server whose shared queue can hold `max_wr` receives, and clients that are
    /// connected to it.
    pub fn with_clients(
        device: &str,
        max_wr: u32,
        clients: usize,
        knobs: &Knobs,
    ) -> (Vec<Side>, Self) {
        let mut server = Self::new(device, max_wr);
        let clients: Vec<_> =
            (0..clients).map(|_| Side::new(device, &Size::default(), 256)).collect();
        for client in &clients {
            let qp = server.qp(&server.pd, &server.receive_cq, client);
            server.connect(&qp, client, knobs);
            server.qps.push(qp);
        }
        (clients, server)
    }

    /// Waits for the next receive completion. Checks that it is a success with this ID, and that it
    /// belongs to this client's queue pair.
    #[track_caller]
    pub fn expect(&self, client: usize, wr_id: u64) -> ibv_wc {
        let wc = self.receive_cq.expect_success(wr_id);
        assert_eq!(wc.qp_num, self.qps[client].number());
        wc
    }

    /// Reads and acknowledges the pending asynchronous events. Returns the type and the object of
    /// each.
    pub fn events(&self) -> Vec<(ibv_event_type, usize)> {
        self.context.async_events()
    }

    pub fn qp_name(&self, client: usize) -> usize {
        self.qps[client].0.addr()
    }
}
