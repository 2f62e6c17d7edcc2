//! Devices of other names, and the addresses by which two processes find each other.

use rdma_soft::{Builder, Peers, SoftDevice};
use rdma_sys::{Errno, ibv_gid, ibv_qp_attr, ibv_qp_state, ibv_qp_type};
use test_support::rig::Size;
use test_support::rig::connect::{Endpoint, RTR, Side, attributes, endpoint_with_gid, to_init};
use test_support::rig::datagram::gid_of;
use test_support::rig::device::gid_table;

use crate::two_processes::near::{Near, PATIENT};
use crate::two_processes::peer::{ACCESS, LENGTH, Peer, bring_up};

const RC: ibv_qp_type = ibv_qp_type::IBV_QPT_RC;

/// Creates a device with the peers of the environment, or finds it.
fn of_environment(name: &str) -> SoftDevice {
    let device = Builder::new(name).peers(Peers::of_environment());
    device.install().unwrap_or_else(|_| SoftDevice::find(name).unwrap())
}

#[test]
fn processes_that_make_a_device_of_one_name_share_it() {
    let device = of_environment("shared-name");
    let mut near = Near::on(device.name(), Peer::start_at("/shared-name"), RC, &PATIENT);
    near.all_of_it();
    near.peer.end();
}

#[track_caller]
fn expect_unreachable(side: &Side, own: &Endpoint, far: &Endpoint) {
    let attr = attributes(own, far, &PATIENT);
    side.qp.to_reset();
    to_init(&side.qp, &attr);
    let attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_RTR, ..attr };
    assert_eq!(side.qp.modify(attr, RTR), Errno::EHOSTUNREACH.raw());
}

/// The address of the loopback interface, which is last in the table.
fn last_of(side: &Side) -> Endpoint {
    let row = gid_table(&side.context, 256, 0).unwrap().pop().unwrap();
    let end = endpoint_with_gid(&side.context, &side.qp, row.index.try_into().unwrap());
    let address = gid_of(&end.gid).to_ipv4().unwrap();
    assert!(address.is_loopback() && row.interface != 0, "{address}");
    end
}

#[test]
fn devices_of_two_names_or_of_one_process_are_not_shared() {
    let device = of_environment("first-name");
    let side = Side::new(device.name(), &Size::default(), 8);
    let own = last_of(&side);
    for (place, environment) in
        [("/second-name", None), ("/first-name", Some(("RDMA_SOFT_PEERS", "none")))]
    {
        let mut peer = Peer::start_with(place, environment.as_slice());
        let (far, _) = peer.make(RC);
        assert_ne!(gid_of(&far.gid), gid_of(&side.endpoint().gid));
        expect_unreachable(&side, &own, &Endpoint { gid: peer.last_gid(), ..far });
        peer.end();
    }
}

#[test]
fn the_address_of_the_loopback_interface_leads_to_other_processes() {
    rdma_soft::install();
    let mut peer = Peer::start();
    let side = Side::new("soft0", &Size { qp_type: RC, ..Size::default() }, 256);
    let memory = side.pd.register(LENGTH, ACCESS);
    let own = last_of(&side);
    let (far, remote) = peer.make(RC);
    assert_eq!(gid_of(&peer.last_gid()), gid_of(&own.gid), "one device");
    let far = Endpoint { gid: own.gid, gid_index: own.gid_index, ..far };
    peer.connect(&own);
    bring_up(&side, &far, &PATIENT);
    let mut near = Near { peer, side, memory, far, remote };
    near.message(LENGTH, Some(3));
    near.read(LENGTH);
    near.peer.end();
}

/// No device has such an address, which is known at once, so the program does not wait for retries.
#[test]
fn addresses_of_the_loopback_interface_that_no_device_has_are_refused() {
    rdma_soft::install();
    let side = Side::new("soft0", &Size::default(), 8);
    for own in [side.endpoint(), last_of(&side)] {
        for address in ["::ffff:127.255.255.255", "::ffff:127.128.0.0"] {
            let gid: rdma_types::Gid = address.parse().unwrap();
            let far = Endpoint { gid: ibv_gid { raw: gid.to_bytes() }, ..own };
            expect_unreachable(&side, &own, &far);
        }
    }
}
