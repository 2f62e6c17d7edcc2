//! The communication manager (CM), which establishes and ends connections by management datagrams.
//!
//! It implements the protocol of the IBTA specification, volume 1, chapter 12, like the kernel's
//! `ib_cm` and `rdma_cm`. It has no device, no sockets and no clock. A [`Manager`] processes the MADs
//! and the time that its caller passes in. It returns the MADs to send.
//!
//! ```text
//!      active end                          passive end
//!  connect    ->  REQ   ---------------->  Requested
//!                 MRA   <----------------      (the program needs longer)
//!  Replied    <-  REP   <----------------  accept
//!  ready      ->  RTU   ---------------->  Established
//!                       ...
//!  disconnect ->  DREQ  ---------------->  Ended
//!  Ended      <-  DREP  <----------------
//!  Released   <- TimeWait                  Released <- TimeWait
//! ```
//!
//! - [`wire`] defines the messages, byte by byte.
//! - A [`ServiceId`] names a service. In rdma_cm, it consists of a [`PortSpace`] and a port. A
//!   REQ for such a service contains an [`IpCmHeader`] (annex A11).
//! - Each call of a [`Manager`] returns at most one MAD and one [`Event`]. The caller sends the MAD
//!   to QP 1 of the destination, and calls [`Manager::expire`] at each [`Manager::deadline`].
//!
//! # Rules
//!
//! - Input from a peer is untrusted. A message is matched by its source, both communication IDs,
//!   and the queue pair if it names one; otherwise it is dropped and counted ([`Counters`]). REJs
//!   and DREPs answer messages for connections that this end has forgotten. No MAD is answered by
//!   more than one MAD.
//! - The source is that of the packet. GUIDs and paths in messages prove nothing, so a REQ whose
//!   path begins elsewhere is dropped.
//! - A message that expects an answer is repeated. The program learns of a failure within
//!   `retries + 1` times [`Settings::longest_timeout`], or twice that if the peer sends MRAs. Only a
//!   REQ or REP that arrived waits for the program without a limit.
//! - After a REP, the queue pair of an ended connection belongs to it until TimeWait is over.
//! - A request needs no queue pair until the program accepts it, and a listener has at most
//!   [`Manager::MAX_HALF_OPEN`] connections that are not established. Further requests are dropped.
//! - A manager allocates when a connection or query begins or changes its state, and never has more
//!   than [`Settings::max_connections`].
//! - REQs of both ends that cross are independent: each needs a listener, and establishes its own
//!   connection. Alternate paths (LAP, APR), reliable datagrams and XRC are not supported.
//!
//! # Examples
//!
//! Two ends connect and disconnect, in virtual time:
//!
//! ```
//! use rdma_proto::Time;
//! use rdma_proto::cm::wire::{Answer, Offer, Path, Timeout};
//! use rdma_proto::cm::{Address, Event, Manager, PortSpace, Settings};
//! use rdma_types::{Gid, Guid, Mtu, Psn, Qpn};
//!
//! let [client_gid, server_gid] = [1, 2].map(|n| Gid::from_ipv4([10, 0, 0, n].into()));
//! let (from_client, from_server) = (Address::Gid(client_gid), Address::Gid(server_gid));
//! let mut client = Manager::new(&Settings::new(Guid::from_u64(1), 0, 0x1234));
//! let mut server = Manager::new(&Settings::new(Guid::from_u64(2), 0, 0x5678));
//! let service_id = PortSpace::Ib.service_id(7471);
//! server.listen(service_id)?;
//!
//! // The client requests a connection.
//! let now = Time::from_nanos(0);
//! let [ack_timeout, response_timeout] = [14, 20].map(|code| Timeout::from_code(code).unwrap());
//! let (local_gid, remote_gid) = (client_gid, server_gid);
//! let (qpn, psn) = (Qpn::masked(0x11), Psn::masked(100));
//! let offer = Offer {
//!     service_id,
//!     qpn,
//!     psn,
//!     mtu_code: Mtu::MTU1024.code(),
//!     remote_response_timeout: response_timeout,
//!     local_response_timeout: response_timeout,
//!     max_cm_retries: 15,
//!     primary: Path { local_gid, remote_gid, ack_timeout, ..Path::default() },
//!     ..Offer::default()
//! };
//! let (client_id, req) = client.connect(now, from_server, &offer)?;
//!
//! // The server creates a queue pair and accepts.
//! let requested = server.receive(now, from_client, &req.mad);
//! let Some(Event::Requested { id: server_id, offer, .. }) = requested.event else { panic!() };
//! assert_eq!((offer.qpn, offer.psn), (qpn, psn));
//! let answer = Answer { qpn: Qpn::masked(0x12), psn: Psn::masked(200), ..Answer::default() };
//! let rep = server.accept(now, server_id, &answer)?;
//!
//! // The client's queue pair can send.
//! let replied = client.receive(now, from_server, &rep.mad);
//! assert!(matches!(replied.event, Some(Event::Replied { id, .. }) if id == client_id));
//! let rtu = client.ready(client_id, b"")?;
//! let established = server.receive(now, from_client, &rtu.mad);
//! assert!(matches!(established.event, Some(Event::Established { .. })));
//!
//! // The server disconnects.
//! let dreq = server.disconnect(now, server_id, b"bye")?;
//! let ended = client.receive(now, from_server, &dreq.mad);
//! assert!(matches!(ended.event, Some(Event::Ended { .. })));
//! let drep = ended.transmit.unwrap();
//! let ended = server.receive(now, from_client, &drep.mad);
//! assert!(matches!(ended.event, Some(Event::Ended { .. })));
//!
//! // The queue pairs may be used again after TimeWait.
//! assert!(client.connect(now, from_server, &offer).is_err());
//! let released = client.expire(client.deadline().unwrap()).unwrap();
//! assert_eq!(released.event, Some(Event::Released { id: client_id, qpn }));
//! assert!(client.connect(now, from_server, &offer).is_ok());
//! # Ok::<(), rdma_proto::cm::Error>(())
//! ```

mod address;
mod connection;
mod counters;
mod ending;
mod error;
mod establishment;
mod event;
mod expiry;
mod ip;
mod manager;
mod receive;
mod resolution;
mod service;
mod table;
pub mod wire;

pub use address::{Address, CommId};
pub use counters::Counters;
pub use error::Error;
pub use event::{Cause, Event, Output, Transmit};
pub use ip::IpCmHeader;
pub use manager::{Manager, Settings};
pub use service::{PortSpace, ServiceId};
