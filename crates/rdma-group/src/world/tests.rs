//! Ranks that die before each step of each collective. The ranks are processes, and the survivors join again with the
//! next epoch.

use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Output;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{env, process};

use test_support::loopback::free_address;
use test_support::program::this_program;

use super::lane::PIECE_BYTES;
use super::ranks::Greeting;
use super::*;
use crate::bootstrap::link::Tag;
use crate::call::{Call, Kind};
use crate::collective::Collective;
use crate::group::buffer::{Buffer, Memory as _};
use crate::reduction::{Reduction, combine};
use crate::run::is_long;
use crate::schedule::{Action, BarrierAlgorithm, Blocks, Member, Schedule, Transfer};

/// The variable that selects the deaths: `all`, or by default three of each collective.
const DEATHS: &str = "RDMA_TEST_DEATHS";

/// The variable that describes a process of the test: rank, size of the group, address of rank 0, and the number of the
/// first death.
const PROCESS: &str = "RDMA_TEST_DEATHS_PROCESS";

/// Ends a test that hangs. No test waits for it.
const LIMIT: Duration = Duration::from_secs(120);

/// The number of `u64` in a message, and in a long piece.
const PIECE: usize = (MESSAGE_BYTES - Call::BYTES) / 8;
const LONG_PIECE: usize = PIECE_BYTES / 8;

/// A rank that dies in a collective.
#[derive(Clone, Debug)]
struct Death {
    collective: Collective,
    len: usize,
    /// Whether the memory of the ranks is registered.
    registered: bool,
    rank: usize,
    /// The number of its sends and receives before.
    steps: usize,
    /// Whether all ranks are connected before the collective.
    connected: bool,
}

/// Returns each collective with each of its algorithms, a length of the buffer, and whether it is registered.
fn collectives(size: usize) -> Vec<(Collective, usize, bool)> {
    // Blocks of two messages, and of two long pieces.
    let long = size * (PIECE + 100);
    let longest = size * (LONG_PIECE + 100);
    let short = size + 1;
    let root = 1;
    let even = |len| Blocks::even(len, size);
    let all_to_all = |len| Collective::AllToAll { sent: even(len), received: even(len), offset: 0 };
    let all_reduce = Collective::AllReduce { is_commutative: true };
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
        (Collective::AllGather { blocks: even(longest) }, longest),
        (all_to_all(2 * size), 2 * size),
        (Collective::Reduce { root }, short),
        (all_reduce.clone(), short),
        (all_reduce.clone(), long),
        (all_reduce.clone(), longest),
        (scatter_reduced(true, short), short),
        (scatter_reduced(false, short), short),
    ];
    let one = LONG_PIECE + 100;
    let registered = [
        (Collective::Broadcast { root }, one),
        (Collective::Gather { root, blocks: even(longest) }, longest),
        (Collective::Scatter { root, blocks: even(longest) }, longest),
        (Collective::AllGather { blocks: even(longest) }, longest),
        (all_to_all(longest), longest),
        (Collective::Reduce { root }, one),
        (all_reduce, longest),
        (scatter_reduced(true, longest), longest),
    ];
    let slices = slices.into_iter().map(|(collective, len)| (collective, len, false));
    slices.chain(registered.map(|(collective, len)| (collective, len, true))).collect()
}

/// Returns the deaths of a group in the order in which they occur.
fn deaths(size: usize) -> Vec<Death> {
    let all = env::var(DEATHS).is_ok_and(|which| which == "all");
    let mut deaths = Vec::new();
    for (i, (collective, len, registered)) in collectives(size).into_iter().enumerate() {
        if registered && !all && i % 4 != 0 {
            continue;
        }
        let ranks = if all { 0..size } else { i % size..i % size + 1 };
        for rank in ranks {
            let schedule = collective.schedule(Member { rank, size }, len, 8);
            let most = pieces(&schedule).count();
            let chosen = if all { (0..=most).collect() } else { vec![0, most.div_ceil(2), most] };
            for steps in chosen {
                let collective = collective.clone();
                deaths.push(Death { collective, len, registered, rank, steps, connected: true });
            }
            // A rank connects to all its peers before the first step.
            let collective = collective.clone();
            deaths.push(Death { collective, len, registered, rank, steps: 0, connected: false });
        }
    }
    deaths
}

/// Returns the number of elements in a piece of a transfer.
const fn piece_of(transfer: &Transfer) -> usize {
    if is_long::<u64>(transfer) { LONG_PIECE } else { PIECE }
}

/// Returns the sends and receives of a schedule in order. Each is the round, the transfer and the number of its piece.
fn pieces(schedule: &Schedule) -> impl Iterator<Item = (usize, Transfer, usize)> {
    schedule.iter().enumerate().flat_map(|(round, transfers)| {
        let count = |transfer: &Transfer| transfer.range.len().div_ceil(piece_of(transfer)).max(1);
        let most = transfers.iter().map(count).max().unwrap_or(0);
        let mut ordered = transfers.clone();
        ordered.sort_by_key(|transfer| transfer.action != Action::Send);
        (0..most).flat_map(move |piece| {
            let transfers = ordered.clone().into_iter();
            let transfers = transfers.filter(move |transfer| piece < count(transfer));
            transfers.map(move |transfer| (round, transfer, piece))
        })
    })
}

/// Returns a schedule that ends after these steps.
fn cut(schedule: &Schedule, steps: usize) -> Schedule {
    let mut cut = vec![Vec::<Transfer>::new(); schedule.len()];
    for (round, mut transfer, piece) in pieces(schedule).take(steps) {
        let end = transfer.range.start + (piece + 1) * piece_of(&transfer);
        transfer.range.end = end.min(transfer.range.end);
        let is_same = |other: &&mut Transfer| {
            (other.peer, other.action, other.range.start)
                == (transfer.peer, transfer.action, transfer.range.start)
        };
        match cut[round].iter_mut().find(is_same) {
            Some(begun) => *begun = transfer,
            None => cut[round].push(transfer),
        }
    }
    cut
}

fn domain() -> ProtectionDomain {
    rdma_soft::install();
    rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap()
}

/// Joins the group of an epoch.
fn world(rank: usize, size: usize, master: &str, epoch: u64) -> World {
    let (master, hosts) = (master.to_owned(), Vec::new());
    let settings = Settings { rank, world_size: size, master, epoch, secret: None, hosts };
    World::join(&domain(), &settings, [LIMIT; 2]).unwrap()
}

/// Runs the schedule of a collective.
fn execute(world: &mut World, death: &Death, schedule: Schedule) -> Result<(), Error> {
    let members: Vec<_> = (0..world.ranks.entries.len()).collect();
    let call = Call { kind: death.collective.kind() as u8, element_bytes: 8, ..Call::default() };
    let [registered, other] = if death.registered { [death.len, 0] } else { [0, death.len] };
    let (mut buffer, mut slice) = (Buffer::allocate(&world.pool, registered)?, vec![1_u64; other]);
    buffer.fill(1);
    let elements = if death.registered { buffer.elements() } else { slice.elements() };
    let sum = combine(Reduction::Sum);
    world.execute(&members, Run::new(call, schedule, elements, Some(&*sum)))
}

/// Takes part in one death. Returns only if another rank dies.
fn live(death: &Death, rank: usize, size: usize, master: &str, epoch: u64) {
    let mut world = world(rank, size, master, epoch);
    let member = Member { rank, size };
    let schedule = death.collective.schedule(member, death.len, 8);
    let mut result = Ok(());
    if death.connected {
        result = execute(&mut world, death, schedule.clone());
    }
    if rank == death.rank {
        result.and_then(|()| execute(&mut world, death, cut(&schedule, death.steps))).unwrap();
        println!("dies in epoch {epoch}");
        process::abort();
    }
    let barrier =
        |world: &mut World| execute(world, death, member.barrier(BarrierAlgorithm::Dissemination));
    // A rank that does not wait for the dead one may complete a collective.
    let result = result.and_then(|()| execute(&mut world, death, schedule));
    let result = result.and_then(|()| barrier(&mut world));
    match result {
        Err(Error::Lost { rank, host }) => {
            assert_eq!((rank, host), (death.rank, world.ranks.host(death.rank)), "{death:?}");
        }
        other => panic!("{other:?} after {death:?}"),
    }
    assert!(matches!(barrier(&mut world), Err(Error::Closed)));
}

#[test]
#[ignore = "a process of other tests"]
fn process_of_a_rank() {
    let process = env::var(PROCESS).unwrap();
    let words: Vec<_> = process.split(' ').collect();
    let [rank, size, master, first] = words[..] else { panic!("{process}") };
    let [rank, size, first] = [rank, size, first].map(|number| number.parse().unwrap());
    for (epoch, death) in deaths(size).iter().enumerate().skip(first) {
        live(death, rank, size, master, epoch as u64);
    }
}

fn start(rank: usize, size: usize, master: &str, first: usize) -> Output {
    let mut command = this_program();
    command.args(["--exact", "world::tests::process_of_a_rank", "--ignored", "--nocapture"]);
    command.env(PROCESS, format!("{rank} {size} {master} {first}"));
    command.output().unwrap()
}

/// Runs the processes of a rank: a new one after each death.
fn lives(rank: usize, size: usize, master: &str) {
    let deaths = deaths(size);
    let own = deaths.iter().enumerate().filter(|(_, death)| death.rank == rank);
    let mut first = 0;
    for (epoch, _) in own {
        let output = start(rank, size, master, first);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.ends_with(&format!("dies in epoch {epoch}\n")), "rank {rank}: {output:?}");
        assert_eq!(output.status.signal(), Some(6), "rank {rank}: {output:?}");
        first = epoch + 1;
    }
    let output = start(rank, size, master, first);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains(" 1 passed"), "rank {rank}: {output:?}");
}

#[test]
fn the_death_of_a_rank_before_each_step_is_named_on_all_others() {
    for size in [4, 5] {
        let master = &*free_address().to_string();
        thread::scope(|threads| {
            for rank in 0..size {
                threads.spawn(move || lives(rank, size, master));
            }
        });
    }
}

#[test]
fn a_schedule_is_cut_after_each_step() {
    let size = 4;
    for (collective, len, _) in collectives(size) {
        let schedule = collective.schedule(Member { rank: 1, size }, len, 8);
        let all = pieces(&schedule).count();
        let counts = (0..=all).map(|steps| pieces(&cut(&schedule, steps)).count());
        assert!(counts.eq(0..=all), "{collective:?}");
    }
}

/// Connects to a rank again and again. Each connection is wrong in one of several ways. Calls `attacked` after some of
/// them.
fn attack(address: SocketAddr, ended: &AtomicBool, attacked: impl Fn()) {
    let pd = domain();
    let claims = [&0_u64.to_le_bytes()[..], &[7; size_of::<Nonce>() + size_of::<Tag>()]].concat();
    let mut open = Vec::new();
    for round in 0.. {
        if ended.load(Ordering::Relaxed) {
            return;
        }
        if round == 8 {
            attacked();
        }
        match round % 4 {
            0 => open.extend(TcpStream::connect(address).ok()),
            1 => {
                let stranger = TcpStream::connect(address);
                // The rank may have dropped the connection.
                let _ = stranger.and_then(|mut stranger| stranger.write_all(&[0x55; 100]));
            }
            2 => open.clear(),
            // Claims to be rank 0.
            _ => {
                let builder = pd.create_channel().user_bytes(&claims);
                let refused =
                    builder.rendezvous_timeout(Duration::from_millis(100)).connect(address);
                assert!(refused.is_err());
            }
        }
    }
}

#[test]
fn ranks_run_collectives_while_strangers_connect_to_them() {
    let (size, master, ended) = (3, free_address().to_string(), AtomicBool::new(false));
    let (attacked, all_called) = (Barrier::new(2 * size), Barrier::new(size));
    thread::scope(|threads| {
        let rank = |rank| {
            let (master, ended) = (&*master, &ended);
            let (attacked, all_called) = (&attacked, &all_called);
            threads.spawn(move || {
                let mut world = world(rank, size, master, 0);
                let address = world.ranks.entries[rank].address;
                threads.spawn(move || attack(address, ended, || _ = attacked.wait()));
                attacked.wait();
                let called =
                    collectives(size).into_iter().try_for_each(|(collective, len, registered)| {
                        let schedule = collective.schedule(Member { rank, size }, len, 8);
                        let death = Death {
                            collective,
                            len,
                            registered,
                            rank: 0,
                            steps: 0,
                            connected: false,
                        };
                        execute(&mut world, &death, schedule)
                    });
                // A rank that ends before the others is lost.
                all_called.wait();
                called
            })
        };
        let ranks: Vec<_> = (0..size).map(rank).collect();
        let results: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        ended.store(true, Ordering::Relaxed);
        assert!(results.iter().all(Result::is_ok), "{results:?}");
    });
}

#[test]
fn the_greeting_of_an_earlier_connection_is_refused() {
    let master = &*free_address().to_string();
    let call = Call { kind: Kind::Connect as u8, ..Call::default() };
    thread::scope(|threads| {
        threads.spawn(move || {
            let mut world = world(1, 2, master, 0);
            [(); 2].map(|()| world.connect_to(0, call).unwrap())
        });
        let mut world = world(0, 2, master, 0);
        let mut listener = || {
            let announced = world.call(|world, connections| {
                let until = after(LIMIT);
                world.connect(connections, &BTreeSet::from([1]), until)?;
                let message = world.receive(1, at(&mut connections.peers, 1)?, until)?;
                let (address, challenge) = world.ranks.announced(1, call, &message)?;
                Ok((address, world.ranks.greet(1, challenge)?))
            });
            announced.unwrap()
        };
        let pd = domain();
        let connect = |address, greeting: &Greeting| {
            let builder = pd.create_channel().user_bytes(&greeting.bytes);
            builder.rendezvous_timeout(LIMIT).connect(address)
        };
        let (address, greeting) = listener();
        let (_channel, answer) = connect(address, &greeting).unwrap();
        let (address, next) = listener();
        let replayed = connect(address, &greeting);
        assert!(matches!(replayed, Err(ConnectError::Rejected(_))), "{replayed:?}");
        let connected = connect(address, &next);
        let ranks = &world.ranks;
        assert!(ranks.connected(1, &next.nonces, Ok(((), answer))).is_err());
        assert!(ranks.connected(1, &next.nonces, connected).is_ok());
    });
}
