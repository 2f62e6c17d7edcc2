//! A local address from which the connections of a channel lead to other hosts.

use std::sync::{Arc, Mutex, PoisonError};

use rdma_mem::Gid;
use rdma_proto::Time;
use rdma_proto::cm::{Manager, Output, Transmit};

use super::hub::Member;

/// The connections at one local address. They share a [`Manager`], because their messages arrive at the same queue pair.
pub(super) struct Gateway {
    local: Gid,
    member: Arc<Member>,
    /// Locked for single calls, and never while another lock is taken.
    manager: Mutex<Manager>,
}

impl Gateway {
    pub(super) fn new(local: Gid, member: &Arc<Member>, manager: Manager) -> Arc<Self> {
        Arc::new(Self { local, member: Arc::clone(member), manager: Mutex::new(manager) })
    }

    pub(super) const fn local(&self) -> Gid {
        self.local
    }

    /// Calls the manager.
    pub(super) fn manage<T>(&self, call: impl FnOnce(&mut Manager) -> T) -> T {
        call(&mut self.manager.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn send(&self, transmit: &Transmit) {
        self.member.send(self.local, transmit);
    }

    /// Handles one expired timer. Returns `None` if no timer has expired.
    pub(super) fn expire(&self, now: Time) -> Option<Output<'static>> {
        let output = self.manage(|manager| manager.expire(now))?;
        if let Some(transmit) = &output.transmit {
            self.send(transmit);
        }
        Some(output)
    }
}
