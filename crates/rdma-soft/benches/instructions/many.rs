//! Many connections and many regions of one device, and writes of 8 B among them.

use rdma_sys::{ibv_sge, ibv_wc};

use crate::prepared::{Prepared, poll};
use test_support::rig::connect::{Knobs, connect, endpoint};
use test_support::rig::{ALL_ACCESS, Context, Cq, Mr, Pd, Qp, Size};

/// A number of objects, and whether operations use one of them or all in turn.
#[derive(Clone, Copy)]
pub(crate) enum Count {
    OneOf(usize),
    AllOf(usize),
}

impl Count {
    fn total(self) -> usize {
        match self {
            Self::OneOf(count) | Self::AllOf(count) => count,
        }
    }

    /// Returns the index to use after `n`.
    #[inline]
    fn next(self, n: usize) -> usize {
        match self {
            Self::AllOf(count) if n + 1 < count => n + 1,
            Self::AllOf(_) => 0,
            Self::OneOf(count) => count / 2,
        }
    }
}

/// The fields are dropped in this order, so an object is destroyed before its domain.
pub(crate) struct Many {
    _regions: Vec<Mr>,
    /// Pairs of connected queue pairs.
    pub(crate) connections: Vec<(Qp, Qp)>,
    pub(crate) cq: Cq,
    pub(crate) pd: Pd,
    pub(crate) context: Context,
    /// The first 8 B of each region.
    words: Vec<ibv_sge>,
    use_connections: Count,
    use_regions: Count,
    connection: usize,
    region: usize,
    write: Prepared,
    wc: ibv_wc,
}

impl Many {
    pub(crate) fn new(use_connections: Count, use_regions: Count) -> Self {
        let context = Context::open("soft0");
        let (pd, cq) = (context.pd(), context.cq(16));
        let size = Self::size();
        let connected = |_| {
            let (a, b) = (pd.qp(&cq, &cq, &size), pd.qp(&cq, &cq, &size));
            let (at_a, at_b) = (endpoint(&context, &a), endpoint(&context, &b));
            connect(&a, &at_a, &at_b, &Knobs::default());
            connect(&b, &at_b, &at_a, &Knobs::default());
            (a, b)
        };
        let connections = (0..use_connections.total()).map(connected).collect();
        let regions: Vec<Mr> =
            (0..use_regions.total()).map(|_| pd.register(64, ALL_ACCESS)).collect();
        let words: Vec<ibv_sge> = regions.iter().map(|region| region.sge(0, 8)).collect();
        Self {
            _regions: regions,
            connections,
            cq,
            pd,
            context,
            write: Prepared::write(words[0], words[0]),
            words,
            use_connections,
            use_regions,
            connection: 0,
            region: 0,
            wc: ibv_wc::default(),
        }
    }

    /// The size of each of these queue pairs.
    pub(crate) fn size() -> Size {
        Size {
            qp_type: rdma_sys::ibv_qp_type::IBV_QPT_RC,
            send_wr: 8,
            receive_wr: 1,
            sge: 1,
            inline: 0,
            signal_all: false,
        }
    }

    /// Writes from one region to the next on the next connection, among those in use, and polls the completion.
    #[inline]
    pub(crate) fn write(&mut self) {
        self.connection = self.use_connections.next(self.connection);
        let source = self.region;
        self.region = self.use_regions.next(source);
        self.write.aim(self.words[source], self.words[self.region]);
        self.write.post(self.connections[self.connection].0.0);
        poll(self.cq.0, &mut self.wc);
    }
}
