//! The requester's half of a queue pair: its queue, its connection, and why it waits.

use std::sync::{Arc, Weak};
use std::time::Duration;

use rdma_types::{Psn, QpAttributes, QpState, WcStatus};

use crate::address::Path;
use crate::engine::Refusal;
use crate::engine::operation::Opcode;
use crate::engine::queue_pair::capacity::Init;
use crate::engine::queue_pair::service::Service;
use crate::engine::queue_pair::settings::Settings;
use crate::engine::requester::queue::SendQueue;
use crate::engine::requester::request::{Payload, Request};
use crate::engine::requester::wire::Wire;
use crate::engine::responder::origin::Origin;
use crate::fabric::clock::Time;
use crate::fabric::ids::Ids;
use crate::memory::copy::Segment;
use crate::memory::room::Room;

/// The peer of a connection, as far as the requester knows it.
#[derive(Debug)]
pub(crate) enum Peer<P> {
    /// The peer was not looked up yet, or was not found, or does not listen any longer.
    Unresolved,
    /// The peer is in this process. Its responder, under the responder's lock, shows whether it still listens.
    Direct(Arc<P>),
}

/// The requester's state of its connection.
#[derive(Debug)]
pub(crate) struct Requester<P> {
    /// The origin that identifies this connection to responders.
    pub(crate) origin: Origin,
    /// The source of the number of the next origin.
    ids: &'static Ids,
    pub(crate) peer_qpn: u32,
    /// The next packet sequence number.
    pub(crate) psn: Psn,
    /// The base-2 logarithm of the path MTU in bytes.
    pub(crate) mtu_log2: u32,
    pub(crate) ack_timeout: u8,
    pub(crate) retries: u8,
    pub(crate) rnr_retries: u8,
    pub(crate) max_rd_atomic: u8,
    /// The queue pair's Q_Key. A datagram carries it if the Q_Key in the request has the highest bit set.
    pub(crate) qkey: u32,
    /// The peer, which is looked up for the first request of a connection.
    pub(crate) peer: Peer<P>,
    /// The receiver of the last datagram.
    pub(super) last: Weak<P>,
    /// The number of bytes of the head request that were copied. They do not count if the responder has
    /// [begun](crate::engine::responder::side::Responder::begun) another message since.
    pub(crate) progress: u64,
    /// Scratch memory for one attempt: the local memory of its request. The next attempt clears it first, so nothing
    /// that is left in it is used (SAFETY.md F14).
    pub(crate) local: Vec<Segment>,
}

impl<P> Requester<P> {
    fn new(ids: &'static Ids, service: Service, max_sge: u32) -> Result<Self, Refusal> {
        Ok(Self {
            origin: Origin { number: ids.unique(), service, qpn: 0, path: None },
            ids,
            peer_qpn: 0,
            psn: Psn::default(),
            mtu_log2: 10,
            ack_timeout: 0,
            retries: 0,
            rnr_retries: 0,
            max_rd_atomic: 0,
            qkey: 0,
            peer: Peer::Unresolved,
            last: Weak::new(),
            progress: 0,
            local: Room::new(max_sge.max(1) as usize)?.list(),
        })
    }

    /// Sets the given attributes of an `ibv_qp_attr`.
    pub(crate) fn set(
        &mut self,
        new: &Settings,
        path: Option<Path>,
        has: impl Fn(QpAttributes) -> bool,
    ) {
        if path.is_some() {
            self.go(path);
        }
        if has(QpAttributes::DEST_QPN) {
            self.peer_qpn = new.peer_qpn;
        }
        if has(QpAttributes::PATH_MTU) {
            // Code 1 means 256 bytes.
            self.mtu_log2 = 7 + new.path_mtu;
        }
        if has(QpAttributes::SQ_PSN) {
            self.psn = Psn::masked(new.sq_psn);
        }
        if has(QpAttributes::TIMEOUT) {
            self.ack_timeout = new.timeout;
        }
        if has(QpAttributes::RETRY_CNT) {
            self.retries = new.retries;
        }
        if has(QpAttributes::RNR_RETRY) {
            self.rnr_retries = new.rnr_retries;
        }
        if has(QpAttributes::MAX_QP_RD_ATOMIC) {
            self.max_rd_atomic = new.max_rd_atomic;
        }
        if has(QpAttributes::QKEY) {
            self.qkey = new.qkey;
        }
    }

    /// Uses another path from now on, and looks up the queue pair there when the next request is executed.
    pub(crate) fn go(&mut self, path: Option<Path>) {
        self.origin = Origin { number: self.ids.unique(), path, ..self.origin };
        (self.peer, self.last) = (Peer::Unresolved, Weak::new());
    }

    /// Returns the peer, if it was found in this process.
    pub(crate) fn direct_peer(&self) -> Option<Arc<P>> {
        match &self.peer {
            Peer::Direct(peer) => Some(Arc::clone(peer)),
            Peer::Unresolved => None,
        }
    }

    /// Returns the number of packets of a message: one for each MTU of data, and at least one. Each has its own
    /// sequence number (IBTA volume 1, 9.7.1).
    #[inline]
    pub(super) fn packets(&self, length: u64) -> u32 {
        packets(length, self.mtu_log2)
    }

    /// Returns how long the requester waits for an answer: 4.096 us x 2^code (IBTA volume 1, 9.7.6.1.3). Code 0 means
    /// no limit.
    pub(crate) fn answer_timeout(&self) -> Option<Duration> {
        match self.ack_timeout {
            0 => None,
            code => Some(Duration::from_nanos(4096 << u32::from(code & 31))),
        }
    }
}

/// The maximum length of a message in bytes (IBTA volume 1, 9.7.1: 2^31 bytes).
pub(crate) const MAX_MESSAGE_BYTES: u64 = 1 << 31;

/// Returns the length of a message, if a request with this opcode may have that length.
#[inline]
pub(super) fn local_length(opcode: Opcode, length: u64) -> Result<u32, WcStatus> {
    // The result of an atomic is eight bytes (IBTA volume 1, 9.4.5).
    let wrong_length = length > MAX_MESSAGE_BYTES || opcode.is_atomic() && length != 8;
    u32::try_from(length).ok().filter(|_| !wrong_length).ok_or(WcStatus::LOC_LEN_ERR)
}

/// Returns the number of packets of a message, at an MTU of two to the power of `mtu_log2` bytes.
#[inline]
fn packets(length: u64, mtu_log2: u32) -> u32 {
    // There are at most 2^31 / 2^8 packets, so the mask removes nothing.
    let more = (length.saturating_sub(1) >> mtu_log2) & 0x00ff_ffff;
    1 + more as u32
}

/// The reason why the head of the send queue waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blocked {
    No,
    /// The receiver has no receive request. The request is given up at time `until`, or never if that is `None`.
    NotReady {
        until: Option<Time>,
    },
    /// The peer does not answer. The request is retried at time `at` if any retries are `left`. If `at` is `None`, it
    /// is never retried.
    Unanswered {
        at: Option<Time>,
        left: u8,
    },
    /// The link has no space for the request's packet. It gives the queue pair a turn when it has space.
    NoRoom,
}

/// The result of an attempt at a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Done {
        bytes: u64,
    },
    /// The receiver has no receive request, and demands a pause with this timer code.
    NotReady {
        timer: u8,
    },
    Unanswered,
    /// The link has no space for the request's packet.
    NoRoom,
    Failed(WcStatus),
    /// Stopped before the end of the message, because the attempt was not allowed to copy more.
    Paused,
}

#[derive(Debug)]
pub(crate) struct SendSide<P> {
    pub(crate) state: QpState,
    /// The number of resets. With it, a late error of an earlier incarnation is recognised, and has no effect.
    pub(crate) incarnation: u32,
    pub(crate) queue: SendQueue,
    pub(crate) requester: Requester<P>,
    /// The protocol's state between RTS and RESET, if messages go as packets.
    pub(crate) wire: Option<Box<Wire>>,
    /// The number of requests at the end of the queue that belong to the post in progress.
    pub(super) posts: Option<u32>,
    pub(crate) blocked: Blocked,
    /// The number of requests accepted since the queue pair was created (free-running).
    pub(crate) posted: u32,
    /// The value of the completion counter when the requester last read it.
    pub(crate) reclaimed: u32,
    /// The number of executed requests.
    pub(crate) executed: u64,
    /// The sum of their lengths.
    pub(crate) bytes: u64,
    /// Whether to send an event when all requests that have begun are done.
    pub(crate) notify_drained: bool,
    /// Whether the queue pair is in the list of a deferred schedule.
    pub(crate) pending: bool,
}

impl<P> SendSide<P> {
    pub(crate) fn new(ids: &'static Ids, init: &Init) -> Result<Self, Refusal> {
        let capacity = &init.capacity;
        let datagrams = init.service == Service::UnreliableDatagram;
        Ok(Self {
            state: QpState::RESET,
            incarnation: 0,
            queue: SendQueue::new(capacity, datagrams)?,
            requester: Requester::new(ids, init.service, capacity.send_sge)?,
            wire: None,
            posts: None,
            blocked: Blocked::No,
            posted: 0,
            reclaimed: 0,
            executed: 0,
            bytes: 0,
            notify_drained: false,
            pending: false,
        })
    }

    /// Returns the number of the oldest request in the queue.
    pub(crate) fn head_index(&self) -> u32 {
        let queued = u32::try_from(self.queue.len()).unwrap_or(u32::MAX);
        self.posted.wrapping_sub(queued)
    }

    /// Returns true if the head may be executed. A draining queue only finishes requests that have begun.
    pub(crate) fn may_run(&self) -> bool {
        match self.state {
            QpState::RTS => true,
            QpState::SQD => {
                self.blocked != Blocked::No
                    || self.requester.progress > 0
                    || self.wire.as_ref().is_some_and(|wire| wire.has_begun())
            }
            _ => false,
        }
    }

    pub(crate) fn push(&mut self, request: &Request, payload: Payload<'_>) {
        self.queue.push(request, payload);
        self.posted = self.posted.wrapping_add(1);
    }

    /// Drops the connection and all queued requests.
    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        self.wire = None;
        self.blocked = Blocked::No;
        self.notify_drained = false;
        self.requester.progress = 0;
        self.requester.go(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_takes_one_sequence_number_for_each_packet() {
        let next =
            |psn, length, mtu_log2| Psn::masked(psn).wrapping_add(packets(length, mtu_log2)).get();
        assert_eq!(next(5, 0, 10), 6);
        assert_eq!(next(5, 1, 10), 6);
        assert_eq!(next(5, 1024, 10), 6);
        assert_eq!(next(5, 1025, 10), 7);
        assert_eq!(next(0x00ff_ffff, 1, 8), 0);
        assert_eq!(next(3, 1 << 31, 8), 3 + (1 << 23));
    }
}
