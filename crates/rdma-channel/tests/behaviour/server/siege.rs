//! A server in its own process, under attack by hostile clients while honest clients use it. The time limits only catch
//! hangs.

use std::collections::{BTreeSet, HashSet};
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use rdma_channel::{Channel, Recovery, Server, ServerEvent, Wait, prelude::*};
use rdma_mem::{GatherList, ScatterList};
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};
use test_support::crowd::{ELSEWHERE, allow_files, crowd};
use test_support::program::this_program;
use test_support::usage;

use crate::server::{LATER, domain, server};

const CHILD: &str = "RDMA_CHANNEL_BESIEGED";
const CROWD: usize = 300;
/// No iteration of the server takes this long, on any machine.
const HANGS: Duration = Duration::from_secs(30);
/// Queue pair numbers per slot of the software device. After these, a process draws another slot.
const SLOT: u32 = 4096;
/// The most that the server may use in addition. It keeps up to 256 half-open clients; AddressSanitizer keeps up to
/// 256 MiB of freed memory.
const FILES: usize = 300;
const MEMORY: u64 = 320 << 20;

/// The figures that the server reports.
#[derive(Clone, Copy, Debug)]
struct Figures {
    /// In microseconds, of the turns since the last time.
    longest: u64,
    memory: u64,
}

const BYTES: usize = size_of::<[u64; 2]>();

impl Figures {
    fn own(longest: Duration) -> [u64; 2] {
        [u64::try_from(longest.as_micros()).unwrap(), usage::resident().unwrap()]
    }

    fn of(bytes: &[u8]) -> Self {
        let (words, _) = bytes.as_chunks();
        let [longest, memory] = [0, 1].map(|at| u64::from_le_bytes(words[at]));
        Self { longest, memory }
    }
}

/// Answers each message with its figures, until one ends the server.
fn serve() {
    allow_files(2_000);
    let mut server = server("soft0");
    println!("\nat {}", server.local_addr());
    let mut longest = Duration::ZERO;
    loop {
        // Only work that can be done at once is measured, not waiting for it.
        let begin = Instant::now();
        let event = server.next(Some(Duration::ZERO)).unwrap();
        longest = longest.max(begin.elapsed());
        let event = event.or_else(|| server.next(Some(HANGS)).unwrap());
        if !answer(&mut server, event, &mut longest) {
            return;
        }
    }
}

fn answer(server: &mut Server, event: Option<ServerEvent>, longest: &mut Duration) -> bool {
    if let Some(ServerEvent::Message { peer, buffer, length, .. }) = event {
        if length > 0 && buffer[..length] == *b"end" {
            return false;
        }
        let figures = Figures::own(std::mem::take(longest)).map(u64::to_le_bytes);
        // If the client has left meanwhile, the next event reports that.
        let _ = server.send_inline(peer, figures.as_flattened());
    }
    true
}

/// Connects a client, which retries as long as its error recommends it.
fn client(to: SocketAddr) -> Channel {
    let begin = Instant::now();
    loop {
        let pd = domain("soft0");
        let builder = pd.create_channel().wait(Wait::Sleep).rendezvous_timeout(LATER);
        match builder.connect(to) {
            Ok((channel, _)) => return channel,
            Err(error) => assert_eq!(error.recovery(), Recovery::Retry, "{error}"),
        }
        assert!(begin.elapsed() < LATER, "it never gets room");
    }
}

fn ask(channel: &mut Channel) -> Figures {
    let pd = channel.pd().clone();
    let (question, mut figures) =
        (pd.allocate_region(1).unwrap(), pd.allocate_region(BYTES).unwrap());
    let list = GatherList::from([question.as_slice()]);
    let mut room = ScatterList::from([figures.as_slice_mut()]);
    let send = SendWorkRequest::from_list(&list);
    channel.exchange(send, ReceiveWorkRequest::from_list(&mut room)).unwrap();
    Figures::of(&figures)
}

/// The bytes that hostile clients send before they fall silent.
fn words() -> Vec<(&'static str, Vec<u8>)> {
    let endpoint = domain("soft0").create_channel().build().unwrap().endpoint().to_bytes();
    let hello = [b"RDRV\0\x02\0\x01\0\0".as_slice(), &endpoint].concat();
    vec![
        ("nothing", Vec::new()),
        ("part of a word", b"RDRV".to_vec()),
        ("half a message", hello[..100].to_vec()),
        ("another protocol", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        ("zeros", vec![0; 1 << 16]),
        ("more than it has", b"RDRV\0\x07\0\x01\xff\xff".to_vec()),
        ("hello without an end", hello.clone()),
        ("garbage for an endpoint", [&hello[..10], &[0xa5; 400]].concat()),
    ]
}

/// Sends a byte at a time on several connections, and reconnects where one has ended.
fn drip(to: SocketAddr, says: &[u8], stop: &AtomicBool) {
    let mut slow: [Option<(TcpStream, usize)>; 40] = [const { None }; 40];
    while !stop.load(Relaxed) {
        for client in &mut slow {
            *client = match client.take() {
                Some((mut stream, said)) => {
                    let byte = &says[said % says.len()..][..1];
                    stream.write_all(byte).is_ok().then_some((stream, said + 1))
                }
                None => TcpStream::connect(to).ok().map(|stream| (stream, 0)),
            };
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// The server's process, which does not outlive the test.
struct Process(Child);

impl Process {
    /// Returns the open files, except sockets of the software device. The device connects to each slot of another
    /// process, and keeps the connection until that process ends.
    fn files(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(format!("/proc/{}/fd", self.0.id())).unwrap();
        // A file may be closed after it was listed.
        let named = |path: PathBuf| Some((fs::read_link(&path).ok()?.display().to_string(), path));
        let files: Vec<_> = entries.flatten().filter_map(|entry| named(entry.path())).collect();
        let sockets = fs::read_to_string("/proc/net/unix").unwrap();
        let sockets = sockets.lines().filter_map(|line| line.split_whitespace().nth(6));
        let sockets: HashSet<_> = sockets.map(|inode| format!("socket:[{inode}]")).collect();
        let others = files.iter().filter(|(name, _)| !sockets.contains(name));
        others.map(|(name, path)| format!("{}: {name}", path.display())).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Makes a thread stop, even if the test has failed.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn a_server_works_among_hostile_clients() {
    if env::var_os(CHILD).is_some() {
        return serve();
    }
    allow_files(2_000);
    let mut program = this_program();
    let test = "server::siege::a_server_works_among_hostile_clients";
    program.args(["--exact", test, "--nocapture"]).env(CHILD, "1").stdout(Stdio::piped());
    let mut process = Process(program.spawn().unwrap());
    let mut lines = BufReader::new(process.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    let to = lines.find_map(|line| line.strip_prefix("at ").map(str::to_owned)).unwrap();
    let to: SocketAddr = to.parse().unwrap();
    let mut stays = client(to);
    drop(client(to));
    let (before, files) = (ask(&mut stays), process.files());
    // Later clients have queue pair numbers of another slot.
    let pd = domain("soft0");
    let cq = pd.context().create_cq(1).unwrap();
    (0..SLOT).for_each(|_| drop(pd.create_qp().send_cq(&cq).recv_cq(&cq).build().unwrap()));
    let (words, stop) = (words(), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| drip(to, &words[6].1, &stop));
        let _stop = Stop(&stop);
        let mut kept = Vec::new();
        for (what, says) in &words {
            for from in [Ipv4Addr::LOCALHOST, ELSEWHERE] {
                kept.push(crowd(from, to, CROWD, says));
                let begin = Instant::now();
                ask(&mut client(to));
                let honest = begin.elapsed();
                let figures = (0..20).map(|_| ask(&mut stays));
                let figures = figures.max_by_key(|figures| figures.longest).unwrap();
                let longest = figures.longest;
                let more = process.files().len().saturating_sub(files.len());
                let memory = figures.memory.saturating_sub(before.memory);
                println!(
                    "{what} from {from}: longest turn {longest} us, {more} files and {memory} bytes \
                     more; another client served in {honest:?}"
                );
                assert!(u128::from(longest) < HANGS.as_micros(), "{figures:?}");
                assert!(more <= FILES && memory <= MEMORY, "{figures:?} after {before:?}");
            }
            kept.truncate(2);
        }
    });
    let begin = Instant::now();
    loop {
        ask(&mut stays);
        let left = &process.files() - &files;
        if left.is_empty() {
            break;
        }
        assert!(begin.elapsed() < LATER, "the server keeps {left:?}");
    }
    stays.send_inline(b"end").unwrap();
    assert!(process.0.wait().unwrap().success());
}
