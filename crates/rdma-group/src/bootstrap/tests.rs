mod dropped;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::iter;
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, ScopedJoinHandle};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use test_support::events;
use test_support::loopback::free_address;

use super::link::VERSION;
use super::link::tests::{header, invalid_headers};
use super::master::{connect, listen};
use super::*;

pub(super) const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn settings(rank: usize, world_size: usize, master: SocketAddr) -> Settings {
    Settings::new(rank, world_size, &master.to_string())
}

pub(super) fn join_as(settings: &Settings, limit: Duration) -> Result<(Table, Star), Error> {
    let keys = Arc::new(Keys::new(settings.secret.as_deref().unwrap_or_default()));
    let port = u16::try_from(settings.rank).unwrap() + 1;
    join(settings, limit, &keys, |ip| {
        Ok(Entry { address: (ip, port).into(), host: format!("host{}", settings.rank) })
    })
}

type Joined<'s> = ScopedJoinHandle<'s, Result<(Table, Star), Error>>;

fn spawn<'s>(threads: &'s thread::Scope<'s, '_>, settings: Settings) -> Joined<'s> {
    threads.spawn(move || join_as(&settings, LIMIT))
}

/// Connects as soon as rank 0 listens.
fn stranger(master: SocketAddr) -> TcpStream {
    connect(&[master], Instant::now() + LIMIT).unwrap()
}

pub(super) fn text<T>(result: Result<T, Error>) -> String {
    result.err().unwrap().to_string()
}

#[test]
fn all_ranks_get_the_same_table() {
    let master = free_address();
    thread::scope(|threads| {
        let ranks: Vec<_> = (0..8).map(|rank| spawn(threads, settings(rank, 8, master))).collect();
        let tables: Vec<_> =
            ranks.into_iter().map(|rank| rank.join().unwrap().unwrap().0).collect();
        let hosts: Vec<_> = tables[0].entries.iter().map(|entry| entry.host.clone()).collect();
        assert_eq!(hosts, (0..8).map(|rank| format!("host{rank}")).collect::<Vec<_>>());
        assert!(tables.iter().all(|table| *table == tables[0]));
    });
}

/// Listens at the address as rank 0, and joins no rank yet.
pub(super) fn root<'s>(settings: &'s Settings, keys: &'s Arc<Keys>, limit: Duration) -> Root<'s> {
    let listener = listen(&[settings.master.parse().unwrap()], settings.world_size).unwrap();
    let entry = |ip| Ok(Entry { address: (ip, 1).into(), host: "host0".to_owned() });
    Root::new(settings, limit, keys, listener, entry).unwrap()
}

/// Connects as a rank, and sends its message after `connected`.
fn enter_as(rank: u32, master: SocketAddr, connected: impl FnOnce()) -> Link {
    let mut link = Link::new(stranger(master), Arc::new(Keys::new(b"")), false, 1000).unwrap();
    connected();
    let until = Instant::now() + LIMIT;
    let (_, challenge) = link.receive(until).unwrap();
    link.agree([Nonce::default(), challenge.try_into().unwrap()]);
    let entry = Entry { address: ([127, 0, 0, 1], 9).into(), host: "gone".to_owned() };
    let join = Join { nonce: [1; 16], rank, world_size: 3, epoch: 0, entry };
    link.send(Kind::Join, &join.to_bytes(), until).unwrap();
    link
}

#[test]
fn strangers_do_not_drop_a_rank_whose_message_has_arrived() {
    let master = free_address();
    let (settings, keys) = (settings(0, 3, master), Arc::new(Keys::new(b"")));
    let mut root = root(&settings, &keys, LIMIT);
    let _link = enter_as(1, master, || root.accept().unwrap());
    let strangers: Vec<_> = (0..=root.most_half_open()).map(|_| stranger(master)).collect();
    root.accept().unwrap();
    assert!(root.joined[1].is_some());
    assert_eq!(root.half_open.len() + 1, strangers.len());
    // The last one still waits, so a flood does not keep rank 0 from its other work.
    root.listener.accept().unwrap();
}

/// Measures the time of joining. All ranks are threads of this process, so they share the processors.
#[test]
#[ignore = "needs more open files than many systems allow by default"]
fn a_thousand_ranks_join() {
    let (size, master) = (1000, free_address());
    let limit = getrlimit(Resource::Nofile);
    let current = limit.current.map(|files| files.max(10_000));
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
    let begin = Instant::now();
    thread::scope(|threads| {
        let rank = |rank| spawn(threads, settings(rank, size, master));
        let ranks: Vec<_> = (0..size).map(rank).collect();
        for rank in ranks {
            let (table, _star) = rank.join().unwrap().unwrap();
            assert_eq!(table.entries.len(), size);
        }
    });
    println!("{size} ranks have joined within {:?}", begin.elapsed());
}

/// The kernel ignores connections to the first address, because others wait to be accepted there.
#[test]
fn the_second_address_of_rank_0_is_used_if_the_first_does_not_answer() {
    let [full, other] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    rustix::net::listen(&full, 0).unwrap();
    let addresses = [&full, &other].map(|listener| listener.local_addr().unwrap());
    let attempt = || TcpStream::connect_timeout(&addresses[0], Duration::from_millis(100));
    // On a busy machine, one attempt may be late although others can still wait.
    let _waiting: Vec<_> = iter::from_fn(|| attempt().or_else(|_| attempt()).ok()).collect();
    let until = Instant::now() + LIMIT;
    let connected = connect(&addresses, until).unwrap();
    assert_eq!(connected.peer_addr().unwrap(), addresses[1]);
    assert!(Instant::now() < until, "the first address has used up the time");
}

/// With the backlog of the standard library, the kernel ignores the last ones until rank 0 accepts others.
#[test]
fn all_ranks_can_connect_before_one_is_accepted() {
    let kernels = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
    let ranks = kernels.trim().parse().map_or(300, |most: usize| most.min(300));
    let listener = listen(&[([127, 0, 0, 1], 0).into()], ranks).unwrap();
    let master = listener.local_addr().unwrap();
    let connect = |_| TcpStream::connect_timeout(&master, LIMIT).unwrap();
    let waiting: Vec<_> = (0..ranks).map(connect).collect();
    assert_eq!(waiting.len(), ranks);
}

/// Runs rank 0 until this is true.
fn serve_until(root: &mut Root<'_>, is_done: impl Fn(&Root<'_>) -> bool) {
    while !is_done(root) {
        root.wait(Instant::now() + LIMIT).unwrap();
        root.accept().unwrap();
        root.serve();
    }
}

/// Runs rank 0 until another rank has joined.
pub(super) fn serve_until_joined(root: &mut Root<'_>, rank: usize) {
    serve_until(root, |root| root.joined[rank].is_some());
}

#[test]
fn missing_ranks_are_named_on_all_others() {
    let master = free_address();
    let hosts = ["a", "b", "c", "d"].map(str::to_owned).into();
    let settings = Settings { hosts, ..settings(0, 4, master) };
    let limit = Duration::from_millis(1);
    let keys = Arc::new(Keys::new(b""));
    thread::scope(|threads| {
        let other = spawn(threads, Settings { rank: 2, ..settings.clone() });
        let mut root = root(&settings, &keys, limit);
        serve_until_joined(&mut root, 2);
        let missing = "ranks [1, 3] of 4 did not join within 1ms; their hosts: b, d";
        assert_eq!(text(root.gather(Instant::now())), missing);
        let error = text(other.join().unwrap());
        assert_eq!(error, format!("rank 0 at {master} did not accept rank 2: {missing}"));
    });
}

/// Returns the error of a rank 0 at which no other rank joins, and the number of warnings.
fn alone(settings: &Settings) -> (String, u32) {
    let keys = Arc::new(Keys::new(b""));
    let listener = listen(&[free_address()], 2).unwrap();
    let entry = |ip| Ok(Entry { address: (ip, 1).into(), host: "host0".to_owned() });
    events::count(
        |event| event.level == tracing::Level::WARN,
        || {
            let root = Root::new(settings, LIMIT, &keys, listener, entry).unwrap();
            text(root.gather(Instant::now()))
        },
    )
}

#[test]
fn missing_ranks_are_on_the_host_of_rank_0_if_all_are_on_one_host() {
    let missing = "ranks [1, 2] of 3 did not join within 60s";
    let settings = |master| Settings::new(0, 3, master);
    let of_one_host = Settings { one_host: Some(true), ..settings("node1:7") };
    for settings in [settings("127.0.1.1:7"), of_one_host] {
        assert_eq!(alone(&settings), (format!("{missing}; their host: host0"), 0));
    }
}

#[test]
fn rank_0_warns_if_its_name_has_a_loopback_address_that_other_hosts_do_not_reach() {
    for settings in [
        Settings::new(0, 2, "node1:7"),
        Settings { one_host: Some(false), ..Settings::new(0, 2, "127.0.1.1:7") },
    ] {
        let (error, warnings) = alone(&settings);
        let reason = format!(
            "ranks [1] of 2 did not join within 60s; other hosts cannot connect to rank 0 at {}, which the program \
             states, because it is 127.",
            settings.master
        );
        assert!(error.starts_with(&reason), "{error}");
        assert_eq!(warnings, 1);
    }
}

#[test]
fn ranks_that_do_not_fit_are_refused_by_name() {
    let master = free_address();
    let settings = |rank, size, master| Settings { epoch: 2, ..settings(rank, size, master) };
    thread::scope(|threads| {
        let root = spawn(threads, settings(0, 3, master));
        let wrong_size = spawn(threads, settings(2, 4, master)).join().unwrap();
        let error = text(wrong_size);
        assert!(error.contains("rank 2 on host2 expects 4 ranks, but rank 0 expects 3"), "{error}");
        for epoch in [1, 3] {
            let wrong_epoch = Settings { epoch, ..settings(2, 3, master) };
            let error = text(spawn(threads, wrong_epoch).join().unwrap());
            let expected = format!("rank 2 on host2 is of epoch {epoch}, but rank 0 is of epoch 2");
            assert!(error.contains(&expected), "{error}");
        }
        // Rank 0 refuses one of the two processes of rank 1. Without rank 2, it cannot accept either.
        let (results, all) = std::sync::mpsc::channel();
        for _ in 0..2 {
            let results = results.clone();
            threads.spawn(move || results.send(join_as(&settings(1, 3, master), LIMIT)).is_ok());
        }
        let error = text(all.recv().unwrap());
        let expected = "rank 1 on host1 has already joined from 127.0.0.1:2 on host1";
        assert!(error.contains(expected), "{error}");
        let last = spawn(threads, settings(2, 3, master));
        assert!(root.join().unwrap().is_ok() && last.join().unwrap().is_ok());
        assert!(all.recv().unwrap().is_ok());
    });
}

#[test]
fn a_rank_that_ends_before_the_group_is_complete_can_join_again() {
    let master = free_address();
    thread::scope(|threads| {
        let root = spawn(threads, settings(0, 3, master));
        drop(enter_as(1, master, || ()));
        let again = threads.spawn(move || {
            loop {
                // While the first process counts as joined, rank 0 refuses the second one.
                match join_as(&settings(1, 3, master), LIMIT) {
                    Err(Error::Refused { .. }) => thread::yield_now(),
                    other => break other,
                }
            }
        });
        let last = spawn(threads, settings(2, 3, master));
        for rank in [root, last] {
            assert!(rank.join().unwrap().unwrap().0.entries[1].host != "gone");
        }
        assert!(again.join().unwrap().is_ok());
    });
}

/// Runs rank 0 until it has refused the process at this address. Returns the reason that its error states.
fn refusal(mut root: Root<'_>, of: SocketAddr) -> String {
    serve_until(&mut root, |root| root.last_refused.is_some());
    let error = text(root.gather(Instant::now()));
    let (missing, refused) = error.split_once("; the last process that was refused: ").unwrap();
    assert!(missing.starts_with("ranks [1] of 2 did not join within "), "{error}");
    refused.strip_prefix(&format!("{of}: ")).unwrap().to_owned()
}

#[test]
fn the_last_process_that_was_refused_is_named_if_ranks_are_missing() {
    let master = free_address();
    let (settings, keys) = (settings(0, 2, master), Arc::new(Keys::new(b"")));
    let root = root(&settings, &keys, LIMIT);
    let mut stranger = stranger(master);
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let reason = refusal(root, stranger.local_addr().unwrap());
    assert_eq!(reason, "the process at the other end is not of a group");
}

/// Returns the reason of an end, if the other end has this version.
fn other_version(version: u16) -> String {
    format!(
        "the other end has version {version}, but this end has {VERSION}: use the same version on all ranks"
    )
}

#[test]
fn a_rank_of_another_version_is_named_on_rank_0() {
    for version in [VERSION - 1, VERSION + 1] {
        let master = free_address();
        let (settings, keys) = (settings(0, 2, master), Arc::new(Keys::new(b"")));
        let root = root(&settings, &keys, LIMIT);
        let mut stranger = stranger(master);
        stranger.write_all(&header(version, Kind::Goodbye as u8, 0)).unwrap();
        assert_eq!(refusal(root, stranger.local_addr().unwrap()), other_version(version));
    }
}

/// The rank sends a frame before it fails. So rank 0 of the other version names this one.
#[test]
fn a_rank_0_of_another_version_is_named_and_gets_the_version_of_the_rank() {
    for version in [VERSION - 1, VERSION + 1] {
        let master = free_address();
        let listener = TcpListener::bind(master).unwrap();
        thread::scope(|threads| {
            let rank = spawn(threads, settings(1, 2, master));
            let (mut root, _) = listener.accept().unwrap();
            root.write_all(&header(version, Kind::Challenge as u8, 16)).unwrap();
            let mut received = Vec::new();
            root.read_to_end(&mut received).unwrap();
            assert!(received.starts_with(&header(VERSION, Kind::Goodbye as u8, 0)), "{received:?}");
            let expected = format!("rank 1 could not join at {master}: ") + &other_version(version);
            assert_eq!(text(rank.join().unwrap()), expected);
        });
    }
}

#[test]
fn strangers_do_not_disturb() {
    let master = free_address();
    thread::scope(|threads| {
        let root = spawn(threads, settings(0, 2, master));
        let silent: Vec<_> = (0..3).map(|_| stranger(master)).collect();
        let request = stranger(master).write_all(b"GET / HTTP/1.1\r\n\r\n");
        request.unwrap();
        let dropped = invalid_headers().map(|(header, _)| {
            let mut stranger = stranger(master);
            stranger.write_all(&header).unwrap();
            stranger
        });
        // Rank 0 drops them after its challenge.
        for mut stranger in dropped {
            let _ = stranger.read_to_end(&mut Vec::new());
        }
        let other = spawn(threads, settings(1, 2, master));
        assert!(root.join().unwrap().is_ok() && other.join().unwrap().is_ok());
        drop(silent);
    });
}

#[test]
fn another_secret_is_named_at_both_ends() {
    let master = free_address();
    let with = |rank, secret: &str| {
        let secret = Some(secret.as_bytes().to_vec());
        Settings { secret, ..settings(rank, 2, master) }
    };
    let (of_root, keys) = (with(0, "one"), Arc::new(Keys::new(b"one")));
    let mut root = root(&of_root, &keys, LIMIT);
    let expected = "the other end has another secret: set RDMA_GROUP_SECRET";
    thread::scope(|threads| {
        let other = spawn(threads, with(1, "other"));
        serve_until(&mut root, |root| root.last_refused.is_some());
        let refused = root.last_refused.as_ref().unwrap();
        assert!(refused.contains(expected), "{refused}");
        let error = text(other.join().unwrap());
        assert!(error.contains(expected), "{error}");
        let other = spawn(threads, with(1, "one"));
        assert!(root.gather(Instant::now() + LIMIT).is_ok() && other.join().unwrap().is_ok());
    });
}

#[test]
fn an_address_that_other_hosts_reach_needs_a_secret() {
    let open = Settings { master: "192.0.2.1:7".to_owned(), ..settings(1, 2, free_address()) };
    let error = text(join_as(&open, LIMIT));
    assert!(error.contains("192.0.2.1:7") && error.contains("set RDMA_GROUP_SECRET"), "{error}");
}

/// Returns both ends of a connection, with rank 0's first.
pub(crate) fn pair(keys: &Arc<Keys>) -> [Link; 2] {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let ends = [(listener.accept().unwrap().0, true), (other, false)];
    ends.map(|(stream, is_root)| Link::new(stream, Arc::clone(keys), is_root, 1000).unwrap())
}

/// Sends until the socket has no room. Returns the error.
fn until_full(link: &mut Link) -> io::Error {
    let long = vec![0; 1 << 20];
    iter::from_fn(|| Some(link.send(Kind::Table, &long, Instant::now())))
        .find_map(Result::err)
        .unwrap()
}

#[test]
fn a_send_to_a_rank_that_reads_nothing_ends_at_the_deadline() {
    let [mut root, _silent] = pair(&Arc::new(Keys::new(b"")));
    assert_eq!(until_full(&mut root).kind(), ErrorKind::TimedOut);
    assert!(root.send(Kind::Notice, &[], Instant::now()).is_err());
}

#[test]
fn all_ranks_get_the_table_before_the_notice_of_a_lost_one() {
    let keys = Arc::new(Keys::new(b""));
    let [[mut lost, _gone], [root, mut other]] = [pair(&keys), pair(&keys)];
    until_full(&mut lost);
    let entry = Entry { address: ([127, 0, 0, 1], 9).into(), host: "host".to_owned() };
    let table = Table { session: [7; 16], entries: vec![entry; 3] };
    let until = Instant::now() + LIMIT;
    Star::new(0, vec![None, Some(lost), Some(root)]).send_table(&table, until);
    for expected in [Kind::Table, Kind::Notice] {
        assert_eq!(other.receive(until).unwrap().0, expected);
    }
}

#[test]
fn strangers_that_use_all_files_do_not_end_the_group() {
    test_support::program::in_own_process(
        "bootstrap::tests::strangers_that_use_all_files_do_not_end_the_group",
        || {
            let master = free_address();
            let (settings, keys) = (settings(0, 3, master), Arc::new(Keys::new(b"")));
            let mut root = root(&settings, &keys, LIMIT);
            let _strangers: Vec<_> = (0..32).map(|_| stranger(master)).collect();
            let _link = enter_as(1, master, || {
                // This process may have inherited files, so the numbers after the last stranger's may be in use.
                let spare = [(); 8].map(|()| File::open("/dev/null").unwrap());
                let limit = getrlimit(Resource::Nofile);
                let current = u64::try_from(spare[7].as_raw_fd() + 1).ok();
                drop(spare);
                setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
                root.accept().unwrap();
            });
            root.serve();
            assert!(root.joined[1].is_some());
        },
    );
}

#[test]
fn a_flood_from_one_address_drops_no_rank_of_another() {
    let master = free_address();
    let (settings, keys) = (settings(0, 3, master), Arc::new(Keys::new(b"")));
    let mut root = root(&settings, &keys, LIMIT);
    let mut flood = Vec::new();
    let _link = enter_as(1, master, || {
        root.accept().unwrap();
        for _ in 0..2 * root.most_half_open() {
            let (family, flags) = (AddressFamily::INET, SocketFlags::CLOEXEC);
            let socket = socket_with(family, SocketType::STREAM, flags, None).unwrap();
            bind(&socket, &SocketAddr::from(([127, 9, 9, 9], 0))).unwrap();
            rustix::net::connect(&socket, &master).unwrap();
            flood.push(socket);
            root.accept().unwrap();
        }
    });
    root.serve();
    assert!(root.joined[1].is_some());
}

/// Connects again and again until all ranks have joined. Each connection is wrong in one of several ways.
fn attack(master: SocketAddr, joined: &AtomicBool, attacks: &AtomicUsize, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut open = VecDeque::new();
    while !joined.load(Ordering::Relaxed) {
        // Rank 0 does not listen yet, or no longer.
        let Ok(mut stranger) = TcpStream::connect(master) else { continue };
        let length = rng.usize(..200);
        let garbage: Vec<_> = iter::repeat_with(|| rng.u8(..)).take(length).collect();
        let sent = match rng.u8(..5) {
            0 => Ok(()),
            1 => stranger.write_all(&garbage),
            // Half of a frame.
            2 => {
                let longer = u32::try_from(length).unwrap() + 100;
                let header = header(VERSION, Kind::Join as u8, longer);
                stranger.write_all(&[header, garbage].concat())
            }
            // A rank that does not know the nonce of rank 0.
            3 => {
                let keys = Arc::new(Keys::new(b""));
                let mut link = Link::new(stranger.try_clone().unwrap(), keys, false, 1000).unwrap();
                let entry = Entry { address: master, host: "stranger".to_owned() };
                let join = Join { nonce: [1; 16], rank: 1, world_size: 8, epoch: 0, entry };
                link.send(Kind::Join, &join.to_bytes(), Instant::now())
            }
            _ => stranger.shutdown(std::net::Shutdown::Both),
        };
        // Rank 0 may have dropped the connection.
        drop(sent);
        attacks.fetch_add(1, Ordering::Relaxed);
        open.push_back(stranger);
        if open.len() > 16 {
            open.pop_front();
        }
    }
}

#[test]
fn ranks_join_during_an_attack() {
    let (master, joined, attacks) = (free_address(), AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|threads| {
        for seed in 0..3 {
            let (joined, attacks) = (&joined, &attacks);
            threads.spawn(move || attack(master, joined, attacks, seed));
        }
        let mut ranks = vec![spawn(threads, settings(0, 8, master))];
        while attacks.load(Ordering::Relaxed) < 300 && !ranks[0].is_finished() {
            thread::yield_now();
        }
        ranks.extend((1..8).map(|rank| spawn(threads, settings(rank, 8, master))));
        let tables: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        joined.store(true, Ordering::Relaxed);
        for table in tables {
            let (Table { entries, .. }, _) = table.unwrap();
            assert!(entries.iter().enumerate().all(|(rank, it)| it.host == format!("host{rank}")));
        }
    });
}
