//! A queue pair that is not connected yet.

use std::net::IpAddr;

use rdma_mem::{Gid, Lid, Mtu, ProtectionDomain};
use rdma_sys::{ibv_ah_attr, ibv_qp_attr, ibv_qp_state};
use rdma_types::{AckTimeout, MaxAckRetries, MaxRnrRetries, Psn, QpState, QpType, Qpn};

use crate::ah::vector::GlobalRoute;
use crate::endpoint::QueuePairEndpoint;
use crate::endpoint::connect::{ConnectAttributes, Own};
use crate::error::Error;
use crate::qp::modify;
use crate::qp::object::Object;
use crate::qp::own_end::OwnEnd;
use crate::qp::own_gids;
use crate::qp::queue_pair::QueuePair;

/// A queue pair that is not connected yet; for UD, not [activated](Self::activate) yet.
///
/// # Examples
/// Both ends are in one program here. Normally, the endpoints are exchanged as bytes.
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
/// assert_eq!(a.peer().map(|peer| peer.peer_qpn), Some(b.qpn()));
/// # Ok::<(), rdma_qp::Error>(())
/// ```
#[derive(Debug)]
pub struct PreparedQueuePair {
    pub(crate) object: Object,
    pub(crate) end: OwnEnd,
    pub(crate) fixed_mtu: Option<Mtu>,
    pub(crate) send_psn: Psn,
    pub(crate) recv_psn: Option<Psn>,
}

impl PreparedQueuePair {
    /// Returns the endpoint to send to the peer.
    #[must_use]
    pub const fn endpoint(&self) -> QueuePairEndpoint {
        self.end.endpoint
    }

    /// Returns the protection domain of the queue pair.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.object.needs().pd
    }

    /// Returns the builder's [`ack_timeout`](crate::QueuePairBuilder::ack_timeout).
    #[must_use]
    pub const fn ack_timeout(&self) -> AckTimeout {
        self.end.settings.ack_timeout
    }

    /// Returns the builder's [`max_ack_retries`](crate::QueuePairBuilder::max_ack_retries).
    #[must_use]
    pub const fn max_ack_retries(&self) -> MaxAckRetries {
        self.end.settings.max_ack_retries
    }

    /// Returns the builder's [`max_rnr_retries`](crate::QueuePairBuilder::max_rnr_retries).
    #[must_use]
    pub const fn max_rnr_retries(&self) -> MaxRnrRetries {
        self.end.settings.max_rnr_retries
    }

    /// Returns true if the queue pair receives from a shared receive queue.
    #[must_use]
    pub fn has_srq(&self) -> bool {
        self.object.needs().srq.is_some()
    }

    /// Returns the [`traffic_class`](crate::QueuePairBuilder::traffic_class) with which the queue pair will send: the
    /// builder's, or that of the environment. `None` stands for that of the path, or otherwise for 0.
    #[must_use]
    pub const fn traffic_class(&self) -> Option<u8> {
        self.end.settings.traffic_class
    }

    /// Sets the traffic class with which the queue pair will send, for example to that of the peer's path.
    ///
    /// # Examples
    /// ```
    /// use rdma_qp::{CompletionQueue, prelude::*};
    ///
    /// rdma_soft::install();
    /// let context = rdma_mem::open_device("soft0")?;
    /// let cq = CompletionQueue::create(&context, 16)?;
    /// let builder = context.allocate_pd()?.create_qp().send_cq(&cq).recv_cq(&cq);
    /// let mut prepared = builder.traffic_class(0x68).build()?;
    /// assert_eq!(prepared.traffic_class(), Some(0x68));
    /// prepared.set_traffic_class(0x20);
    /// assert_eq!(prepared.traffic_class(), Some(0x20));
    /// # Ok::<(), rdma_qp::Error>(())
    /// ```
    pub const fn set_traffic_class(&mut self, traffic_class: u8) {
        self.end.settings.traffic_class = Some(traffic_class);
    }

    /// Sets the addresses of the stream over which the ends exchange their endpoints, as this end sees them. For a TCP
    /// connection, these are `local_addr` and `peer_addr`. Call this before [`endpoint`](Self::endpoint), at both ends.
    /// If both addresses are GIDs and no NAT translates them, the connection uses them (see
    /// [`GidChoice::ByPeer`](crate::GidChoice::ByPeer)).
    ///
    /// # Examples
    /// ```
    /// use rdma_qp::{CompletionQueue, prelude::*};
    ///
    /// rdma_soft::install();
    /// let context = rdma_mem::open_device("soft0")?;
    /// let cq = CompletionQueue::create(&context, 16)?;
    /// let mut own = context.allocate_pd()?.create_qp().send_cq(&cq).recv_cq(&cq).build()?;
    /// # let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    /// # let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    /// own.set_stream_addresses(stream.local_addr().unwrap().ip(), stream.peer_addr().unwrap().ip());
    /// let bytes = own.endpoint().to_bytes(); // to be written to the stream
    /// # let _ = bytes;
    /// # Ok::<(), rdma_qp::Error>(())
    /// ```
    pub fn set_stream_addresses(&mut self, own: IpAddr, peer: IpAddr) {
        self.end.endpoint = self.end.endpoint.with_stream_addresses(own, peer);
        own_gids::carry(&mut self.end.endpoint, &mut self.end.table);
    }

    /// Connects to the peer, through the states `INIT`, `RTR` and `RTS`.
    ///
    /// Nothing is sent. The peer must call this with this end's endpoint. Until then, messages to the peer are retried
    /// up to `max_ack_retries` times (RC) or are lost (UC).
    ///
    /// # Errors
    /// [`Error::Handshake`], which names the mismatching field, if the endpoints do not match. [`Error::NotConnected`]
    /// for UD. [`Error::Transition`] if the device refuses. After an error, the queue pair is destroyed.
    #[doc(alias = "ibv_modify_qp")]
    pub fn handshake(self, peer: QueuePairEndpoint) -> Result<QueuePair, Error> {
        let own = self.endpoint();
        let attributes = self.connect_attributes(&peer)?;
        let qp = self.connect(attributes)?;
        // The event includes the GIDs of both ends, the two GIDs that were chosen, and the rule.
        tracing::debug!(?own, ?peer, ?attributes, "queue pair connected");
        Ok(qp)
    }

    /// Returns the attributes that [`handshake`](Self::handshake) would use to connect.
    ///
    /// # Errors
    /// [`Error::Handshake`], which names the mismatching field, if the endpoints do not match. [`Error::NotConnected`]
    /// for UD.
    pub fn connect_attributes(&self, peer: &QueuePairEndpoint) -> Result<ConnectAttributes, Error> {
        self.check_connected()?;
        let OwnEnd { endpoint, table, .. } = &self.end;
        let (fixed_mtu, recv_psn) = (self.fixed_mtu, self.recv_psn);
        let own = Own { endpoint, table, fixed_mtu, recv_psn };
        Ok(ConnectAttributes::compute(&own, peer).map_err(Box::new)?)
    }

    /// Connects with these attributes. The program can obtain them in any way.
    ///
    /// # Errors
    /// [`Error::Transition`] if the device refuses. [`Error::NotConnected`] for UD. After an error, the queue pair is
    /// destroyed.
    #[doc(alias = "ibv_modify_qp")]
    pub fn connect(self, attributes: ConnectAttributes) -> Result<QueuePair, Error> {
        let OwnEnd { port, settings, .. } = &self.end;
        let vector = settings.vector(*port, (attributes.peer_lid, attributes.route));
        self.connect_through(vector.to_raw(), attributes)
    }

    /// Connects with the attributes that a connection manager chose for the states `INIT`, `RTR` and `RTS`
    /// (`rdma_init_qp_attr`).
    ///
    /// The port, the partition, the path with its MTU, service level and rate, the peer and the PSNs are the manager's.
    /// The traffic class is the builder's unless that is 0. Access flags, timers and retries are the builder's, too. The
    /// numbers of RDMA reads and atomics are at most those of both.
    ///
    /// # Errors
    /// [`Error::Transition`] if the device refuses. [`Error::NotConnected`] for UD. After an error, the queue pair is
    /// destroyed.
    ///
    /// # Examples
    /// A queue pair that is connected to itself.
    /// ```
    /// use rdma_qp::{CompletionQueue, QpState, prelude::*};
    /// use rdma_sys::{ibv_ah_attr, ibv_gid, ibv_global_route, ibv_mtu, ibv_qp_attr};
    ///
    /// rdma_soft::install();
    /// let context = rdma_mem::open_device("soft0")?;
    /// let cq = CompletionQueue::create(&context, 16)?;
    /// let prepared = context.allocate_pd()?.create_qp().send_cq(&cq).recv_cq(&cq).build()?;
    /// let own = context.gid_table()?[0];
    /// let init = ibv_qp_attr { port_num: own.port, ..Default::default() };
    /// let grh = ibv_global_route {
    ///     dgid: ibv_gid { raw: own.gid.to_bytes() },
    ///     sgid_index: u8::try_from(own.index).unwrap(),
    ///     hop_limit: 64,
    ///     ..Default::default()
    /// };
    /// let rtr = ibv_qp_attr {
    ///     ah_attr: ibv_ah_attr { grh, is_global: 1, port_num: own.port, ..Default::default() },
    ///     path_mtu: ibv_mtu::IBV_MTU_1024,
    ///     dest_qp_num: prepared.endpoint().qpn().get(),
    ///     ..Default::default()
    /// };
    /// let qp = prepared.connect_managed(&[init, rtr, ibv_qp_attr::default()])?;
    /// assert_eq!(qp.state()?, QpState::RTS);
    /// # Ok::<(), rdma_qp::Error>(())
    /// ```
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn connect_managed(
        mut self,
        [init, rtr, rts]: &[ibv_qp_attr; 3],
    ) -> Result<QueuePair, Error> {
        let OwnEnd { port, settings, endpoint, .. } = &mut self.end;
        (*port, settings.pkey_index) = (init.port_num, init.pkey_index);
        let mut vector = rtr.ah_attr;
        if let Some(traffic_class) = settings.traffic_class {
            vector.grh.traffic_class = traffic_class;
        }
        let route = (vector.is_global != 0).then(|| {
            GlobalRoute::new(vector.grh.sgid_index, Gid::from_bytes(vector.grh.dgid.to_bytes()))
        });
        let code = u8::try_from(rtr.path_mtu.0).ok();
        let attributes = ConnectAttributes {
            peer_qpn: Qpn::masked(rtr.dest_qp_num),
            peer_lid: Lid::new(vector.dlid),
            route,
            gid_rule: None,
            mtu: code.and_then(Mtu::from_code).unwrap_or(endpoint.mtu()),
            send_psn: Psn::masked(rts.sq_psn),
            recv_psn: Psn::masked(rtr.rq_psn),
            max_rd_atomic: endpoint.max_rd_atomic().min(rts.max_rd_atomic),
            max_dest_rd_atomic: endpoint.max_dest_rd_atomic().min(rtr.max_dest_rd_atomic),
        };
        self.connect_through(vector, attributes)
    }

    /// Moves the queue pair to `INIT`, for a connection manager that makes the other transitions. On iWARP, the kernel
    /// makes them, when `rdma_connect` or `rdma_accept` names the [QPN](QueuePairEndpoint::qpn). Until then, the queue
    /// pair accepts only receives.
    ///
    /// # Errors
    /// [`Error::Transition`] if the device refuses. [`Error::NotConnected`] for UD. After an error, the queue pair is
    /// destroyed.
    ///
    /// # Examples
    /// ```
    /// use rdma_qp::{CompletionQueue, QpState, prelude::*};
    ///
    /// rdma_soft::install();
    /// let context = rdma_mem::open_device("soft0")?;
    /// let cq = CompletionQueue::create(&context, 16)?;
    /// let prepared = context.allocate_pd()?.create_qp().send_cq(&cq).recv_cq(&cq).build()?;
    /// let qp = prepared.initialize()?;
    /// assert_eq!((qp.state()?, qp.peer()), (QpState::INIT, None));
    /// # Ok::<(), rdma_qp::Error>(())
    /// ```
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn initialize(self) -> Result<QueuePair, Error> {
        self.check_type()?;
        let Self { object, end: OwnEnd { port, settings, .. }, .. } = self;
        let (mut init, mask) = modify::to_init(object.qp_type, port, &settings);
        object.modify(&mut init, mask, QpState::RESET, QpState::INIT)?;
        Ok(QueuePair::connected_elsewhere(object))
    }

    fn connect_through(
        self,
        vector: ibv_ah_attr,
        attributes: ConnectAttributes,
    ) -> Result<QueuePair, Error> {
        self.check_connected()?;
        let Self { object, end: OwnEnd { port, settings, .. }, .. } = self;
        let qp_type = object.qp_type;
        let (mut init, mask) = modify::to_init(qp_type, port, &settings);
        object.modify(&mut init, mask, QpState::RESET, QpState::INIT)?;
        let (mut rtr, mask) = modify::to_rtr(qp_type, &settings, vector, &attributes);
        object.modify(&mut rtr, mask, QpState::INIT, QpState::RTR)?;
        let (mut rts, mask) = modify::to_rts(qp_type, &settings, &attributes);
        object.modify(&mut rts, mask, QpState::RTR, QpState::RTS)?;
        Ok(QueuePair::connected(object, attributes))
    }

    fn check_connected(&self) -> Result<(), Error> {
        self.check_type()?;
        if self.object.operations.is_iwarp {
            let device = self.pd().context().device().name().to_owned();
            return Err(Error::OnlyByAddress { device });
        }
        Ok(())
    }

    fn check_type(&self) -> Result<(), Error> {
        if self.object.qp_type == QpType::UD { Err(Error::NotConnected) } else { Ok(()) }
    }

    /// Activates a queue pair for datagrams, through the states `INIT`, `RTR` and `RTS`. From then on, it receives
    /// datagrams from any port if they carry its Q_Key, and can send to any port.
    ///
    /// # Errors
    /// [`Error::NotDatagrams`] for RC and UC. [`Error::Transition`] if the device refuses. After an error, the queue
    /// pair is destroyed.
    ///
    /// # Examples
    /// ```
    /// use rdma_qp::{CompletionQueue, QueuePairType, prelude::*};
    ///
    /// rdma_soft::install();
    /// let context = rdma_mem::open_device("soft0")?;
    /// let cq = CompletionQueue::create(&context, 64)?;
    /// let pd = context.allocate_pd()?;
    /// let builder = pd.create_qp().qp_type(QueuePairType::UD).qkey(0x1111_1111);
    /// let qp = builder.send_cq(&cq).recv_cq(&cq).build()?.activate()?;
    /// assert_eq!(qp.qkey(), Some(0x1111_1111));
    /// # Ok::<(), rdma_qp::Error>(())
    /// ```
    #[doc(alias = "ibv_modify_qp")]
    pub fn activate(self) -> Result<QueuePair, Error> {
        let Self { object, end, send_psn, .. } = self;
        let qp_type = object.qp_type;
        if qp_type != QpType::UD {
            return Err(Error::NotDatagrams { qp_type });
        }
        let (mut init, mask) = modify::to_init(qp_type, end.port, &end.settings);
        object.modify(&mut init, mask, QpState::RESET, QpState::INIT)?;
        let (mut rtr, mask) = modify::to_state(ibv_qp_state::IBV_QPS_RTR);
        object.modify(&mut rtr, mask, QpState::INIT, QpState::RTR)?;
        let (mut rts, mask) = modify::to_rts_unreliable(send_psn);
        object.modify(&mut rts, mask, QpState::RTR, QpState::RTS)?;
        Ok(QueuePair::of_datagrams(object, end))
    }
}
