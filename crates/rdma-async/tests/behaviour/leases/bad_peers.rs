//! Peers that send invalid frames about leases.

use rdma_async::{CloseReason, LeaseError};
use test_support::program::is_emulated;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::peer::{self, Peer};
use crate::leases::frames::{ASK, BACK, DENY, GRANT, LEND, OVER, frame, frame_of, grant, hear};
use crate::leases::*;

/// The time limit for an answer that does not arrive.
const LIMIT: Duration = Duration::from_secs(2);
/// Number of leases whose frames, 32 bytes each, fit in the 4 MiB that may wait to be written.
const LENDS: u32 = 100_000;
/// The reason of a denial.
const ENDED: u32 = 9;

/// A request for that many bytes.
fn ask(ask: u32, lease: u32, length: u64) -> Vec<u8> {
    let time = 5_000_000_u64;
    let rest = [length, 1, time].map(u64::to_be_bytes).concat();
    frame(ASK, &[ask, lease, WRITE.bits()], &rest)
}

async fn pair(host: &Host) -> (Peer, Connection) {
    peer::pair_with(host, options(host).rendezvous_timeout(HANG)).await
}

#[test]
fn a_lender_that_grants_too_little_is_disconnected() {
    run(|| async {
        let host = Host::new("soft0");
        let rights = READ.bits();
        for (rights, memory) in
            [(rights, (0x10000, 63)), (rights, (0x10008, 64)), (0, (0x10000, 64))]
        {
            let (mut peer, server) = pair(&host).await;
            let request = server.borrow_aligned(64, 4096, READ, HANG);
            let (refused, ()) = tokio::join!(request, async {
                let asked = hear(&mut peer, ASK).await;
                peer.say(&grant(asked[0], 1, rights, memory)).await;
            });
            let gone = refused.unwrap_err();
            assert!(matches!(gone, LeaseError::Closed(Some(CloseReason::PeerFailed))), "{gone}");
        }
    });
}

/// The wait ends at the limit, and memory that is granted later is returned.
#[test]
fn a_request_without_an_answer_times_out() {
    run(|| async {
        let host = Host::new("soft0");
        let options = options(&host).rendezvous_timeout(LIMIT);
        let (mut peer, server) = peer::pair_with(&host, options).await;
        let late = server.borrow(64, READ, HANG).await.unwrap_err();
        assert!(matches!(late, LeaseError::Timeout { limit: LIMIT }), "{late}");
        let asked = hear(&mut peer, ASK).await;
        peer.say(&grant(asked[0], 5, READ.bits(), (0x10000, 64))).await;
        assert_eq!(hear(&mut peer, BACK).await, [5, 0]);
        // A lease that was lent, but not granted in time, waits for the program again.
        peer.say(&frame(LEND, &[6], &[])).await;
        let late = server.receive_lease().await.unwrap_err();
        assert!(matches!(late, LeaseError::Timeout { .. }), "{late}");
        let asked = hear(&mut peer, ASK).await;
        assert_eq!(asked[1], 6);
        peer.say(&grant(asked[0], 6, READ.bits(), (0x10000, 64))).await;
        let lent = loop {
            let (lent, ()) = tokio::join!(server.receive_lease(), async {
                let asked = hear(&mut peer, ASK).await;
                assert_eq!(asked[1], 6);
                peer.say(&grant(asked[0], 6, READ.bits(), (0x10000, 64))).await;
            });
            match lent {
                Ok(lent) => break lent,
                // On a busy machine, this answer may be late, too.
                Err(late) => assert!(matches!(late, LeaseError::Timeout { .. }), "{late}"),
            }
        };
        assert_eq!(lent.len(), 64);
        drop(lent);
        assert_eq!(hear(&mut peer, BACK).await, [6, 0]);
        // A peer that never answers does not use up all requests of this end.
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..40 {
            let server = server.clone();
            tasks.spawn(async move { server.borrow(64, READ, HANG).await.map(drop) });
        }
        while let Some(late) = timeout(HANG, tasks.join_next()).await.unwrap() {
            let late = late.unwrap().unwrap_err();
            assert!(matches!(late, LeaseError::Timeout { .. }), "{late}");
        }
        host.talk(&peer.connection, &server, b"as before").await;
    });
}

/// Frames about unknown leases, leases of others, and repeated frames.
#[test]
fn frames_about_unknown_leases_change_nothing() {
    run(|| async {
        let host = Host::new("soft0");
        let (one, other) = crate::leases::pair(&host).await;
        let lease = one.lend(region(&host, 64), WRITE, HANG).await.unwrap();
        let (mut peer, server) = pair(&host).await;
        let own = server.lend(region(&host, 64), WRITE, HANG).await.unwrap();
        let lent = hear(&mut peer, LEND).await[0];
        for words in [[lent + 1, 0], [lent + 1, 1], [0, 0], [u32::MAX, 1]] {
            peer.say(&frame(BACK, &words, &[])).await;
        }
        // Frames about another connection, and about a queue pair that does not exist.
        peer.say(&frame_of((1, 0), BACK, &[lent, 0], &[])).await;
        peer.say(&frame_of((1, 0), LEND, &[lent], &[])).await;
        assert_eq!(hear(&mut peer, BACK).await, [lent, 0]);
        peer.say(&frame_of((0, 7), LEND, &[lent], &[])).await;
        assert_eq!(hear(&mut peer, BACK).await, [lent, 0]);
        peer.say(&frame(OVER, &[77], &[])).await;
        peer.say(&frame(DENY, &[77, 1, 0, 0], &[])).await;
        peer.say(&grant(77, 8, 0, (0, 0))).await;
        assert_eq!(hear(&mut peer, BACK).await, [8, 0]);
        // No lease has that number, at this peer or at another one of the same process. One lease may be requested
        // twice.
        peer.say(&ask(1, lent + 1, 0)).await;
        assert_eq!(hear(&mut peer, DENY).await[..2], [1, ENDED]);
        for number in [2, 2] {
            peer.say(&ask(number, lent, 0)).await;
            let granted = hear(&mut peer, GRANT).await;
            assert_eq!(granted[..3], [number, lent, WRITE.bits()]);
        }
        peer.say(&frame_of((0, 1), ASK, &[3, lent, 0], &[0; 24])).await;
        assert_eq!(hear(&mut peer, DENY).await[..2], [3, ENDED]);
        peer.say(&frame(BACK, &[lent, 1], &[]).repeat(2)).await;
        timeout(HANG, own).await.unwrap().unwrap();
        assert!(timeout(SOON, server.receive_region()).await.is_err());
        host.talk(&peer.connection, &server, b"as before").await;
        // The lease of the other peer is untouched.
        let lent = other.receive_lease().await.unwrap();
        lent.write(host.buffer(b"word")).await.unwrap();
        drop(lent);
        lease.await.unwrap();
    });
}

/// A peer that requests or lends without end, and does not read, is disconnected. It gets no more than it may.
#[test]
fn a_flood_ends_the_connection() {
    run_long_in_one_thread(|| async {
        let limits = LeaseLimits::new(WRITE).regions_per_peer(10);
        for kind in [ASK, LEND] {
            let host = Host::new("soft0");
            let options = options(&host).lease_limits(limits.clone()).peer_timeout(HANG);
            let (mut peer, server) = peer::pair_with(&host, options).await;
            let one = match kind {
                ASK => ask(1, 0, 4096),
                _ => frame(LEND, &[1], &[]),
            };
            let block = one.repeat(1000);
            let flood = async {
                while peer.stream.write_all(&block).await.is_ok() {}
                // The end of the stream precedes the end of the connection.
                std::future::pending().await
            };
            let ended = tokio::select! {
                never = flood => never,
                ended = server.receive_imm().into_future() => ended,
            };
            ended.unwrap_err();
            // If both directions of the stream are full, TCP may also drop acknowledgements. It then ends the stream
            // before the flood does.
            let reason = server.closed().unwrap();
            let is_known = matches!(reason, CloseReason::PeerFailed | CloseReason::Silent { .. });
            assert!(is_known, "{kind}: {reason}");
        }
    });
}

/// TCP reports an error once, here to the task's write. Its read then finds the end of the stream.
#[test]
fn a_peer_whose_stream_is_full_too_long_is_silent() {
    // Under a memory checker or an emulator this would take minutes.
    if is_emulated() || cfg!(rdma_visible_copies) {
        return;
    }
    run_long_in_one_thread(|| async {
        let host = Host::new("soft0");
        for _ in 0..4 {
            let options = options(&host).peer_timeout(Duration::from_secs(1));
            let (_peer, server) = peer::pair_with(&host, options).await;
            let mut memory = region(&host, 1);
            for _ in 0..LENDS {
                let Ok(lease) = server.lend(memory, READ, Duration::ZERO).await else { break };
                memory = lease.await.unwrap().region;
            }
            server.receive_imm().await.unwrap_err();
            assert_eq!(server.closed(), Some(CloseReason::Silent { limit_ms: 1000 }));
        }
    });
}

/// A peer that sends meaningless frames without end, and reads the answers, does not delay others.
#[test]
fn a_flood_of_frames_does_not_delay_others() {
    run(|| async {
        let host = Host::new("soft0");
        let (peer, flooded) = pair(&host).await;
        let (one, other) = crate::leases::pair(&host).await;
        let (mut from, mut to) = peer.stream.into_split();
        let reads = tokio::spawn(async move {
            let mut room = [0; 4096];
            while from.read(&mut room).await.is_ok_and(|count| count > 0) {}
        });
        let floods = tokio::spawn(async move {
            let unknown = [
                frame(BACK, &[7, 1], &[]),
                frame(OVER, &[7], &[]),
                frame(DENY, &[7, 1, 0, 0], &[]),
                grant(7, 8, READ.bits(), (0x10000, 64)),
                frame_of((3, 3), ASK, &[9, 7, 0], &[0; 24]),
            ];
            let unknown = unknown.concat().repeat(10);
            while to.write_all(&unknown).await.is_ok() {}
        });
        for _ in 0..20 {
            let lease = one.lend(region(&host, 64), WRITE, SHORT / 10).await.unwrap();
            let late = timeout(HANG, lease).await.unwrap().unwrap();
            assert_eq!(late.end, rdma_async::LeaseEnd::TimeOver);
            drop(timeout(HANG, other.borrow(64, WRITE, HANG / 2)).await.unwrap().unwrap());
            host.talk(&one, &other, b"as ever").await;
        }
        assert_eq!(flooded.closed(), None, "it has sent no invalid frame");
        flooded.close().unwrap();
        drop(flooded);
        timeout(HANG, floods).await.unwrap().unwrap();
        timeout(HANG, reads).await.unwrap().unwrap();
    });
}

/// Many abandoned requests, of several connections at once, do not count as a flood.
#[test]
fn abandoned_requests_are_not_a_flood() {
    run(|| async {
        let host = Host::new("soft0");
        let (client, server) = crate::leases::pair(&host).await;
        for round in 0..3 {
            let mut ends = Vec::new();
            for number in 1..=4 {
                let qp = || host.pd.create_qp().access(all());
                let number = number + 10 * round;
                let (one, other) = tokio::join!(
                    client.connect_additional(number, qp()),
                    server.connect_additional(number, qp())
                );
                ends.push((one.unwrap(), other.unwrap()));
            }
            for (one, _) in &ends {
                let mut asked: Vec<_> =
                    (0..40).map(|_| Box::pin(one.borrow(LARGE / 8, WRITE, HANG / 2))).collect();
                for asked in &mut asked {
                    let _ = poll_once(asked);
                }
            }
            drop(ends);
        }
        drop(timeout(HANG, client.borrow(64, WRITE, HANG / 2)).await.unwrap().unwrap());
        host.talk(&client, &server, b"as before").await;
    });
}

/// Leases that have ended do not use up the room for others.
#[test]
fn ended_leases_make_room() {
    run(|| async {
        let host = Host::new("soft0");
        let (lender, borrower) = crate::leases::pair(&host).await;
        for _ in 0..3 {
            let mut leases = Vec::new();
            for _ in 0..1000 {
                leases.push(lender.lend(region(&host, 1), READ, Duration::ZERO).await.unwrap());
            }
            for lease in leases {
                lease.await.unwrap();
            }
        }
        let lease = lender.lend(region(&host, 64), WRITE, HANG).await.unwrap();
        assert_eq!(timeout(HANG, borrower.receive_lease()).await.unwrap().unwrap().len(), 64);
        assert_eq!(lease.await.unwrap().end, rdma_async::LeaseEnd::Returned);
    });
}

/// A peer that vanishes at any point leaves no open memory.
#[test]
fn a_vanished_peer_leaves_no_open_memory() {
    run(|| async {
        let limits = LeaseLimits::new(WRITE).per_peer(LARGE).in_total(LARGE);
        for bytes in [1, 12, 13, 47, 48] {
            for length in [64, LARGE as u64 - 4096] {
                let host = Host::new("soft0");
                let options = options(&host).lease_limits(limits.clone());
                let (mut peer, server) = peer::pair_with(&host, options).await;
                peer.say(&ask(1, 0, length)[..bytes]).await;
                if bytes == 48 {
                    assert_eq!(hear(&mut peer, GRANT).await[0], 1);
                    peer.say(&frame(BACK, &[1, 1], &[])[..15]).await;
                }
                drop(peer);
                let gone = timeout(HANG, server.receive_region()).await.unwrap().unwrap_err();
                assert!(matches!(gone, LeaseError::Closed(_)), "{gone}");
                let gone = timeout(HANG, server.receive_lease()).await.unwrap().unwrap_err();
                assert!(matches!(gone, LeaseError::Closed(_)), "{gone}");
            }
        }
        // The whole limit is available again.
        let host = Host::new("soft0");
        let options = options(&host).lease_limits(limits.clone());
        let (asker, _lender) = pair_with(&host, options).await;
        let all = async {
            loop {
                match asker.borrow(LARGE, WRITE, HANG / 2).await {
                    Ok(_) => break,
                    Err(LeaseError::Denied(_)) => tokio::task::yield_now().await,
                    Err(error) => panic!("{error}"),
                }
            }
        };
        timeout(HANG, all).await.unwrap();
    });
}

/// The last value is one that only a later version could define: it ends the connection.
#[test]
fn a_lender_learns_how_its_memory_was_returned() {
    run(|| async {
        let host = Host::new("soft0");
        for (how, end, is_handed_over) in [
            (0, LeaseEnd::Returned, false),
            (1, LeaseEnd::Returned, true),
            (2, LeaseEnd::BorrowerFailed, false),
            (3, LeaseEnd::Disconnected, false),
        ] {
            let (mut peer, lender) = peer::pair_with(&host, options(&host)).await;
            let lease = lender.lend(region(&host, 64), READ, HANG).await.unwrap();
            let lent = hear(&mut peer, LEND).await[0];
            peer.say(&frame(BACK, &[lent, how], &[])).await;
            let ended = timeout(HANG, lease).await.unwrap().unwrap();
            assert_eq!((ended.end, ended.is_handed_over), (end, is_handed_over), "{how}");
        }
    });
}
