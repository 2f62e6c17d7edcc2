//! Queue pair 1 of devices that listen, without a communication manager.
#![allow(unsafe_code)] // the extension is unsafe

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use rdma_soft::{Builder, SoftDevice};
use rdma_sys::{AddressedMad, Errno};
use rdma_types::Gid;
use rustix::io::read;
use test_support::rig::connect::Side;
use test_support::rig::datagram;
use test_support::rig::post::Wr;
use test_support::rig::{Context, until, verbs};

use crate::udp_link::address;

const QPN: u32 = 1;
const QKEY: u32 = 0x8001_0000;

/// Installs a device that listens. Returns its name and its address.
fn listening(name: &str) -> (&'static str, Gid) {
    let ip: Ipv4Addr = address().parse().unwrap();
    let device = Builder::new(name).gids([]).listen(ip.to_string()).force_wire().install().unwrap();
    (device.name(), Gid::from_ipv4(ip))
}

fn open_mads(context: &Context) -> Result<OwnedFd, Errno> {
    // SAFETY: SAFETY.md F1, F2: the context is live and belongs to this table.
    unsafe { verbs().open_mads(context.0) }
}

fn send(context: &Context, source: Gid, destination: Gid) -> Result<(), Errno> {
    let [source, destination] = [source, destination].map(Gid::to_bytes);
    let mad = AddressedMad { source, destination, mad: [7; 256] };
    // SAFETY: SAFETY.md F1, F2: the context is live and belongs to this table.
    unsafe { verbs().send_mad(context.0, &mad) }
}

fn source(context: &Context, destination: Gid) -> Result<Gid, Errno> {
    // SAFETY: SAFETY.md F1, F2: the context is live and belongs to this table.
    unsafe { verbs().mad_source(context.0, destination.to_bytes()) }.map(Gid::from_bytes)
}

#[test]
fn a_mad_arrives_at_the_newest_file() {
    let ((near, from), (far, to)) = (listening("mads-near"), listening("mads-far"));
    let [near, far] = [near, far].map(Context::open);
    let [old, new] = [(); 2].map(|()| open_mads(&far).unwrap());
    assert_eq!(source(&near, to), Ok(from));
    send(&near, from, to).unwrap();
    let mut message = [0; AddressedMad::LEN];
    until("the MAD arrives", || read(&new, &mut message) == Ok(AddressedMad::LEN));
    let expected =
        AddressedMad { source: from.to_bytes(), destination: to.to_bytes(), mad: [7; 256] };
    assert_eq!(AddressedMad::from_bytes(&message), expected);
    assert_eq!(read(&old, &mut message), Ok(0), "the end of the file");
}

#[test]
fn packets_that_are_no_mads_are_counted() {
    let ((near, _), (far, _)) = (listening("no-mads-near"), listening("no-mads-far"));
    let (side, to) = (datagram::side(near), datagram::side(far));
    let post = |side: &Side, qkey| {
        let ah = side.pd.ah_to(&side.endpoint(), &to.endpoint());
        side.qp.post(&Wr::send(1, &[]).to(&ah, QPN, qkey));
        side.send_cq.expect_success(1);
    };
    let counters = || SoftDevice::find(far).unwrap().counters();
    post(&side, 5);
    until("no program reads", || counters().unknown_qp == 1);
    let context = Context::open(far);
    let _file = open_mads(&context).unwrap();
    post(&side, 5);
    until("the Q_Key differs", || counters().qkey_viol_cntr == 1);
    // The highest bit selects the queue pair's own key.
    let forger = Side::new(near, &datagram::size(), 256);
    datagram::activate(&forger.qp, QKEY);
    post(&forger, QKEY);
    until("the queue pair is another", || counters().malformed == 1);
}

#[test]
fn devices_without_networks_have_no_queue_pair_1() {
    rdma_soft::install();
    let context = Context::open("soft0");
    let [own, other] = ["127.0.0.1", "127.0.0.2"].map(|ip| Gid::from_ipv4(ip.parse().unwrap()));
    assert_eq!(open_mads(&context).unwrap_err(), Errno::EOPNOTSUPP);
    assert_eq!(source(&context, other), Err(Errno::EOPNOTSUPP));
    assert_eq!(send(&context, own, other), Err(Errno::EOPNOTSUPP));
    let (name, _) = listening("mads-elsewhere");
    assert_eq!(send(&Context::open(name), own, other), Err(Errno::EINVAL));
}
