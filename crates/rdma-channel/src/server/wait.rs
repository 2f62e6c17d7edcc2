//! Waiting for all files of a server at once.

use std::mem;
use std::thread;
use std::time::{Duration, Instant};

use rdma_connect::{
    CloseReason, ConnectError, FIRST_KEY, Operation, PeerId, TransportError, Until, cause_of,
};

use super::event::{LeftReason, ServerError};
use super::{COMPLETIONS, FIRST_STREAM, Server, WAKER};

impl Server {
    /// Sleeps until something happens, for at most `left`. A server that spins checks its files and yields instead.
    pub(super) fn rest(&mut self, left: Duration) -> Result<(), ServerError> {
        if self.clients.maker().cq.channel().is_none() {
            self.wait_for_files(Duration::ZERO)?;
            thread::yield_now();
            return Ok(());
        }
        if !self.is_quiet()? {
            return Ok(());
        }
        let peers = self.peers.next_end(self.limits().send);
        self.wait_for_files(left.min(peers).min(self.clients.next_end(Instant::now())))
    }

    /// Requests an event for the next completion, and polls all completions that have already arrived.
    fn arm(&mut self) -> Result<(), TransportError> {
        let cq = &self.clients.maker().cq;
        if !self.is_armed && cq.channel().is_some() {
            cq.req_notify(false)?;
            self.is_armed = true;
        }
        self.drain()
    }

    /// Returns true if there is nothing to do or to report now. In that case, one of the files becomes readable when
    /// there is something.
    pub(super) fn is_quiet(&mut self) -> Result<bool, ServerError> {
        self.clients.update_taking()?;
        self.arm()?;
        self.join_clients()?;
        self.end_leaving();
        Ok(!self.has_event())
    }

    /// Waits until a file is ready, for at most `limit`, and handles the ready files.
    pub(super) fn wait_for_files(&mut self, limit: Duration) -> Result<(), ServerError> {
        self.polls_since_check = 0;
        self.clients.update_taking()?;
        let mut ready = mem::take(&mut self.ready);
        let waited = self.files.wait(limit, &mut ready);
        for &key in &ready {
            match key {
                COMPLETIONS => self.take_event()?,
                WAKER => self.is_woken |= self.waker.take(),
                FIRST_KEY.. => {}
                key => self.end_of_stream(key - FIRST_STREAM),
            }
        }
        self.clients.serve_ready(&ready, Until::after(Instant::now(), Duration::ZERO));
        #[cfg(feature = "cm")]
        self.serve_cm(&ready)?;
        self.ready = ready;
        waited.map_err(|error| ConnectError::Io {
            tried: "waiting for clients and completions".into(),
            source: error.into(),
        })?;
        if let Some(failure) = self.clients.take_failure() {
            self.clients.pause(Instant::now());
            self.failure = Some(failure);
        }
        let timeout = self.limits().send;
        while let Some(id) = self.peers.stalled(timeout) {
            let peer = self.peers.get(id).and_then(|peer| peer.address);
            self.fail(id, TransportError::Timeout { operation: Operation::Send, timeout, peer });
        }
        Ok(())
    }

    pub(super) fn take_event(&mut self) -> Result<(), TransportError> {
        if let Some(events) = self.clients.maker().cq.channel() {
            self.is_armed &= events.try_get_event()?.is_none();
        }
        Ok(())
    }

    /// Makes the client at this index leave, because its stream has ended or its machine no longer responds. Messages
    /// that the client has already sent are received first.
    pub(super) fn end_of_stream(&mut self, index: u64) {
        if let Some(peer) = usize::try_from(index).ok().and_then(|index| self.peers.at(index)) {
            self.end_of_peer(peer, None);
        }
    }

    /// Makes a client that is gone leave. Without a reason, its stream shows the reason.
    pub(super) fn end_of_peer(&mut self, peer: PeerId, reason: Option<CloseReason>) {
        // If this fails, the next poll reports the completion queue's error.
        let _ = self.drain();
        // The completions do not show the cause: shared receives are not flushed, and the flushed receives of a single
        // client do not contain it.
        let refused = self.peers.get(peer).and_then(|peer| cause_of(&peer.end.qp));
        let limit = self.options.watch;
        let of_stream = || self.peers.get(peer).map_or(CloseReason::Died, |peer| peer.gone(limit));
        let reason = reason.unwrap_or_else(of_stream);
        let gone = LeftReason::Gone { reason };
        self.leave(peer, refused.map_or(gone, |event| LeftReason::Refused { event }));
    }
}
