//! The faults of a software device, as a program with channels sees them. The networks are simulated, so times are
//! virtual.
#![cfg(feature = "soft")]

use std::time::Duration;

use rdma::device::{AsyncEventKind, AsyncEventSource, AsyncEvents, Errno, PortState};
use rdma::memory::Error;
use rdma::prelude::*;
use rdma::qp::WorkErrorCode;
use rdma::soft::{Builder, Network, SoftDevice};

/// The number of records that are written, each of 8 bytes.
const RECORDS: usize = 100;

fn writable() -> AccessFlags {
    AccessFlags::new().with_local_write().with_remote_write()
}

/// A device with faults and a device without, in a network of their own.
struct Rig {
    network: Network,
    device: SoftDevice,
    own: ProtectionDomain,
    peer: ProtectionDomain,
}

impl Rig {
    fn new(name: &str, faults: &str) -> Self {
        let network = Network::simulated(1);
        let install = |builder: Builder| builder.network(&network).install().unwrap();
        let device = install(Builder::new(name).faults(faults.parse().unwrap()));
        let other = install(Builder::new(format!("{name}-peer")));
        let domain =
            |device: &SoftDevice| open_device(device.name()).unwrap().allocate_pd().unwrap();
        let (own, peer) = (domain(&device), domain(&other));
        Self { network, device, own, peer }
    }

    /// Returns a channel of each device. They are connected to each other.
    fn connect(&self) -> [Channel; 2] {
        let prepare =
            |pd: &ProtectionDomain| pd.create_channel().access(writable()).build().unwrap();
        let (here, there) = (prepare(&self.own), prepare(&self.peer));
        let (at_here, at_there) = (here.endpoint(), there.endpoint());
        [here.handshake(at_there).unwrap(), there.handshake(at_here).unwrap()]
    }

    /// Writes records into the peer's memory until a write fails. Returns the number of the records there, and the
    /// error of the last write.
    fn write(&self) -> (usize, Result<(), TransportError>) {
        let [mut here, _there] = self.connect();
        let memory = self.peer.allocate_shared_region(8 * RECORDS, writable()).unwrap();
        let record = |n| memory.remote().slice(8 * n..8 * n + 8).unwrap();
        let outcome = (0..RECORDS).try_for_each(|n| here.write_inline(&[1; 8], record(n)));
        let mut bytes = [0; 8 * RECORDS];
        memory.read(0, &mut bytes).unwrap();
        (bytes.iter().filter(|&&byte| byte == 1).count() / 8, outcome)
    }

    /// Writes all records.
    fn write_all(&self) {
        let (written, outcome) = self.write();
        outcome.unwrap();
        assert_eq!(written, RECORDS);
    }

    fn events(&self) -> AsyncEvents {
        self.own.context().async_events().unwrap()
    }

    /// Lets this time pass, and returns the events of the port.
    fn run_for(&self, seconds: u64, events: &AsyncEvents) -> Vec<AsyncEventKind> {
        self.network.run_for(Duration::from_secs(seconds));
        let all = std::iter::from_fn(|| events.try_get_event().unwrap());
        let of_port = all.inspect(|event| assert_eq!(event.source, AsyncEventSource::Port(1)));
        of_port.map(|event| event.kind).collect()
    }
}

#[test]
fn a_failed_call_is_an_error_with_its_number_and_a_hint() {
    let rig = Rig::new("safe-calls", "reg_mr@2=ENOMEM");
    rig.own.allocate_region(64).unwrap();
    let error = rig.own.allocate_region(64).unwrap_err();
    assert!(matches!(&error, Error::Verb(verb) if verb.errno == Errno::ENOMEM), "{error}");
    assert!(error.to_string().contains("RLIMIT_MEMLOCK"), "{error}");
    rig.own.allocate_region(64).unwrap();
}

#[test]
fn a_failed_request_closes_the_channel_and_another_one_continues() {
    let rig = Rig::new("safe-requests", "seed=7;fail=5%:RNR_RETRY_EXC");
    let (written, outcome) = rig.write();
    assert!(written < RECORDS);
    let Err(TransportError::WorkError(work)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(work.code(), WorkErrorCode::RnrRetryExceededError);
    assert_eq!(rig.device.counters().injected_faults, 1);
    // Other requests fail on another channel.
    assert_ne!(rig.write().0, written);
}

#[test]
fn writes_survive_lost_packets() {
    let rig = Rig::new("safe-loss", "seed=7;loss=10%");
    rig.write_all();
    assert!(rig.device.counters().injected_faults > 0);
}

#[test]
fn each_write_waits_for_a_slow_peer() {
    let rig = Rig::new("safe-slow", "slow_peer=5ms");
    rig.write_all();
    let expected = Duration::from_millis(5 * RECORDS as u64);
    assert!((expected..2 * expected).contains(&rig.network.now()), "{:?}", rig.network.now());
}

#[test]
fn a_port_that_flaps_raises_its_events_and_works_again() {
    let rig = Rig::new("safe-port", "port_flap=10s");
    let events = rig.events();
    let state = || rig.own.context().query_port(1).unwrap().state;
    assert_eq!(rig.run_for(10, &events), [AsyncEventKind::PORT_ERR]);
    assert_eq!(state(), PortState::DOWN);
    assert_eq!(rig.run_for(1, &events), [AsyncEventKind::PORT_ACTIVE]);
    assert_eq!(state(), PortState::ACTIVE);
    rig.write_all();
}

#[test]
fn gids_that_move_raise_an_event_and_new_channels_use_the_new_table() {
    let rig = Rig::new("safe-gids", "gid_move=30s");
    let events = rig.events();
    let table = || {
        let table = rig.own.context().gid_table().unwrap();
        table.iter().map(|entry| (entry.gid, entry.gid_type)).collect::<Vec<_>>()
    };
    let mut expected = table();
    assert_eq!(rig.run_for(30, &events), [AsyncEventKind::GID_CHANGE]);
    expected.rotate_right(1);
    assert_eq!(table(), expected);
    rig.write_all();
}
