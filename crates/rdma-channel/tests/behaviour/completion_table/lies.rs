//! Providers that lose, repeat and invent completions.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rdma_channel::{Channel, CloseReason, Operation, Progress, ScopeError, TransportError};
use rdma_mem::ScatterList;
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};
use rdma_sys::{ibv_wc, ibv_wc_opcode, ibv_wc_status};

use crate::common::provider::{ENDLESS, edit, faulty, honest, invent, wr_id};
use crate::common::{DRAIN, HELD, LATE, Pair, must_end, short};

const SECONDS: Duration = Duration::from_secs(25);

fn success(channel: &Channel, wr_id: u64) -> ibv_wc {
    ibv_wc {
        wr_id,
        status: ibv_wc_status::IBV_WC_SUCCESS,
        opcode: ibv_wc_opcode::IBV_WC_RECV,
        byte_len: 64,
        qp_num: channel.qpn().unwrap().get(),
        ..Default::default()
    }
}

/// The difference between the IDs of two generations of one slot.
const GENERATION: u64 = 1 << 30;

/// Every completion that almost matches this one.
fn almost(honest: ibv_wc) -> Vec<ibv_wc> {
    let id = honest.wr_id;
    let ids = [
        0,
        GENERATION,
        u64::MAX,
        id + GENERATION,
        id.wrapping_sub(GENERATION),
        id + (1 << 32),
        id | 1 << 63,
        id + 1,
        id - 1,
        id | (GENERATION - 1),
        id + 1000,
    ];
    let failed = ibv_wc { status: ibv_wc_status::IBV_WC_GENERAL_ERR, ..honest };
    let lies = |wr_id| [ibv_wc { wr_id, ..honest }, ibv_wc { wr_id, ..failed }];
    ids.into_iter().flat_map(lies).collect()
}

#[test]
fn completions_of_no_request_in_flight_are_counted_and_release_nothing() {
    for device in LATE {
        must_end(move || {
            let mut pair = Pair::on(&faulty(device), short);
            let qpn = success(&pair.here, 0).qp_num;
            let mut room = pair.memory(64, 3);
            let invented = Cell::new(0);
            let left = pair.here.scope(|s| {
                let mut list = ScatterList::from([room.as_slice_mut()]);
                let first = s.post_receive(ReceiveWorkRequest::from_list(&mut list))?;
                let second = s.post_receive(ReceiveWorkRequest::only_immediate())?;
                let honest =
                    ibv_wc { wr_id: wr_id(second.id()), qp_num: qpn, ..Default::default() };
                for lie in almost(honest).into_iter().filter(|lie| lie.wr_id != wr_id(first.id())) {
                    invent(lie);
                    invented.set(invented.get() + 1);
                    assert!(first.poll().is_none() && second.poll().is_none(), "{:#x}", lie.wr_id);
                    invent(lie);
                    invented.set(invented.get() + 1);
                    let waited = second.wait(Duration::from_millis(1));
                    assert!(
                        matches!(waited, Err(TransportError::Timeout { .. })),
                        "{:#x}",
                        lie.wr_id
                    );
                }
                Ok::<(), TransportError>(())
            });
            let Err(ScopeError::AutoPollError(errors)) = left else { panic!("{left:?}") };
            assert_eq!((errors.len(), invented.get()), (2, pair.here.stray_completions()));
            assert!(invented.get() > 30);
            assert_eq!(
                pair.here.closed(),
                Some(CloseReason::Timeout { operation: Operation::Receive }),
                "invented completions are no reason to close"
            );
            pair.provoke();
            assert_eq!(*room, [3; 64]);
        });
    }
}

#[test]
fn a_repeated_completion_counts_for_one_request() {
    for device in ["soft0", LATE[0]] {
        must_end(move || {
            let mut pair = Pair::on(&faulty(device), |builder| builder.max_send_wr(2));
            let data = pair.memory(8, 1);
            let remote = pair.board.remote();
            edit(|completion| vec![completion; 3]);
            for _ in 0..20 {
                pair.here
                    .scope(|s| {
                        for _ in 0..5 {
                            let write = s.write_from(data.as_slice(), remote)?;
                            write.wait(SECONDS).unwrap().result?;
                        }
                        Ok::<(), TransportError>(())
                    })
                    .unwrap();
            }
            let _ = pair.here.within(DRAIN).send(SendWorkRequest::only_immediate(1));
            assert!(pair.here.stray_completions() >= 2 * 99, "{}", pair.here.stray_completions());
        });
    }
}

#[test]
fn repeated_completions_at_the_end_of_a_scope_complete_each_dropped_request_once() {
    must_end(|| {
        let mut pair = Pair::on(&faulty("soft0"), |builder| builder.max_send_wr(4));
        let data = pair.memory(8, 1);
        let remote = pair.board.remote();
        edit(|completion| vec![completion; 3]);
        // Scopes with one or two requests end in other functions than longer ones. The end of one request leaves repeated
        // completions in the queue, so two requests come first.
        for dropped in [2, 1, 3].repeat(10) {
            pair.here
                .scope(|s| {
                    for _ in 0..dropped {
                        drop(s.write_from(data.as_slice(), remote)?);
                    }
                    Ok::<(), TransportError>(())
                })
                .unwrap();
            let counters = pair.here.counters();
            assert_eq!(counters.posted, counters.completed);
        }
        assert!(pair.here.stray_completions() > 0);
    });
}

/// This includes a request of the next generation in the same slot.
#[test]
fn a_late_completion_does_not_complete_the_next_request() {
    must_end(|| {
        let mut pair = Pair::on(&faulty(HELD), |builder| short(builder).max_recv_wr(1));
        let (qpn, peer) = (success(&pair.here, 0).qp_num, pair.there.qpn().unwrap());
        let mut room = pair.memory(64, 3);
        let left = pair.here.scope(|s| {
            let first = s.post_receive(ReceiveWorkRequest::only_immediate())?;
            let id = wr_id(first.id());
            let late = ibv_wc { wr_id: id, qp_num: qpn, ..Default::default() };
            // SAFETY: SAFETY.md F8: the request has no memory.
            let sent = unsafe { pair.there.send_unpolled(SendWorkRequest::only_immediate(1)) };
            pair.device.release(peer, 1);
            sent?.wait(SECONDS)?;
            first.wait(SECONDS)?;
            drop(first);
            let second = s.receive_into(room.as_slice_mut())?;
            assert_eq!(wr_id(second.id()), id + GENERATION, "the same slot");
            invent(late);
            let Progress::Pending(second) = second.poll() else {
                panic!("it belongs to the first")
            };
            invent(late);
            let late = second.wait(Duration::from_millis(5)).unwrap_err();
            assert!(matches!(late.error, TransportError::Timeout { .. }), "{late}");
            Ok::<(), TransportError>(())
        });
        assert!(matches!(left, Err(ScopeError::AutoPollError(_))), "{left:?}");
        assert_eq!(pair.here.stray_completions(), 2);
    });
}

#[test]
fn lost_completions_leave_nothing_in_flight() {
    for device in ["soft0", LATE[0], LATE[1]] {
        must_end(move || {
            let mut pair = Pair::on(&faulty(device), short);
            pair.board.write(0, &[9; 4096]).unwrap();
            let mut to = pair.memory(64, 3);
            let remote = pair.board.remote().slice(0..64).unwrap();
            let lost = Rc::new(Cell::new(0));
            let counted = Rc::clone(&lost);
            edit(move |_| {
                counted.set(counted.get() + 1);
                Vec::new()
            });
            let qpn = pair.here.qpn().unwrap();
            let begin = Instant::now();
            let left = pair.here.scope(|s| {
                let read = s.read_into(to.as_slice_mut(), remote)?;
                assert!(read.wait(DRAIN).is_err());
                Ok::<(), TransportError>(())
            });
            assert!(begin.elapsed() < Duration::from_secs(25));
            let Err(ScopeError::AutoPollError(errors)) = left else { panic!("{left:?}") };
            assert!(matches!(
                errors[0].error,
                TransportError::Lost { operation: Operation::Read, .. }
            ));
            assert_eq!((errors.len(), lost.get(), pair.here.qpn()), (1, 1, None));
            assert_eq!(pair.device.in_flight(qpn), 0);
            honest();
            to.fill(7);
            pair.provoke();
            assert_eq!(*to, [7; 64]);
        });
    }
}

/// They do not count, so the time limit of a wait still applies.
#[test]
fn endless_invented_completions_do_not_prolong_a_wait() {
    for device in LATE {
        must_end(move || {
            let mut pair = Pair::on(&faulty(device), |builder| {
                short(builder).max_recv_wr(1).receive_timeout(DRAIN)
            });
            let mut room = pair.memory(64, 3);
            let left = pair.here.scope(|s| {
                let received = s.receive_into(room.as_slice_mut())?;
                ENDLESS.set(Some(ibv_wc { wr_id: 77, ..Default::default() }));
                let received = received.wait(DRAIN).unwrap_err();
                let full = s.post_receive(ReceiveWorkRequest::only_immediate());
                assert!(matches!(full, Err(TransportError::Timeout { .. })));
                drop(received);
                Ok::<(), TransportError>(())
            });
            assert!(matches!(left, Err(ScopeError::AutoPollError(_))), "{left:?}");
            assert_eq!(pair.here.qpn(), None, "its flush was never reported");
            assert!(pair.here.stray_completions() > 0);

            ENDLESS.set(None);
            let mut pair = Pair::on(&faulty(device), short);
            ENDLESS.set(Some(ibv_wc { wr_id: 77, ..Default::default() }));
            let request = ReceiveWorkRequest::only_immediate();
            let error = pair.here.within(DRAIN).receive(request).unwrap_err();
            assert!(matches!(error, TransportError::Timeout { .. }), "{error}");
        });
    }
}
