//! Determines which completions a phase must wait for, and polls them.

use std::collections::BTreeMap;

use rdma_sys::{ibv_qp_state as State, ibv_wc_status as Status};

use super::model::length;
use super::program::*;
use super::run::Run;

/// The requests that each end's send queue accepted.
type Accepted<'p> = BTreeMap<QpId, Vec<(u64, &'p Send)>>;

/// Polls all completions that the accepted requests cause.
pub(super) fn settle(run: &mut Run<'_>, accepted: &Accepted<'_>) {
    for (&end, sends) in accepted {
        if let Some(&(last, _)) = sends.last() {
            run.take_sent(end, last);
        }
    }
    for (&end, sends) in accepted {
        let transport = run.program.pairs[usize::from(end.pair)].transport;
        match failure(run, end, sends) {
            Some((_, status)) if transport == Transport::Rc => failed(run, end, sends, status),
            // Perhaps only the send queue has stopped. Moving the queue pair to error flushes its
            // receives too.
            Some(_) => run.fail(end),
            None if transport == Transport::Rc => {
                let count = sends.iter().filter(|(_, send)| send.opcode.is_received()).count();
                run.take_received(end.peer(), count);
                run.note_state(end, State::IBV_QPS_RTS);
            }
            None => {
                if let Some(&(last, _)) = sends.last() {
                    run.take_received_until(end.peer(), imm(last));
                }
                run.note_state(end, State::IBV_QPS_RTS);
            }
        }
    }
}

/// Returns the immediate data of a request.
pub(super) fn imm(wr_id: u64) -> u32 {
    u32::try_from(wr_id).expect("few requests")
}

/// Returns the ID and the status of the end's first failed request, if any. Clears the memory whose
/// contents are then undefined.
fn failure(run: &mut Run<'_>, end: QpId, sends: &[(u64, &Send)]) -> Option<(u64, u32)> {
    let sent = run.step.sent.get(&end.to_string())?;
    let failed = |id: u64| sent.iter().find(|wc| wc.wr_id == id && wc.status != 0);
    let (id, send, status) =
        sends.iter().find_map(|&(id, send)| failed(id).map(|wc| (id, send, wc.status)))?;
    if send.opcode.fetches() {
        // After a failed request, these contents are undefined.
        run.ends.get(end).clear(&send.elements);
    }
    // An atomic may have been executed although storing its response failed. If the immediate data
    // of a WRITE found no receive, the WRITE may have stored all bytes except those of its last
    // packet.
    let unheard =
        send.opcode == Opcode::WriteImm && Status(status) == Status::IBV_WC_RNR_RETRY_EXC_ERR;
    if let (Some(Remote { slot, offset, .. }), true) =
        (send.remote, send.opcode.is_atomic() || unheard)
    {
        let length = length(&send.elements);
        run.ends.get(end.peer()).clear(&[Element { slot, offset, length, key: Key::Own }]);
    }
    Some((id, status))
}

/// Handles the failure of a request on a reliable connection.
fn failed(run: &mut Run<'_>, end: QpId, sends: &[(u64, &Send)], status: u32) {
    let peer = end.peer();
    let answered =
        [Status::IBV_WC_REM_ACCESS_ERR, Status::IBV_WC_REM_INV_REQ_ERR, Status::IBV_WC_REM_OP_ERR];
    if answered.contains(&Status(status)) {
        // The messages before the failed one were received, and the peer's queue pair is in error
        // too.
        if run.ends.get(peer).srq.is_none() {
            run.take_all_receives(peer);
        } else {
            run.take_received(peer, usize::from(sends[0].1.opcode.is_received()));
        }
        run.note_state(peer, State::IBV_QPS_ERR);
        run.take_event(peer);
    }
    run.take_all_receives(end);
    run.note_state(end, State::IBV_QPS_ERR);
}
