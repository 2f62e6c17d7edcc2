//! Strangers that connect to ranks, and greetings that are sent again.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::TcpListener;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, mpsc};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use test_support::program::in_own_process;

use super::*;
use crate::bootstrap::link::Tag;
use crate::world::ranks::Greeting;

/// Returns the greeting of a stranger that claims to be rank 0.
fn claims() -> Vec<u8> {
    [&0_u64.to_le_bytes()[..], &[7; size_of::<Nonce>() + size_of::<Tag>()]].concat()
}

/// Connects to a rank again and again. Each connection is wrong in one of several ways. Calls `attacked` after some of
/// them.
fn attack(address: SocketAddr, ended: &AtomicBool, attacked: impl Fn()) {
    let pd = domain();
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
            // The rank may not read this before the limit: see `refuse_a_claim`.
            _ => {
                let builder = pd.create_channel().user_bytes(&claims());
                let refused =
                    builder.rendezvous_timeout(Duration::from_millis(100)).connect(address);
                assert!(refused.is_err());
            }
        }
    }
}

/// Runs all collectives while strangers connect to each rank. `join` joins as a rank.
fn run_during_attacks<W: Rank>(join: impl Fn(Settings) -> W + Sync) {
    let (size, master, ended) = (3, free_address().to_string(), AtomicBool::new(false));
    let (attacked, all_called) = (Barrier::new(2 * size), Barrier::new(size));
    thread::scope(|threads| {
        let rank = |rank| {
            let (master, ended, join) = (&*master, &ended, &join);
            let (attacked, all_called) = (&attacked, &all_called);
            threads.spawn(move || {
                let mut world = join(settings(rank, size, master, 0));
                let address = world.ranks().entries[rank].address;
                threads.spawn(move || attack(address, ended, || _ = attacked.wait()));
                attacked.wait();
                let mut cases = (0..).zip(collectives(size));
                let called = cases.try_for_each(|(call, case)| execute(&mut world, &case, call));
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

/// A stranger claims to be rank 0 while rank 1 waits for it in a collective.
fn refuse_a_claim<W: Rank + Send>(join: impl Fn(Settings) -> W + Sync) {
    let master = &*free_address().to_string();
    let case = &collectives(2)[0];
    thread::scope(|threads| {
        let (sender, address) = mpsc::channel();
        let join = &join;
        let rank = threads.spawn(move || {
            let mut world = join(settings(1, 2, master, 0));
            sender.send(world.ranks().entries[1].address).unwrap();
            // A rank that ends before the other is lost.
            (execute(&mut world, case, 0), world)
        });
        let mut world = join(settings(0, 2, master, 0));
        let pd = domain();
        let builder = pd.create_channel().user_bytes(&claims()).rendezvous_timeout(LIMIT);
        let refused = builder.connect(address.recv().unwrap());
        assert!(matches!(refused, Err(ConnectError::Rejected(_))), "{refused:?}");
        execute(&mut world, case, 0).unwrap();
        rank.join().unwrap().0.unwrap();
    });
}

#[test]
fn a_claim_to_be_rank_0_is_refused() {
    refuse_a_claim(blocking);
}

#[cfg(feature = "async")]
#[test]
fn a_claim_to_be_rank_0_is_refused_by_an_asynchronous_rank() {
    refuse_a_claim(Asynchronous::join);
}

#[test]
fn ranks_run_collectives_while_strangers_connect_to_them() {
    run_during_attacks(blocking);
}

#[cfg(feature = "async")]
#[test]
fn asynchronous_ranks_run_collectives_while_strangers_connect_to_them() {
    run_during_attacks(Asynchronous::join);
}

/// Runs a barrier of two ranks. While rank 1 waits for rank 0, a stranger connects, and no file is left to accept it.
fn run_without_files<W: Rank>(join: impl Fn(Settings) -> W + Sync) {
    let (master, all_joined) = (free_address().to_string(), Barrier::new(2));
    let (begun, begins) = mpsc::channel();
    thread::scope(|threads| {
        let (master, join, all_joined) = (&*master, &join, &all_joined);
        let rank = threads.spawn(move || {
            let mut world = join(settings(0, 2, master, 0));
            all_joined.wait();
            begins.recv().unwrap();
            execute(&mut world, &BARRIER, 0)
        });
        let mut world = join(settings(1, 2, master, 0));
        all_joined.wait();
        let _stranger = TcpStream::connect(world.ranks().entries[1].address).unwrap();
        let limit = getrlimit(Resource::Nofile);
        let spare = File::open("/dev/null").unwrap();
        // All lower numbers are in use.
        let current = u64::try_from(spare.as_raw_fd()).ok();
        setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
        threads.spawn(move || {
            thread::sleep(Duration::from_millis(500));
            setrlimit(Resource::Nofile, limit).unwrap();
            begun.send(()).unwrap();
        });
        let called = execute(&mut world, &BARRIER, 0);
        assert!(called.is_ok(), "{called:?}");
        assert!(rank.join().unwrap().is_ok());
    });
}

#[test]
fn a_stranger_without_a_free_file_does_not_end_the_group() {
    in_own_process(
        "world::tests::strangers::a_stranger_without_a_free_file_does_not_end_the_group",
        || run_without_files(blocking),
    );
}

#[cfg(feature = "async")]
#[test]
fn a_stranger_without_a_free_file_does_not_end_the_asynchronous_group() {
    in_own_process(
        "world::tests::strangers::a_stranger_without_a_free_file_does_not_end_the_asynchronous_group",
        || run_without_files(Asynchronous::join),
    );
}

/// Listens for a rank. The first client is dropped to make room for strangers, and the next one reaches the rank.
fn with_strangers(rank: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut first = listener.accept().unwrap().0;
        first.write_all(b"RDRV\0\x02\0\x06\0\x04full").unwrap();
        let _ = first.read_to_end(&mut Vec::new());
        let (client, server) = (listener.accept().unwrap().0, TcpStream::connect(rank).unwrap());
        let ends = [(&client, &server), (&server, &client)];
        thread::scope(|threads| {
            for (mut from, mut to) in ends {
                threads.spawn(move || io::copy(&mut from, &mut to));
            }
        });
    });
    address
}

/// Runs a barrier of two ranks. Rank 1 has no room for rank 0 at first.
fn run_without_room<W: Rank>(join: impl Fn(Settings) -> W + Sync) {
    let master = &*free_address().to_string();
    let join = &join;
    thread::scope(|threads| {
        let rank =
            threads.spawn(move || execute(&mut join(settings(1, 2, master, 0)), &BARRIER, 0));
        let mut world = join(settings(0, 2, master, 0));
        let entry = &mut world.ranks_mut().entries[1];
        entry.address = with_strangers(entry.address);
        let called = execute(&mut world, &BARRIER, 0);
        assert!(called.is_ok(), "{called:?}");
        assert!(rank.join().unwrap().is_ok());
    });
}

#[test]
fn a_rank_that_has_no_room_at_first_is_connected_later() {
    run_without_room(blocking);
}

#[cfg(feature = "async")]
#[test]
fn an_asynchronous_rank_that_has_no_room_at_first_is_connected_later() {
    run_without_room(Asynchronous::join);
}

#[test]
fn the_greeting_of_an_earlier_connection_is_refused() {
    let master = &*free_address().to_string();
    thread::scope(|threads| {
        threads.spawn(move || {
            let mut world = world(1, 2, master, 0);
            [(); 2].map(|()| world.connect_to(0, CONNECT).unwrap())
        });
        let mut world = world(0, 2, master, 0);
        let mut listener = || {
            let announced = world.call(|world, connections| {
                let until = after(LIMIT);
                world.connect(connections, &[1], None, until)?;
                let message = world.receive(1, at(&mut connections.peers, 1)?, until)?;
                let (address, challenge) = world.ranks.announced(1, CONNECT, &message)?;
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
