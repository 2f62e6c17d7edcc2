//! The regions whose memory is in a file, so that other processes can map it.

use rdma_soft::{Builder, Network, Peers, Schedule};
use test_support::rig::connect::{Side, pair};
use test_support::rig::post::Wr;
use test_support::rig::{
    ALL_ACCESS, LOCAL_WRITE, MW_BIND, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE, Size, ZERO_BASED,
    until,
};

#[test]
fn only_some_regions_of_some_devices_have_files() {
    let wants = |device: &str, length, access| {
        Side::new(device, &Size::default(), 8).pd.wants_file(length, access)
    };
    rdma_soft::install();
    let long = 64 << 10;
    for access in [ALL_ACCESS, REMOTE_READ, REMOTE_ATOMIC | LOCAL_WRITE, REMOTE_READ | ZERO_BASED] {
        assert!(wants("soft0", long, access), "{access}");
        assert!(!wants("soft0", long - 1, access), "{access}");
        assert!(!wants("soft0", 1 << 60, access), "{access}: more memory than a machine has");
    }
    let refused = [
        0,
        LOCAL_WRITE,
        LOCAL_WRITE | REMOTE_WRITE,
        LOCAL_WRITE | REMOTE_WRITE | REMOTE_ATOMIC,
        ALL_ACCESS | MW_BIND,
    ];
    for access in refused {
        assert!(!wants("soft0", long, access), "{access}");
    }
    let shared = |name: &str| Builder::new(name).peers(Peers::SameUser);
    let (folder, network) = (tempfile::tempdir().unwrap(), Network::simulated(1));
    let devices = [
        Builder::new("mapped-alone"),
        Builder::new("mapped-any").peers(Peers::AnyUser),
        shared("mapped-not").mapped(false),
        shared("mapped-packets").force_wire(),
        shared("mapped-held").schedule(Schedule::Held),
        shared("mapped-deferred").schedule(Schedule::Deferred { seed: 1 }),
        shared("mapped-lossy").lossy(0.1, 1),
        shared("mapped-captured").pcap(folder.path().join("pcap")),
        shared("mapped-simulated").network(&network),
        shared("mapped-faulty").faults("seed=7; fail=0.1%:RNR_RETRY_EXC".parse().unwrap()),
    ];
    for device in devices {
        let device = device.install().unwrap();
        assert!(!wants(device.name(), long, ALL_ACCESS), "{}", device.name());
    }
    for device in [shared("mapped-shared"), shared("mapped-apart").between_processes()] {
        let device = device.install().unwrap();
        assert!(wants(device.name(), long, ALL_ACCESS), "{}", device.name());
    }
}

/// The conformance suite relies on this.
#[test]
fn a_process_maps_its_own_regions_between_its_queue_pairs() {
    let name = "mapped-own";
    let device = Builder::new(name).peers(Peers::SameUser).mapped(true).between_processes();
    let device = device.install().unwrap();
    let (a, b) = pair(name);
    let from = a.pd.register_filled(vec![7; 64], LOCAL_WRITE);
    let to = b.pd.register_file(64, ALL_ACCESS);
    until("a request without packets", || {
        a.qp.post(&Wr::write(1, &[from.sge(0, 64)], &to, 0));
        a.send_cq.expect_success(1);
        device.counters().mapped_requests > 0
    });
    to.assert_filled(7);
}
