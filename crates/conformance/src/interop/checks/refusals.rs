//! Requests on reliable connections that the responder refuses or has no receive for.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rdma_sys::ibv_wc_status as Status;

use super::reliable::refused;
use crate::interop::command::{Operation, Queue, SendWr, Service, Tuning};
use crate::interop::scene::{A, B, GUARD, Scene, ensure_status};

/// Checks that the request after the failed one is flushed.
fn flushed(scene: &mut Scene<'_>, wr_id: u64) -> Result<()> {
    let done = scene.take((A, Queue::Send)).context("waiting for a flush")?;
    ensure_status(&done, wr_id, &[Status::IBV_WC_WR_FLUSH_ERR])
}

/// Checks that a request waits for a receive that is posted late.
pub(super) fn late_receive(scene: &mut Scene<'_>) -> Result<()> {
    scene.connect(Service::Rc)?;
    for (n, length) in (1..).zip([8, 3 * scene.options.mtu + 5]) {
        let (source, sink, data) = (scene.source(), scene.sink(), scene.seed());
        scene.fill(A, &[((source, length), data)])?;
        let request = scene.request(n, Operation::Send, &[(source, length)])?;
        scene.post(A, &[request])?;
        scene.nothing((A, Queue::Send))?;
        scene.receive(B, 100 + n, &[(sink, length)])?;
        scene.succeed((A, Queue::Send), n)?;
        scene.succeed((B, Queue::Receive), 100 + n)?;
        scene.expect(B, &[((sink, length), &[data])])?;
    }
    Ok(())
}

/// Checks that a send fails when its retries are exhausted because no receive is posted.
pub(super) fn no_receive(scene: &mut Scene<'_>) -> Result<()> {
    let tuning = Tuning { rnr_retries: 2, ..scene.patient() };
    scene.connect_with(Service::Rc, tuning, true)?;
    let piece = (scene.source(), 8);
    let first = scene.request(1, Operation::Send, &[piece])?;
    let second = scene.request(2, Operation::Send, &[piece])?;
    scene.post(A, &[first, second])?;
    let done = scene.take((A, Queue::Send))?;
    ensure_status(&done, 1, &[Status::IBV_WC_RNR_RETRY_EXC_ERR])?;
    flushed(scene, 2)
}

/// The operations that name a remote address, each with the number of bytes that it accesses.
const REMOTE: [(Operation, usize); 4] = [
    (Operation::Write, 64),
    (Operation::Read, 64),
    (Operation::CompareSwap { compare: 0, swap: 1 }, 8),
    (Operation::FetchAdd { add: 1 }, 8),
];

/// Posts the request, followed by another one. Checks that the first is refused, and the second is
/// flushed.
fn expect_refused(scene: &mut Scene<'_>, request: SendWr) -> Result<()> {
    let source = scene.source();
    let behind = scene.request(2, Operation::Write, &[(source, 8)])?;
    scene.post(A, &[request, behind])?;
    refused(scene, 1)?;
    flushed(scene, 2)
}

pub(super) fn bad_keys(scene: &mut Scene<'_>) -> Result<()> {
    for (operation, length) in REMOTE {
        scene.connect_to_fail()?;
        let (source, sink, before) = (scene.source(), scene.sink(), scene.seed());
        scene.fill(B, &[((sink, length), before)])?;
        let mut request = scene.request(1, operation, &[(source, length)])?;
        request.remote.1 ^= 0x5a5a_5a00;
        expect_refused(scene, request)?;
        scene.expect(B, &[((sink, length), &[before])])?;
    }
    Ok(())
}

pub(super) fn out_of_bounds(scene: &mut Scene<'_>) -> Result<()> {
    let long = 2 * scene.options.mtu;
    for (operation, length) in
        [REMOTE[0], REMOTE[1], (Operation::Write, long), (Operation::Read, long)]
    {
        for behind in [true, false] {
            scene.connect_to_fail()?;
            let (source, before) = (scene.source(), scene.seed());
            let end = 2 * scene.sink() - 2 * GUARD;
            // Only the first half of the range is inside the region, or only the second half.
            let inside = if behind { (end - length / 2, length / 2) } else { (0, length / 2) };
            scene.fill(B, &[(inside, before)])?;
            let mut request = scene.request(1, operation, &[(source, length)])?;
            request.remote = scene.remote(inside.0)?;
            if !behind {
                request.remote.0 -= length as u64 / 2;
            }
            expect_refused(scene, request)?;
            scene.expect(B, &[(inside, &[before])])?;
        }
    }
    Ok(())
}

/// Checks that requests to a region without rights for peers are refused.
pub(super) fn no_rights(scene: &mut Scene<'_>) -> Result<()> {
    for (operation, length) in REMOTE {
        scene.connect_with(Service::Rc, Tuning { retries: 6, ..scene.patient() }, false)?;
        let (source, sink, before) = (scene.source(), scene.sink(), scene.seed());
        scene.fill(B, &[((sink, length), before)])?;
        let request = scene.request(1, operation, &[(source, length)])?;
        expect_refused(scene, request)?;
        scene.expect(B, &[((sink, length), &[before])])?;
    }
    Ok(())
}

/// Checks that a WRITE with immediate data consumes no receive if it is refused.
pub(super) fn refused_write_imm(scene: &mut Scene<'_>) -> Result<()> {
    scene.connect_to_fail()?;
    let source = scene.source();
    scene.receive(B, 100, &[])?;
    let mut request = scene.request(1, Operation::Write, &[(source, 8)])?;
    request.imm = Some(5);
    request.remote.1 ^= 0x5a5a_5a00;
    expect_refused(scene, request)?;
    let status = scene.expected(
        B,
        Status::IBV_WC_WR_FLUSH_ERR,
        "receive-of-a-refused-write-with-immediate",
        Status::IBV_WC_REM_ACCESS_ERR,
    );
    let got = scene.take((B, Queue::Receive))?;
    ensure_status(&got, 100, &[status])
}

/// Checks that a message longer than its receive fails at both ends.
pub(super) fn too_long(scene: &mut Scene<'_>) -> Result<()> {
    let mtu = scene.options.mtu;
    for (room, length) in [(100, 200), (mtu + 10, 3 * mtu + 5)] {
        scene.connect_to_fail()?;
        let (source, sink, before) = (scene.source(), scene.sink(), scene.seed());
        let behind = (sink + room, length);
        scene.fill(B, &[(behind, before)])?;
        scene.receive(B, 100, &[(sink, room)])?;
        let request = scene.request(1, Operation::Send, &[(source, length)])?;
        scene.post(A, &[request])?;
        let done = scene.take((A, Queue::Send))?;
        let name = "receive-too-small";
        let status = scene.expected(
            B,
            [Status::IBV_WC_REM_INV_REQ_ERR, Status::IBV_WC_RETRY_EXC_ERR],
            name,
            [Status::IBV_WC_REM_OP_ERR, Status::IBV_WC_RETRY_EXC_ERR],
        );
        // If the answer is lost, the responder does not repeat it, so the requester times out.
        ensure_status(&done, 1, &status[..1 + usize::from(scene.options.lossy)])?;
        let status =
            scene.expected(B, Status::IBV_WC_LOC_LEN_ERR, name, Status::IBV_WC_LOC_QP_OP_ERR);
        let got = scene.take((B, Queue::Receive))?;
        ensure_status(&got, 100, &[status])?;
        scene.expect(B, &[(behind, &[before])])?;
    }
    Ok(())
}

/// Checks that a destroyed queue pair does not answer.
pub(super) fn destroyed_peer(scene: &mut Scene<'_>) -> Result<()> {
    let tuning = Tuning { retries: 3, ..scene.patient() };
    lose_peer(scene, tuning)?;
    give_up(scene)
}

/// Checks that a retry count of seven is finite.
pub(super) fn seven_retries(scene: &mut Scene<'_>) -> Result<()> {
    let tuning = scene.patient();
    lose_peer(scene, tuning)?;
    if scene.differs(A, "seven-retries-are-endless") {
        // The time limit is far longer than eight attempts of 67 ms each.
        let done = scene.take_within((A, Queue::Send), 1, Duration::from_secs(5))?;
        ensure!(done.is_empty(), "the requester should not have given up: {done:?}");
        return Ok(());
    }
    give_up(scene)
}

/// Destroys the peer's queue pair, and then posts two requests.
fn lose_peer(scene: &mut Scene<'_>, tuning: Tuning) -> Result<()> {
    scene.connect_with(Service::Rc, tuning, true)?;
    let piece = (scene.source(), 8);
    let request = |scene: &Scene<'_>, wr_id| scene.request(wr_id, Operation::Write, &[piece]);
    let first = request(scene, 1)?;
    scene.post(A, &[first])?;
    scene.succeed((A, Queue::Send), 1)?;
    scene.destroy(B)?;
    let requests = [request(scene, 2)?, request(scene, 3)?];
    scene.post(A, &requests)
}

fn give_up(scene: &mut Scene<'_>) -> Result<()> {
    let done = scene.take((A, Queue::Send))?;
    ensure_status(&done, 2, &[Status::IBV_WC_RETRY_EXC_ERR])?;
    flushed(scene, 3)
}
