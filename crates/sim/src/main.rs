//! The simulator as a program: `cargo xtask sim` builds and starts it.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use rdma_examples_common::chart::{self, Line};
use sim::{Kind, Total};

/// Runs random workloads on a network with faults in virtual time, and checks them against a model.
#[derive(Debug, Parser)]
struct Args {
    /// The seed of all workloads; by default derived from the clock
    #[arg(long, value_parser = number)]
    seed: Option<u64>,
    /// The minimum number of packets; after every ten million, the next seed is used
    #[arg(long, default_value_t = 1_000_000)]
    packets: u64,
    /// Run one fresh seed after another for this number of hours
    #[arg(long, conflicts_with = "workload")]
    hours: Option<f64>,
    /// Run only the workload with this seed
    #[arg(long, value_parser = number, conflicts_with = "seed")]
    workload: Option<u64>,
    /// Run workloads of messages and streams instead, until this number of messages and a thousand times
    /// as many bytes of streams have arrived
    #[arg(long, conflicts_with_all = ["packets", "workload"])]
    messages: Option<u64>,
    /// Run only the workload of messages and streams with this seed
    #[arg(long, value_parser = number, conflicts_with_all = ["seed", "workload", "messages"])]
    conversation: Option<u64>,
    /// Run this number of random groups of ranks instead
    #[arg(long, conflicts_with_all = ["packets", "hours", "workload", "messages", "conversation"])]
    groups: Option<u64>,
    /// Run only the group of ranks with this seed
    #[arg(long, value_parser = number, conflicts_with_all = ["seed", "groups"])]
    group: Option<u64>,
    /// The maximum number of ranks of a group
    #[arg(long, default_value_t = 1024)]
    ranks: usize,
    /// Draw the time of collectives by the number of ranks, up to `--ranks`
    #[arg(long, value_name = "FILE.svg")]
    growth: Option<PathBuf>,
    /// Run this number of random workloads of connections by address instead
    #[arg(
        long,
        conflicts_with_all = ["packets", "hours", "workload", "messages", "conversation", "groups", "group"]
    )]
    connections: Option<u64>,
    /// Run only the workload of connections with this seed
    #[arg(long, value_parser = number, conflicts_with_all = ["seed", "connections"])]
    connection: Option<u64>,
    /// The time limit for a workload, in seconds; if one takes longer, the program prints its seed
    /// and exits. A busy machine may slow a workload down to minutes
    #[arg(long, default_value_t = 600.0)]
    limit: f64,
}

/// The maximum number of packets that one process sends in a long run. Networks keep the memory
/// that they allocated, so it is freed only when the process ends.
const PACKETS: u64 = 10_000_000;
/// The same in messages.
const MESSAGES: u64 = 200_000;

/// The amount of work of a process.
#[derive(Clone, Copy)]
enum Amount {
    Packets(u64),
    Messages(u64),
}

impl Amount {
    fn kind(self) -> Kind {
        match self {
            Self::Packets(_) => Kind::Verbs,
            Self::Messages(_) => Kind::Messages,
        }
    }

    /// Returns true if a process has not run enough workloads.
    fn is_more_than(self, total: &Total) -> bool {
        match self {
            Self::Packets(packets) => total.packets < packets,
            Self::Messages(messages) => {
                total.messages < messages || total.stream_bytes < messages.saturating_mul(1_000)
            }
        }
    }

    /// Returns the number of processes that this takes, and the amount of each of them.
    fn split(self) -> (u64, Self) {
        match self {
            Self::Packets(packets) => (packets.div_ceil(PACKETS), Self::Packets(PACKETS)),
            Self::Messages(messages) => (messages.div_ceil(MESSAGES), Self::Messages(MESSAGES)),
        }
    }

    fn option(self) -> [String; 2] {
        match self {
            Self::Packets(packets) => ["--packets".to_owned(), packets.to_string()],
            Self::Messages(messages) => ["--messages".to_owned(), messages.to_string()],
        }
    }
}

fn number(text: &str) -> Result<u64, String> {
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |digits| (digits, 16));
    u64::from_str_radix(digits, radix).map_err(|error| error.to_string())
}

fn fresh() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(1, |time| u64::from(time.subsec_nanos()) << 32 | time.as_secs())
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(file) = &args.growth {
        return draw_growth(args.ranks, file);
    }
    if args.groups.is_some() || args.group.is_some() {
        return groups(&args);
    }
    if args.connections.is_some() || args.connection.is_some() {
        return connections(&args);
    }
    let amount = args.messages.map_or(Amount::Packets(args.packets), Amount::Messages);
    let single = args.workload.map(|seed| (Kind::Verbs, seed));
    let single = single.or(args.conversation.map(|seed| (Kind::Messages, seed)));
    let (processes, each) = amount.split();
    if let Some(hours) = args.hours {
        let (start, time) = (Instant::now(), Duration::from_secs_f64(hours * 3600.0));
        return in_processes(args.seed, args.limit, each, |_| start.elapsed() < time);
    }
    if processes > 1 && single.is_none() {
        return in_processes(args.seed, args.limit, each, |runs| runs < processes);
    }
    let start = Instant::now();
    let seed = single.map(|(_, seed)| seed).or(args.seed).unwrap_or_else(fresh);
    let kind = single.map_or(amount.kind(), |(kind, _)| kind);
    if let Err(why) =
        sim::watch(kind, format!("seed {seed:#x}"), Duration::from_secs_f64(args.limit))
    {
        eprintln!("cannot watch for workloads that hang: {why}");
        return ExitCode::FAILURE;
    }
    let result = if single.is_some() {
        sim::workload(kind, seed)
    } else {
        println!("seed {seed:#x}");
        sim::campaign(kind, seed, |total| amount.is_more_than(total))
    };
    let took = start.elapsed().as_secs_f64();
    match result {
        Ok(total) => {
            let Total { workloads, packets, time, trace, .. } = total;
            if kind == Kind::Messages {
                let Total { messages, bytes, stream_bytes, .. } = total;
                println!("{messages} messages of {bytes} bytes, {stream_bytes} bytes of streams");
            }
            println!(
                "{packets} packets, {workloads} workloads, {time:?} of virtual time, trace {trace:016x}"
            );
            // The speed is printed to standard error, because it differs from run to run.
            eprintln!("{took:.1} s, {:.0} packets per second", packets as f64 / took);
            ExitCode::SUCCESS
        }
        Err(finding) => {
            let before = finding.before;
            println!("{finding}");
            println!(
                "found after {} packets, {} workloads, {took:.1} s",
                before.packets, before.workloads
            );
            ExitCode::FAILURE
        }
    }
}

/// Runs groups of ranks.
fn groups(args: &Args) -> ExitCode {
    let seed = args.group.or(args.seed).unwrap_or_else(fresh);
    let count = args.groups.unwrap_or(1);
    match sim::check_many(seed, count, args.ranks) {
        Ok(events) => {
            println!(
                "seed {seed:#x}: {count} groups of up to {} ranks, {events} events",
                args.ranks
            );
            ExitCode::SUCCESS
        }
        Err(finding) => {
            println!("{finding}");
            ExitCode::FAILURE
        }
    }
}

/// Runs workloads of connections by address.
fn connections(args: &Args) -> ExitCode {
    let seed = args.connection.or(args.seed).unwrap_or_else(fresh);
    println!("seed {seed:#x}");
    let start = Instant::now();
    match sim::connections(seed, args.connections.unwrap_or(1)) {
        Ok(total) => {
            println!("{total}");
            eprintln!("{:.1} s", start.elapsed().as_secs_f64());
            ExitCode::SUCCESS
        }
        Err(finding) => {
            println!("{finding}");
            ExitCode::FAILURE
        }
    }
}

/// Draws the time of collectives by the number of ranks: powers of two.
fn draw_growth(most: usize, file: &Path) -> ExitCode {
    let sizes: Vec<_> = (1..=most.max(2).ilog2()).map(|power| 1 << power).collect();
    let growth = sim::growth(&sizes);
    let lines: Vec<_> = growth
        .iter()
        .map(|growth| {
            let points =
                growth.times.iter().map(|(ranks, time)| (*ranks as f64, *time as f64 / 1e3));
            Line::new(growth.name, points.collect())
        })
        .collect();
    let title = "Time of collectives in the simulator: latency 2 us, 100 Gbit/s, 0.25 us per send and receive";
    let svg = chart::svg(title, ["ranks", "us"], &lines);
    match std::fs::write(file, svg) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}", file.display());
            ExitCode::FAILURE
        }
    }
}

/// Runs one seed after another, each in a new process. Continues while `goes_on` returns true; its
/// argument is the number of runs so far.
fn in_processes(
    seed: Option<u64>,
    limit: f64,
    each: Amount,
    goes_on: impl Fn(u64) -> bool,
) -> ExitCode {
    let first = seed.unwrap_or_else(fresh);
    let mut runs = 0;
    while goes_on(runs) {
        let Ok(program) = std::env::current_exe() else { return ExitCode::FAILURE };
        let seed = first.wrapping_add(runs).to_string();
        let (limit, [option, amount]) = (limit.to_string(), each.option());
        let args = ["--seed", &seed, &option, &amount, "--limit", &limit];
        if !Command::new(program).args(args).status().is_ok_and(|status| status.success()) {
            return ExitCode::FAILURE;
        }
        runs += 1;
    }
    ExitCode::SUCCESS
}
