//! Two stations with a queue pair each, and the operations that checks use.

use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rdma_sys::ibv_wc_status as Status;
use test_support::rig::datagram::{HEADER, QKEY};
use test_support::rig::device::status_text;

use super::arguments::Drive;
use super::command::{
    Answer, Command, Completion, Destination, Facts, Operation, Piece, Queue, SendWr, Service,
    Tuning,
};
use super::control::Remote;
use super::station::Station;

/// One of the two sides. In each check, A acts on B.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    A,
    B,
}
pub(super) use Side::{A, B};

impl Side {
    const fn other(self) -> Self {
        match self {
            A => B,
            B => A,
        }
    }
}

/// A station in this process, or in the serving one.
pub(super) enum Hand<'a> {
    Here(&'a mut Station),
    There(&'a mut Remote),
}

impl Hand<'_> {
    pub(super) fn ask(&mut self, command: Command) -> Result<Answer> {
        let answer = match self {
            Self::Here(station) => station.execute(command),
            Self::There(remote) => remote.ask(&command)?,
        };
        match answer {
            Answer::Failed(why) => bail!("{why}"),
            answer => Ok(answer),
        }
    }

    pub(super) fn facts(&mut self) -> Result<Facts> {
        match self.ask(Command::Describe)? {
            Answer::Facts(facts) => Ok(facts),
            other => bail!("an answer to another command: {other:?}"),
        }
    }
}

/// The options common to all checks of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Options {
    pub(super) mtu: usize,
    pub(super) longest: usize,
    pub(super) lossy: bool,
    pub(super) patience: Duration,
}

impl Options {
    pub(super) fn of(drive: &Drive) -> Self {
        let patience = drive.own.patience();
        let longest = drive.longest.max(1);
        Self { mtu: drive.mtu as usize, longest, lossy: drive.lossy, patience }
    }

    /// Returns message lengths: very short ones, some around the MTU, and long ones. Omits those
    /// that exceed `longest`.
    pub(super) fn lengths(&self) -> Vec<usize> {
        let mtu = self.mtu;
        let mut all = vec![0, 1, 3, mtu - 1, mtu, mtu + 1, 3 * mtu + 5, 64 << 10, 1 << 20];
        all.retain(|&length| length <= self.longest);
        all
    }

    fn half(&self) -> usize {
        // The requests of the largest batch, which are in flight together, have up to two packets
        // each.
        let together = 64 * (2 * self.mtu + 64);
        let message = self.longest.max(3 * self.mtu + 5) + HEADER;
        // The result is rounded up, so that the words that atomics use are aligned.
        (message.max(together) + 3 * GUARD).next_multiple_of(GUARD)
    }
}

/// The error that skips a check, with the reason, such as a feature that a device lacks.
#[derive(Debug)]
pub(super) struct Skip(pub(super) &'static str);

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Skip {}

/// The number of bytes before and after received data that are checked not to change.
pub(super) const GUARD: usize = 64;

/// The time limit for a message that the network may have lost.
const LOST: Duration = Duration::from_secs(1);

/// The page that lists the differences of SoftRoCE.
const DIFFERENCES: &str = include_str!("../../../../docs/rxe-differences.md");
/// The page that lists the differences of software devices that send packets.
const OF_PACKETS: &str = include_str!("../../../../docs/wire-differences.md");

/// Two stations, and the state of the check that uses them.
pub(super) struct Scene<'a> {
    hands: [Hand<'a>; 2],
    facts: [Facts; 2],
    destinations: Option<[Destination; 2]>,
    seed: u64,
    pub(super) options: Options,
    pub(super) differences: Vec<String>,
    /// The number of UC and UD messages that were sent.
    pub(super) sent: u32,
    /// The number of UC and UD messages that arrived.
    pub(super) arrived: u32,
}

impl<'a> Scene<'a> {
    pub(super) fn new(
        a: Hand<'a>,
        b: Hand<'a>,
        facts: [Facts; 2],
        options: Options,
        seed: u64,
    ) -> Self {
        let (differences, destinations) = (Vec::new(), None);
        Self { hands: [a, b], facts, destinations, seed, options, differences, sent: 0, arrived: 0 }
    }

    pub(super) fn into_hands(self) -> [Hand<'a>; 2] {
        self.hands
    }

    fn ask(&mut self, side: Side, command: Command) -> Result<Answer> {
        let device = &self.facts[side as usize].device;
        let what = || format!("{side:?} ({device})");
        self.hands[side as usize].ask(command).with_context(what)
    }

    pub(super) fn facts(&self, side: Side) -> &Facts {
        &self.facts[side as usize]
    }

    /// Returns the offset in an end's memory of the bytes that it sends.
    pub(super) fn source(&self) -> usize {
        GUARD
    }

    /// Returns the offset in an end's memory of the bytes that it receives.
    pub(super) fn sink(&self) -> usize {
        self.options.half() + GUARD
    }

    pub(super) fn patient(&self) -> Tuning {
        Tuning::patient(self.options.mtu as u32)
    }

    /// Creates queue pairs on both sides, and connects them.
    pub(super) fn connect(&mut self, service: Service) -> Result<()> {
        self.connect_with(service, self.patient(), true)
    }

    /// Like [`connect`](Self::connect), for requests that should be refused. A requester that gets
    /// no answer must give up, which SoftRoCE with seven retries never does.
    pub(super) fn connect_to_fail(&mut self) -> Result<()> {
        self.connect_with(Service::Rc, Tuning { retries: 6, ..self.patient() }, true)
    }

    /// Like [`connect`](Self::connect), but with these options. The peers have rights to the
    /// regions only if `remote_rights` is set.
    pub(super) fn connect_with(
        &mut self,
        service: Service,
        tuning: Tuning,
        remote_rights: bool,
    ) -> Result<()> {
        let create = Command::Create { service, bytes: 2 * self.options.half(), remote_rights };
        let mut destination = |side| match self.ask(side, create.clone())? {
            Answer::Destination(destination) => Ok(destination),
            other => bail!("an answer to another command: {other:?}"),
        };
        let (at_a, at_b) = (destination(A)?, destination(B)?);
        self.destinations = Some([at_a, at_b]);
        // The receiving side B is connected first, so it is ready before A can send.
        self.ask(B, Command::Connect { peer: at_a, tuning })?;
        self.ask(A, Command::Connect { peer: at_b, tuning })?;
        Ok(())
    }

    pub(super) fn destination(&self, side: Side) -> Result<Destination> {
        Ok(self.destinations.context("not connected")?[side as usize])
    }

    /// Returns a seed that was not used before.
    pub(super) fn seed(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(1);
        self.seed
    }

    pub(super) fn fill(&mut self, side: Side, ranges: &[(Piece, u64)]) -> Result<()> {
        self.ask(side, Command::Fill { ranges: ranges.to_vec() }).map(drop)
    }

    /// Checks that each range contains the pattern of its seed. If a range has several seeds, each
    /// byte may come from any of them.
    pub(super) fn expect(&mut self, side: Side, ranges: &[(Piece, &[u64])]) -> Result<()> {
        let owned = ranges.iter().map(|&(piece, seeds)| (piece, seeds.to_vec())).collect();
        match self.ask(side, Command::Compare { ranges: owned })? {
            Answer::Wrong(None) => Ok(()),
            Answer::Wrong(Some(at)) => bail!("{side:?} has a wrong byte at {at} of {ranges:?}"),
            other => bail!("an answer to another command: {other:?}"),
        }
    }

    pub(super) fn bytes(&mut self, side: Side, piece: Piece) -> Result<Vec<u8>> {
        match self.ask(side, Command::Read { piece })? {
            Answer::Bytes(bytes) => Ok(bytes),
            other => bail!("an answer to another command: {other:?}"),
        }
    }

    pub(super) fn write(&mut self, side: Side, at: usize, bytes: &[u8]) -> Result<()> {
        self.ask(side, Command::Write { at, bytes: bytes.to_vec() }).map(drop)
    }

    /// Returns the word at this offset, as atomics use it.
    pub(super) fn word(&mut self, side: Side, at: usize) -> Result<u64> {
        let bytes = self.bytes(side, (at, 8))?;
        Ok(u64::from_ne_bytes(bytes[..].try_into()?))
    }

    pub(super) fn receive(&mut self, side: Side, wr_id: u64, pieces: &[Piece]) -> Result<()> {
        self.ask(side, Command::Receive { wr_id, pieces: pieces.to_vec() }).map(drop)
    }

    pub(super) fn post(&mut self, side: Side, requests: &[SendWr]) -> Result<()> {
        self.ask(side, Command::Post { requests: requests.to_vec() }).map(drop)
    }

    pub(super) fn bind(&mut self, side: Side, piece: Piece) -> Result<u32> {
        match self.ask(side, Command::Bind { piece })? {
            Answer::Key(key) => Ok(key),
            other => bail!("an answer to another command: {other:?}"),
        }
    }

    pub(super) fn destroy(&mut self, side: Side) -> Result<()> {
        self.ask(side, Command::DestroyQueuePair).map(drop)
    }

    /// Polls until there are `count` completions or the time limit has passed. Returns those that
    /// arrived.
    pub(super) fn take_within(
        &mut self,
        (side, queue): (Side, Queue),
        count: usize,
        limit: Duration,
    ) -> Result<Vec<Completion>> {
        let limit_ms = limit.as_millis().try_into()?;
        match self.ask(side, Command::Take { queue, count, limit_ms })? {
            Answer::Completions(taken) => Ok(taken),
            other => bail!("an answer to another command: {other:?}"),
        }
    }

    pub(super) fn take_many(
        &mut self,
        from: (Side, Queue),
        count: usize,
    ) -> Result<Vec<Completion>> {
        let taken = self.take_within(from, count, self.options.patience)?;
        let got = taken.len();
        ensure!(got == count, "{got} of {count} completions arrived at {from:?}: {taken:?}");
        Ok(taken)
    }

    pub(super) fn take(&mut self, from: (Side, Queue)) -> Result<Completion> {
        Ok(self.take_many(from, 1)?[0])
    }

    /// Checks that the next completion reports this request's success.
    pub(super) fn succeed(&mut self, from: (Side, Queue), wr_id: u64) -> Result<Completion> {
        let done = self.take(from).with_context(|| format!("waiting for request {wr_id}"))?;
        ensure_status(&done, wr_id, &[Status::IBV_WC_SUCCESS])?;
        Ok(done)
    }

    /// Checks that no completion arrives for a short while.
    pub(super) fn nothing(&mut self, from: (Side, Queue)) -> Result<()> {
        let taken = self.take_within(from, 1, Duration::from_millis(20))?;
        ensure!(taken.is_empty(), "no completion should have arrived at {from:?}: {taken:?}");
        Ok(())
    }

    /// Waits for a message that the network may have lost. Returns `None` if it has not arrived in
    /// time.
    pub(super) fn arrived(&mut self) -> Result<Option<Completion>> {
        self.sent += 1;
        if !self.options.lossy {
            self.arrived += 1;
            return self.take((B, Queue::Receive)).map(Some);
        }
        let taken = self.take_within((B, Queue::Receive), 1, LOST)?;
        self.arrived += u32::try_from(taken.len())?;
        Ok(taken.first().copied())
    }

    /// Returns `rxe` if that side is SoftRoCE, which differs as `docs/rxe-differences.md` describes
    /// under this name. Otherwise returns `contract`.
    pub(super) fn expected<T>(&mut self, side: Side, contract: T, difference: &str, rxe: T) -> T {
        if self.differs(side, difference) { rxe } else { contract }
    }

    /// Returns true if `side` is SoftRoCE, to which the difference with this name applies.
    pub(super) fn differs(&mut self, side: Side, difference: &str) -> bool {
        let entry = format!("## {difference}");
        assert!(DIFFERENCES.lines().any(|line| line == entry), "no entry {difference}");
        let differs = self.facts(side).rxe;
        self.note(differs, difference);
        differs
    }

    /// Returns true if the difference with this name in `docs/wire-differences.md` applies to
    /// `side`, which is then a software device that sends over UDP.
    pub(super) fn differs_by_udp(&mut self, side: Side, difference: &str) -> bool {
        let entry = format!("## {difference}");
        assert!(OF_PACKETS.lines().any(|line| line == entry), "no entry {difference}");
        let [own, other] = [side, side.other()].map(|side| self.facts(side));
        // Messages to a different device go over UDP.
        let differs = !own.rxe && own.device != other.device;
        self.note(differs, difference);
        differs
    }

    fn note(&mut self, differs: bool, difference: &str) {
        if differs && !self.differences.iter().any(|known| known == difference) {
            self.differences.push(difference.to_owned());
        }
    }

    /// Returns a request by A with these elements. Its remote address, if it needs one, is B's
    /// sink.
    pub(super) fn request(
        &self,
        wr_id: u64,
        operation: Operation,
        pieces: &[Piece],
    ) -> Result<SendWr> {
        let remote = self.remote(self.sink())?;
        let pieces = pieces.to_vec();
        Ok(SendWr { wr_id, operation, pieces, remote, imm: None, inline: false, qkey: QKEY })
    }

    /// Returns the remote address and the key for an offset in B's memory.
    pub(super) fn remote(&self, at: usize) -> Result<(u64, u32)> {
        let destination = self.destination(B)?;
        Ok((destination.address + at as u64, destination.rkey))
    }
}

/// Checks that the completion is for this request, and has one of these statuses.
pub(super) fn ensure_status(done: &Completion, wr_id: u64, statuses: &[Status]) -> Result<()> {
    ensure!(done.wr_id == wr_id, "the completion of request {wr_id} should come next: {done:?}");
    let texts: Vec<_> = statuses.iter().map(|status| status_text(status.0)).collect();
    let expected = statuses.iter().any(|status| status.0 == done.status);
    let found = status_text(done.status);
    ensure!(expected, "request {wr_id} ended with \"{found}\" instead of {texts:?}");
    Ok(())
}
