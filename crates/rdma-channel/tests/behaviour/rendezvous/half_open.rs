//! Half-open clients, and honest ones next to them.

use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use rdma_channel::{Channel, ChannelListener, ConnectError, Recovery, Wait, prelude::*};
use rdma_soft::{Builder, Limits};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use test_support::crowd::{ELSEWHERE, allow_files, crowd, is_kept, last_words};
use test_support::program::{in_own_process, this_program};

use crate::rendezvous::{
    ENDPOINT, LATER, LOCALHOST, PREFACE, READY, SOON, WITH_ENDPOINT, assert_connected,
    assert_serves, await_refused, domain, hello, preface,
};

/// More clients than a listener keeps at a time.
const CROWD: usize = 300;
/// The maximum that it keeps.
const KEPT: usize = 256;
const BUSY: u16 = 6;

/// A listener whose clients may take any time: they are dropped only to make room.
fn endless(device: &str) -> ChannelListener {
    let pd = domain(device);
    pd.create_channel().rendezvous_timeout(Duration::MAX).listen(LOCALHOST).unwrap()
}

/// The reason that a client received when it had to make room.
fn told(client: &TcpStream) -> String {
    let said = last_words(client);
    let said = if said.starts_with(&preface(ENDPOINT, 0)) { &said[WITH_ENDPOINT..] } else { &said };
    let why = String::from_utf8(said[PREFACE..].to_vec()).unwrap();
    assert_eq!(said[..PREFACE], preface(BUSY, why.len()), "{why}");
    why
}

fn assert_serves_beside(from: Ipv4Addr, says: &[u8]) {
    allow_files(2_000);
    let mut listener = endless("soft0");
    let crowd = crowd(from, listener.local_addr(), CROWD, says);
    assert_serves(&mut listener, "soft0");
    let dropped = assert_dropped(&listener, CROWD, KEPT);
    assert_eq!(listener.refused(), dropped as u64);
    assert_eq!(crowd.iter().filter(|client| is_kept(client)).count(), CROWD - dropped);
    // The oldest client has been dropped.
    let why = told(&crowd[0]);
    assert!(why.contains("make room for others") && why.contains("connect again"), "{why}");
    assert!(listener.last_refused().unwrap().contains(&from.to_string()));
}

/// Checks that as many were dropped as had no room. The honest client was half-open, too, but maybe not when the last
/// ones connected.
fn assert_dropped(listener: &ChannelListener, crowd: usize, kept: usize) -> usize {
    let dropped = usize::try_from(listener.dropped_half_open()).unwrap();
    assert!((crowd - kept..=crowd - kept + 1).contains(&dropped), "{dropped}");
    dropped
}

#[test]
fn silent_clients_of_one_address_do_not_block_another_address() {
    assert_serves_beside(ELSEWHERE, b"");
}

#[test]
fn silent_clients_do_not_block_others_of_their_address() {
    assert_serves_beside(Ipv4Addr::LOCALHOST, b"");
}

#[test]
fn clients_that_stop_in_the_middle_of_a_message_block_no_other() {
    assert_serves_beside(Ipv4Addr::LOCALHOST, b"RDRV");
    assert_serves_beside(ELSEWHERE, &hello(b"")[..100]);
}

/// The address with the most clients makes room, even though its clients are newer.
#[test]
fn a_crowd_of_one_address_costs_a_slow_client_of_another_nothing() {
    allow_files(2_000);
    let mut listener = endless("soft0");
    let address = listener.local_addr();
    let mut slow = TcpStream::connect(address).unwrap();
    let _crowd = crowd(ELSEWHERE, address, CROWD, b"");
    assert_serves(&mut listener, "soft0");
    assert_dropped(&listener, CROWD + 1, KEPT);
    slow.write_all(&hello(b"slow")).unwrap();
    let slow = thread::spawn(move || by_hand(slow));
    assert_eq!(listener.incoming(Some(LATER)).unwrap().user_bytes(), b"slow");
    slow.join().unwrap();
}

/// Sends the rest of a client's messages after its HELLO.
fn by_hand(mut stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(LATER)).unwrap();
    stream.read_exact(&mut [0; WITH_ENDPOINT]).unwrap();
    stream.write_all(&preface(READY, 0)).unwrap();
    stream
}

/// The client takes more time than allowed for the first byte, and more than for any other one.
#[test]
fn a_slow_client_of_an_idle_listener_has_all_of_its_time() {
    let mut listener = endless("soft0");
    let mut slow = TcpStream::connect(listener.local_addr()).unwrap();
    let pause = Duration::from_millis(1_100);
    let slow = thread::spawn(move || {
        let message = hello(b"slow");
        for part in [&message[..4], &message[4..]] {
            // The test is about the time in which nothing arrives.
            thread::sleep(pause);
            slow.write_all(part).unwrap();
        }
        slow.read_exact(&mut [0; WITH_ENDPOINT]).unwrap();
        thread::sleep(pause);
        slow.write_all(&preface(READY, 0)).unwrap();
        slow
    });
    assert_eq!(listener.incoming(Some(LATER)).unwrap().user_bytes(), b"slow");
    assert_eq!(listener.dropped_half_open(), 0);
    slow.join().unwrap();
}

/// The program was busy while the clients sent their HELLO.
#[test]
fn clients_that_have_sent_what_the_listener_has_not_read_are_not_late() {
    allow_files(3_000);
    let pd = domain("soft0");
    let builder = pd.create_channel().wait(Wait::Spin).rendezvous_timeout(Duration::MAX);
    let mut listener = builder.listen(LOCALHOST).unwrap();
    let address = listener.local_addr();
    let serve = |listener: &mut ChannelListener| {
        let outcome = listener.incoming(Some(Duration::from_millis(1)));
        assert!(matches!(outcome, Err(ConnectError::Timeout { .. })), "{outcome:?}");
    };
    let clients = crowd(Ipv4Addr::LOCALHOST, address, KEPT, b"");
    let begun = format!(" {KEPT} clients that have begun");
    while !format!("{listener:?}").contains(&begun) {
        serve(&mut listener);
    }
    let says = hello(b"");
    for mut client in &clients {
        client.write_all(&says).unwrap();
    }
    // Longer than the time allowed for the first byte; nothing is read meanwhile.
    thread::sleep(Duration::from_millis(1_100));
    let _others = crowd(Ipv4Addr::LOCALHOST, address, 10, b"");
    while clients.iter().any(is_kept) {
        serve(&mut listener);
    }
    for mut client in clients {
        let mut first = [0; PREFACE];
        client.read_exact(&mut first).unwrap();
        assert_eq!(first, *preface(ENDPOINT, 0));
    }
}

/// They have sent a valid HELLO, and keep their queue pairs.
#[test]
fn clients_that_keep_queue_pairs_make_room_for_a_client_of_another_address() {
    const FEW: &str = "softhalfopen0";
    const QUEUE_PAIRS: usize = 4;
    rdma_soft::install();
    let few =
        Builder::new(FEW).limits(Limits::default().max_qp(u32::try_from(QUEUE_PAIRS).unwrap()));
    few.install().unwrap();
    let mut listener = endless(FEW);
    let crowd = crowd(ELSEWHERE, listener.local_addr(), QUEUE_PAIRS, &hello(b""));
    let mut answered = 0;
    while answered < QUEUE_PAIRS {
        let outcome = listener.incoming(Some(Duration::from_millis(1)));
        assert!(matches!(outcome, Err(ConnectError::Timeout { .. })), "{outcome:?}");
        answered = crowd.iter().filter(|client| !is_kept(client)).count();
    }
    assert_serves(&mut listener, "soft0");
    assert_eq!(listener.dropped_half_open(), 1);
    let last = listener.last_refused().unwrap();
    assert!(
        last.contains(&ELSEWHERE.to_string()) && last.contains("make room for others"),
        "{last}"
    );
}

/// A client of the same address may have to retry until they are late.
#[test]
fn clients_that_keep_queue_pairs_make_room_for_a_client_that_retries() {
    const FEWER: &str = "softhalfopen1";
    rdma_soft::install();
    Builder::new(FEWER).limits(Limits::default().max_qp(2)).install().unwrap();
    let mut listener = endless(FEWER);
    let address = listener.local_addr();
    let _crowd = crowd(Ipv4Addr::LOCALHOST, address, 2, &hello(b""));
    let client = thread::spawn(move || {
        let begin = Instant::now();
        loop {
            match Channel::connect(address, &domain("soft0")) {
                Ok(channel) => return channel,
                Err(error) => assert_eq!(error.recovery(), Recovery::Retry, "{error}"),
            }
            assert!(begin.elapsed() < LATER);
            thread::yield_now();
        }
    });
    let mut server = loop {
        match listener.incoming(Some(LATER)) {
            Ok(incoming) => break incoming.accept(b"").unwrap(),
            Err(ConnectError::Verbs(_)) => {}
            Err(other) => panic!("{other}"),
        }
    };
    assert_connected(&mut server, &mut client.join().unwrap());
    assert!(listener.dropped_half_open() >= 1);
}

#[test]
fn a_client_that_is_too_slow_is_counted() {
    let pd = domain("soft0");
    let mut listener = pd.create_channel().rendezvous_timeout(SOON).listen(LOCALHOST).unwrap();
    let garbage = crowd(ELSEWHERE, listener.local_addr(), 1, b"GET /");
    await_refused(&mut listener, 1);
    let slow = crowd(ELSEWHERE, listener.local_addr(), 1, b"RDRV");
    await_refused(&mut listener, 2);
    assert_eq!(listener.dropped_half_open(), 1);
    drop((garbage, slow));
}

/// Opens files until the limit is reached.
fn take_all_files() -> Vec<File> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(200), maximum }).unwrap();
    (0..).map_while(|_| File::open("/dev/null").ok()).collect()
}

#[test]
fn without_files_a_listener_fails_once_a_second() {
    in_own_process("rendezvous::half_open::without_files_a_listener_fails_once_a_second", || {
        let mut listener = crate::rendezvous::listener("soft0");
        let waits = TcpStream::connect(listener.local_addr()).unwrap();
        let files = take_all_files();
        let begin = Instant::now();
        for _ in 0..3 {
            let error = listener.incoming(Some(LATER)).unwrap_err();
            assert!(matches!(error, ConnectError::Io { .. }), "{error:?}");
        }
        assert!(begin.elapsed() >= Duration::from_secs(2), "it was busy with the same error");
        drop(files);
        drop(waits);
        assert_serves(&mut listener, "soft0");
    });
}

#[test]
fn without_files_a_late_client_loses_its_file_to_the_next_one() {
    in_own_process(
        "rendezvous::half_open::without_files_a_late_client_loses_its_file_to_the_next_one",
        || {
            let pd = domain("soft0");
            let builder = pd.create_channel().wait(Wait::Spin).rendezvous_timeout(Duration::MAX);
            let mut listener = builder.listen(LOCALHOST).unwrap();
            let address = listener.local_addr();
            let silent = TcpStream::connect(address).unwrap();
            let mut honest = TcpStream::connect(address).unwrap();
            honest.write_all(&hello(b"honest")).unwrap();
            let mut files = take_all_files();
            // One file for the silent client.
            files.pop();
            let honest = thread::spawn(move || by_hand(honest));
            let begin = Instant::now();
            let incoming = loop {
                match listener.incoming(Some(LATER)) {
                    Ok(incoming) => break incoming,
                    Err(error) => assert!(error.to_string().contains("ulimit -n"), "{error}"),
                }
                assert!(begin.elapsed() < LATER, "the silent client keeps its file");
            };
            assert_eq!(incoming.user_bytes(), b"honest");
            drop(incoming);
            assert_eq!(listener.dropped_half_open(), 1);
            told(&silent);
            honest.join().unwrap();
        },
    );
}

/// Environment variable of the server of the next test.
const CHILD: &str = "RDMA_CHANNEL_HALF_OPEN";
const FILES: u64 = 100;

/// The clients are in another process, with its own files.
#[test]
fn half_open_clients_leave_the_program_most_of_its_files() {
    if env::var_os(CHILD).is_some() {
        return serve_with_few_files();
    }
    allow_files(2_000);
    let mut program = this_program();
    let test = "rendezvous::half_open::half_open_clients_leave_the_program_most_of_its_files";
    program.args(["--exact", test, "--nocapture"]).env(CHILD, "1").stdout(Stdio::piped());
    let mut server = program.spawn().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines().map_while(Result::ok);
    let address = lines.find_map(|line| line.strip_prefix("at ").map(str::to_owned)).unwrap();
    let address: SocketAddr = address.parse().unwrap();
    let crowd = crowd(ELSEWHERE, address, CROWD, b"");
    let channel = Channel::connect(address, &domain("soft0")).unwrap();
    let open = lines.find_map(|line| line.strip_prefix("open ").map(str::to_owned)).unwrap();
    let open: u64 = open.parse().unwrap();
    assert!(open < FILES * 3 / 4, "{open} of {FILES} files are open");
    drop((channel, crowd));
    assert!(server.wait().unwrap().success());
}

fn serve_with_few_files() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(FILES), maximum }).unwrap();
    let mut listener = endless("soft0");
    println!("\nat {}", listener.local_addr());
    let incoming = listener.incoming(Some(LATER)).unwrap();
    let channel = incoming.accept(b"").unwrap();
    println!("open {}", fs::read_dir("/proc/self/fd").unwrap().count());
    assert_dropped(&listener, CROWD, usize::try_from(FILES / 4).unwrap());
    drop(channel);
}

/// Two listeners that accept no client: one with a full backlog, and one with room in it.
#[test]
fn a_client_without_an_answer_fails_with_a_hint_at_a_full_backlog() {
    let socket = TcpListener::bind(LOCALHOST).unwrap();
    let address = socket.local_addr().unwrap();
    let connect = || {
        let pd = domain("soft0");
        let builder = pd.create_channel().rendezvous_timeout(SOON);
        builder.connect(address).unwrap_err()
    };
    // This process may itself be too late.
    let mut said = std::iter::repeat_with(|| connect().to_string());
    let in_the_backlog =
        said.find(|said| !said.contains("waiting for the TCP connection")).unwrap();
    assert!(in_the_backlog.contains("waiting for the answer from the server"), "{in_the_backlog}");
    assert!(in_the_backlog.contains("backlog"), "{in_the_backlog}");

    // The client that has gone fills the backlog.
    rustix::net::listen(&socket, 0).unwrap();
    let outside = connect().to_string();
    assert!(outside.contains("waiting for the TCP connection to"), "{outside}");
    assert!(outside.contains("firewall") && outside.contains("backlog is full"), "{outside}");
}
