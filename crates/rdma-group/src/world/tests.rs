//! Ranks that die before each step of each collective. The ranks are processes, blocking or asynchronous, and the
//! survivors join again with the next epoch.

mod connecting;
mod deadlines;
mod strangers;

use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::{env, io, process};

use test_support::loopback::free_address;
use test_support::program::this_program;

use self::connecting::{CONNECTING, die_connecting};
use super::lane::PIECE_BYTES;
use super::*;
#[cfg(feature = "async")]
use crate::aio::world::tests::Asynchronous;
use crate::call::{Call, Kind};
use crate::collective::{Algorithm, Collective};
use crate::group::buffer::{Buffer, Memory as _};
use crate::reduction::{Reduction, combine};
use crate::run::{HEADER_BYTES, LENGTHS, Prepared};
use crate::schedule::{Action, BarrierAlgorithm, Blocks, Member, Schedule, Transfer};

/// The variable that selects the deaths: `all`, or by default three of each collective.
pub(crate) const DEATHS: &str = "RDMA_TEST_DEATHS";

/// The variable that describes a process of the test. Its words are the rank, the part of rank 0, the size of the group,
/// and the address of rank 0. The last two are the number of the first death, and whether the rank is asynchronous.
const PROCESS: &str = "RDMA_TEST_DEATHS_PROCESS";

/// Ends a test that hangs. No test waits for it.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// The number of `u64` in a message, and in a long piece.
const PIECE: usize = (MESSAGE_BYTES - HEADER_BYTES) / 8;
const LONG_PIECE: usize = PIECE_BYTES / 8;

/// The part of rank 0 in a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Root {
    /// It takes part, and decides which rank is the cause of a failure.
    Decides,
    /// It is not in the group, and has left or makes no call.
    Absent,
    /// It takes part in the first collective only, and then makes no call.
    Silent,
}

impl Root {
    const ALL: [Self; 3] = [Self::Decides, Self::Absent, Self::Silent];

    /// Returns the first rank of the group.
    const fn first(self) -> usize {
        if matches!(self, Self::Absent) { 1 } else { 0 }
    }
}

/// A collective, the length of the buffer, and whether the buffer is registered.
#[derive(Clone, Debug)]
struct Case {
    collective: Collective,
    len: usize,
    registered: bool,
    /// The first rank of the group, which also has all ranks after it.
    first: usize,
    /// Whether ranks die in it only if all deaths are selected.
    is_rare: bool,
}

impl Case {
    const fn new(collective: Collective, len: usize) -> Self {
        Self { collective, len, registered: false, first: 0, is_rare: false }
    }

    fn schedule(&self, rank: usize, size: usize) -> Schedule {
        let (rank, size) = (rank - self.first, size - self.first);
        let member = Member { rank, size };
        let mut schedule = match &self.collective {
            // Two buffers, as in `all_to_all_v`. Each pair of ranks exchanges the block whose number is their sum.
            Collective::AllToAll { sent, offset, .. } if *offset > 0 => {
                let mut counts = counts(sent, size);
                counts.rotate_left(rank);
                let sent = Blocks::of(&counts).unwrap();
                let (received, offset) = (sent.clone(), *offset);
                let collective = Collective::AllToAll { sent, received, offset };
                collective.schedule(member, self.len, 8)
            }
            collective => {
                let is_short = self.len <= 2 * PIECE;
                let algorithm = if is_short { Algorithm::FewRounds } else { Algorithm::Ring };
                collective.schedule_by(algorithm, member, self.len)
            }
        };
        schedule.iter_mut().flatten().for_each(|transfer| transfer.peer += self.first);
        schedule
    }
}

/// Returns the lengths of blocks.
pub(crate) fn counts(blocks: &Blocks, size: usize) -> Vec<usize> {
    (0..size).map(|rank| blocks.block(rank).len()).collect()
}

const BARRIER: Case = Case::new(Collective::Barrier(BarrierAlgorithm::Dissemination), 0);

const ALL_REDUCE: Case = Case::new(Collective::AllReduce { is_commutative: true }, 1);

/// A rank that dies.
#[derive(Clone, Debug)]
struct Death {
    rank: usize,
    moment: Moment,
}

/// The moment at which a rank dies.
#[derive(Clone, Debug)]
enum Moment {
    /// Before the collective, in which the ranks connect.
    Unconnected(Case),
    /// After that many sends and receives of the collective.
    Step(Case, usize),
    /// Also after the WRITE of the next piece, and before the message that announces it.
    Written(Case, usize),
    /// After that many steps of connecting to a rank.
    Connecting(usize, usize),
}

/// Returns each collective with each of its algorithms and memories.
fn collectives(size: usize) -> Vec<Case> {
    // Blocks of two messages, and of two long pieces.
    let long = size * (PIECE + 100);
    let longest = size * (LONG_PIECE + 100);
    let short = size + 1;
    let root = 1;
    let even = |len| Blocks::even(len, size);
    let all_to_all = |len| Collective::AllToAll { sent: even(len), received: even(len), offset: 0 };
    let all_reduce = Collective::AllReduce { is_commutative: true };
    let ordered = Collective::AllReduce { is_commutative: false };
    let scatter_reduced =
        |is_commutative, len| Collective::ReduceScatter { is_commutative, blocks: even(len) };
    let slices = vec![
        (Collective::Barrier(BarrierAlgorithm::Centralized), 0),
        (Collective::Barrier(BarrierAlgorithm::BinaryTree), 0),
        (Collective::Barrier(BarrierAlgorithm::Dissemination), 0),
        (Collective::Broadcast { root }, short),
        (Collective::Broadcast { root }, PIECE + 1),
        (Collective::Gather { root, blocks: even(short) }, short),
        (Collective::Scatter { root, blocks: even(short) }, short),
        (Collective::AllGather { blocks: even(short) }, short),
        (Collective::AllGather { blocks: even(long) }, long),
        (all_to_all(2 * size), 2 * size),
        (Collective::Reduce { root }, short),
        (all_reduce.clone(), short),
        (all_reduce.clone(), long),
        (all_reduce.clone(), longest),
        (ordered.clone(), short),
        (scatter_reduced(true, short), short),
        (scatter_reduced(false, short), short),
    ];
    let one = LONG_PIECE + 100;
    // Longer blocks, in ordinary and in registered memory.
    let longer = vec![
        (Collective::Broadcast { root }, one),
        (Collective::Gather { root, blocks: even(longest) }, longest),
        (Collective::Scatter { root, blocks: even(longest) }, longest),
        (Collective::AllGather { blocks: even(longest) }, longest),
        (all_to_all(longest), longest),
        (Collective::Reduce { root }, one),
        (scatter_reduced(true, longest), longest),
        (ordered, one),
    ];
    let mut registered = longer.clone();
    // The shorter ones above have it in ordinary memory.
    registered.insert(6, (all_reduce, longest));
    let frequent = slices.into_iter().map(|(collective, len)| Case::new(collective, len));
    let case = |registered| move |(collective, len)| (collective, len, registered);
    let rare = longer.into_iter().map(case(false)).chain(uneven(size).map(case(false)));
    let rare = rare.chain(registered.into_iter().map(case(true))).enumerate();
    let rare = rare.map(|(i, (collective, len, registered))| {
        let is_rare = i % 7 != 0;
        Case { registered, is_rare, ..Case::new(collective, len) }
    });
    frequent.chain(rare).collect()
}

/// Returns the collectives whose blocks have different lengths. Some are empty, and the last is long.
fn uneven(size: usize) -> impl Iterator<Item = (Collective, usize)> {
    let root = 1;
    let block = |rank| match rank {
        0 => 0,
        rank if rank + 1 == size => LONG_PIECE + 100,
        rank => rank % 2 * (PIECE + 100),
    };
    let blocks = Blocks::of(&(0..size).map(block).collect::<Vec<_>>()).unwrap();
    let (len, sent) = (blocks.len(), blocks.clone());
    let few = Blocks::of(&(0..size).map(|rank| rank % 2).collect::<Vec<_>>()).unwrap();
    let few_len = few.len();
    [
        (Collective::Gather { root, blocks: blocks.clone() }, len),
        (Collective::Scatter { root, blocks: blocks.clone() }, len),
        (Collective::AllGather { blocks: blocks.clone() }, len),
        (Collective::AllGather { blocks: few }, few_len),
        (Collective::AllToAll { sent, received: blocks, offset: len }, 2 * len),
    ]
    .into_iter()
}

/// Returns the deaths of a group in the order in which they occur.
fn deaths(root: Root, size: usize) -> Vec<Death> {
    let all = env::var(DEATHS).is_ok_and(|which| which == "all");
    let (first, members) = (root.first(), size - root.first());
    if root == Root::Silent {
        // Some ranks wait for rank 0, and some for the dead rank.
        let moment = Moment::Step(ALL_REDUCE, 0);
        return vec![Death { rank: 1, moment }];
    }
    let mut deaths = Vec::new();
    for (i, case) in collectives(members).into_iter().enumerate() {
        if case.is_rare && !all {
            continue;
        }
        let case = Case { first, ..case };
        let ranks = if all { 0..members } else { i % members..i % members + 1 };
        for rank in ranks.map(|rank| first + rank) {
            let mut dies = |moment| deaths.push(Death { rank, moment });
            let pieces: Vec<_> = pieces(&case.schedule(rank, size)).collect();
            let most = pieces.len();
            let chosen = if all { (0..=most).collect() } else { vec![0, most.div_ceil(2), most] };
            for steps in chosen {
                dies(Moment::Step(case.clone(), steps));
            }
            let is_written = |step: &usize| {
                let piece = &pieces[*step];
                piece.action == Action::Send && piece.range.len() > PIECE
            };
            for step in (0..most).filter(is_written).take(if all { most } else { 1 }) {
                dies(Moment::Written(case.clone(), step));
            }
            // Without a decision, ranks that are not connected cannot notify each other.
            if root == Root::Decides {
                dies(Moment::Unconnected(case.clone()));
            }
        }
    }
    for [rank, peer] in [[0, 1], [1, 0], [1, 2], [2, 1]].map(|pair| pair.map(|rank| first + rank)) {
        let moments = (0..=CONNECTING).map(|steps| Moment::Connecting(peer, steps));
        deaths.extend(moments.map(|moment| Death { rank, moment }));
    }
    deaths
}

/// Returns the number of elements in a piece of a transfer.
const fn piece_of(transfer: &Transfer) -> usize {
    if LENGTHS.is_long::<u64>(transfer) { LONG_PIECE } else { PIECE }
}

/// Returns the sends and receives of a schedule in order. The range of each is that of its piece.
fn pieces(schedule: &Schedule) -> impl Iterator<Item = Transfer> {
    schedule.iter().flat_map(|transfers| {
        let count = |transfer: &Transfer| transfer.range.len().div_ceil(piece_of(transfer)).max(1);
        let most = transfers.iter().map(count).max().unwrap_or(0);
        let mut ordered = transfers.clone();
        ordered.sort_by_key(|transfer| transfer.action != Action::Send);
        (0..most).flat_map(move |piece| {
            let transfers = ordered.clone().into_iter();
            transfers.filter(move |transfer| piece < count(transfer)).map(move |transfer| {
                let (range, most) = (&transfer.range, piece_of(&transfer));
                let start = range.start + piece * most;
                Transfer { range: start..range.end.min(start + most), ..transfer }
            })
        })
    })
}

pub(crate) fn domain() -> ProtectionDomain {
    rdma_soft::install();
    rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap()
}

/// Returns the settings of a rank in the group of an epoch.
fn settings(rank: usize, world_size: usize, master: &str, epoch: u64) -> Settings {
    Settings { epoch, ..Settings::new(rank, world_size, master) }
}

/// Joins the group of an epoch.
fn world(rank: usize, size: usize, master: &str, epoch: u64) -> World {
    blocking(settings(rank, size, master, epoch))
}

fn blocking(settings: Settings) -> World {
    World::join(&domain(), &settings, [LIMIT; 2]).unwrap()
}

/// A rank, blocking or asynchronous.
pub(crate) trait Rank {
    fn ranks(&self) -> &Ranks;

    fn ranks_mut(&mut self) -> &mut Ranks;

    /// Sets the limit of later calls.
    fn set_limit(&mut self, limit: Duration) {
        self.ranks_mut().limit = limit;
    }

    /// Does not wait for the decision of rank 0.
    fn expect_no_decision(&mut self);

    fn pool(&self) -> &BufferPool;

    /// Runs a collective.
    fn execute(&mut self, run: Run<'_, u64>) -> Result<(), Error>;

    /// [Dies](die) in a collective after that many sends and receives, or also after the WRITE of the next piece.
    fn die_in(&mut self, run: Run<'_, u64>, steps: usize, writes: bool) -> Result<(), Error>;

    fn connect_to(&mut self, rank: usize, call: Call) -> Result<(), Error>;

    /// [Dies](die) after that many steps of connecting to a rank.
    fn die_connecting(&mut self, peer: usize, steps: usize) -> Result<(), Error>;
}

impl Rank for World {
    fn ranks(&self) -> &Ranks {
        &self.ranks
    }

    fn ranks_mut(&mut self) -> &mut Ranks {
        &mut self.ranks
    }

    fn expect_no_decision(&mut self) {
        self.ranks.star.decision = Duration::ZERO;
    }

    fn pool(&self) -> &BufferPool {
        &self.pool
    }

    fn execute(&mut self, run: Run<'_, u64>) -> Result<(), Error> {
        Self::execute(self, run)
    }

    fn die_in(&mut self, mut run: Run<'_, u64>, steps: usize, writes: bool) -> Result<(), Error> {
        self.call(|world, connections| {
            let until = after(LIMIT);
            world.prepare(connections, &run, until)?;
            for _ in 0..steps {
                assert!(world.step(connections, &mut run, until)?.is_continue());
            }
            let Connections { peers, staged, .. } = connections;
            world.flush(peers, run.peers(), until);
            if writes {
                let (rank, part) = next_written(&mut run);
                world.write(rank, at(peers, rank)?, (&mut run, &part), staged, until)?;
            }
            die(world.ranks.own)
        })
    }

    fn connect_to(&mut self, rank: usize, call: Call) -> Result<(), Error> {
        Self::connect_to(self, rank, call).map(drop)
    }

    fn die_connecting(&mut self, peer: usize, steps: usize) -> Result<(), Error> {
        die_connecting(self, peer, steps)
    }
}

/// Returns the next piece of a run, which is written to a peer.
pub(crate) fn next_written(run: &mut Run<'_, u64>) -> (usize, Range<usize>) {
    let Next::Send(rank, part) = run.next() else { panic!("no piece to write") };
    assert!(run.is_written(&part));
    (rank, part)
}

/// Passes a run of a collective. `generation` is the number of earlier calls.
fn with_run<W: Rank>(
    world: &mut W,
    case: &Case,
    generation: u64,
    part: impl FnOnce(&mut W, Run<'_, u64>) -> Result<(), Error>,
) -> Result<(), Error> {
    let kind = case.collective.kind() as u8;
    let call = Call { kind, element_bytes: 8, generation, ..Call::default() };
    let [registered, other] = if case.registered { [case.len, 0] } else { [0, case.len] };
    let mut buffer = Buffer::allocate(world.pool(), registered).unwrap();
    let mut slice = vec![1_u64; other];
    buffer.fill(1);
    let elements = if case.registered { buffer.elements() } else { slice.elements() };
    let combine = combine(match case.collective {
        Collective::AllReduce { is_commutative: false }
        | Collective::ReduceScatter { is_commutative: false, .. } => {
            Reduction::Custom(&|lower, _| lower)
        }
        _ => Reduction::Sum,
    });
    let schedule = case.schedule(world.ranks().own, world.ranks().entries.len());
    let mut prepared = Prepared::new(schedule);
    part(world, Run::new(call, &mut prepared, elements, Some(&*combine)))
}

/// Runs a collective.
fn execute(world: &mut impl Rank, case: &Case, generation: u64) -> Result<(), Error> {
    with_run(world, case, generation, Rank::execute)
}

/// Ends this process, which is a rank.
pub(crate) fn die(rank: usize) -> ! {
    println!("dies as rank {rank}");
    process::abort()
}

pub(crate) const CONNECT: Call = Call {
    kind: Kind::Connect as u8,
    variant: 0,
    number: 0,
    root: 0,
    element_bytes: 0,
    group: 0,
    generation: 0,
    elements: 0,
    counts: 0,
};

/// Takes part in one death. Returns only if another rank dies.
fn live(root: Root, death: &Death, world: &mut impl Rank) {
    let rank = world.ranks().own;
    let dies = rank == death.rank;
    let barrier = Case { first: root.first(), ..BARRIER };
    if root == Root::Absent {
        // Connects all members.
        execute(world, &barrier, 4).unwrap();
    }
    if root != Root::Decides {
        world.expect_no_decision();
    }
    let result = match &death.moment {
        Moment::Unconnected(_) if dies => die(rank),
        Moment::Unconnected(case) => execute(world, case, 1),
        Moment::Step(case, steps) | Moment::Written(case, steps) => {
            let writes = matches!(death.moment, Moment::Written(..));
            execute(world, case, 0).and_then(|()| match dies {
                true => with_run(world, case, 1, |world, run| world.die_in(run, *steps, writes)),
                false => execute(world, case, 1),
            })
        }
        Moment::Connecting(peer, steps) if dies => world.die_connecting(*peer, *steps),
        Moment::Connecting(peer, _) if rank == *peer => world.connect_to(death.rank, CONNECT),
        Moment::Connecting(..) => Ok(()),
    };
    // A rank that does not wait for the dead one may complete its part.
    let result = result.and_then(|()| execute(world, &barrier, 2));
    match result {
        Err(Error::Lost { rank, host }) => {
            assert_eq!((rank, host), (death.rank, world.ranks().host(death.rank)), "{death:?}");
        }
        other => panic!("{other:?} after {death:?}"),
    }
    assert!(matches!(execute(world, &barrier, 3), Err(Error::Closed)));
}

#[test]
#[ignore = "a process of other tests"]
fn process_of_a_rank() {
    let process = env::var(PROCESS).unwrap();
    let words: Vec<_> = process.split(' ').collect();
    let [rank, root, size, master, first, is_async] = words[..] else { panic!("{process}") };
    let root = Root::ALL.into_iter().find(|it| format!("{it:?}") == root).unwrap();
    let [rank, size, first] = [rank, size, first].map(|number| number.parse().unwrap());
    if rank == 0 && root != Root::Decides {
        return root_without_decisions(root, size, master);
    }
    for (epoch, death) in deaths(root, size).iter().enumerate().skip(first) {
        let settings = settings(rank, size, master, epoch as u64);
        match is_async {
            #[cfg(feature = "async")]
            "true" => live(root, death, &mut Asynchronous::join(settings)),
            _ => {
                assert_eq!(is_async, "false");
                live(root, death, &mut blocking(settings));
            }
        }
    }
}

/// A group of processes.
#[derive(Clone, Copy)]
struct Processes<'m> {
    root: Root,
    size: usize,
    master: &'m str,
    is_async: bool,
}

fn command(rank: usize, processes: Processes<'_>, first: usize) -> Command {
    let Processes { root, size, master, is_async } = processes;
    let mut command = this_program();
    command.args(["--exact", "world::tests::process_of_a_rank", "--ignored", "--nocapture"]);
    command.env(PROCESS, format!("{rank} {root:?} {size} {master} {first} {is_async}"));
    command
}

/// Runs the processes of a rank: a new one after each death.
fn lives(rank: usize, processes: Processes<'_>) {
    let deaths = deaths(processes.root, processes.size);
    let own = deaths.iter().enumerate().filter(|(_, death)| death.rank == rank);
    let mut first = 0;
    for (epoch, _) in own {
        let output = command(rank, processes, first).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.ends_with(&format!("dies as rank {rank}\n")), "rank {rank}: {output:?}");
        assert_eq!(output.status.signal(), Some(6), "rank {rank}: {output:?}");
        first = epoch + 1;
    }
    let output = command(rank, processes, first).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains(" 1 passed"), "rank {rank}: {output:?}");
}

/// Takes the part of rank 0, which does not decide, until the standard input ends.
fn root_without_decisions(root: Root, size: usize, master: &str) {
    let mut open = Vec::new();
    for epoch in 0..deaths(root, size).len() {
        let mut world = world(0, size, master, epoch as u64);
        if root == Root::Silent {
            execute(&mut world, &ALL_REDUCE, 0).unwrap();
        }
        // Otherwise, it leaves now.
        if root == Root::Silent || epoch % 2 == 0 {
            open.push(world);
        }
    }
    io::copy(&mut io::stdin(), &mut io::sink()).unwrap();
}

/// Runs all deaths of a group.
fn all_deaths(root: Root, size: usize, is_async: bool) {
    let master = &*free_address().to_string();
    let processes = Processes { root, size, master, is_async };
    thread::scope(|threads| {
        let first = usize::from(root != Root::Decides);
        let without_decisions = (first > 0).then(|| {
            let mut command = command(0, processes, 0);
            let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
            command.stderr(Stdio::piped()).spawn().unwrap()
        });
        let ranks: Vec<_> =
            (first..size).map(|rank| threads.spawn(move || lives(rank, processes))).collect();
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
        // All other ranks have ended before the standard input of rank 0 ends.
        if let Some(process) = without_decisions {
            let output = process.wait_with_output().unwrap();
            assert!(output.status.success(), "{output:?}");
        }
    });
}

#[test]
fn the_death_of_a_rank_before_each_step_is_named_on_all_others() {
    for size in [4, 5] {
        all_deaths(Root::Decides, size, false);
    }
}

#[test]
fn the_death_of_a_rank_is_named_in_a_subgroup_without_rank_0() {
    all_deaths(Root::Absent, 5, false);
}

#[test]
fn the_death_of_a_rank_is_named_while_rank_0_makes_no_call() {
    all_deaths(Root::Silent, 8, false);
}

#[cfg(feature = "async")]
#[test]
fn the_death_of_a_rank_before_each_step_is_named_on_all_asynchronous_ranks() {
    all_deaths(Root::Decides, 5, true);
}

#[cfg(feature = "async")]
#[test]
fn the_death_of_an_asynchronous_rank_is_named_in_a_subgroup_without_rank_0() {
    all_deaths(Root::Absent, 5, true);
}

#[cfg(feature = "async")]
#[test]
fn the_death_of_an_asynchronous_rank_is_named_while_rank_0_makes_no_call() {
    all_deaths(Root::Silent, 8, true);
}
