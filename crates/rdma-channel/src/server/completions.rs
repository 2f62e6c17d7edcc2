//! Handling a server's completions: completed receives and sends, and clients whose connections have ended.

use rdma_connect::{FailedWork, Operation, PeerId, TransportError};
use rdma_mem::Buffer;
#[cfg(not(feature = "cm"))]
use rdma_qp::Qpn;
use rdma_qp::{WcOpcode, WorkCompletion, WorkError, WorkErrorClass, WorkResult};

use super::Server;
use super::event::ServerEvent;
use super::lent::Request;
use super::peers::Peer;
use super::queues::PeerQueuePair;

/// A completed receive.
#[derive(Debug)]
pub(super) struct Received {
    buffer: Buffer,
    length: usize,
    immediate: Option<u32>,
    is_write: bool,
}

impl Received {
    /// Returns the event of a receive from this client.
    pub(super) fn event(self, peer: PeerId) -> ServerEvent {
        let Self { buffer, length, immediate, is_write } = self;
        match immediate {
            Some(immediate) if is_write => ServerEvent::Written { peer, length, immediate },
            _ => {
                let length = length.min(buffer.len());
                ServerEvent::Message { peer, buffer, length, immediate }
            }
        }
    }
}

impl Server {
    /// Polls completions once, and handles them. Returns their number.
    pub(super) fn take_completions(&mut self) -> Result<usize, TransportError> {
        let count = self.clients.maker().cq.poll_into(&*self.polled)?;
        for index in 0..count {
            let completion = self.polled[index].get().last();
            self.complete(&completion);
        }
        self.post_owed();
        Ok(count)
    }

    /// Polls all completions that have arrived by now.
    pub(super) fn drain(&mut self) -> Result<(), TransportError> {
        let mut left = self.clients.maker().cq.min_capacity() as usize;
        loop {
            let taken = self.take_completions()?;
            left = left.saturating_sub(taken);
            if taken == 0 || left == 0 {
                return Ok(());
            }
        }
    }

    pub(super) fn complete(&mut self, completion: &WorkCompletion) {
        match (self.lent.complete(completion.wr_id()), completion.result()) {
            (Some(Request::Receive(owner, buffer)), Ok(success)) => {
                owner.inspect(|&peer| self.own.owe(peer));
                let length = success.scattered_bytes().unwrap_or(0);
                let immediate = success.immediate_data();
                let is_write = success.opcode() == WcOpcode::RECV_RDMA_WITH_IMM;
                let received = Received { buffer, length, immediate, is_write };
                match self.peers.of(completion.qpn()) {
                    Some(peer) => self.events.push_back(received.event(peer)),
                    // By TCP, a client that has not joined yet does not know that it may send.
                    None => self.received_early(completion.qpn(), received),
                }
            }
            (Some(Request::Receive(owner, buffer)), Err(error)) => {
                if owner.is_some() {
                    self.own.spare.push(buffer);
                    if error.class() == WorkErrorClass::Flushed {
                        // The cause is reported in another way, as for clients that share their receives.
                        return;
                    }
                }
                if let Some(peer) = self.peers.of(completion.qpn()) {
                    self.fail_work(peer, Operation::Receive, error);
                }
            }
            (Some(Request::Copy(peer, _)), result) => self.sent(peer, None, result),
            (Some(Request::Send(peer, buffer)), result) => self.sent(peer, buffer, result),
            (None, _) => self.unmatched += 1,
        }
    }

    /// Drops a message of a client that has not joined.
    #[cfg(not(feature = "cm"))]
    fn received_early(&self, _: Qpn, _: Received) {}

    /// Handles a completed send to a client. `buffer` is returned to the program.
    fn sent(&mut self, peer: PeerId, buffer: Option<Buffer>, result: WorkResult) {
        let makes_room = self.peers.get(peer).is_some_and(Peer::done);
        match (result, buffer) {
            (Ok(_), Some(buffer)) => {
                self.events.push_back(ServerEvent::Sent { peer, buffer });
            }
            (Ok(_), None) if makes_room => {
                self.events.push_back(ServerEvent::Room { peer });
            }
            (Ok(_), None) => {}
            (Err(error), _) => self.fail_work(peer, Operation::Send, error),
        }
    }

    pub(super) fn fail_work(&mut self, id: PeerId, operation: Operation, error: WorkError) {
        let client = self.peers.get(id).map(|client| (client.address, &client.end.qp));
        let (peer, qp) = client.unzip();
        let failed = FailedWork::of_qp(operation, peer.flatten(), error, qp);
        self.fail(id, TransportError::WorkError(failed));
    }

    /// Ends the connections of leaving clients whose sends have completed or whose time has expired.
    pub(super) fn end_leaving(&mut self) {
        while let Some(id) = self.peers.ended() {
            // Messages that have arrived are reported before the client leaves. If the poll fails, the next poll
            // reports the error.
            let _ = self.drain();
            let Some(Peer { end, leaving: Some((reason, _)), .. }) = self.peers.take(id) else {
                return;
            };
            let (qpn, reason) = (end.qp.qpn(), reason.explained(&end.qp));
            self.end(id, end);
            // Discards late completions of this client, before another client can get the same QPN.
            let _ = self.drain();
            self.peers.forget(qpn);
            self.clients.resume();
            self.events.push_back(ServerEvent::Left { peer: id, reason });
        }
    }

    /// Destroys the queue pair of a client. This ends the sends to the client and the receives that only this client
    /// uses. If it fails, the queue pair and the buffers are kept.
    pub(super) fn end(&mut self, id: PeerId, end: PeerQueuePair) {
        match end.close() {
            Ok(()) => self.lent.end_of(id, &mut self.own.spare),
            Err((end, error)) => {
                tracing::error!(%error, %id, "a client's queue pair could not be destroyed: its buffers stay lent");
                self.stuck.push(end);
            }
        }
    }
}
