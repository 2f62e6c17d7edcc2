//! Cases for asynchronous connections: memory is returned whatever the outcome, no message is lost,
//! and each end learns the other's state.

use std::future::Future;
use std::time::Duration;

use rdma_async::{
    CloseReason, Connection, ConnectionOptions, Driver, LeaseLimits, Region, ReserveError,
    TransportError,
};
use rdma_mem::{AccessFlags, AtomicCapability, Buffer, BufferPool, ProtectionDomain, SharedRegion};
use rdma_qp::prelude::*;
use rdma_qp::{MaxRnrRetries, WorkErrorCode};

use crate::case::cases;
use crate::device::Device;

cases![
    each_operation_gives_its_memory_back,
    tasks_that_sleep_are_woken,
    more_operations_than_slots_wait_for_their_turn,
    a_message_for_a_dropped_receive_is_kept,
    a_refused_write_ends_the_connection_and_memory_comes_back,
    both_ends_go_on_with_another_queue_pair,
    a_further_connection_has_rights_of_its_own,
    what_was_sent_before_a_graceful_end_has_come,
    a_peer_that_goes_ends_what_waits_for_it,
    a_driver_that_ends_gives_all_memory_back,
    memory_is_open_until_the_function_ends_and_not_behind_that,
    memory_is_open_to_one_peer_until_the_function_ends_and_again_later,
];

/// The limit for all waits; only a hanging case reaches it.
pub(super) const BOUND: Duration = Duration::from_secs(60);

/// Both ends of a connection, in one process.
pub(super) struct Ends {
    pub(super) pd: ProtectionDomain,
    pool: BufferPool,
    driver: Driver,
    pub(super) client: Connection,
    pub(super) server: Connection,
}

/// Returns all rights that the device can grant to peers.
fn all_rights(pd: &ProtectionDomain) -> AccessFlags {
    let rights = AccessFlags::new().with_remote_read().with_remote_write();
    match pd.context().query_device().unwrap().atomic_capability {
        AtomicCapability::NONE => rights,
        _ => rights.with_remote_atomic(),
    }
}

impl Ends {
    async fn connect(device: &str) -> Self {
        let pd = rdma_mem::open_device(device).unwrap().allocate_pd().unwrap();
        let driver = Driver::spawn(pd.context()).unwrap();
        let rights = all_rights(&pd);
        let qp = pd.create_qp().access(rights).max_rnr_retries(MaxRnrRetries::unlimited());
        let options = ConnectionOptions::from(qp);
        let options = options.rendezvous_timeout(BOUND).lease_limits(LeaseLimits::new(rights));
        let listener = driver.listen("127.0.0.1:0", options.clone()).await.unwrap();
        let (client, server) =
            tokio::join!(driver.connect(listener.local_addr(), options), listener.accept());
        let pool = BufferPool::new(&pd);
        Self { pd, pool, driver, client: client.unwrap().0, server: server.unwrap() }
    }

    pub(super) fn buffer(&self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.pool.allocate(bytes.len()).unwrap();
        buffer.copy_from_slice(bytes);
        buffer
    }

    pub(super) fn room(&self) -> Buffer {
        self.pool.allocate(64).unwrap()
    }

    fn board(&self, access: AccessFlags) -> SharedRegion {
        self.pd.allocate_shared_region(64, access.with_local_write()).unwrap()
    }

    pub(super) async fn talk(&self) {
        let receive = self.server.receive(self.room()).post().await.unwrap();
        self.client.send(self.buffer(b"a word")).await.unwrap();
        let received = receive.await.unwrap();
        assert_eq!(received.memory[..received.length], *b"a word");
    }
}

/// Runs the test in both kinds of runtime.
pub(super) fn run<F>(device: &Device, test: impl Fn(Ends) -> F + Copy + Send + Sync + 'static)
where
    F: Future<Output = ()> + Send + 'static,
{
    let whole = move |device: String| async move { test(Ends::connect(&device).await).await };
    let device = device.to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let test_here = whole(device.clone());
    runtime.block_on(async { tokio::time::timeout(BOUND, test_here).await.unwrap() });
    drop(runtime);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    let spawned = runtime.spawn(whole(device));
    runtime.block_on(async { tokio::time::timeout(BOUND, spawned).await.unwrap().unwrap() });
}

fn is_closed(error: &TransportError, why: CloseReason) -> bool {
    matches!(error, TransportError::Closed { reason, .. } if *reason == why)
}

/// Returns true if the peer's device has refused the access.
pub(super) fn is_refused(error: &TransportError) -> bool {
    // The peer may detect and report the refusal before the device here does.
    let is_remote_access = matches!(error, TransportError::WorkError(error)
        if error.code() == WorkErrorCode::RemoteAccessError);
    is_remote_access || is_closed(error, CloseReason::PeerFailed)
}

fn each_operation_gives_its_memory_back(device: &Device) {
    let has_atomics = device.has_atomics();
    run(device, move |ends| async move {
        let Ends { client, server, .. } = &ends;
        let board = ends.board(all_rights(&ends.pd));
        let remote = board.remote().slice(0..8).unwrap();
        let word = client.write(ends.buffer(b"the word"), remote).await.unwrap();
        assert_eq!(*word, *b"the word");
        let read = client.read(ends.pool.allocate(8).unwrap(), remote).await.unwrap();
        assert_eq!(*read, *b"the word");
        let told = server.receive_imm().post().await.unwrap();
        client.write_with_imm(word, remote, 7).await.unwrap();
        assert_eq!(told.await.unwrap(), Some(7));
        if has_atomics {
            let before = u64::from_ne_bytes(*b"the word");
            assert_eq!(client.fetch_add(remote, 1).await.unwrap(), before);
            assert_eq!(client.compare_and_swap(remote, before + 1, 5).await.unwrap(), before + 1);
            assert_eq!(board.atomic_u64(0).unwrap().load(std::sync::atomic::Ordering::Relaxed), 5);
        }
        let receive = server.receive(ends.room()).post().await.unwrap();
        let sent = client.send_with_imm(ends.buffer(b"and more"), 9).await.unwrap();
        let received = receive.await.unwrap();
        assert_eq!((received.length, received.immediate), (8, Some(9)));
        assert_eq!(received.memory[..8], *sent);
    });
}

fn tasks_that_sleep_are_woken(device: &Device) {
    run(device, |ends| async move {
        let (server, pool) = (ends.server.clone(), ends.pool.clone());
        let echo = tokio::spawn(async move {
            for _ in 0..50 {
                let received = server.receive(pool.allocate(64).unwrap()).await.unwrap();
                server.send(received.memory).await.unwrap();
            }
        });
        for _ in 0..50 {
            let answer = ends.client.receive(ends.room()).post().await.unwrap();
            ends.client.send(ends.room()).await.unwrap();
            assert_eq!(answer.await.unwrap().length, 64);
        }
        echo.await.unwrap();
    });
}

fn more_operations_than_slots_wait_for_their_turn(device: &Device) {
    run(device, |ends| async move {
        let board = ends.board(AccessFlags::new().with_remote_write());
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..64_u8 {
            let (client, buffer) = (ends.client.clone(), ends.buffer(&[number]));
            let at = usize::from(number);
            let to = board.remote().slice(at..at + 1).unwrap();
            tasks.spawn(async move { client.write(buffer, to).await.map(|buffer| buffer[0]) });
        }
        let mut sum = 0;
        while let Some(done) = tasks.join_next().await {
            sum += u32::from(done.unwrap().unwrap());
        }
        assert_eq!(sum, 63 * 32);
        let mut bytes = [0; 64];
        board.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().zip(0..).all(|(&byte, number)| byte == number));
    });
}

fn a_message_for_a_dropped_receive_is_kept(device: &Device) {
    run(device, |ends| async move {
        drop(ends.server.receive(ends.room()).post().await.unwrap());
        let behind = ends.server.receive(ends.room()).post().await.unwrap();
        for word in [b"first", b"other"] {
            ends.client.send(ends.buffer(word)).await.unwrap();
        }
        assert_eq!(behind.await.unwrap().memory[..5], *b"other");
        let kept = ends.server.take_unclaimed().unwrap();
        assert_eq!(kept.memory.unwrap()[..5], *b"first");
        assert!(ends.server.take_unclaimed().is_none());
    });
}

fn a_refused_write_ends_the_connection_and_memory_comes_back(device: &Device) {
    run(device, |ends| async move {
        let waits = ends.server.receive(ends.room()).post().await.unwrap();
        let board = ends.board(AccessFlags::new().with_remote_read());
        let failed = ends.client.write(ends.buffer(b"x"), board.remote()).await.unwrap_err();
        assert!(is_refused(&failed.error), "{failed}");
        assert_eq!(**failed.memory.as_ref().unwrap(), *b"x");
        let failed = ends.client.send(failed.memory.unwrap()).await.unwrap_err();
        assert_eq!(**failed.memory.as_ref().unwrap(), *b"x");
        assert_eq!(waits.await.unwrap_err().memory.unwrap().len(), 64);
        assert!(ends.client.closed().is_some() && ends.server.closed().is_some());
    });
}

fn both_ends_go_on_with_another_queue_pair(device: &Device) {
    run(device, |ends| async move {
        for epoch in 1..3 {
            let lost = ends.server.receive(ends.room()).post().await.unwrap();
            let (one, other) = tokio::join!(ends.client.reconnect(), ends.server.reconnect());
            assert_eq!((one.unwrap(), other.unwrap()), (epoch, epoch));
            assert_eq!(lost.await.unwrap_err().memory.unwrap().len(), 64);
            ends.talk().await;
        }
    });
}

fn a_further_connection_has_rights_of_its_own(device: &Device) {
    run(device, |ends| async move {
        let own = ends.pd.context().allocate_pd().unwrap();
        let rights = AccessFlags::new().with_remote_read();
        let (one, other) = tokio::join!(
            ends.client.connect_additional(1, ends.pd.create_qp()),
            ends.server.connect_additional(1, own.create_qp().access(rights)),
        );
        let (one, _other) = (one.unwrap(), other.unwrap());
        let all = AccessFlags::new().with_local_write().with_remote_read().with_remote_write();
        let board = own.allocate_shared_region(64, all).unwrap();
        one.read(ends.room(), board.remote()).await.unwrap();
        // The region allows writes, but the queue pair does not.
        one.write(ends.room(), board.remote()).await.unwrap_err();
        ends.talk().await;
    });
}

fn what_was_sent_before_a_graceful_end_has_come(device: &Device) {
    run(device, |ends| async move {
        let mut receives = Vec::new();
        for _ in 0..6 {
            receives.push(ends.server.receive(ends.room()).post().await.unwrap());
        }
        for number in 0..5 {
            drop(ends.client.send(ends.buffer(&[number])).post().await.unwrap());
        }
        ends.client.disconnect(BOUND).await.unwrap();
        let rest = receives.pop().unwrap();
        for (number, receive) in (0..).zip(receives) {
            assert_eq!(receive.await.unwrap().memory[0], number);
        }
        let failed = rest.await.unwrap_err();
        assert!(is_closed(&failed.error, CloseReason::Disconnected), "{failed}");
    });
}

fn a_peer_that_goes_ends_what_waits_for_it(device: &Device) {
    run(device, |ends| async move {
        let Ends { server, client, pool, .. } = ends;
        let waits = server.receive(pool.allocate(64).unwrap()).post().await.unwrap();
        drop(client);
        let failed = waits.await.unwrap_err();
        assert!(is_closed(&failed.error, CloseReason::Disconnected), "{failed}");
        assert_eq!(failed.memory.as_ref().unwrap().len(), 64);
    });
}

fn a_driver_that_ends_gives_all_memory_back(device: &Device) {
    run(device, |ends| async move {
        let waits = ends.server.receive(ends.room()).post().await.unwrap();
        drop(ends.server.receive(ends.room()).post().await.unwrap());
        // No receive is posted for this message.
        drop(ends.server.send(ends.room()).post().await.unwrap());
        ends.driver.shutdown().await;
        let failed = waits.await.unwrap_err();
        assert!(is_closed(&failed.error, CloseReason::Destroyed), "{failed}");
        drop((failed, ends.server, ends.client));
        assert_eq!(ends.pool.usage().buffers, 0);
    });
}

fn memory_is_open_until_the_function_ends_and_not_behind_that(device: &Device) {
    run(device, |ends| async move {
        let region = Region::allocate(&ends.pd, 64).unwrap();
        let may = AccessFlags::new().with_remote_write();
        let reserved = region.reserve(may, BOUND, async |descriptor| {
            let key = descriptor.remote(Duration::ZERO).unwrap().slice(0..4).unwrap();
            ends.client.write(ends.buffer(b"word"), key).await.unwrap();
            key
        });
        let reserved = reserved.await.unwrap();
        let (region, key) = (reserved.region, reserved.value.unwrap());
        assert_eq!(region[..6], *b"word\0\0");
        let late = ends.client.write(ends.buffer(b"late"), key).await.unwrap_err();
        assert!(is_refused(&late.error), "{late}");
        assert_eq!(region[..4], *b"word");
    });
}

fn memory_is_open_to_one_peer_until_the_function_ends_and_again_later(device: &Device) {
    run(device, |ends| async move {
        let mut region = Region::allocate(&ends.pd, 64).unwrap();
        let may = AccessFlags::new().with_remote_write();
        let mut last = None;
        for word in [b"one.", b"two."] {
            let open = region.reserve_for(&ends.server, may, BOUND, async |descriptor| {
                let key = descriptor.remote(Duration::ZERO).unwrap().slice(0..4).unwrap();
                ends.client.write(ends.buffer(word), key).await.unwrap();
                key
            });
            let reserved = open.await.unwrap();
            assert_eq!((&reserved.region[..4], reserved.region[4]), (word.as_slice(), 0));
            (region, last) = (reserved.region, reserved.value);
        }
        let late = ends.client.write(ends.buffer(b"late"), last.unwrap()).await.unwrap_err();
        let is_refused = matches!(late.error, TransportError::WorkError(_));
        assert!(is_refused || is_closed(&late.error, CloseReason::PeerFailed), "{late}");
        assert_eq!(region[..4], *b"two.");
        // The refused write ended the connection, so a later reservation grants no access.
        while ends.server.closed().is_none() {
            drop(ends.server.receive(ends.room()).await);
        }
        let refused = region.reserve_for(&ends.server, may, BOUND, async |_| ()).await;
        let ReserveError::NotOpened { region, .. } = refused.unwrap_err() else { panic!("opened") };
        assert_eq!(region[..4], *b"two.");
    });
}
