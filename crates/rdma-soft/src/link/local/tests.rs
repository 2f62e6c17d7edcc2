#![allow(clippy::unwrap_used)] // A failing helper fails its test.

use std::sync::{OnceLock, Weak};

use rdma_proto::wire::{Bth, Headers, Opcode, Operation};
use rdma_proto::{Burst, Last};
use rustix::net::{RecvFlags, recv, socketpair};

use super::host::{LocalHost, Peers};
use super::*;
use crate::address::{Address, Path};
use crate::device::gid_place::GidPlace;
use crate::device::limits::Limits;
use crate::engine::wire::Carrier as _;
use crate::fabric::Fabric;
use crate::fabric::random::Seed;
use crate::link::Link;
use crate::link::driver::End;
use crate::schedule::Schedule;

struct World {
    fabric: OnceLock<Fabric>,
    device: OnceLock<Device>,
    driver: OnceLock<Driver>,
}

impl World {
    const fn new() -> Self {
        Self { fabric: OnceLock::new(), device: OnceLock::new(), driver: OnceLock::new() }
    }

    /// A device, and a driver that no thread serves.
    fn get(&'static self) -> (&'static Device, &'static Driver) {
        let fabric = self.fabric.get_or_init(Fabric::new);
        fabric.serve_by_polls_alone();
        let (limits, schedule) = (Limits::default(), Schedule::Immediate);
        let (link, seed) = (Link::Ethernet, Seed::new(1));
        let device = self.device.get_or_init(|| {
            let (name, gids) = ("d".to_owned(), GidPlace::usual(link));
            let mut device = Device::new(fabric, name, link, gids, limits, schedule, &seed);
            let (host, seed) = LocalHost::new("d", "", Peers::SameUser).unwrap();
            device.join_host(Box::new(host), &seed);
            device
        });
        (device, self.driver.get_or_init(|| Driver::new(fabric).unwrap()))
    }
}

/// Both ends of a connection.
fn connection() -> (Descriptor, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    (Descriptor::open(|| Ok(one)).unwrap(), other)
}

/// Adds a connection on which the device only sends.
fn neighbor(device: &'static Device, driver: &'static Driver) -> (Arc<Neighbor>, OwnedFd) {
    let (connection, far) = connection();
    let new = |end| Neighbor::new(driver, device, connection, end);
    (driver.add(new).unwrap(), far)
}

/// A thread may have taken an event of the one, which another thread closes, and a third one has
/// the place.
#[test]
fn a_late_event_is_not_taken_for_that_of_who_has_the_place_now() {
    static WORLD: World = World::new();
    let (device, driver) = WORLD.get();
    let (first, _far) = neighbor(device, driver);
    driver.close(first.end);
    let (second, _far) = neighbor(device, driver);
    assert_eq!(first.end.place, second.end.place);
    assert_eq!(End::of(second.end.data()), second.end);
    assert!(driver.at(first.end).is_none());
    driver.close(first.end);
    first.leave();
    assert!(driver.at(second.end).is_some());
    assert!(first.has_ended() && !second.has_ended());
}

/// Also if that is known from a message that could not be sent, and not from an event.
#[test]
fn who_has_ended_keeps_no_descriptor() {
    static WORLD: World = World::new();
    let (device, driver) = WORLD.get();
    let (neighbor, far) = neighbor(device, driver);
    neighbor.leave();
    drop(neighbor);
    let read = recv(&far, &mut [0], RecvFlags::DONTWAIT);
    assert_eq!(read.map(|(read, _)| read), Ok(0), "it is open");
}

#[test]
fn who_connects_has_a_number_and_a_user() {
    let (one, _other) = connection();
    let (process, user) = one.peer().unwrap();
    let own = i32::try_from(std::process::id()).unwrap();
    assert_eq!(process.map(std::num::NonZeroI32::get), Some(own));
    assert_eq!(user, rustix::process::geteuid().as_raw());
}

/// What waits leaves in as few messages as there can be: an acknowledgement with what is sent behind it. Long payload is
/// the first of its message, since the receiver copies what is behind.
#[test]
fn several_bursts_leave_in_one_message() {
    static WORLD: World = World::new();
    let (device, link) = WORLD.get();
    let (neighbor, far) = neighbor(device, link);
    let (opcode, number) = (Opcode::reliable(Operation::SendOnly), rdma_types::Qpn::masked(5));
    let local = Address::Gid(device.identity.gids[0]);
    let path = Path { local, remote: local };
    let sender: Weak<Neighbor> = Arc::downgrade(&neighbor);
    for length in [0, 8, 4096, 4096, 0, 0, 0, 0, 0, 0, 60 << 10, 0] {
        let buffer = neighbor.buffer(sender.clone()).unwrap();
        let header = Headers::new(Bth::new(opcode, number, rdma_types::Psn::masked(9)));
        let mut burst = Burst::single(header, length);
        if length > 4096 {
            burst.last = Some(Last::of(&header));
            (burst.segment, burst.segments) = (4096, 15);
        }
        Arc::clone(&neighbor).send(path, burst, None, buffer);
    }
    device.fabric.unsettled.settle();
    let mut bytes = vec![0; 100_000];
    let mut read = || recv(&far, &mut bytes, RecvFlags::DONTWAIT).map(|(read, _)| read);
    assert_eq!(read(), Ok(8 * head::HEAD + 8 + 2 * 4096));
    assert_eq!(read(), Ok(2 * head::HEAD));
    assert_eq!(read(), Ok(2 * head::HEAD + (60 << 10)));
    assert_eq!(read(), Err(Errno::AGAIN));
}
