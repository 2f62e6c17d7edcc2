//! `rdmatool perftest`: acts as the other end for perftest's programs, such as `ib_send_lat` and
//! `ib_write_bw`.
//!
//! The two ends negotiate over TCP ([`talk`], [`keys`]). They then send messages ([`End`]), or
//! access each other's memory ([`requests`]). The negotiation does not cover the program, the
//! service, the message length or the number of messages. So both command lines must specify the
//! same ones.

mod figures;
mod keys;
mod requests;
mod talk;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Error, Result, bail, ensure};
use rdma::device::{LinkLayer, Mtu};
use rdma::prelude::*;
use rdma::qp::{CompletionQueue, MaxRnrRetries, PreparedQueuePair, QueuePairType};
use rdma_examples_common::end::End;
use rdma_examples_common::mtu;
use rdma_examples_common::out_of_band::Peer;
use rdma_examples_common::reach::check_reach;

use self::figures::Figures;
use self::keys::{Keys, QKEY};
use self::requests::{Memory, Requests};
use self::talk::{Report, Talk};
use crate::output::print;
use crate::units::bytes_of;

/// Measures with a perftest program at the other end
///
/// Start `ib_send_lat -d DEVICE -x INDEX` (or another program) with the same size, iterations and
/// service, and with one queue pair. Perftest 5.96 to 6.10 is supported, which includes that of
/// Debian 12.
///
///   rdmatool perftest send-lat --device rxe0 --connect 192.0.2.7:18515     where ib_send_lat waits
///   rdmatool perftest send-lat --device rxe0 --listen 0.0.0.0:18515        for ib_send_lat 192.0.2.6
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment, mut_group("Peer", |peer| peer.required(true)))]
pub(crate) struct Arguments {
    /// The perftest program at the other end
    program: Program,
    /// The RDMA device
    #[arg(long, value_name = "NAME", default_value = "soft0")]
    device: String,
    /// The GID to use [default: the best one]
    #[arg(long, value_name = "INDEX")]
    gid_index: Option<u8>,
    /// The transport: rc, uc or ud, as with `-c`
    #[arg(long, default_value = "rc", value_parser = service)]
    service: QueuePairType,
    /// The length of a message [default: perftest's]
    #[arg(long, value_name = "BYTES", value_parser = bytes_of)]
    size: Option<u32>,
    /// The number of messages [default: perftest's]
    #[arg(long, value_name = "N")]
    iterations: Option<u32>,
    /// The largest path MTU, in bytes [default: the port's]
    #[arg(long, value_parser = mtu)]
    mtu: Option<Mtu>,
    #[command(flatten)]
    peer: Peer,
    /// The time limit for each step of the other process; a server waits as long for all steps of
    /// its client
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    wait: u64,
}

fn service(text: &str) -> Result<QueuePairType, &'static str> {
    match text {
        "rc" => Ok(QueuePairType::RC),
        "uc" => Ok(QueuePairType::UC),
        "ud" => Ok(QueuePairType::UD),
        _ => Err("rc, uc or ud"),
    }
}

/// Runs this end. Prints a line with the result.
///
/// # Errors
/// Returns an error if no perftest program has these settings, or if the peer uses another protocol
/// or other settings. Also returns an error if the peer stalls or ends, if the data are wrong, or
/// if the device refuses a request.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    // Whatever can be checked without a peer is checked before a peer waits for this process.
    arguments.check()?;
    let _context = open_device(&arguments.device)?;
    let wait = Duration::from_secs(arguments.wait);
    let other = arguments.peer.meet(wait).context("cannot connect to perftest's program")?;
    let talk = Talk::new(other.context("give `--listen` or `--connect`")?, wait);
    let line = match arguments.program.verb() {
        Verb::Send => send(arguments, talk)?,
        verb => reach(arguments, talk, verb)?,
    };
    print(line)?;
    Ok(ExitCode::SUCCESS)
}

/// The error when the peer sends bytes that no perftest program sends at this step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{}\" is not {what}: check that the peer is the same program of perftest, with the same options, and \
     `-x` and the index of a GID", .bytes.escape_ascii()
)]
struct NotPerftest {
    bytes: Vec<u8>,
    what: &'static str,
}

impl NotPerftest {
    fn new(what: &'static str, bytes: &[u8]) -> Self {
        Self { bytes: bytes.to_vec(), what }
    }
}

/// A perftest program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Program {
    /// `ib_send_lat`
    SendLat,
    /// `ib_send_bw`
    SendBw,
    /// `ib_write_lat`
    WriteLat,
    /// `ib_write_bw`
    WriteBw,
    /// `ib_read_lat`
    ReadLat,
    /// `ib_read_bw`
    ReadBw,
    /// `ib_atomic_lat`
    AtomicLat,
    /// `ib_atomic_bw`
    AtomicBw,
}

/// The RDMA operation that a program measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    /// Sends messages.
    Send,
    /// Writes into the peer's memory.
    Write,
    /// Reads the peer's memory.
    Read,
    /// Adds one to words in the peer's memory.
    FetchAdd,
}

impl Program {
    const fn verb(self) -> Verb {
        match self {
            Self::SendLat | Self::SendBw => Verb::Send,
            Self::WriteLat | Self::WriteBw => Verb::Write,
            Self::ReadLat | Self::ReadBw => Verb::Read,
            Self::AtomicLat | Self::AtomicBw => Verb::FetchAdd,
        }
    }

    /// Returns true if the program measures latency, and false if it measures bandwidth.
    const fn is_latency(self) -> bool {
        matches!(self, Self::SendLat | Self::WriteLat | Self::ReadLat | Self::AtomicLat)
    }
}

/// The number of requests that perftest keeps outstanding.
const DEPTH: u32 = 128;
/// The maximum number of receives that perftest posts on RC, where the sender retries until a
/// receive is posted.
const ROOM: u32 = 512;
/// The maximum number of receives that perftest posts on other services.
const ROOM_WITHOUT_WAIT: u32 = 16000;
/// The maximum message length that this program accepts, in bytes.
const LONGEST: usize = 1 << 30;

impl Arguments {
    fn size(&self) -> usize {
        let usual = match (self.program.verb(), self.program.is_latency()) {
            (Verb::FetchAdd, _) => 8,
            (_, true) => 2,
            _ => 65536,
        };
        self.size.map_or(usual, |size| size as usize)
    }

    fn iterations(&self) -> u32 {
        self.iterations.unwrap_or(if self.program == Program::WriteBw { 5000 } else { 1000 })
    }

    fn depth(&self) -> u32 {
        if self.program.is_latency() { 1 } else { DEPTH.min(self.iterations()) }
    }

    /// Returns the number of receives to post at a time.
    fn room(&self) -> u32 {
        let most = if self.service == QueuePairType::RC { ROOM } else { ROOM_WITHOUT_WAIT };
        if self.program.is_latency() { 1 } else { most.min(self.iterations()) }
    }

    /// Checks that a perftest program has these settings, and that this end supports them.
    ///
    /// # Errors
    /// Returns an error that lists the possible settings.
    fn check(&self) -> Result<()> {
        let (verb, size, iterations) = (self.program.verb(), self.size(), self.iterations());
        match (verb, self.service) {
            (_, QueuePairType::RC)
            | (Verb::Send | Verb::Write, QueuePairType::UC)
            | (Verb::Send, QueuePairType::UD) => {}
            (_, service) => {
                bail!(
                    "{service} has no such program: give `--service rc`, or `uc` to send or write, or `ud` to send"
                );
            }
        }
        ensure!(
            (5..=1_000_000).contains(&iterations),
            "give 5 to 1000000 `--iterations`, not {iterations}"
        );
        ensure!(
            verb != Verb::FetchAdd || size == 8,
            "an atomic has 8 bytes, not {size}: leave out `--size`"
        );
        ensure!(
            (1..=LONGEST).contains(&size),
            "give a `--size` of 1 to {LONGEST} bytes, not {size}"
        );
        let unanswered = self.service != QueuePairType::RC && !self.program.is_latency();
        if verb == Verb::Send && unanswered && iterations > ROOM_WITHOUT_WAIT {
            bail!(
                "on {}, {iterations} messages are more than the {ROOM_WITHOUT_WAIT} receives that are posted: give \
                 at most {ROOM_WITHOUT_WAIT} `--iterations`",
                self.service
            );
        }
        Ok(())
    }

    fn check_datagram(&self, mtu: Mtu) -> Result<()> {
        let size = self.size();
        if self.service == QueuePairType::UD && size > mtu.bytes() as usize {
            bail!(
                "a datagram has at most the {mtu} bytes of the path MTU, not {size}: give at most that `--size` and `-s`"
            );
        }
        Ok(())
    }
}

/// Exchanges keys with the peer. Returns the peer's keys, and its endpoint with the smaller of the
/// two MTUs.
fn meet(
    arguments: &Arguments,
    talk: &mut Talk,
    end: &QueuePairEndpoint,
    (own, mtu): (&Keys, Mtu),
) -> Result<(Keys, QueuePairEndpoint)> {
    arguments.check_datagram(mtu)?;
    let peer = talk.keys(own)?;
    if end.link_layer() == LinkLayer::ETHERNET && peer.gid.is_none_or(|gid| gid.is_zero()) {
        bail!("the peer uses no GID: give it `-x` and the index of one");
    }
    let peer_end = peer.endpoint(end).with_mtu(mtu);
    check_reach(&arguments.device, end, &peer_end).map_err(Error::from_boxed)?;
    Ok((peer, peer_end))
}

fn own_mtu(arguments: &Arguments, own: &QueuePairEndpoint) -> Mtu {
    arguments.mtu.map_or(own.mtu(), |mtu| mtu.min(own.mtu()))
}

/// Runs this end of a program that sends messages.
fn send(arguments: &Arguments, mut talk: Talk) -> Result<String> {
    let (n, depth) = (arguments.iterations(), arguments.depth());
    let prepared = prepare(arguments)?;
    let end = prepared.endpoint();
    let own = Keys::of(&end, 1, 0, 0); // lends no memory to the peer
    let (_, mtu) = talk.begin(own_mtu(arguments, &end))?;
    let (peer, peer_end) = meet(arguments, &mut talk, &end, (&own, mtu))?;
    let end = End::connect(prepared, peer_end, arguments.size());
    let mut end = end.map_err(Error::from_boxed)?;
    talk.again(&own, &peer)?; // both ends are connected
    talk.again(&own, &peer)?; // and both know it
    let serves = talk.is_server();
    if serves {
        end.make_room(arguments.room()).map_err(Error::from_boxed)?;
    }
    talk.again(&own, &peer)?; // both ends have posted receives
    let figures = if arguments.program.is_latency() {
        let mut posts = Vec::with_capacity(n as usize);
        for _ in 0..n {
            if serves {
                end.answer(1).map_err(Error::from_boxed)?;
            }
            posts.push(Instant::now());
            if !serves {
                end.ask(1).map_err(Error::from_boxed)?;
            }
        }
        Figures { posts, end: Instant::now() }
    } else {
        let mut begin = Instant::now();
        let outcome = match serves {
            true => end.take(n, || begin = Instant::now()),
            false => end.stream(n, depth),
        };
        outcome.map_err(Error::from_boxed)?;
        Figures { posts: vec![begin], end: Instant::now() }
    };
    talk.close(&own, &peer)?;
    Ok(line(arguments, &figures))
}

fn prepare(arguments: &Arguments) -> Result<PreparedQueuePair> {
    let context = open_device(&arguments.device)?;
    let (sends, receives) = (arguments.depth() + 1, arguments.room() + 1);
    let cq = CompletionQueue::create(&context, sends + receives)?;
    let pd = context.allocate_pd()?;
    let builder = pd.create_qp().qp_type(arguments.service).send_cq(&cq).recv_cq(&cq);
    let mut builder =
        builder.max_send_wr(sends).max_recv_wr(receives).max_send_sge(1).max_recv_sge(1);
    match arguments.service {
        // If the peer has no receive posted, it is only slower than this end. As in perftest, this
        // end waits without a limit.
        QueuePairType::RC => builder = builder.max_rnr_retries(MaxRnrRetries::unlimited()),
        QueuePairType::UD => builder = builder.qkey(QKEY),
        _ => {}
    }
    if let Some(index) = arguments.gid_index {
        builder = builder.gid_index(index);
    }
    Ok(builder.build()?)
}

/// Runs this end of a program that accesses the peer's memory.
fn reach(arguments: &Arguments, mut talk: Talk, verb: Verb) -> Result<String> {
    let (n, size, program) = (arguments.iterations(), arguments.size(), arguments.program);
    let access = requests::access(verb);
    let pd = open_device(&arguments.device)?.allocate_pd()?;
    let builder = pd.create_channel().qp_type(arguments.service).access(access);
    let mut builder = builder.max_send_wr(arguments.depth() + 1).max_recv_wr(1);
    if let Some(index) = arguments.gid_index {
        builder = builder.gid_index(index);
    }
    let prepared = builder.build()?;
    let end = prepared.endpoint();
    let (cycle, mtu) = talk.begin(own_mtu(arguments, &end))?;
    // The peer of a latency WRITE waits for bytes to appear in memory that was zero.
    let filled = program != Program::WriteLat;
    let memory = Memory::allocate(&pd, verb, size, cycle, filled)?;
    let reads =
        if matches!(verb, Verb::Read | Verb::FetchAdd) { end.max_dest_rd_atomic() } else { 1 };
    let lent = memory.lent();
    let own = Keys::of(&end, reads, lent.rkey().get(), lent.address());
    let (peer, peer_end) = meet(arguments, &mut talk, &end, (&own, mtu))?;
    if program.is_latency() {
        talk.again(&own, &peer)?; // these programs send their keys twice
    }
    let mut channel = prepared.handshake(peer_end)?;
    talk.again(&own, &peer)?; // both ends are connected
    talk.again(&own, &peer)?; // and both know it
    let (serves, theirs) = (talk.is_server(), memory.of_peer(&peer));
    let mut requests = Requests { channel: &mut channel, memory: &memory, peer: theirs, verb };
    let figures = match (program.is_latency(), serves) {
        (true, _) if verb == Verb::Write => {
            let figures = requests.write_to_and_fro(n, serves)?;
            // perftest's program ends here, and sends nothing more.
            talk.finish()?;
            return Ok(line(arguments, &figures));
        }
        (_, true) => {
            return serve(arguments, talk, &memory, (&own, &peer));
        }
        (true, false) => requests.run(n, 1, false)?,
        (false, false) => requests.run(n, arguments.depth(), true)?,
    };
    if !program.is_latency() {
        talk.again(&own, &peer)?; // the client has finished
        talk.report(&figures.report(size, n))?;
    }
    talk.close(&own, &peer)?;
    Ok(line(arguments, &figures))
}

/// Lends memory until the client has finished. Returns the line with the figures that the client
/// reports.
fn serve(
    arguments: &Arguments,
    mut talk: Talk,
    memory: &Memory,
    (own, peer): (&Keys, &Keys),
) -> Result<String> {
    let (n, size, device) = (arguments.iterations(), arguments.size(), &arguments.device);
    let text = format!("{device}: served memory for {n} times {size} bytes");
    if arguments.program.is_latency() {
        talk.close(own, peer)?;
        memory.check_lent(n)?;
        return Ok(text);
    }
    talk.again(own, peer)?; // the client has finished
    let (bytes, times) = (size as u64, u64::from(n));
    let nothing = Report { size: bytes, iterations: times, peak: 0.0, average: 0.0, rate: 0.0 };
    let found = talk.report(&nothing)?;
    if (found.size, found.iterations) != (bytes, times) {
        bail!(
            "the client reports {} times {} bytes, not {n} times {size}: give both the same `-n` and `-s`",
            found.iterations,
            found.size
        );
    }
    memory.check_lent(n)?;
    talk.close(own, peer)?;
    Ok(format!("{text}, the client reports {:.2} MB/s, {:.6} Mpps", found.average, found.rate))
}

fn line(arguments: &Arguments, figures: &Figures) -> String {
    let Arguments { device, program, .. } = arguments;
    let (n, size) = (arguments.iterations(), arguments.size());
    let text = match program.is_latency() {
        true => figures.latency(!matches!(program.verb(), Verb::Read | Verb::FetchAdd)),
        false => figures.bandwidth(size, n),
    };
    format!("{device}: {n} times {size} bytes, {text}")
}
