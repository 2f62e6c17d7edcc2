//! The other end of perftest's programs: `ib_send_lat`, `ib_write_bw` and their kin.
//!
//! Two ends agree by TCP ([`talk`], [`keys`]), and then send ([`End`]), or reach into each other's memory
//! ([`requests`]). What is not told is given to both on their command lines: the program, the service, the length of
//! a message and how many there are.

pub mod figures;
pub mod keys;
pub mod requests;
pub mod talk;

use std::time::{Duration, Instant};

use rdma::device::{LinkLayer, Mtu};
use rdma::prelude::*;
use rdma::qp::{CompletionQueue, MaxRnrRetries, PreparedQueuePair, QueuePairType};

use crate::end::End;
use rdma_examples_common::Failure;
use rdma_examples_common::out_of_band::OutOfBand;
use rdma_examples_common::reach::check_reach;

use self::figures::Figures;
use self::keys::{Keys, QKEY};
use self::requests::{Memory, Requests};
use self::talk::{Report, Talk};

/// Bytes that no program of perftest tells its peer at that place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{}\" is no {what} of perftest: is the peer the same program of perftest, with the same options, and `-x` and \
     the index of a GID?", .bytes.escape_ascii()
)]
pub struct NotPerftest {
    /// What came.
    pub bytes: Vec<u8>,
    /// What was to come.
    pub what: &'static str,
}

impl NotPerftest {
    pub(crate) fn new(what: &'static str, bytes: &[u8]) -> Self {
        Self { bytes: bytes.to_vec(), what }
    }
}

/// A program of perftest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[non_exhaustive]
pub enum Program {
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

/// What the program does to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verb {
    /// Sends it messages.
    Send,
    /// Writes into its memory.
    Write,
    /// Reads its memory.
    Read,
    /// Adds one to words of its memory.
    FetchAdd,
}

impl Program {
    /// What it does.
    #[must_use]
    pub const fn verb(self) -> Verb {
        match self {
            Self::SendLat | Self::SendBw => Verb::Send,
            Self::WriteLat | Self::WriteBw => Verb::Write,
            Self::ReadLat | Self::ReadBw => Verb::Read,
            Self::AtomicLat | Self::AtomicBw => Verb::FetchAdd,
        }
    }

    /// Whether it measures how long one takes, not how many there are in a while.
    #[must_use]
    pub const fn is_latency(self) -> bool {
        matches!(self, Self::SendLat | Self::WriteLat | Self::ReadLat | Self::AtomicLat)
    }
}

/// What both ends are given.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which program.
    pub program: Program,
    /// The name of the device.
    pub device: String,
    /// Which GID; else the best one.
    pub gid_index: Option<u8>,
    /// RC; UC of SENDs and WRITEs too, and UD of SENDs.
    pub service: QueuePairType,
    /// How long a message is, in bytes; else what the program of C has without `-s`.
    pub size: Option<usize>,
    /// How many there are; else what the program of C has without `-n`.
    pub iterations: Option<u32>,
    /// The largest path MTU; else the port's.
    pub mtu: Option<Mtu>,
    /// How long the peer may take for whatever it has to tell.
    pub wait: Duration,
}

/// As many requests as a program of C has outstanding.
const DEPTH: u32 = 128;
/// As many receives as a program of C has posted on RC, where the peer waits for more.
const ROOM: u32 = 512;
/// The most that it posts elsewhere.
const ROOM_WITHOUT_WAIT: u32 = 16000;
/// The longest message of the verbs.
const LONGEST: usize = 1 << 30;

impl Settings {
    fn size(&self) -> usize {
        let usual = match (self.program.verb(), self.program.is_latency()) {
            (Verb::FetchAdd, _) => 8,
            (_, true) => 2,
            _ => 65536,
        };
        self.size.unwrap_or(usual)
    }

    fn iterations(&self) -> u32 {
        self.iterations.unwrap_or(if self.program == Program::WriteBw { 5000 } else { 1000 })
    }

    fn depth(&self) -> u32 {
        if self.program.is_latency() { 1 } else { DEPTH.min(self.iterations()) }
    }

    /// How many receives.
    fn room(&self) -> u32 {
        let most = if self.service == QueuePairType::RC { ROOM } else { ROOM_WITHOUT_WAIT };
        if self.program.is_latency() { 1 } else { most.min(self.iterations()) }
    }

    /// Refuses what no program of C does either, or this one does not.
    ///
    /// # Errors
    /// It says what to give instead.
    pub fn check(&self) -> Result<(), Failure> {
        let (verb, size, iterations) = (self.program.verb(), self.size(), self.iterations());
        match (verb, self.service) {
            (_, QueuePairType::RC)
            | (Verb::Send | Verb::Write, QueuePairType::UC)
            | (Verb::Send, QueuePairType::UD) => {}
            (_, service) => {
                return Err(format!(
                    "{service} has no such program: give `--service rc`, or `uc` to send or write, or `ud` to send"
                )
                .into());
            }
        }
        if !(5..=1_000_000).contains(&iterations) {
            return Err(format!("give 5 to 1000000 `--iterations`, not {iterations}").into());
        }
        if verb == Verb::FetchAdd && size != 8 {
            return Err(format!("an atomic has 8 bytes, not {size}: leave out `--size`").into());
        }
        if !(1..=LONGEST).contains(&size) {
            return Err(format!("give a `--size` of 1 to {LONGEST} bytes, not {size}").into());
        }
        let unanswered = self.service != QueuePairType::RC && !self.program.is_latency();
        if verb == Verb::Send && unanswered && iterations > ROOM_WITHOUT_WAIT {
            return Err(format!(
                "there are receives for {ROOM_WITHOUT_WAIT} messages on {}, where nobody waits for more: give as \
                 many `--iterations` or fewer",
                self.service
            )
            .into());
        }
        Ok(())
    }

    fn check_datagram(&self, mtu: Mtu) -> Result<(), Failure> {
        let size = self.size();
        if self.service == QueuePairType::UD && size > mtu.bytes() as usize {
            return Err(format!(
                "a datagram has at most the {mtu} bytes of the path MTU, not {size}: give `--size` and `-s` of so many"
            )
            .into());
        }
        Ok(())
    }
}

/// Runs this end of it, and returns a line with what it has found.
///
/// # Errors
/// If the settings are no program's, the peer speaks something else, has other settings, stalls or goes, the data are
/// not what they should be, or the device refuses.
pub fn run(settings: &Settings, other: OutOfBand) -> Result<String, Failure> {
    settings.check()?;
    let talk = Talk::new(other, settings.wait);
    match settings.program.verb() {
        Verb::Send => send(settings, talk),
        verb => reach(settings, talk, verb),
    }
}

/// Both have the MTU that both told. Returns the peer's keys and end.
fn meet(
    settings: &Settings,
    talk: &mut Talk,
    end: &QueuePairEndpoint,
    (own, mtu): (&Keys, Mtu),
) -> Result<(Keys, QueuePairEndpoint), Failure> {
    settings.check_datagram(mtu)?;
    let peer = talk.keys(own)?;
    if end.link_layer() == LinkLayer::ETHERNET && peer.gid.is_none_or(|gid| gid.is_zero()) {
        return Err("the peer uses no GID: give it `-x` and the index of one".into());
    }
    let peer_end = peer.endpoint(end).with_mtu(mtu);
    check_reach(&settings.device, end, &peer_end)?;
    Ok((peer, peer_end))
}

fn told(settings: &Settings, own: &QueuePairEndpoint) -> Mtu {
    settings.mtu.map_or(own.mtu(), |mtu| mtu.min(own.mtu()))
}

/// The programs that send.
fn send(settings: &Settings, mut talk: Talk) -> Result<String, Failure> {
    let (n, depth) = (settings.iterations(), settings.depth());
    let prepared = prepare(settings)?;
    let end = prepared.endpoint();
    let own = Keys::of(&end, 1, 0, 0); // there is no memory to lend
    let (_, mtu) = talk.begin(told(settings, &end))?;
    let (peer, peer_end) = meet(settings, &mut talk, &end, (&own, mtu))?;
    let mut end = End::connect(prepared, peer_end, settings.size())?;
    talk.again(&own, &peer)?; // both are connected
    talk.again(&own, &peer)?; // and have shown it
    let serves = talk.is_server();
    if serves {
        end.make_room(settings.room())?;
    }
    talk.again(&own, &peer)?; // both have receives
    let figures = if settings.program.is_latency() {
        let mut posts = Vec::with_capacity(n as usize);
        for _ in 0..n {
            if serves {
                end.answer(1)?
            }
            posts.push(Instant::now());
            if !serves {
                end.ask(1)?
            }
        }
        Figures { posts, end: Instant::now() }
    } else {
        let mut begin = Instant::now();
        match serves {
            true => end.take(n, || begin = Instant::now())?,
            false => end.stream(n, depth)?,
        }
        Figures { posts: vec![begin], end: Instant::now() }
    };
    talk.close(&own, &peer)?;
    Ok(line(settings, &figures))
}

fn prepare(settings: &Settings) -> Result<PreparedQueuePair, Failure> {
    let context = open_device(&settings.device)?;
    let (sends, receives) = (settings.depth() + 1, settings.room() + 1);
    let cq = CompletionQueue::create(&context, sends + receives)?;
    let pd = context.allocate_pd()?;
    let builder = pd.create_qp().qp_type(settings.service).send_cq(&cq).recv_cq(&cq);
    let mut builder =
        builder.max_send_wr(sends).max_recv_wr(receives).max_send_sge(1).max_recv_sge(1);
    match settings.service {
        // Who has no receive posted is slower than this end, and may take its time, as in C.
        QueuePairType::RC => builder = builder.max_rnr_retries(MaxRnrRetries::unlimited()),
        QueuePairType::UD => builder = builder.qkey(QKEY),
        _ => {}
    }
    if let Some(index) = settings.gid_index {
        builder = builder.gid_index(index);
    }
    Ok(builder.build()?)
}

/// The programs that reach into the peer's memory.
fn reach(settings: &Settings, mut talk: Talk, verb: Verb) -> Result<String, Failure> {
    let (n, size, program) = (settings.iterations(), settings.size(), settings.program);
    let access = requests::access(verb);
    let pd = open_device(&settings.device)?.allocate_pd()?;
    let builder = pd.create_channel().qp_type(settings.service).access(access);
    let mut builder = builder.max_send_wr(settings.depth() + 1).max_recv_wr(1);
    if let Some(index) = settings.gid_index {
        builder = builder.gid_index(index);
    }
    let prepared = builder.build()?;
    let end = prepared.endpoint();
    let (cycle, mtu) = talk.begin(told(settings, &end))?;
    // Where a WRITE is seen, nothing was before.
    let filled = program != Program::WriteLat;
    let memory = Memory::allocate(&pd, verb, size, cycle, filled)?;
    let reads =
        if matches!(verb, Verb::Read | Verb::FetchAdd) { end.max_dest_rd_atomic() } else { 1 };
    let lent = memory.lent();
    let own = Keys::of(&end, reads, lent.rkey().get(), lent.address());
    let (peer, peer_end) = meet(settings, &mut talk, &end, (&own, mtu))?;
    if program.is_latency() {
        talk.again(&own, &peer)?; // these tell them twice
    }
    let mut channel = prepared.handshake(peer_end)?;
    talk.again(&own, &peer)?; // both are connected
    talk.again(&own, &peer)?; // and have shown it
    let (serves, theirs) = (talk.is_server(), memory.of_peer(&peer));
    let mut requests = Requests { channel: &mut channel, memory: &memory, peer: theirs, verb };
    let figures = match (program.is_latency(), serves) {
        (true, _) if verb == Verb::Write => {
            let figures = requests.write_to_and_fro(n, serves)?;
            // The programs of C say nothing after that, and end.
            talk.finish()?;
            return Ok(line(settings, &figures));
        }
        (_, true) => {
            return serve(settings, talk, &memory, (&own, &peer));
        }
        (true, false) => requests.run(n, 1, false)?,
        (false, false) => requests.run(n, settings.depth(), true)?,
    };
    if !program.is_latency() {
        talk.again(&own, &peer)?; // the client is done
        talk.report(&figures.report(size, n))?;
    }
    talk.close(&own, &peer)?;
    Ok(line(settings, &figures))
}

/// Lends memory until the client is done, and returns what that has found.
fn serve(
    settings: &Settings,
    mut talk: Talk,
    memory: &Memory,
    (own, peer): (&Keys, &Keys),
) -> Result<String, Failure> {
    let (n, size, device) = (settings.iterations(), settings.size(), &settings.device);
    let text = format!("{device}: lent memory for {n} times {size} bytes");
    if settings.program.is_latency() {
        talk.close(own, peer)?;
        memory.check_lent(n)?;
        return Ok(text);
    }
    talk.again(own, peer)?; // the client is done
    let (bytes, times) = (size as u64, u64::from(n));
    let nothing = Report { size: bytes, iterations: times, peak: 0.0, average: 0.0, rate: 0.0 };
    let found = talk.report(&nothing)?;
    if (found.size, found.iterations) != (bytes, times) {
        return Err(format!(
            "the client says that it did {} times {} bytes, not {n} times {size}: give both the same `-n` and `-s`",
            found.iterations, found.size
        )
        .into());
    }
    memory.check_lent(n)?;
    talk.close(own, peer)?;
    Ok(format!("{text}, the client says {:.2} MB/s, {:.6} Mpps", found.average, found.rate))
}

fn line(settings: &Settings, figures: &Figures) -> String {
    let Settings { device, program, .. } = settings;
    let (n, size) = (settings.iterations(), settings.size());
    let text = match program.is_latency() {
        true => figures.latency(!matches!(program.verb(), Verb::Read | Verb::FetchAdd)),
        false => figures.bandwidth(size, n),
    };
    format!("{device}: {n} times {size} bytes, {text}")
}
