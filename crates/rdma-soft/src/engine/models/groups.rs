//! Models of datagrams to groups.

use rdma_types::{Gid, GidType, Qpn};

use super::*;
use crate::address::{Address, AddressVector, GidEntry, Path, Route};
use crate::engine::queue_pair::membership;

const GROUP: Gid = Gid::from_bytes([0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
/// The address of a sender, which these models never check.
const SOURCE: GidEntry = GidEntry { gid: Gid::ZERO, kind: GidType::ROCE_V2 };

/// Returns a model whose queue pairs send datagrams, on a device in its subnet's list. `b` has joined the group.
fn datagrams() -> Model {
    let (subnet, seed) = (Subnet::of_model(), Seed::new(1));
    let limits = Limits { max_mr: 3, max_mw: 1, ..Limits::default() };
    let (link, schedule) = (Link::Ethernet, Schedule::Immediate);
    let device = Device::new(subnet, "model".into(), link, Vec::new(), limits, schedule, &seed);
    let device = subnet.add(device).unwrap();
    let [a, b] = [(); 2].map(|()| queue_pair_of(Service::UnreliableDatagram, device, None));
    let model = Model { a, b };
    model.connect();
    // Datagrams look up their receiver themselves.
    model.a.send.lock().requester.peer = Peer::Unresolved;
    membership::join(&model.b, GROUP, 0).unwrap();
    model
}

fn send(from: &Arc<QueuePair>, sge: Sge) {
    let remote = Address::Gid(GidEntry { gid: GROUP, ..SOURCE });
    let to_group =
        Route { source: SOURCE, destination: GROUP, traffic_class: 0, flow_label: 0, hop_limit: 1 };
    let vector = AddressVector {
        pd: from.pd_number,
        path: Path { local: Address::Gid(SOURCE), remote },
        service_level: 0,
        route: Some(to_group),
    };
    let sges = [sge];
    let (request, payload) = work(1, &sges, None);
    let request = Request { destination_qpn: Qpn::MULTICAST.get(), ..request };
    let mut list = Some(Ok((request, payload.to(Some(&vector)))));
    post_each(from, || list.take()).unwrap();
}

/// A member leaves and is destroyed while a datagram is sent. The datagram arrives or is lost, and the member's memory
/// does not change afterwards.
#[test]
fn loom_a_datagram_to_a_group_arrives_or_is_lost() {
    loom::model(|| {
        let model = datagrams();
        let source = Memory::new(&model.a.pd, 1);
        let mut sink = Memory::of_length(44, &model.b.pd, 0);
        let (pd, from) = (Arc::clone(&model.b.pd), source.sge());
        model.b.post_receive(11, &[sink.sge()], &mut Turn::new()).unwrap();
        let sender = {
            let a = Arc::clone(&model.a);
            thread::spawn(move || send(&a, from))
        };
        membership::leave(&model.b, GROUP, 0).unwrap();
        model.b.destroy();
        sink.free(&pd);
        sender.join().unwrap();
        assert!(sink.is_free(), "written after it was freed");
        assert_eq!(polled(&model.a.send_cq), [(1, WcStatus::SUCCESS)]);
        model.a.destroy();
    });
}

/// A member that is reset stays a member. It receives the datagram before the reset, or never.
#[test]
fn loom_a_member_that_is_reset_receives_nothing_later() {
    loom::model(|| {
        let model = datagrams();
        let source = Memory::new(&model.a.pd, 1);
        let mut sink = Memory::of_length(44, &model.b.pd, 0);
        let from = source.sge();
        model.b.post_receive(11, &[sink.sge()], &mut Turn::new()).unwrap();
        let sender = {
            let a = Arc::clone(&model.a);
            thread::spawn(move || send(&a, from))
        };
        model.b.reset(&mut locked(&model.b.attributes));
        sink.free(&model.b.pd);
        sender.join().unwrap();
        assert!(sink.is_free(), "written after it was freed");
        assert!(polled(&model.b.receive_cq).is_empty(), "a completion from before the reset");
        assert!(membership::is_in_none(&model.b).is_err());
        model.end();
    });
}

/// A member receives the datagram when nothing else happens. If it did not, the other models would prove nothing.
#[test]
fn loom_a_member_receives_what_is_sent_to_its_group() {
    loom::model(|| {
        let model = datagrams();
        let source = Memory::new(&model.a.pd, 7);
        let sink = Memory::of_length(44, &model.b.pd, 0);
        model.b.post_receive(11, &[sink.sge()], &mut Turn::new()).unwrap();
        send(&model.a, source.sge());
        assert_eq!(polled(&model.b.receive_cq), [(11, WcStatus::SUCCESS)]);
        assert_eq!(sink.bytes[40..], [7; 4]);
        model.end();
    });
}
