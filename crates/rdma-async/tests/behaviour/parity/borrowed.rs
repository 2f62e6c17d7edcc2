//! Borrowed memory: requested repeatedly, and its rights.

use rdma_async::{LeaseDenial, LeaseEnd, LeaseError, LeaseLimits, RemoteRegion, TransportError};
use rdma_qp::prelude::*;

use crate::parity::{ATOMIC, DEVICES, HANG, LONG, Pair, READ, WRITE, domain, ends, ends_with, run};

/// A client writes its requests to memory that it has borrowed from the server. The server writes the answer to memory that
/// the client has lent.
#[test]
fn requests_and_responses_can_use_lent_memory_repeatedly() {
    run(|| async {
        for device in DEVICES {
            // One page, so that a leak would be noticed at once.
            let limits = LeaseLimits::new(WRITE).per_peer(4096);
            let pair = ends_with(domain(device), limits).await;
            let (server, pool) = (pair.other.clone(), pair.pool.clone());
            let serves = tokio::spawn(async move {
                for _ in 0..50 {
                    let question = server.receive_region().await?;
                    let mut answer = pool.allocate(8)?;
                    let number = u64::from_ne_bytes(question[..8].try_into()?);
                    drop(question);
                    answer.copy_from_slice(&(number * number).to_ne_bytes());
                    server.receive_lease().await?.write(answer).await?;
                }
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
            });
            for number in 0..50_u64 {
                let question = pair.one.borrow(8, WRITE, LONG).await.unwrap();
                question.write(pair.buffer(&number.to_ne_bytes())).await.unwrap();
                question.hand_over();
                let answer = pair.region(&[0xff; 8]);
                let lease = pair.one.lend(answer, WRITE, LONG).await.unwrap();
                let ended = lease.await.unwrap();
                assert_eq!(ended.end, LeaseEnd::Returned);
                assert_eq!(*ended.region, (number * number).to_ne_bytes());
            }
            serves.await.unwrap().unwrap();
        }
    });
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Use {
    Read,
    Write,
    Add,
}

async fn using(pair: &Pair, memory: &RemoteRegion, used: Use) -> Result<(), TransportError> {
    match used {
        Use::Read => drop(memory.read(pair.buffer(&[0; 8])).await?),
        Use::Write => drop(memory.write(pair.buffer(&[7; 8])).await?),
        Use::Add => drop(memory.fetch_add(1).await?),
    }
    Ok(())
}

/// Every right with every use: what the right does not allow is refused, and changes nothing.
#[test]
fn lent_memory_allows_only_the_granted_rights() {
    run(|| async {
        for device in DEVICES {
            for (right, allowed) in [(READ, Use::Read), (WRITE, Use::Write), (ATOMIC, Use::Add)] {
                for used in [Use::Read, Use::Write, Use::Add] {
                    let pair = ends(device).await;
                    let lease = pair.one.lend(pair.region(&[1; 8]), right, LONG).await.unwrap();
                    let memory = pair.other.receive_lease().await.unwrap();
                    assert_eq!(memory.access(), right);
                    let done = using(&pair, &memory, used).await;
                    if used == allowed {
                        done.unwrap();
                    } else {
                        is_refused(done);
                        pair.other.close().unwrap();
                    }
                    drop(memory);
                    let changes = used == allowed && used != Use::Read;
                    let ended = lease.await.unwrap();
                    assert_eq!(*ended.region != [1; 8], changes, "{device}, {right}: {used:?}");
                }
            }
        }
    });
}

#[test]
fn borrowed_memory_allows_only_the_granted_rights() {
    run(|| async {
        for (right, allowed) in [(READ, Use::Read), (WRITE, Use::Write), (ATOMIC, Use::Add)] {
            for used in [Use::Read, Use::Write, Use::Add] {
                let pair = ends("soft0").await;
                let memory = pair.one.borrow(8, right, LONG).await.unwrap();
                assert_eq!(memory.access(), right);
                let done = using(&pair, &memory, used).await;
                if used == allowed { done.unwrap() } else { is_refused(done) }
            }
        }
    });
}

#[track_caller]
fn is_refused(done: Result<(), TransportError>) {
    let refused = done.unwrap_err().to_string();
    assert!(refused.contains("remote access"), "{refused}");
}

/// Borrowed memory has the rights and the domain of the connection that it was requested on.
#[test]
fn a_further_connection_lends_by_its_own_rights_and_domain() {
    run(|| async {
        for device in DEVICES {
            let pair = ends(device).await;
            let own = pair.pd.context().allocate_pd().unwrap();
            let (further, at_peer) = tokio::join!(
                pair.one.connect_additional(1, pair.pd.create_qp()),
                pair.other.connect_additional(1, own.create_qp().access(READ)),
            );
            let (further, at_peer) = (further.unwrap(), at_peer.unwrap());
            let denied = further.borrow(8, WRITE, LONG).await.unwrap_err();
            assert!(
                matches!(denied, LeaseError::Denied(LeaseDenial::Access { allowed: READ })),
                "{denied}"
            );
            let atomic = at_peer.lend(pair.region(&[0; 8]), ATOMIC, LONG).await.unwrap_err();
            assert!(matches!(atomic.error, LeaseError::NotGranted { .. }), "{atomic}");
            let by_first = pair.one.borrow(8, READ | WRITE, LONG).await.unwrap();
            by_first.write(pair.buffer(b"the word")).await.unwrap();
            let by_further = further.borrow(8, READ, LONG).await.unwrap();
            assert_eq!(pair.bytes_of(&by_further).await, [0; 8]);
            // A key of one domain is invalid in the other one.
            let read = further.read(pair.buffer(&[0; 8]), by_first.remote()).await.unwrap_err();
            assert!(read.to_string().contains("remote access"), "{read}");
            assert_eq!(pair.bytes_of(&by_first).await, b"the word");
        }
    });
}

/// All at once, each with its own memory.
#[test]
fn many_tasks_borrow_write_and_read() {
    run(|| async {
        let pair = ends("soft0").await;
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..24_u8 {
            let (connection, pool) = (pair.one.clone(), pair.pool.clone());
            tasks.spawn(async move {
                for round in 0..5 {
                    let memory = connection.borrow(256, READ | WRITE, LONG).await.unwrap();
                    let mut bytes = pool.allocate(256).unwrap();
                    bytes.fill(task + round);
                    memory.write(bytes).await.unwrap();
                    let bytes = memory.read(pool.allocate(256).unwrap()).await.unwrap();
                    assert_eq!(*bytes, [task + round; 256]);
                }
            });
        }
        tokio::time::timeout(HANG, tasks.join_all()).await.unwrap();
        assert_eq!(pair.buffers(), 0);
    });
}

/// Immediate data arrives with the bytes that were written into lent memory, whatever its value.
#[test]
fn a_write_into_lent_memory_carries_any_immediate_data() {
    run(|| async {
        for device in DEVICES {
            let pair = ends(device).await;
            let lease = pair.one.lend(pair.region(&[0; 8]), WRITE, LONG).await.unwrap();
            let memory = pair.other.receive_lease().await.unwrap();
            for number in [0, 1, 0x0102_0304, u32::MAX] {
                let told = pair.one.receive_imm().post().await.unwrap();
                memory.write_with_imm(pair.buffer(&[9; 8]), number).await.unwrap();
                assert_eq!(told.await.unwrap(), Some(number));
            }
            drop(memory);
            assert_eq!(*lease.await.unwrap().region, [9; 8]);
        }
    });
}
