//! Many tasks that lend large memory to tasks of another process, while both processes have too few processors.
//!
//! The queue pairs have no timeout: a task that is not woken by an event of the other process hangs.

use std::env;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use rdma_qp::AckTimeout;
use test_support::program::this_program;
use tokio::task::JoinSet;

use crate::leases::*;

const BORROWER: &str = "RDMA_TEST_BORROWER";
const TASKS: &str = "RDMA_TEST_TASKS";
const ROUNDS: &str = "RDMA_TEST_ROUNDS";
const LENGTH: usize = 1 << 20;
/// The limit only catches a hang.
const TIME: Duration = Duration::from_secs(600);

fn options_without_timeout(host: &Host) -> ConnectionOptions {
    let qp = host.pd.create_qp().access(all()).max_rnr_retries(MaxRnrRetries::unlimited());
    ConnectionOptions::from(qp.ack_timeout(AckTimeout::unlimited()))
}

/// Runs in a runtime of two threads.
fn run_for_long(all: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { timeout(TIME, all).await.expect("a task hangs") });
}

fn number(name: &str) -> Option<usize> {
    env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Twice as many threads as there are cores keep the processors busy.
#[test]
#[ignore = "takes minutes: 64 tasks, 20 rounds (RDMA_TEST_TASKS, RDMA_TEST_ROUNDS)"]
fn each_of_many_tasks_is_woken_on_a_busy_machine() {
    let tasks = number(TASKS).unwrap_or(64);
    let rounds = number(ROUNDS).unwrap_or(20);
    if let Ok(address) = env::var(BORROWER) {
        let address = address.parse().unwrap();
        return run_for_long(async move { borrow(address, tasks, rounds).await });
    }
    let _load = Load::new();
    run_for_long(async move { lend(tasks, rounds).await });
}

/// Each task lends memory to the other process, and then other memory, into which that process writes its answer.
async fn lend(tasks: usize, rounds: usize) {
    let host = Arc::new(Host::new("soft0"));
    let limits = LeaseLimits::new(WRITE).in_total(2 * tasks * LENGTH).longest(TIME);
    let options = options_without_timeout(&host).lease_limits(limits);
    let listener = host.driver.listen("127.0.0.1:0", options).await.unwrap();
    let mut peer = this_program();
    peer.args([
        "leases::crowd::each_of_many_tasks_is_woken_on_a_busy_machine",
        "--exact",
        "--nocapture",
    ]);
    peer.arg("--include-ignored").env(BORROWER, listener.local_addr().to_string());
    peer.env(TASKS, tasks.to_string()).env(ROUNDS, rounds.to_string());
    let mut peer = peer.stdout(Stdio::null()).spawn().unwrap();
    let mut servers = JoinSet::new();
    for _ in 0..tasks {
        let (host, server) = (Arc::clone(&host), listener.accept().await.unwrap());
        servers.spawn(async move {
            let mut longest = Duration::ZERO;
            for round in (0..=u8::MAX).cycle().take(rounds) {
                let begin = Instant::now();
                let mut lent = Region::allocate(&host.pd, LENGTH).unwrap();
                lent.fill(round);
                let lease = server.lend(lent, READ, TIME).await.unwrap();
                assert_eq!(lease.await.unwrap().end, LeaseEnd::Returned);
                let answer = server.receive_region().await.unwrap();
                assert!(answer.len() == LENGTH && answer.iter().all(|byte| *byte == !round));
                longest = longest.max(begin.elapsed());
            }
            // Waits until the other end closes the connection.
            server.receive_imm().await.unwrap_err();
            longest
        });
    }
    let mut longest = Duration::ZERO;
    while let Some(took) = servers.join_next().await {
        longest = longest.max(took.unwrap());
    }
    println!("the longest of {tasks} x {rounds} took {longest:?}");
    assert!(tokio::task::spawn_blocking(move || peer.wait().unwrap()).await.unwrap().success());
}

/// Each task reads the lent memory, and writes the complement into memory that it requests.
async fn borrow(lender: SocketAddr, tasks: usize, rounds: usize) {
    let host = Arc::new(Host::new("soft0"));
    let mut clients = JoinSet::new();
    for _ in 0..tasks {
        let host = Arc::clone(&host);
        clients.spawn(async move {
            let options = options_without_timeout(&host);
            let (client, _) = host.driver.connect(lender, options).await.unwrap();
            for round in (0..=u8::MAX).cycle().take(rounds) {
                let lent = client.receive_lease().await.unwrap();
                let mut bytes = lent.read(host.pool.allocate(LENGTH).unwrap()).await.unwrap();
                assert!(bytes.iter().all(|byte| *byte == round));
                drop(lent);
                bytes.iter_mut().for_each(|byte| *byte = !*byte);
                let answer = client.borrow(LENGTH, WRITE, TIME).await.unwrap();
                answer.write(bytes).await.unwrap();
                answer.hand_over();
            }
            client.disconnect(TIME).await.unwrap();
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
}

/// Threads that spin until this is dropped.
struct Load(Arc<AtomicBool>);

impl Load {
    fn new() -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        for _ in 0..2 * cores {
            let over = Arc::clone(&over);
            std::thread::spawn(move || while !over.load(Relaxed) {});
        }
        Self(over)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
