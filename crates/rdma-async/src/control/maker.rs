//! Creates connections from options.

use rdma_connect::{MakeEnds, NoEnd, StreamAddresses};
use rdma_qp::{QueuePairBuilder, QueuePairEndpoint};

use crate::connection::Connection;
use crate::driver::Driver;
use crate::prepared::PreparedConnection;

/// Makes connections for a driver.
#[derive(Debug)]
pub(super) struct Maker {
    pub(super) driver: Driver,
    pub(super) qp: QueuePairBuilder<'static>,
}

impl MakeEnds for Maker {
    type Prepared = PreparedConnection;
    type Connected = Connection;

    fn prepare(
        &self,
        stream: StreamAddresses,
    ) -> Result<(PreparedConnection, QueuePairEndpoint), NoEnd> {
        let mut prepared = self.driver.prepare(self.qp.clone()).map_err(NoEnd::Failed)?;
        if let Some((own, peer)) = stream {
            prepared.set_stream_addresses(own, peer);
        }
        let endpoint = prepared.endpoint();
        Ok((prepared, endpoint))
    }

    fn device(&self) -> String {
        self.driver.context().device().name().to_owned()
    }

    fn connect(
        &self,
        prepared: PreparedConnection,
        peer: QueuePairEndpoint,
    ) -> Result<Connection, rdma_qp::Error> {
        prepared.handshake(peer)
    }
}
