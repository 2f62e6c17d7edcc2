//! A queue pair that is not connected yet.

use rdma_mem::Mtu;
use rdma_types::{Psn, QpState};

use crate::builder::Settings;
use crate::connect_attributes::Own;
use crate::object::Object;
use crate::{ConnectAttributes, Error, QueuePair, QueuePairEndpoint, modify};

/// A queue pair that waits for its peer's endpoint.
///
/// # Examples
/// Two ends in one program; elsewhere the endpoints travel as bytes.
/// ```
/// use rdma_qp::{CompletionQueue, prelude::*};
///
/// rdma_soft::install();
/// let context = rdma_mem::open_device("soft0")?;
/// let cq = CompletionQueue::create(&context, 64)?;
/// let pd = context.allocate_pd()?;
/// let a = pd.create_qp().send_cq(&cq).recv_cq(&cq).build()?;
/// let b = pd.create_qp().send_cq(&cq).recv_cq(&cq).build()?;
/// let (a_end, b_end) = (a.endpoint(), b.endpoint());
/// let (a, b) = (a.handshake(b_end)?, b.handshake(a_end)?);
/// assert_eq!(a.peer().peer_qpn, b.qpn());
/// # Ok::<(), rdma_qp::Error>(())
/// ```
#[derive(Debug)]
pub struct PreparedQueuePair {
    pub(crate) object: Object,
    pub(crate) endpoint: QueuePairEndpoint,
    /// The places in the port's table of the endpoint's GIDs.
    pub(crate) indexes: Vec<u8>,
    pub(crate) port: u8,
    pub(crate) fixed_mtu: Option<Mtu>,
    pub(crate) recv_psn: Option<Psn>,
    pub(crate) settings: Settings,
}

impl PreparedQueuePair {
    /// What the peer has to know.
    #[must_use]
    pub const fn endpoint(&self) -> QueuePairEndpoint {
        self.endpoint
    }

    /// Connects to the peer: `INIT`, `RTR`, `RTS`.
    ///
    /// Nothing is sent. The peer does the same with the endpoint of this one; until it has, what is
    /// sent to it is repeated, as often as `max_ack_retries` says.
    ///
    /// # Errors
    /// [`Error::Handshake`] with the field in which the endpoints do not fit, [`Error::Transition`]
    /// with what the device refused. The queue pair is gone then.
    #[doc(alias = "ibv_modify_qp")]
    pub fn handshake(self, peer: QueuePairEndpoint) -> Result<QueuePair, Error> {
        let attributes = self.connect_attributes(&peer)?;
        self.connect(attributes)
    }

    /// What [`handshake`](Self::handshake) would connect with.
    ///
    /// # Errors
    /// [`Error::Handshake`] with the field in which the endpoints do not fit.
    pub fn connect_attributes(&self, peer: &QueuePairEndpoint) -> Result<ConnectAttributes, Error> {
        let own = Own {
            endpoint: &self.endpoint,
            indexes: &self.indexes,
            fixed_mtu: self.fixed_mtu,
            recv_psn: self.recv_psn,
        };
        Ok(ConnectAttributes::compute(&own, peer).map_err(Box::new)?)
    }

    /// Connects with these attributes, from wherever they are.
    ///
    /// # Errors
    /// [`Error::Transition`] with what the device refused. The queue pair is gone then.
    #[doc(alias = "ibv_modify_qp")]
    pub fn connect(self, attributes: ConnectAttributes) -> Result<QueuePair, Error> {
        let Self { object, port, settings, .. } = self;
        let (mut init, mask) = modify::to_init(port, &settings);
        object.modify(&mut init, mask, QpState::RESET, QpState::INIT)?;
        let (mut rtr, mask) = modify::to_rtr(port, &settings, &attributes);
        object.modify(&mut rtr, mask, QpState::INIT, QpState::RTR)?;
        let (mut rts, mask) = modify::to_rts(&settings, &attributes);
        object.modify(&mut rts, mask, QpState::RTR, QpState::RTS)?;
        Ok(QueuePair::new(object, attributes))
    }
}
