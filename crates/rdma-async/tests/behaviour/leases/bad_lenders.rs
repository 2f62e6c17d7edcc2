//! Lenders that vanish in each phase of a lease, and lenders that grant memory that they do not have.

use std::time::Instant;

use rdma_async::{CloseReason, LeaseError};
use tokio::time::sleep;

use crate::common::peer::{self, Peer};
use crate::leases::frames::{ASK, BACK, DENY, GRANTED, LEND, OVER, frame, grant, grant_of, hear};
use crate::leases::*;

const LEASE: u32 = 1;
/// The length of each frame, in bytes.
const LEND_BYTES: usize = 16;
const GRANT_BYTES: usize = 52;
const DENY_BYTES: usize = 28;

/// Sends the first `bytes` bytes of a lender's frames, and vanishes.
async fn say_part(mut peer: Peer, bytes: usize, lends: bool, denies: bool) {
    let first = if lends { frame(LEND, &[LEASE], &[]) } else { Vec::new() };
    peer.say(&first[..bytes.min(first.len())]).await;
    let Some(left) = bytes.checked_sub(first.len()) else { return };
    let asked = hear(&mut peer, ASK).await[0];
    let answer = if denies {
        frame(DENY, &[asked, 1, 0, 0], &[])
    } else {
        let grant = grant(asked, LEASE, READ.bits(), (0x10000, 64));
        [grant, frame(OVER, &[LEASE], &[])].concat()
    };
    peer.say(&answer[..left.min(answer.len())]).await;
}

/// Each cut is within a frame or between two. No operation waits for a lender that has gone, and its memory is not
/// used.
#[test]
fn a_vanished_lender_ends_the_wait() {
    run(|| async {
        let host = Host::new("soft0");
        for (lends, denies) in [(true, false), (true, true), (false, false), (false, true)] {
            let first = if lends { LEND_BYTES } else { 0 };
            let answered = first + if denies { DENY_BYTES } else { GRANT_BYTES };
            let all = if denies { answered } else { answered + LEND_BYTES };
            for bytes in [0, 1, 11, 12, 15, 16, 17, 27, 28, 43, 44, 51, 52, 53, 67, 68, 83, 84] {
                if bytes > all {
                    break;
                }
                let (peer, server) = peer::pair_with(&host, options(&host)).await;
                let wanted = async {
                    if lends {
                        server.receive_lease().await
                    } else {
                        server.borrow(64, READ, HANG).await
                    }
                };
                let both = async { tokio::join!(wanted, say_part(peer, bytes, lends, denies)) };
                let (lent, ()) = timeout(HANG, both).await.unwrap();
                timeout(HANG, server.receive_imm()).await.unwrap().unwrap_err();
                assert_eq!(server.closed(), Some(CloseReason::Died));
                match lent {
                    Ok(lent) => {
                        assert!(!denies && bytes >= answered, "{bytes} bytes are no grant");
                        let late = lent.read(host.buffer(&[0; 64]));
                        timeout(HANG, late).await.unwrap().unwrap_err();
                    }
                    Err(LeaseError::Denied(_)) => assert!(denies && bytes == answered),
                    Err(error) => assert!(matches!(error, LeaseError::Closed(_)), "{error}"),
                }
                let gone = server.receive_lease().await.unwrap_err();
                assert!(matches!(gone, LeaseError::Closed(_)), "{gone}");
            }
        }
        let (client, server) = crate::leases::pair(&host).await;
        drop(timeout(HANG, client.borrow(64, READ, HANG / 2)).await.unwrap().unwrap());
        host.talk(&client, &server, b"as before").await;
    });
}

/// The borrower's time starts with its request, however late the answer arrives.
#[test]
fn the_lease_time_includes_the_wait_for_the_answer() {
    run(|| async {
        let host = Host::new("soft0");
        let (mut peer, server) = peer::pair_with(&host, options(&host)).await;
        let (lent, late) = tokio::join!(server.borrow(64, READ, HANG), async {
            let asked = hear(&mut peer, ASK).await[0];
            // The wall clock: this test is about it.
            let since = Instant::now();
            sleep(SHORT).await;
            let late = since.elapsed();
            peer.say(&grant(asked, LEASE, READ.bits(), (0x10000, 64))).await;
            late
        });
        let most = GRANTED.saturating_sub(late);
        assert!(lent.unwrap().remaining() <= most);
    });
}

/// Memory cannot be empty or wrap around the end of the address space.
#[test]
fn invalid_memory_is_rejected() {
    run(|| async {
        let host = Host::new("soft0");
        for memory in [(0x10000, 0), (u64::MAX, 2), (u64::MAX - 63, 65), (2, u64::MAX)] {
            for lends in [false, true] {
                let (mut peer, server) = peer::pair_with(&host, options(&host)).await;
                let wanted = async {
                    if lends {
                        server.receive_lease().await
                    } else {
                        server.borrow(1, READ, HANG).await
                    }
                };
                let (lent, ()) = tokio::join!(wanted, async {
                    if lends {
                        peer.say(&frame(LEND, &[LEASE], &[])).await;
                    }
                    let asked = hear(&mut peer, ASK).await[0];
                    peer.say(&grant(asked, LEASE, READ.bits(), memory)).await;
                });
                let gone = lent.unwrap_err();
                assert!(
                    matches!(gone, LeaseError::Closed(Some(CloseReason::PeerFailed))),
                    "{gone}"
                );
            }
        }
    });
}

/// A lender that grants memory of another protection domain: the device refuses the borrower, and no byte changes.
#[test]
fn a_grant_cannot_reach_memory_of_another_domain() {
    run(|| async {
        for device in ["soft0", "softib0"] {
            let (host, third) = (Host::new(device), Host::new(device));
            let (mut peer, server) = peer::pair_with(&host, options(&host)).await;
            let open = region(&third, 64).reserve(READ | WRITE, HANG, async |descriptor| {
                let (lent, ()) = tokio::join!(server.borrow(64, WRITE, HANG), async {
                    let asked = hear(&mut peer, ASK).await[0];
                    peer.say(&grant_of(asked, LEASE, WRITE.bits(), &descriptor.to_bytes())).await;
                });
                let lent = lent.unwrap();
                let written = timeout(HANG, lent.write(host.buffer(&[7; 64]))).await.unwrap();
                assert_refused(&written.unwrap_err().error);
            });
            let open = timeout(HANG, open).await.unwrap().unwrap();
            assert_eq!(open.value, Some(()));
            assert_eq!(open.region[..], region(&third, 64)[..], "a byte has changed");
        }
    });
}

/// The memory of these lenders does not exist: a read fails, and the return reports that to the lender.
#[test]
fn a_failed_operation_is_reported_with_the_return() {
    run(|| async {
        let host = Host::new("soft0");
        for (reads, how) in [(false, 0), (true, 2)] {
            let (mut peer, server) = peer::pair_with(&host, options(&host)).await;
            let (lent, ()) = tokio::join!(server.borrow(64, READ, HANG), async {
                let asked = hear(&mut peer, ASK).await[0];
                peer.say(&grant(asked, LEASE, READ.bits(), (0x10000, 64))).await;
            });
            let lent = lent.unwrap();
            if reads {
                lent.read(host.buffer(&[0; 64])).await.unwrap_err();
            }
            drop(lent);
            let back = async {
                loop {
                    let (kind, _, body) = peer.hear().await;
                    if kind == BACK {
                        break body;
                    }
                }
            };
            let back = timeout(HANG, back).await.unwrap();
            assert_eq!(back, [0, 0, 0, 1, 0, 0, 0, how]);
        }
    });
}
