//! Calls that withdraw access from peers. The domain and the completion queue belong to few queue pairs or to many.

use rdma_sys::{ibv_mr, ibv_mw_bind_info, ibv_send_flags, ibv_wc};

use crate::many::Many;
use crate::prepared::poll;
use test_support::rig::connect::{Knobs, connect, endpoint};
use test_support::rig::memory::deregister;
use test_support::rig::window::{Mw, TYPE_1};
use test_support::rig::{ALL_ACCESS, LOCAL_WRITE, MW_BIND, Mr, Qp, REMOTE_WRITE};

#[derive(Clone, Copy)]
pub(crate) enum Call {
    /// Deregister a region.
    Deregister,
    /// Deallocate a window of type 1 that is not bound.
    Deallocate,
    /// Bind a window of type 1 that is bound already, and poll the completion.
    Bind,
    /// Destroy a connected queue pair.
    Destroy,
}

pub(crate) const CALLS: [(&str, Call); 4] = [
    ("deregister", Call::Deregister),
    ("deallocate_window", Call::Deallocate),
    ("bind_window", Call::Bind),
    ("destroy_queue_pair", Call::Destroy),
];

/// The objects of a number of calls. The fields are dropped in this order, so an object is
/// destroyed before its domain.
pub(crate) struct Calls {
    call: Call,
    regions: Vec<*mut ibv_mr>,
    windows: Vec<Mw>,
    queue_pairs: Vec<Qp>,
    window: Mw,
    part: ibv_mw_bind_info,
    wc: ibv_wc,
    _bindable: Mr,
    memory: Vec<u8>,
    /// Has no queue pairs if the call needs none, else two or more.
    many: Many,
}

impl Calls {
    pub(crate) fn new(call: Call, many: Many) -> Self {
        let bindable = many.pd.register(64, LOCAL_WRITE | MW_BIND);
        let mut calls = Self {
            call,
            regions: Vec::new(),
            windows: Vec::new(),
            queue_pairs: Vec::new(),
            window: many.pd.mw(TYPE_1),
            part: bindable.part(0, 8, REMOTE_WRITE),
            wc: ibv_wc::default(),
            _bindable: bindable,
            memory: vec![0; 64],
            many,
        };
        if !calls.many.connections.is_empty() {
            calls.bind();
        }
        calls
    }

    /// Creates the objects that `count` calls destroy.
    pub(crate) fn prepare(&mut self, count: usize) {
        let Many { context, pd, cq, .. } = &self.many;
        for _ in 0..count {
            match self.call {
                Call::Deregister => {
                    let start = self.memory.as_mut_ptr();
                    self.regions.push(pd.try_register(start, 64, ALL_ACCESS).unwrap());
                }
                Call::Deallocate => self.windows.push(pd.mw(TYPE_1)),
                Call::Bind => {}
                Call::Destroy => {
                    let qp = pd.qp(cq, cq, &Many::size());
                    let own = endpoint(context, &qp);
                    connect(&qp, &own, &own, &Knobs::default());
                    self.queue_pairs.push(qp);
                }
            }
        }
    }

    #[inline]
    pub(crate) fn one(&mut self) {
        match self.call {
            Call::Deregister => deregister(self.regions.pop().unwrap()),
            Call::Deallocate => drop(self.windows.pop().unwrap()),
            Call::Bind => self.bind(),
            Call::Destroy => drop(self.queue_pairs.pop().unwrap()),
        }
    }

    #[inline]
    fn bind(&mut self) {
        let signaled = ibv_send_flags::IBV_SEND_SIGNALED.0;
        let refused = self.many.connections[0].0.try_bind(1, &self.window, self.part, signaled);
        assert_eq!(refused, 0);
        poll(self.many.cq.0, &mut self.wc);
    }
}
