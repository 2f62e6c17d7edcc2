//! A software device is created, held and queried by any thread.

use rdma_soft::{
    Builder, Counters, Faults, FaultsError, GidPlace, InstallError, Limits, Link, LinkModel,
    Network, OtherNetwork, Peers, Profile, Schedule, SentPacket, SoftDevice, Verbs,
};

fn send_sync<T: Send + Sync + 'static>() {}
fn error<T: std::error::Error + Send + Sync + 'static>() {}

#[test]
fn devices_are_send_and_sync() {
    send_sync::<Builder>();
    send_sync::<Network>();
    send_sync::<SoftDevice>();
}

#[test]
fn values_are_send_and_sync() {
    send_sync::<Counters>();
    send_sync::<Faults>();
    send_sync::<Peers>();
    send_sync::<GidPlace>();
    send_sync::<Limits>();
    send_sync::<Link>();
    send_sync::<LinkModel>();
    send_sync::<Profile>();
    send_sync::<Schedule>();
    send_sync::<SentPacket<'static>>();
    send_sync::<Verbs>();
}

#[test]
fn errors_are_errors_of_any_thread() {
    error::<FaultsError>();
    error::<InstallError>();
    error::<OtherNetwork>();
}
