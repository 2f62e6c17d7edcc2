//! Failures of connecting by rdma_cm.

use std::time::Duration;

use rdma::cm::{Accepted, Connecting, End, EventChannel, Listener};
use rdma::prelude::*;
use rdma::qp::{CompletionQueue, PreparedQueuePair, QueuePairType};
use rdma::soft::{Builder, LinkModel, Network};

use super::{LONG, SHORT, domain, says};
use crate::child::in_child;

/// The objects of an end that connects by rdma_cm.
struct CmEnd {
    channel: EventChannel,
    pd: ProtectionDomain,
    cq: CompletionQueue,
}

impl CmEnd {
    fn new(device: &str) -> Self {
        let pd = domain(device);
        let channel = EventChannel::open(pd.context()).unwrap();
        let cq = CompletionQueue::create(pd.context(), 16).unwrap();
        Self { channel, pd, cq }
    }

    fn queue_pair(&self, qp_type: QueuePairType) -> PreparedQueuePair {
        let builder = self.pd.create_qp().qp_type(qp_type);
        builder.send_cq(&self.cq).recv_cq(&self.cq).build().unwrap()
    }

    fn listen(&self) -> Listener {
        Listener::bind(&self.channel, "127.0.0.1:0").unwrap()
    }

    fn connect(&self, listener: &Listener) -> Connecting {
        let resolved = self.channel.resolve(listener.local_address()).unwrap();
        resolved.connect(self.queue_pair(QueuePairType::RC), b"").unwrap()
    }

    /// Accepts the next request of a listener.
    fn accept(&self, listener: &Listener) -> Accepted {
        let request = listener.incoming(LONG).unwrap();
        request.prepare(self.queue_pair(QueuePairType::RC)).unwrap().accept(b"").unwrap()
    }
}

#[test]
fn an_address_of_another_host() {
    says(CmEnd::new("soft0").channel.resolve("192.0.2.1:7471").unwrap_err());
}

#[test]
fn no_route_to_the_host() {
    // Not in this process: other tests list its devices.
    in_child(
        "errors::cm::no_route_to_the_host",
        |_| {},
        || {
            rdma::soft::Builder::new("errors-listens").listen("127.0.0.1").install().unwrap();
            says(CmEnd::new("errors-listens").channel.resolve("[2001:db8::1]:7471").unwrap_err());
        },
    );
}

#[test]
fn listening_at_an_address_of_another_host() {
    says(Listener::bind(&CmEnd::new("soft0").channel, "192.0.2.1:0").unwrap_err());
}

#[test]
fn the_port_has_a_listener() {
    let end = CmEnd::new("soft0");
    let listener = end.listen();
    says(Listener::bind(&end.channel, listener.local_address()).unwrap_err());
}

#[test]
fn the_port_has_no_listener() {
    let end = CmEnd::new("soft0");
    let listener = end.listen();
    let resolved = end.channel.resolve(listener.local_address()).unwrap();
    drop(listener);
    let connecting = resolved.connect(end.queue_pair(QueuePairType::RC), b"").unwrap();
    says(connecting.wait(LONG).unwrap_err());
}

#[test]
fn the_peer_rejects_the_connection() {
    let end = CmEnd::new("soft0");
    let listener = end.listen();
    let connecting = end.connect(&listener);
    listener.incoming(LONG).unwrap().reject(b"no").unwrap();
    let error = connecting.wait(LONG).unwrap_err();
    let rdma::cm::Error::Ended(End::Rejected { private_data, .. }) = &error else { panic!() };
    assert_eq!((private_data.len(), &private_data[..3]), (148, &b"no\0"[..]));
    says(error);
}

#[test]
fn the_listener_does_not_answer() {
    let end = CmEnd::new("soft0");
    let listener = end.listen();
    let connecting = end.connect(&listener);
    let _undecided = listener.incoming(LONG).unwrap();
    says(connecting.wait(SHORT).unwrap_err());
}

/// The protocol's limit of 70 s passes in the time of a simulated network.
#[test]
fn the_peers_host_does_not_answer() {
    // Not in this process: other tests list its devices.
    in_child(
        "errors::cm::the_peers_host_does_not_answer",
        |_| {},
        || {
            let network = Network::simulated(1);
            network.set_all_links(LinkModel::cut());
            let install = |name| Builder::new(name).network(&network).install().unwrap();
            let _devices = ["errors-near", "errors-far"].map(install);
            let [near, far] = ["errors-near", "errors-far"].map(CmEnd::new);
            let table = far.channel.context().gid_table().unwrap();
            let to = table.iter().find_map(|entry| entry.gid.to_ipv4()).unwrap();
            let resolved = near.channel.resolve((to, 7471)).unwrap();
            let connecting = resolved.connect(near.queue_pair(QueuePairType::RC), b"").unwrap();
            says(connecting.wait(Duration::from_secs(3600)).unwrap_err());
        },
    );
}

#[test]
fn no_client_requests_a_connection() {
    says(CmEnd::new("soft0").listen().incoming(SHORT).unwrap_err());
}

#[test]
fn the_client_does_not_confirm() {
    let end = CmEnd::new("soft0");
    let listener = end.listen();
    let connecting = end.connect(&listener);
    let accepted = end.accept(&listener);
    let _replied = connecting.wait(LONG).unwrap();
    says(accepted.wait(SHORT).unwrap_err());
}

#[test]
fn the_peer_does_not_disconnect() {
    let end = CmEnd::new("soft0");
    let listener = end.listen();
    let connecting = end.connect(&listener);
    let accepted = end.accept(&listener);
    let _active = connecting.wait(LONG).unwrap().establish().unwrap();
    says(accepted.wait(LONG).unwrap().wait(SHORT).unwrap_err());
}

#[test]
fn too_much_private_data() {
    let end = CmEnd::new("soft0");
    let resolved = end.channel.resolve("127.0.0.1:9").unwrap();
    says(resolved.connect(end.queue_pair(QueuePairType::RC), &[0; 57]).unwrap_err());
}

#[test]
fn a_queue_pair_that_is_not_connected() {
    let end = CmEnd::new("soft0");
    let resolved = end.channel.resolve("127.0.0.1:9").unwrap();
    says(resolved.connect(end.queue_pair(QueuePairType::UD), b"").unwrap_err());
}
