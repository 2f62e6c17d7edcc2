//! Messages, calls and replies between two processes. Futures are dropped, ends are dropped in the middle, and the
//! client's process is killed and started again.
//!
//! `RDMA_TEST_MESSAGES=10000000` is the long form.

use std::env;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rdma_async::message::{Message, MessageError, Messages, Options};
use rdma_async::{ConnectionOptions, Endpoint};
use rdma_mem::ProtectionDomain;
use rdma_qp::prelude::{CreateCompletionQueue as _, CreateQueuePair as _};
use rdma_soft::{Builder, Limits, Peers};
use test_support::program::{in_own_process, this_program};
use test_support::usage::resident;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::common::HANG;
use crate::common::chance::Chance;
use crate::{all_regions, dropped_after, files, no_tasks, number, warm_up};

/// The environment variable that makes a process the client, with the address to connect to.
const ADDRESS: &str = "RDMA_TEST_SOAK_ADDRESS";
const NAME: &str = "messages::messages_between_processes_leak_nothing";
const DEVICE: &str = "softsoak1";
/// The connections of a client.
const CONNECTIONS: u64 = 4;
/// The tasks of an end that send at the same time.
const LANES: usize = 4;
const LONGEST: u64 = 50_000;
/// The limits of the device.
const REGIONS: u32 = 4_096;
const QUEUE_PAIRS: u32 = 256;
const PINNED: u64 = 1 << 30;
/// The growth of the memory that does not count as a leak. Allocators keep some.
const SPARE: u64 = 48 << 20;

#[test]
fn messages_between_processes_leak_nothing() {
    in_own_process(NAME, || {
        let seed = number("RDMA_TEST_SEED").unwrap_or(1);
        let limits = Limits::default().max_mr(REGIONS).max_qp(QUEUE_PAIRS).memlock(PINNED);
        Builder::new(DEVICE).limits(limits).peers(Peers::SameUser).install().unwrap();
        let pd = rdma_mem::open_device(DEVICE).unwrap().allocate_pd().unwrap();
        warm_up(&pd);
        let before = files();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let endpoint = Endpoint::with_options(&pd, ConnectionOptions::new(&pd)).unwrap();
            match env::var(ADDRESS) {
                Ok(address) => connect_all(&endpoint, &address, seed).await,
                Err(_) => serve(&endpoint, seed).await,
            }
            timeout(HANG, endpoint.driver().clone().shutdown()).await.unwrap();
            timeout(HANG, no_tasks()).await.expect("tasks are left");
            assert_eq!(endpoint.pool().usage().buffers, 0, "memory was not returned");
        });
        drop(runtime);
        assert_eq!(files(), before, "files were not closed");
        assert_nothing_left(&pd);
    });
}

/// Checks that the device has all its regions, memory and queue pairs again.
fn assert_nothing_left(pd: &ProtectionDomain) {
    let pinned = pd.allocate_shared_region(usize::try_from(PINNED).unwrap(), crate::common::all());
    drop(pinned.expect("memory is left registered"));
    assert!(all_regions(pd, REGIONS).is_ok(), "regions are left");
    let cq = pd.context().create_cq(1).unwrap();
    let build = |_| pd.create_qp().send_cq(&cq).recv_cq(&cq).build();
    let queue_pairs: Result<Vec<_>, _> = (0..QUEUE_PAIRS).map(build).collect();
    queue_pairs.expect("queue pairs are left");
}

fn options() -> Options {
    Options::new().eager_bytes(10_000)
}

/// The number of messages that were received or sent.
#[derive(Default)]
struct Count {
    messages: AtomicU64,
    dropped: AtomicU64,
    changed: Notify,
}

impl Count {
    fn add(&self) {
        // Waits compare the number with multiples of this.
        if self.messages.fetch_add(1, Relaxed) % 256 == 255 {
            self.changed.notify_one();
        }
    }

    /// Waits until there are that many.
    async fn reaches(&self, messages: u64) {
        while self.messages.load(Relaxed) < messages {
            self.changed.notified().await;
        }
    }
}

/// Starts a client again and again, and kills all except the last.
async fn serve(endpoint: &Endpoint, seed: u64) {
    let total = number("RDMA_TEST_MESSAGES").unwrap_or(20_000);
    println!("RDMA_TEST_SEED={seed}");
    let listener = endpoint.listen_for_messages("127.0.0.1:0", options()).await.unwrap();
    let address = listener.local_addr().to_string();
    let (mut chance, count) = (Chance(seed), Arc::new(Count::default()));
    let (own, mut sessions) = (Arc::clone(&count), JoinSet::new());
    let endpoint = endpoint.clone();
    let mut accepts = tokio::spawn(async move {
        loop {
            let accepted = listener.accept().await.unwrap();
            let chance = Chance(chance.next());
            sessions.spawn(talk(endpoint.clone(), accepted, chance, Arc::clone(&own)));
            while let Some(ended) = sessions.try_join_next() {
                ended.unwrap();
            }
        }
    });
    let (mut chance, mut clients) = (Chance(!seed), 0_u64);
    let mut resident_before = 0;
    loop {
        clients += 1;
        let mut client = start(&address, clients);
        let done = count.messages.load(Relaxed);
        let target = (done + 256 + chance.below(total / 8)).min(total);
        tokio::select! {
            ended = &mut accepts => panic!("a session has failed: {ended:?}"),
            reached = timeout(30 * HANG, count.reaches(target)) => reached.expect("a hang"),
        }
        if clients == 2 {
            resident_before = resident().unwrap();
        }
        if target == total {
            accepts.abort();
            assert!(accepts.await.unwrap_err().is_cancelled());
            assert!(wait(client).await, "the client has failed");
            break;
        }
        client.kill().unwrap();
        assert!(!wait(client).await);
    }
    let (after, dropped) = (resident().unwrap(), count.dropped.load(Relaxed));
    println!("{total} messages, {dropped} dropped futures, {clients} clients");
    println!("resident: {resident_before} B after the first client, {after} B at the end");
    assert!(after < resident_before + SPARE, "{resident_before} B have become {after}");
}

fn start(address: &str, seed: u64) -> Child {
    let mut client = this_program();
    client.args([NAME, "--exact", "--nocapture"]).env(ADDRESS, address);
    client.env("RDMA_TEST_SEED", seed.to_string()).stdout(Stdio::null()).spawn().unwrap()
}

/// Waits until a client has ended. Returns true if it succeeded.
async fn wait(mut client: Child) -> bool {
    let ended = tokio::task::spawn_blocking(move || client.wait().unwrap());
    timeout(30 * HANG, ended).await.unwrap().unwrap().success()
}

/// Connects again and again, until the server has ended.
async fn connect_all(endpoint: &Endpoint, address: &str, seed: u64) {
    let mut workers = JoinSet::new();
    for worker in 0..CONNECTIONS {
        let (endpoint, address) = (endpoint.clone(), address.to_owned());
        workers.spawn(async move {
            let mut chance = Chance(seed << 8 | worker);
            loop {
                match endpoint.connect_messages(&address, options()).await {
                    Ok(messages) => {
                        talk(endpoint.clone(), messages, Chance(chance.next()), Arc::default())
                            .await;
                    }
                    // A listener that is dropped rejects clients before its socket is closed.
                    Err(error) if std::net::TcpStream::connect(&address).is_ok() => {
                        println!("{error}");
                    }
                    Err(_) => return,
                }
            }
        });
    }
    while let Some(ended) = workers.join_next().await {
        ended.unwrap();
    }
}

/// Runs one end of a connection until it ends.
async fn talk(endpoint: Endpoint, messages: Messages, mut chance: Chance, count: Arc<Count>) {
    let lanes: [Chance; LANES] = std::array::from_fn(|_| Chance(chance.next()));
    let (messages, most) = (Arc::new(messages), 1 + chance.below(4_000));
    let mut tasks = JoinSet::new();
    for (lane, chance) in lanes.into_iter().enumerate() {
        let (number, count) = ((lane as u64) << 56, Arc::clone(&count));
        let lane = Lane { number, chance, count, endpoint: endpoint.clone() };
        tasks.spawn(lane.send_all(Arc::clone(&messages), most));
    }
    let sends = async {
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
    };
    let receives = receive_all(&messages, &count);
    let ended = async {
        match chance.below(4) {
            // Drops the end while the peer sends.
            0 => tokio::select! { () = sends => {}, () = receives => {} },
            1 => {
                let polls = Some(chance.below(10_000));
                let both = async { tokio::join!(sends, receives) };
                dropped_after(polls, both).await;
            }
            _ => {
                let sends = async {
                    sends.await;
                    // The connection may have failed.
                    let _ = messages.finish().await;
                };
                tokio::join!(sends, receives);
            }
        }
    };
    timeout(30 * HANG, ended).await.expect("the end of a connection");
}

/// A task that sends.
struct Lane {
    /// The number of its last message. The lane is in the highest byte.
    number: u64,
    chance: Chance,
    count: Arc<Count>,
    endpoint: Endpoint,
}

impl Lane {
    /// Sends at most that many messages and calls.
    async fn send_all(mut self, messages: Arc<Messages>, most: u64) {
        for _ in 0..most {
            self.number += 1;
            let polls = (self.chance.below(16) == 0).then(|| self.chance.below(4));
            let (way, bytes) = (self.chance.below(16), self.bytes());
            let ended = dropped_after(polls, self.send(&messages, way, &bytes));
            match ended.await {
                Some(Ok(())) => self.count.add(),
                Some(Err(_)) => return,
                None => _ = self.count.dropped.fetch_add(1, Relaxed),
            }
        }
    }

    /// Sends a message, or calls. `way`, which is less than 16, selects the method.
    async fn send(&self, messages: &Messages, way: u64, bytes: &[u8]) -> Result<(), MessageError> {
        match way {
            0..4 => {
                let reply = messages.call(bytes).await?;
                assert!(*reply == *bytes, "a wrong reply");
                self.count.add();
                Ok(())
            }
            4..8 => messages.post(bytes).await,
            8 => {
                messages.post(bytes).await?;
                messages.flush().await
            }
            9 => {
                let mut buffer = self.endpoint.allocate(bytes.len()).await.unwrap();
                buffer.copy_from_slice(bytes);
                messages.send_buffer(buffer).await
            }
            _ => messages.send(bytes).await,
        }
    }

    fn bytes(&mut self) -> Vec<u8> {
        let words = match self.chance.below(40) {
            0 => self.chance.below(LONGEST / 8),
            1..4 => self.chance.below(1_000),
            _ => self.chance.below(25),
        };
        self.number.to_le_bytes().repeat(1 + usize::try_from(words).unwrap())
    }
}

/// Receives until the end, and replies to requests. The messages of each lane arrive in order and complete.
async fn receive_all(messages: &Messages, count: &Count) {
    let (mut last, mut replies) = ([0; LANES], JoinSet::<Result<(), MessageError>>::new());
    while let Ok(Some(message)) = messages.receive().await {
        let number = number_of(&message);
        let last = &mut last[usize::try_from(number >> 56).unwrap()];
        assert!(number > *last, "{number} arrives after {last}");
        *last = number;
        count.add();
        if message.is_request() {
            replies.spawn(async move {
                let bytes = message.to_vec();
                message.reply(&bytes).await
            });
        }
        while replies.try_join_next().is_some() {}
    }
}

fn number_of(message: &Message) -> u64 {
    let (first, rest) = message.split_first_chunk().expect("no message is shorter");
    let is_whole = rest.chunks(8).all(|word| word == first);
    assert!(is_whole, "a message of {} B has wrong bytes", message.len());
    u64::from_le_bytes(*first)
}
