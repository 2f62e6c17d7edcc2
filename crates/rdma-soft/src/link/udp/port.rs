//! An address at which a device listens, and the groups that the device has joined at it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use rdma_types::Gid;
use rustix::io::{Errno, Result};

use super::address::LocalAddress;
use super::open::Open;
use super::outgoing::{Loss, Outgoing};
use super::receiver::PortReceiver;
use super::socket::Socket;
use super::{address, entry};
use crate::address::{Address, GidEntry};
use crate::device::Device;
use crate::device::network::Network;
use crate::engine::Refusal;
use crate::engine::wire::Carrier;
use crate::link::driver::Driver;
use crate::sync::locked;

/// The maximum number of groups that a device can join at an address. Each group needs a socket.
const GROUPS: usize = 64;

#[derive(Debug)]
pub(super) struct Port {
    driver: &'static Driver,
    device: &'static Device,
    own: LocalAddress,
    receiver: Arc<PortReceiver>,
    outgoing: Arc<Outgoing>,
    /// Whether this address receives packets to groups. Only one IPv4 and one IPv6 address of each interface do, so
    /// that each datagram arrives once.
    receives_groups: bool,
    groups: Mutex<BTreeMap<Gid, Arc<PortReceiver>>>,
}

impl Port {
    pub(super) fn open(
        driver: &'static Driver,
        device: &'static Device,
        own: LocalAddress,
        socket: Socket,
        receives_groups: bool,
        loss: Option<Loss>,
    ) -> Result<Arc<Self>> {
        let mut made = None;
        let receiver = driver.add(|token| {
            let open = Arc::new(Open::new(driver, socket, token));
            let outgoing = Outgoing::new(device, own.ip, Arc::clone(&open), loss);
            let outgoing = Arc::clone(made.insert(outgoing));
            PortReceiver::new(device, own.ip, open, outgoing)
        })?;
        let outgoing = made.ok_or(Errno::NOMEM)?;
        let groups = Mutex::default();
        Ok(Arc::new(Self { driver, device, own, receiver, outgoing, receives_groups, groups }))
    }

    /// Starts to receive packets to a group.
    fn join(&self, group: Gid) -> Result<Arc<PortReceiver>> {
        let socket = Socket::join(&self.own, address(group))?;
        let receiver = self.driver.add(|token| {
            let open = Arc::new(Open::new(self.driver, socket, token));
            PortReceiver::of_group(self.device, group, self.own.interface, open)
        })?;
        receiver.use_it();
        Ok(receiver)
    }
}

impl Network for Port {
    fn address(&self) -> GidEntry {
        entry(self.own.ip)
    }

    fn reach(&self, remote: &Address) -> std::result::Result<(), Refusal> {
        let Address::Gid(remote) = remote else { return Err(Refusal::Invalid) };
        // Only the process that listens can use the address, not a child that it has forked.
        let open = &self.receiver.open;
        open.socket.descriptor().get().map_err(|_| Refusal::Unreachable)?;
        let remote = address(remote.gid);
        if remote.is_unspecified() {
            return Err(Refusal::Unreachable);
        }
        match open.socket.reaches(remote) {
            Ok(()) => Ok(()),
            Err(errno @ (Errno::MFILE | Errno::NFILE)) => Err(Refusal::without_files(errno)),
            Err(_) => Err(Refusal::Unreachable),
        }
    }

    fn outlet(&self) -> Arc<dyn Carrier> {
        self.receiver.use_it();
        Arc::<Outgoing>::clone(&self.outgoing)
    }

    fn update_groups(
        &self,
        newest: Option<Gid>,
        has: &dyn Fn(Gid) -> bool,
    ) -> std::result::Result<(), Refusal> {
        let groups = &mut *locked(&self.groups);
        groups.retain(|&group, receiver| {
            let stays = has(group);
            if !stays {
                self.driver.close(receiver.open.token);
            }
            stays
        });
        let of_version = |group: &Gid| address(*group).is_ipv4() == self.own.ip.is_ipv4();
        let Some(group) = newest.filter(of_version).filter(|group| has(*group)) else {
            return Ok(());
        };
        if !self.receives_groups || groups.contains_key(&group) {
            return Ok(());
        }
        if groups.len() >= GROUPS {
            return Err(Refusal::NoRoom);
        }
        match self.join(group) {
            Ok(receiver) => {
                groups.insert(group, receiver);
                Ok(())
            }
            Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)) => {
                Err(Refusal::without_files(errno))
            }
            // Not an error for the caller: the group still works between its members in this process.
            Err(errno) => {
                let (group, at): (IpAddr, IpAddr) = (address(group), self.own.ip);
                let device = &self.device.name;
                tracing::warn!(device, %group, %at, %errno, "packets of other hosts to a group are not received");
                Ok(())
            }
        }
    }

    fn is_source_to(&self, remote: Gid) -> bool {
        self.receiver.open.socket.source_to(address(remote)) == Ok(self.own.ip)
    }
}
