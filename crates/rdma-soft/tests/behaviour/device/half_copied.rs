//! Messages that are half copied when their receiver is reset, and sources that change: a partial message is never
//! continued into another one.

#![allow(clippy::disallowed_methods)] // The test measures its own time.

use std::time::{Duration, Instant};

use rdma_soft::{Builder, GidPlace, Network, Schedule};
use rdma_sys::{
    ibv_qp_attr_mask as Mask, ibv_qp_state as State, ibv_qp_type, ibv_wc_status as Status,
};
use rdma_types::GidType;

use crate::device::rig::connect::{
    Knobs, Side, attributes, connect, connect_unreliably, endpoint_with_gid,
};
use crate::device::rig::post::Wr;
use crate::device::rig::scene::{AT_A, AT_B, BYTES, Scene};
use crate::device::rig::{ALL_ACCESS, Size, on_each_held_device, soft};

/// The receiver is reset after half of a SEND has arrived, and then reconnected. The message is whole in the receive
/// request that its completion names.
#[test]
fn a_send_starts_over_in_the_receive_after_a_reset() {
    on_each_held_device("half-reset", |device| {
        let scene = Scene::new(device.name());
        scene.a.qp.post(&Wr::send(1, &[scene.at_a.sge(0, BYTES)]));
        assert!(device.release_half(scene.a.qp.qpn()));
        scene.b.qp.to_reset();
        let (at_a, at_b) = (scene.a.endpoint(), scene.b.endpoint());
        connect(&scene.b.qp, &at_b, &at_a, &Knobs::default());
        let next = scene.b.pd.register_filled(vec![0; BYTES], ALL_ACCESS);
        scene.b.qp.post_receive(2, &[next.sge(0, BYTES)]);
        assert_eq!(device.release(scene.a.qp.qpn(), 1), 1);
        scene.a.send_cq.expect_success(1);
        assert_eq!(scene.b.receive_cq.expect_success(2).byte_len as usize, BYTES);
        assert_eq!(next.bytes(), [AT_A; BYTES]);
    });
}

/// The same without acknowledgements.
#[test]
fn an_unreliable_send_starts_over_in_the_receive_after_a_reset() {
    on_each_held_device("half-reset-uc", |device| {
        let size = Size { qp_type: ibv_qp_type::IBV_QPT_UC, ..Size::default() };
        let [a, b] = [(); 2].map(|()| Side::new(device.name(), &size, 64));
        let (at_a, at_b) = (a.endpoint(), b.endpoint());
        connect_unreliably(&a.qp, &at_a, &at_b, &Knobs::default());
        connect_unreliably(&b.qp, &at_b, &at_a, &Knobs::default());
        let source = a.pd.register_filled(vec![AT_A; BYTES], 0);
        let sinks = [(); 2].map(|()| b.pd.register_filled(vec![AT_B; BYTES], ALL_ACCESS));
        b.qp.post_receive(1, &[sinks[0].sge(0, BYTES)]);
        a.qp.post(&Wr::send(1, &[source.sge(0, BYTES)]));
        assert!(device.release_half(a.qp.qpn()));
        b.qp.to_reset();
        connect_unreliably(&b.qp, &at_b, &at_a, &Knobs::default());
        b.qp.post_receive(2, &[sinks[1].sge(0, BYTES)]);
        assert_eq!(device.release(a.qp.qpn(), 1), 1);
        b.receive_cq.expect_success(2);
        assert_eq!(sinks[1].bytes(), [AT_A; BYTES]);
    });
}

/// The same on devices that hold nothing back, with and without acknowledgements, by copies and by packets. However
/// much of a message had arrived when its receiver was reset, no message is split.
#[test]
fn a_send_that_a_reset_divides_is_whole_or_lost() {
    for way in ways("reset") {
        // An unreliable message is copied within its post: afterwards nothing is half copied.
        if !(way.is_copied() && way.is_unreliable() && way.schedule == Schedule::Immediate) {
            way.divide_by_reset();
        }
    }
}

impl Way {
    fn divide_by_reset(&self) {
        let sides = self.install(&[GidPlace::Ipv4Mapped(GidType::ROCE_V2)]);
        let mut divided = 0;
        // Packets are the same each time, and each round stops at another point. With copies, another thread may have
        // finished the copy before the reset.
        let rounds = if self.is_copied() { 1000 } else { 20 };
        for round in 0..rounds {
            divided += u32::from(self.divide_in_round(&sides, round));
            if self.is_copied() && divided > 0 {
                break;
            }
        }
        assert!(divided > 0, "{self:?}: no message was half copied");
    }

    /// Returns true if a part of the message, but not all of it, had arrived when its receiver was reset.
    fn divide_in_round(&self, names: &[String; 2], round: usize) -> bool {
        // More than the 64 KiB that a thread copies at a time; or 16 packets.
        let length = if self.is_copied() { 4 << 20 } else { 16 << 10 };
        let [a, b] = self.connected(names, &self.patient());
        let sources = [AT_A, LATER].map(|byte| a.pd.register_filled(vec![byte; length], 0));
        let sinks = [1, 2, 3].map(|_| b.pd.register_filled(vec![AT_B; length], ALL_ACCESS));
        let receive = |id: usize| b.qp.post_receive(id as u64, &[sinks[id - 1].sge(0, length)]);
        // With a posted receive the message is sent at once. A message that waits for a receive continues one turn at a
        // time.
        let waits = self.is_copied() && self.schedule == Schedule::Immediate;
        if !waits {
            receive(1);
        }
        a.qp.post(&Wr::send(1, &[sources[0].sge(0, length)]));
        match &self.network {
            Some(network) => {
                for _ in 0..=round {
                    network.step();
                }
            }
            None if waits => receive(1),
            None => {
                // Releasing half of a message that the device's thread has begun would release the rest of it.
                let device = soft(&names[0]);
                if device.half_copied(a.qp.qpn()) == 0 {
                    device.release_half(a.qp.qpn());
                }
            }
        }
        let reset = Instant::now();
        b.qp.to_reset();
        let there = sinks[0].bytes().iter().filter(|&&byte| byte == AT_A).count();
        let divided = there > 0 && there < length;
        self.connect(&b, &a, &self.patient());
        receive(2);
        receive(3);
        a.qp.post(&Wr::send(2, &[sources[1].sge(0, length)]));
        self.let_pass();
        let sent = [1, 2].map(|id| {
            let wc = a.send_cq.next();
            assert_eq!(wc.wr_id, id, "{self:?} {round}");
            wc.status
        });
        self.let_pass();
        let mut last = AT_A;
        for (n, wc) in b.receive_cq.try_poll::<4>().unwrap().into_iter().enumerate() {
            if wc.status != Status::IBV_WC_SUCCESS {
                continue;
            }
            let bytes = sinks[wc.wr_id as usize - 1].bytes();
            assert_eq!(wc.byte_len as usize, length, "{self:?} {round}: {n}");
            assert!(bytes[0] == AT_A || bytes[0] == LATER, "{self:?} {round}: {n}");
            assert!(bytes.iter().all(|&byte| byte == bytes[0]), "{self:?} {round}: {n} is split");
            last = bytes[0];
        }
        // A successful message has arrived, and so has an unreliable one sent after the reset.
        if sent[1] == Status::IBV_WC_SUCCESS {
            assert_eq!(last, LATER, "{self:?} {round}");
        } else {
            // The receiver expects its first number again, but the sender does not repeat what was acknowledged:
            // packets, or a whole message. On a busy machine its retries may be used up before the receiver is connected.
            let acknowledged = !self.is_copied() || there == length;
            let is_late = reset.elapsed() > RETRIES;
            assert!(
                (acknowledged || is_late) && !self.is_unreliable(),
                "{self:?} {round}: {sent:?}"
            );
            assert!(sent.contains(&Status::IBV_WC_RETRY_EXC_ERR), "{self:?} {round}: {sent:?}");
        }
        divided
    }
}

/// A requester that was reset in the middle of a message begins its next message at the start of the same receive
/// request.
#[test]
fn a_new_message_starts_at_the_beginning_of_the_receive() {
    on_each_held_device("half-new", |device| {
        let scene = Scene::new(device.name());
        scene.a.qp.post(&Wr::send(1, &[scene.at_a.sge(0, BYTES)]));
        assert!(device.release_half(scene.a.qp.qpn()));
        scene.a.qp.to_reset();
        let (at_a, at_b) = (scene.a.endpoint(), scene.b.endpoint());
        connect(&scene.a.qp, &at_a, &at_b, &Knobs::default());
        let other = scene.a.pd.register_filled(vec![0x77; BYTES], 0);
        scene.a.qp.post(&Wr::send(2, &[other.sge(0, BYTES)]));
        assert_eq!(device.release(scene.a.qp.qpn(), 1), 1);
        scene.a.send_cq.expect_success(2);
        assert_eq!(scene.at_b.bytes(), [0x77; BYTES]);
    });
}

/// A drained requester changes its source to another address of its port: its peer was connected to the first, and
/// drops packets from others.
#[test]
fn a_new_source_is_not_taken_for_the_old_one() {
    for way in ways("av") {
        let names = way.install(&[GidPlace::Ipv4Mapped(GidType::ROCE_V2); 2]);
        let [a, b] = way.connected(&names, &Knobs { timeout: 8, retries: 1, ..Knobs::default() });
        b.qp.post_receive(10, &[]);
        a.qp.post(&Wr::send(1, &[]));
        a.send_cq.expect_success(1);
        b.receive_cq.expect_success(10);
        let source = |index| {
            assert_eq!(a.qp.to_state(State::IBV_QPS_SQD), 0);
            let own = endpoint_with_gid(&a.context, &a.qp, index);
            let attr = attributes(&own, &b.endpoint(), &Knobs::default());
            assert_eq!(a.qp.modify(attr, Mask::IBV_QP_AV.0), 0);
            assert_eq!(a.qp.to_state(State::IBV_QPS_RTS), 0);
        };
        source(1);
        source(0);
        b.qp.post_receive(11, &[]);
        a.qp.post(&Wr::send(2, &[]));
        a.send_cq.expect_success(2);
        b.receive_cq.expect_success(11);
        source(1);
        b.qp.post_receive(12, &[]);
        a.qp.post(&Wr::send(3, &[]));
        way.let_pass();
        a.send_cq.expect(
            3,
            match way.is_unreliable() {
                true => Status::IBV_WC_SUCCESS,
                false => Status::IBV_WC_RETRY_EXC_ERR,
            },
        );
        way.let_pass();
        assert!(b.receive_cq.is_empty(), "{way:?}: a message from another source was accepted");
    }
}

/// The bytes of the second of two messages.
const LATER: u8 = 0x77;
/// Less than the time of all retries of a patient end: eight times 268 ms.
const RETRIES: Duration = Duration::from_secs(1);

/// The way in which two ends reach each other. Packets use a separate network in virtual time.
struct Way {
    name: String,
    service: ibv_qp_type,
    schedule: Schedule,
    network: Option<Network>,
}

impl std::fmt::Debug for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

/// Each service with each schedule that ends by itself, by copies and by packets.
fn ways(test: &str) -> Vec<Way> {
    let mut ways = Vec::new();
    for (service, service_name) in
        [(ibv_qp_type::IBV_QPT_RC, "rc"), (ibv_qp_type::IBV_QPT_UC, "uc")]
    {
        for (schedule, schedule_name) in
            [(Schedule::Immediate, "now"), (Schedule::Deferred { seed: 3 }, "later")]
        {
            for by in ["copies", "packets"] {
                let name = format!("half-{test}-{service_name}-{schedule_name}-{by}");
                let network = (by == "packets").then(|| Network::simulated(1));
                ways.push(Way { name, service, schedule, network });
            }
        }
    }
    ways
}

impl Way {
    fn is_copied(&self) -> bool {
        self.network.is_none()
    }

    fn is_unreliable(&self) -> bool {
        self.service == ibv_qp_type::IBV_QPT_UC
    }

    fn install(&self, gids: &[GidPlace]) -> [String; 2] {
        ["a", "b"].map(|end| {
            let name = format!("{}-{end}", self.name);
            let builder = Builder::new(&name).gids(gids.to_vec()).schedule(self.schedule);
            match &self.network {
                Some(network) => builder.network(network),
                None => builder,
            }
            .install()
            .unwrap();
            name
        })
    }

    fn connected(&self, names: &[String; 2], knobs: &Knobs) -> [Side; 2] {
        let size = Size { qp_type: self.service, ..Size::default() };
        let [a, b] = [&names[0], &names[1]].map(|name| Side::new(name, &size, 64));
        self.connect(&a, &b, knobs);
        self.connect(&b, &a, knobs);
        [a, b]
    }

    /// With copies, a busy machine gets time to reconnect an end: [`RETRIES`].
    fn patient(&self) -> Knobs {
        let (timeout, retries) = if self.is_copied() { (16, 7) } else { (4, 2) };
        Knobs { timeout, retries, ..Knobs::default() }
    }

    fn connect(&self, own: &Side, peer: &Side, knobs: &Knobs) {
        let connect = if self.is_unreliable() { connect_unreliably } else { connect };
        connect(&own.qp, &own.endpoint(), &peer.endpoint(), knobs);
    }

    /// Lets everything in flight arrive.
    fn let_pass(&self) {
        if let Some(network) = &self.network {
            while network.step() {}
        }
    }
}
