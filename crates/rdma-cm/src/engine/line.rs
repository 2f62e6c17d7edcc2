//! The messages of one connection: how they travel, and the protocol that they follow.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rdma_mem::Gid;
use rdma_proto::cm::{Manager, Transmit};

use super::gateway::Gateway;
use super::socket::send_mad;

/// The way of a connection's messages to its peer.
pub(super) enum Line {
    /// To a process of this host.
    Socket {
        /// The socket, until the peer closes it. Shared with the program that polls it.
        socket: Option<Arc<OwnedFd>>,
        /// The manager of this connection alone. So a message on one socket can neither name nor disturb the connection
        /// of another.
        manager: Box<Manager>,
    },
    /// To another host.
    Gateway(Arc<Gateway>),
}

impl Line {
    pub(super) const fn socket(&self) -> Option<&Arc<OwnedFd>> {
        match self {
            Self::Socket { socket, .. } => socket.as_ref(),
            Self::Gateway(_) => None,
        }
    }

    /// Drops the socket, which the peer has closed.
    pub(super) fn close(&mut self) {
        if let Self::Socket { socket, .. } = self {
            *socket = None;
        }
    }

    /// Returns the manager of a connection of this host.
    pub(super) fn own(&mut self) -> Option<&mut Manager> {
        match self {
            Self::Socket { manager, .. } => Some(manager),
            Self::Gateway(_) => None,
        }
    }

    /// Returns the local address of a connection to another host.
    pub(super) fn local(&self) -> Option<Gid> {
        match self {
            Self::Socket { .. } => None,
            Self::Gateway(gateway) => Some(gateway.local()),
        }
    }

    /// Sends the MAD that a call of the manager returns.
    pub(super) fn call<E>(
        &mut self,
        call: impl FnOnce(&mut Manager) -> Result<Transmit, E>,
    ) -> Result<(), E> {
        let transmit = self.manage(call)?;
        self.send(&transmit);
        Ok(())
    }

    /// Calls the manager.
    pub(super) fn manage<T>(&mut self, call: impl FnOnce(&mut Manager) -> T) -> T {
        match self {
            Self::Socket { manager, .. } => call(manager),
            Self::Gateway(gateway) => gateway.manage(call),
        }
    }

    pub(super) fn send(&self, transmit: &Transmit) {
        match self {
            Self::Socket { socket: Some(socket), .. } => send_mad(socket, &transmit.mad),
            Self::Socket { socket: None, .. } => {}
            Self::Gateway(gateway) => gateway.send(transmit),
        }
    }
}
