//! A server's receives, which are shared by all clients or separate for each client.

use std::collections::VecDeque;

use rdma_connect::{Operation, PeerId, RefusedWork, TransportError};
use rdma_mem::Buffer;

use super::Server;
use super::queues::PeerQueuePair;

/// Buffers and receives of clients that do not share a receive queue.
#[derive(Debug, Default)]
pub(super) struct OwnReceives {
    /// Buffers for the next receives. They are allocated in advance, so that there is memory for all receives from the
    /// beginning.
    pub(super) spare: Vec<Buffer>,
    /// The clients whose receives must be reposted, with one entry per message received.
    owed: VecDeque<PeerId>,
}

impl OwnReceives {
    /// Records that a message has consumed a receive of this client, which must be reposted.
    pub(super) fn owe(&mut self, peer: PeerId) {
        self.owed.push_back(peer);
    }
}

impl Server {
    /// Posts as many receives as possible.
    ///
    /// # Errors
    /// Returns an error if no receive can be posted and the device holds none.
    pub(super) fn post_receives(&mut self) -> Result<(), TransportError> {
        if self.clients.maker().receives.shared().is_some() {
            return self.post_shared_receives();
        }
        self.allocate_spare()?;
        self.post_owed();
        Ok(())
    }

    fn post_shared_receives(&mut self) -> Result<(), TransportError> {
        let refused = |error| RefusedWork::new(Operation::Receive, None, error).into();
        while self.lent.receives() < self.options.max_recv_wr {
            let buffer = self.pool.allocate(self.options.message_size);
            let posted = buffer
                .map_err(TransportError::from)
                .and_then(|buffer| self.lent.post_receive(None, buffer).map_err(refused));
            match posted {
                Err(_) if self.lent.receives() > 0 => break,
                posted => posted?,
            }
        }
        Ok(())
    }

    /// Reposts the receives that messages of clients have consumed, until there are no buffers left.
    pub(super) fn post_owed(&mut self) {
        while let Some(&id) = self.own.owed.front() {
            let peer = self.peers.get(id).filter(|peer| peer.leaving.is_none());
            let Some(peer) = peer else {
                self.own.owed.pop_front();
                continue;
            };
            let Some(buffer) = self.own.spare.pop() else { break };
            self.own.owed.pop_front();
            if let Err(error) = self.lent.post_receive(Some((id, &peer.end.qp)), buffer) {
                let refused = RefusedWork::new(Operation::Receive, peer.address, error);
                self.fail(id, refused.into());
            }
        }
    }

    /// Allocates buffers until there is one for each possible receive. Too little memory is an error only if there is
    /// no buffer at all.
    fn allocate_spare(&mut self) -> Result<(), TransportError> {
        loop {
            let buffers = self.own.spare.len() + self.lent.receives() as usize;
            if buffers >= self.options.max_recv_wr as usize {
                return Ok(());
            }
            match self.pool.allocate(self.options.message_size) {
                Ok(buffer) => self.own.spare.push(buffer),
                Err(_) if buffers > 0 => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Posts the receives of a client that does not share them, before the client may send. Returns the number of
    /// receives that could not be posted for lack of memory.
    ///
    /// # Errors
    /// Returns an error if the device refuses a receive.
    pub(super) fn post_first_receives(
        &mut self,
        id: PeerId,
        end: &PeerQueuePair,
    ) -> Result<u32, TransportError> {
        let each = self.clients.maker().receives.per_peer();
        for posted in 0..each {
            // If there is no memory, the client's messages wait, as they do when a client sends too fast.
            let _ = self.allocate_spare();
            let Some(buffer) = self.own.spare.pop() else { return Ok(each - posted) };
            let posted = self.lent.post_receive(Some((id, &end.qp)), buffer);
            posted.map_err(|error| {
                RefusedWork::new(Operation::Receive, end.qp.peer().map(Into::into), error)
            })?;
        }
        Ok(0)
    }
}
