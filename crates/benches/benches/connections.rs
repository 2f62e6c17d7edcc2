//! The cost of ten thousand connections between two processes: time, memory, and processor time while nothing happens.
//! `docs/performance.md` has the results.
//!
//! ```sh
//! cargo bench -p benches --bench connections
//! ```
#![allow(clippy::disallowed_methods)] // The programs' side has a clock of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A bench panics if it fails.
#![allow(clippy::cast_precision_loss)]

use std::env;
use std::fs;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rdma_soft::Builder;
use test_support::rig::connect::{Endpoint, Knobs, connect, endpoint};
use test_support::rig::post::Wr;
use test_support::rig::{Context, Cq, Pd, Qp, Size};

/// The environment variable of the two measuring processes: the address at which the process
/// listens, or `soft0`.
const PLACE: &str = "RDMA_SOFT_CONNECTIONS_PLACE";
const COUNT: usize = 10_000;
/// The length of the idle period.
const IDLE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    if let Ok(place) = env::var(PLACE) {
        let (input, output) = (std::io::stdin(), std::io::stdout());
        let measured = Process::new(&place).meet(&mut input.lock(), &mut output.lock());
        eprintln!("{}", measured.map(|value| value.to_string()).join(" "));
        return ExitCode::SUCCESS;
    }
    // `cargo test --benches` only checks that it starts.
    if !env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    println!("{COUNT} connections                  sockets      UDP");
    let own = |last: u32| Ipv4Addr::from_bits(0x7f00_0002 + (std::process::id() << 3) + last);
    let rows = ["soft0".to_owned(), own(0).to_string()].map(|place| {
        let far = if place == "soft0" { place.clone() } else { own(1).to_string() };
        measure(&place, &far)
    });
    for (n, (name, unit)) in [
        ("all connected", "s"),
        ("memory of each, without buffers", "KiB"),
        ("a message both ways on each", "us"),
        ("processor time in 10 s", "s"),
    ]
    .iter()
    .enumerate()
    {
        println!("{name:<32}{:>8.2} {:>8.2} {unit}", rows[0][n], rows[1][n]);
    }
    ExitCode::SUCCESS
}

/// Returns the measurements of one of two processes that communicate.
fn measure(place: &str, far: &str) -> [f64; 4] {
    let (one, other) = UnixStream::pair().unwrap();
    let start = |place: &str, end: UnixStream| {
        let mut command = Command::new(env::current_exe().unwrap());
        command.env(PLACE, place).stdin(OwnedFd::from(end.try_clone().unwrap()));
        command.stdout(OwnedFd::from(end)).stderr(Stdio::piped()).spawn().unwrap()
    };
    let children = [start(place, one), start(far, other)];
    let [said, _] = children.map(|child| {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
        said
    });
    let mut values = said.split_whitespace().map(|value| value.parse().unwrap());
    std::array::from_fn(|_| values.next().unwrap())
}

/// One of the two processes, with all of its queue pairs.
struct Process {
    queue_pairs: Vec<Qp>,
    own: Endpoint,
    send: Cq,
    receive: Cq,
    _pd: Pd,
    _context: Context,
    memory_before: usize,
}

impl Process {
    fn new(place: &str) -> Self {
        rdma_soft::install();
        let device = match place {
            "soft0" => "soft0",
            place => Builder::new("listens").gids([]).listen(place).install().unwrap().name(),
        };
        let context = Context::open(device);
        let capacity = i32::try_from(COUNT).unwrap();
        let (send, receive) = (context.cq(capacity), context.cq(capacity));
        let pd = context.pd();
        // The queues are as small as possible, because their memory is not of interest.
        let size = Size { send_wr: 1, receive_wr: 1, ..Size::default() };
        let first = pd.qp(&send, &receive, &size);
        let own = endpoint(&context, &first);
        let memory_before = memory();
        let more = (1..COUNT).map(|_| pd.qp(&send, &receive, &size));
        let queue_pairs = std::iter::once(first).chain(more).collect();
        Self { queue_pairs, own, send, receive, _pd: pd, _context: context, memory_before }
    }

    /// Runs the same steps as the other process.
    fn meet(&self, input: &mut dyn Read, output: &mut dyn Write) -> [f64; 4] {
        let gid = test_support::rig::datagram::gid_of(&self.own.gid).to_bytes();
        let numbers = self.queue_pairs.iter().flat_map(|qp| qp.number().to_le_bytes());
        let said: Vec<u8> = gid.into_iter().chain(numbers).collect();
        let mut heard = vec![0; said.len()];
        // The numbers are exchanged in chunks, because the socket holds fewer bytes than all of them, and neither
        // process reads while it writes.
        for (said, heard) in said.chunks(4096).zip(heard.chunks_mut(4096)) {
            output.write_all(said).unwrap();
            output.flush().unwrap();
            input.read_exact(heard).unwrap();
        }
        let gid = rdma_sys::ibv_gid { raw: *heard.first_chunk().unwrap() };
        let mut wait = || {
            output.write_all(&[1]).unwrap();
            output.flush().unwrap();
            input.read_exact(&mut [0]).unwrap();
        };
        let start = Instant::now();
        for (qp, number) in self.queue_pairs.iter().zip(heard[16..].chunks_exact(4)) {
            let qpn = u32::from_le_bytes(*number.first_chunk().unwrap());
            let own = Endpoint { qpn: qp.number(), ..self.own };
            connect(qp, &own, &Endpoint { qpn, gid, ..self.own }, &Knobs::default());
        }
        wait();
        let time = start.elapsed();
        self.queue_pairs.iter().for_each(|qp| qp.post_receive(1, &[]));
        wait();
        let start = Instant::now();
        self.queue_pairs.iter().for_each(|qp| qp.post(&Wr::send(1, &[])));
        for _ in 0..COUNT {
            self.receive.expect_success(1);
            self.send.expect_success(1);
        }
        let message = start.elapsed();
        wait();
        let memory = (memory() - self.memory_before) as f64 / 1024.0 / COUNT as f64;
        let before = processor_time();
        std::thread::sleep(IDLE);
        let idle = processor_time() - before;
        wait();
        let message = message.as_secs_f64() * 1e6 / COUNT as f64;
        [time.as_secs_f64(), memory, message, idle.as_secs_f64()]
    }
}

/// Returns the resident memory of this process, in bytes.
fn memory() -> usize {
    let status = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = status.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size()
}

/// Returns the processor time in the program and in the kernel.
fn processor_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let ticks = fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap());
    Duration::from_millis(ticks.sum::<u64>() * 1000 / rustix::param::clock_ticks_per_second())
}
