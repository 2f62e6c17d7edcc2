//! The results of calls to the communication manager.

use core::fmt;

use rdma_types::{Guid, Qpn};

use super::address::{Address, CommId};
use super::wire::{Answer, MAD_LEN, Mad, Offer, Query, Reason, Rejection, Resolution};

/// A MAD to send.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Transmit {
    /// The destination, whose queue pair is [`QPN`](Self::QPN).
    pub to: Address,
    /// The bytes.
    pub mad: [u8; MAD_LEN],
}

impl Transmit {
    /// The queue pair that sends and receives MADs: the general services interface, QP 1.
    pub const QPN: Qpn = Qpn::masked(1);

    /// The Q_Key of MADs.
    pub const QKEY: u32 = 0x8001_0000;
}

impl fmt::Debug for Transmit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mad = Mad::parse(&self.mad);
        f.debug_struct("Transmit").field("to", &self.to).field("mad", &mad).finish()
    }
}

/// The results of a received MAD or an expired timer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "the MAD must be sent, and the event handled"]
#[non_exhaustive]
pub struct Output<'a> {
    /// A MAD to send.
    pub transmit: Option<Transmit>,
    /// An event for the program.
    pub event: Option<Event<'a>>,
}

impl<'a> Output<'a> {
    /// No result.
    pub(super) const NONE: Self = Self { transmit: None, event: None };

    pub(super) const fn transmit(transmit: Transmit) -> Self {
        Self { transmit: Some(transmit), event: None }
    }

    pub(super) const fn event(event: Event<'a>) -> Self {
        Self { transmit: None, event: Some(event) }
    }

    pub(super) const fn both(transmit: Transmit, event: Event<'a>) -> Self {
        Self { transmit: Some(transmit), event: Some(event) }
    }
}

/// An event for the program. Private data is that of the received MAD, padded with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A peer requests a connection to a listener. The program answers with
    /// [`accept`](super::Manager::accept) or [`reject`](super::Manager::reject). No queue pair is
    /// needed before.
    Requested {
        /// The new connection.
        id: CommId,
        /// The peer.
        from: Address,
        /// The GUID of the peer's adapter, which nothing proves.
        ca_guid: Guid,
        /// The peer's parameters.
        offer: Offer<'a>,
    },
    /// The peer accepted a request. The program prepares its queue pair and calls
    /// [`ready`](super::Manager::ready), or [`reject`](super::Manager::reject).
    Replied {
        /// The connection.
        id: CommId,
        /// The GUID of the peer's adapter, which nothing proves.
        ca_guid: Guid,
        /// The peer's parameters.
        answer: Answer<'a>,
    },
    /// The peer of an accepted connection is ready, so this end may send.
    Established {
        /// The connection.
        id: CommId,
        /// The private data of the RTU.
        private_data: &'a [u8],
    },
    /// A connection, or the attempt to establish one, has ended.
    Ended {
        /// The connection. The ID is free unless `time_wait` is true.
        id: CommId,
        /// The reason.
        cause: Cause<'a>,
        /// Whether the connection is now in TimeWait. If so, [`Released`](Self::Released) follows.
        /// Until then, the queue pair must not be used for another connection, because packets of
        /// this one may still arrive.
        time_wait: bool,
    },
    /// TimeWait is over: the queue pair may be used again, and the ID is free.
    Released {
        /// The connection.
        id: CommId,
        /// This end's queue pair.
        qpn: Qpn,
    },
    /// A peer requests the queue pair of a datagram service. The program answers with
    /// [`answer`](super::Manager::answer).
    Queried {
        /// The query.
        id: CommId,
        /// The peer.
        from: Address,
        /// The request.
        query: Query<'a>,
    },
    /// The answer to a query arrived. The ID is free.
    Resolved {
        /// The query.
        id: CommId,
        /// The answer.
        resolution: Resolution<'a>,
    },
}

/// The reason that a connection or a query has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause<'a> {
    /// The peer sent a REJ.
    Rejected(Rejection<'a>),
    /// The peer's REP was unacceptable, and this end sent a REJ with this reason.
    Refused(Reason),
    /// All repetitions of a message were unanswered.
    Unanswered,
    /// The peer sent a DREQ or a DREP, with this private data.
    Disconnected(&'a [u8]),
}
