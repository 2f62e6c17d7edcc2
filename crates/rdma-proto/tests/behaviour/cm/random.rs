//! Random programs on a network that loses, duplicates, reorders and delays MADs; and random messages. The same
//! variables as in `pair::random` repeat a run.

use std::collections::BTreeSet;
use std::time::Duration;

use rdma_proto::cm::wire::{Mad, Message, Reason, Rejection};
use rdma_proto::cm::{Address, CommId};
use rdma_types::{Gid, Qpn};

use crate::cm::network::Side::{self, Left, Right};
use crate::cm::network::{Pair, Phase};
use crate::pair::random::{Random, seeds};

/// Lets the program of an end do something.
fn act(pair: &mut Pair, random: &mut Random, side: Side) {
    let phases = &pair.end(side).phases;
    let ids: Vec<_> = phases.iter().map(|(&id, &phase)| (id, phase)).collect();
    let Some(&(id, phase)) = ids.get(random.below(ids.len().max(1) as u64) as usize) else {
        pair.connect(side);
        return;
    };
    match (phase, random.below(8)) {
        (_, 0..=1) => _ = pair.connect(side),
        (Phase::Established, 2..=3) => pair.disconnect(side, id),
        (Phase::Begun, 2) => {
            pair.end(side).last = id;
            pair.reject(side, &Rejection::new(Reason::CONSUMER_DEFINED));
        }
        (Phase::Begun, _) => decide(pair, side, id),
        _ => {}
    }
}

/// Decides about a request or a reply, unless the manager waits for the peer.
fn decide(pair: &mut Pair, side: Side, id: CommId) {
    if !pair.end(side).is_waiting(id) {
        pair.end(side).last = id;
        pair.decide(side);
    }
}

/// Returns the queue pairs of the established connections: left, right.
fn established(pair: &mut Pair, side: Side) -> BTreeSet<(Qpn, Qpn)> {
    let end = pair.end(side);
    let phases = end.phases.iter().filter(|(_, phase)| **phase == Phase::Established);
    let links = phases.map(|(id, _)| end.links[id]);
    links
        .map(|(local, remote)| if side == Left { (local, remote) } else { (remote, local) })
        .collect()
}

/// Runs one script on one network. Returns the number of connections that both ends had established at the end.
fn run(seed: u64) -> usize {
    let mut random = Random(seed);
    let mut pair = Pair::new().network(random.network([40, 15, 30], 400));
    (pair.left.decides, pair.right.decides) = (random.below(2) == 0, random.below(2) == 0);
    (pair.left.reuses, pair.right.reuses) = (random.below(2) == 0, random.below(2) == 0);
    for _ in 0..random.below(30) {
        let side = if random.below(2) == 0 { Left } else { Right };
        act(&mut pair, &mut random, side);
        pair.run_for(Duration::from_micros(random.below(300)));
    }
    // All decisions are made, so each end has an answer or an error.
    (pair.left.decides, pair.right.decides) = (true, true);
    for side in [Left, Right] {
        let begun = pair.end(side).phases.iter().filter(|(_, phase)| **phase == Phase::Begun);
        for id in begun.map(|(id, _)| *id).collect::<Vec<_>>() {
            decide(&mut pair, side, id);
        }
    }
    let trace = pair.run();
    let ends = [Left, Right].map(|side| {
        let phases: Vec<_> = pair.end(side).phases.values().copied().collect();
        assert!(phases.iter().all(|&phase| phase == Phase::Established), "{trace:#?}: {phases:?}");
        assert_eq!(pair.end(side).manager.len(), phases.len());
        established(&mut pair, side)
    });
    let both = ends[0].intersection(&ends[1]).count();
    for (left, right) in &ends[0] - &ends[1] {
        assert!(pair.right.ended.contains(&right), "{trace:#?}: {left} {right}");
    }
    for (left, right) in &ends[1] - &ends[0] {
        assert!(pair.left.ended.contains(&left), "{trace:#?}: {left} {right}");
    }
    end_all(&mut pair);
    both
}

/// Disconnects everything that is established, and checks that no connection remains.
fn end_all(pair: &mut Pair) {
    let mut trace = Vec::new();
    // A REQ that arrives after everything else begins a new connection.
    while !(pair.left.phases.is_empty() && pair.right.phases.is_empty()) {
        for side in [Left, Right] {
            let ids: Vec<_> = pair.end(side).phases.keys().copied().collect();
            ids.into_iter().for_each(|id| pair.disconnect(side, id));
        }
        trace.extend(pair.run());
    }
    assert!(pair.left.manager.is_empty() && pair.right.manager.is_empty(), "{trace:#?}");
}

#[test]
fn both_ends_agree_or_report_an_error_in_time() {
    let (mut agreed, mut runs) = (0, 0);
    for seed in seeds() {
        println!("RDMA_PROTO_SEED={seed}");
        agreed += run(seed);
        runs += 1;
    }
    println!("{agreed} connections were established at the end of {runs} runs");
    assert!(agreed > 0 || runs < 100, "no connection of {runs} runs was established");
}

/// A message with random fields, some of them from connections of the pair.
pub(crate) fn message(random: &mut Random, ids: &[CommId], qpns: &[Qpn], mad: &mut [u8; 256]) {
    let any = |random: &mut Random, bytes: &mut [u8]| bytes.fill_with(|| random.below(256) as u8);
    any(random, &mut mad[24..]);
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[16..18].copy_from_slice(&[0, 0x10 + random.below(11) as u8]);
    for at in [24, 28] {
        if random.below(8) > 0 {
            let id = ids[random.below(ids.len() as u64) as usize];
            mad[at..at + 4].copy_from_slice(&id.get().to_be_bytes());
        }
    }
    let qpn = qpns[random.below(qpns.len() as u64) as usize].get().to_be_bytes();
    // The queue pairs of a REQ, a REP and a DREQ.
    let at = match mad[17] {
        0x10 => 56,
        0x13 => 36,
        _ => 32,
    };
    mad[at..at + 3].copy_from_slice(&qpn[1..]);
    if mad[17] == 0x12 && random.below(2) == 0 {
        // A reason that is a REJ's own.
        mad[34..36].copy_from_slice(&[0, random.below(34) as u8]);
    }
}

/// With any messages in any order, nothing panics, no message is dropped without being counted, and all connections
/// end.
#[test]
fn any_messages_in_any_order_are_counted_and_harmless() {
    for seed in 0..1_000 {
        let mut random = Random(seed);
        let mut pair = Pair::new();
        (pair.left.decides, pair.right.decides) = (random.below(2) == 0, random.below(2) == 0);
        for _ in 0..60 {
            if random.below(6) == 0 {
                let side = if random.below(2) == 0 { Left } else { Right };
                act(&mut pair, &mut random, side);
            } else {
                deliver_any(&mut pair, &mut random);
            }
            pair.run_for(Duration::from_micros(random.below(20)));
        }
        pair.run();
        assert_eq!((pair.left.manager.deadline(), pair.right.manager.deadline()), (None, None));
    }
}

fn deliver_any(pair: &mut Pair, random: &mut Random) {
    let (mut ids, mut qpns) = (vec![CommId::new(1)], vec![Qpn::masked(1)]);
    for end in [&pair.left, &pair.right] {
        ids.extend(end.phases.keys());
        qpns.extend(end.links.values().flat_map(|&(local, remote)| [local, remote]));
    }
    let mut mad = [0; 256];
    message(random, &ids, &qpns, &mut mad);
    let gid = if random.below(8) == 0 { Gid::from_bytes([3; 16]) } else { pair.right.gid };
    if random.below(4) > 0 {
        // The local GID of a REQ's path.
        let is_req = mad[17] == 0x10;
        mad[80..96].copy_from_slice(if is_req { gid.as_bytes() } else { &[0; 16] });
        mad[74] = if is_req { 0x30 } else { 0 };
    }
    let before = *pair.left.manager.counters();
    let is_quiet = pair.deliver_bytes(Left, Address::Gid(gid), &mad).is_empty();
    let mut after = *pair.left.manager.counters();
    assert_eq!(after.received, before.received + 1);
    after.received = before.received;
    let parsed = Mad::parse(&mad).map(|mad| mad.message);
    let is_mra = matches!(parsed, Ok(Message::Mra(_)));
    assert!(!is_quiet || is_mra || after != before, "{parsed:?}");
}
