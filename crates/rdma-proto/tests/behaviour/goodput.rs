//! The part of a link that remains usable when packets are lost: 1 GB/s, 20 us round trip, in virtual time.
//!
//! `grid.txt` holds the results for review: a change of the protocol shows in its diff. `RDMA_PROTO_GRID=write`
//! regenerates it.

#![allow(clippy::cast_possible_truncation)]

mod network;

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

use rdma_proto::Kind;
use rdma_proto::requester::Fixed;

use network::{Measured, Scenario};

/// Lost packets per 1000, in either direction.
const LOSSES: [u64; 4] = [0, 1, 10, 50];
const WINDOWS: [u32; 5] = [8, 32, 80, 128, 512];
const CODES: [u8; 2] = [10, 14];

/// Each lost packet costs exactly one retransmission of everything in flight after it: neither the default window nor
/// the timer is the limit. For WRITEs that also holds on a network that buffers a whole window. READs have no window:
/// there, the responses of all READs in flight would be buffered in the network.
#[test]
fn one_percent_of_loss_leaves_half() {
    let [write, read] = [Kind::Write, Kind::Read].map(Scenario::new);
    for scenario in [write, read, Scenario { room: usize::MAX, ..write }] {
        let run = |loss| Scenario { loss, ..scenario }.run(0..3);
        let (all, left) = (run(0), run(10));
        assert!(2 * left.megabytes >= all.megabytes, "{scenario:?}: {left:?} of {all:?}");
    }
}

/// A timer that is sixteen times as long changes nothing, since probes precede it.
#[test]
fn the_timer_does_not_limit() {
    let run = |timeout| Scenario { loss: 10, timeout, ..Scenario::new(Kind::Write) }.run(0..3);
    let (short, long) = (run(10), run(14));
    assert!(10 * long.megabytes >= 9 * short.megabytes, "{long:?}, {short:?}");
}

#[test]
fn the_grid_is_what_was_reviewed() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/behaviour/goodput/grid.txt");
    let grid = grid();
    if env::var("RDMA_PROTO_GRID").is_ok_and(|value| value == "write") {
        fs::write(&path, &grid).unwrap();
    }
    let reviewed = fs::read_to_string(&path).unwrap();
    assert_eq!(grid, reviewed, "RDMA_PROTO_GRID=write regenerates it");
}

fn grid() -> String {
    let mut grid = String::from(
        "Goodput in MB/s at 1 GB/s and 20 us there and back, with messages of 64 KiB in packets of 1 KiB.\n\
         In parentheses: how often the timer expired, and how many probes were sent before it would have.\n",
    );
    let default = Fixed::default().0;
    let new = Scenario::new;
    for timeout in CODES {
        let title =
            format!("WRITE, timeout code {timeout}, by loss and window ({default} is the default)");
        table(&mut grid, &title, &WINDOWS, |loss, window| Scenario {
            loss,
            window,
            timeout,
            ..new(Kind::Write)
        });
    }
    let title = "The same with code 10, when the network holds all that the window allows";
    table(&mut grid, title, &WINDOWS, |loss, window| Scenario {
        loss,
        window,
        room: usize::MAX,
        ..new(Kind::Write)
    });
    let title = "READ with the default window, by loss and timeout code";
    table(&mut grid, title, &CODES, |loss, timeout| Scenario { loss, timeout, ..new(Kind::Read) });
    grid
}

fn table<T: Copy + std::fmt::Display>(
    grid: &mut String,
    title: &str,
    columns: &[T],
    scenario: impl Fn(u64, T) -> Scenario,
) {
    write!(grid, "\n{title}\n       ").unwrap();
    columns.iter().for_each(|column| write!(grid, "{column:>16}").unwrap());
    grid.push('\n');
    for loss in LOSSES {
        write!(grid, "{:3}.{} %", loss / 10, loss % 10).unwrap();
        for &column in columns {
            let Measured { megabytes, timeouts, probes } = scenario(loss, column).run(0..1);
            write!(grid, "{:>16}", format!("{megabytes} ({timeouts}, {probes})")).unwrap();
        }
        grid.push('\n');
    }
}
