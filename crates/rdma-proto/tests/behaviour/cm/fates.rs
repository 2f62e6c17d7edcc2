//! One connection and its end, on a network that loses, duplicates or delays one MAD or two. Each MAD has each fate.

use rdma_proto::cm::Manager;

use crate::cm::network::Side::{self, Left, Right};
use crate::cm::network::{Fate, LATENCY, Pair, Phase, response};

/// The MADs of an undisturbed connection that the left end requests and either end disconnects. Each has its number at its
/// sender.
fn mads(disconnects: Side) -> [(Side, u64, &'static str); 5] {
    match disconnects {
        Left => [
            (Left, 0, "REQ"),
            (Right, 0, "REP"),
            (Left, 1, "RTU"),
            (Left, 2, "DREQ"),
            (Right, 1, "DREP"),
        ],
        Right => [
            (Left, 0, "REQ"),
            (Right, 0, "REP"),
            (Left, 1, "RTU"),
            (Right, 1, "DREQ"),
            (Left, 2, "DREP"),
        ],
    }
}

/// Returns all fates. A late MAD is overtaken by the next one, or by its own repetition.
fn fates() -> [Fate; 4] {
    let repetition = u64::try_from(response().as_nanos()).unwrap() / LATENCY;
    [Fate::Lost, Fate::Twice, Fate::Late(2), Fate::Late(repetition + 5)]
}

fn is_empty(manager: &Manager) -> bool {
    manager.is_empty() && manager.deadline().is_none()
}

/// Establishes a connection and disconnects it. Checks that each end is established once and ends once.
fn connect(name: &str, disconnects: Side, mut pair: Pair) -> Vec<String> {
    let left = pair.connect(Left);
    let mut trace = pair.run();
    let right = pair.right.last;
    let phases = [pair.left.phases.get(&left), pair.right.phases.get(&right)];
    assert_eq!(phases, [Some(&Phase::Established); 2], "{name}: {trace:#?}");
    let id = if disconnects == Left { left } else { right };
    pair.disconnect(disconnects, id);
    trace.extend(pair.run());
    let times = |line: &str| trace.iter().filter(|found| found.trim_start() == line).count();
    for event in [
        "right requested",
        "left replied",
        "right established",
        "left ended: disconnected, TimeWait",
        "right ended: disconnected, TimeWait",
        "left released",
        "right released",
    ] {
        assert_eq!(times(event), 1, "{name}: {event}: {trace:#?}");
    }
    assert!(pair.left.phases.is_empty() && pair.right.phases.is_empty(), "{name}: {trace:#?}");
    assert!(is_empty(&pair.left.manager) && is_empty(&pair.right.manager), "{name}");
    trace
}

#[test]
fn each_mad_may_be_lost_or_repeated_or_late() {
    for disconnects in [Left, Right] {
        let undisturbed = connect("undisturbed", disconnects, Pair::new());
        let is_mad = |line: &&String| line.starts_with("->") || line.starts_with("<-");
        let expected = mads(disconnects).map(|(side, _, name)| match side {
            Left => format!("-> {name}"),
            Right => format!("<- {name}"),
        });
        assert_eq!(undisturbed.iter().filter(is_mad).collect::<Vec<_>>(), expected.each_ref());
        for (side, number, name) in mads(disconnects) {
            for fate in fates() {
                let pair = Pair::new().fates([(side, number, fate)]);
                connect(&format!("{name} {fate:?}"), disconnects, pair);
            }
        }
    }
}

#[test]
fn each_two_mads_may_be_lost_or_repeated_or_late() {
    for disconnects in [Left, Right] {
        let all: Vec<_> = mads(disconnects).into_iter().collect();
        for (at, &(side, number, name)) in all.iter().enumerate() {
            for &(other_side, other_number, other_name) in &all[at + 1..] {
                for (one, other) in fates().into_iter().flat_map(|one| fates().map(|it| (one, it)))
                {
                    let both = [(side, number, one), (other_side, other_number, other)];
                    let name = format!("{name} {one:?}, {other_name} {other:?}");
                    connect(&name, disconnects, Pair::new().fates(both));
                }
            }
        }
    }
}
