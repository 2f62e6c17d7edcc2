//! Each operation on a reliable connection, with messages of various lengths.

use anyhow::{Context as _, Result, ensure};
use rdma_sys::{ibv_wc_flags as Flags, ibv_wc_opcode as Opcode, ibv_wc_status as Status};

use crate::interop::command::{Completion, Operation, Piece, Queue, SendWr, Service};
use crate::interop::scene::{A, B, GUARD, Scene, Skip, ensure_status};

/// A kind of message: its operation, and whether it has immediate data.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    operation: Operation,
    imm: bool,
}

pub(super) const SEND: Kind = Kind { operation: Operation::Send, imm: false };
pub(super) const SEND_IMM: Kind = Kind { operation: Operation::Send, imm: true };
pub(super) const WRITE: Kind = Kind { operation: Operation::Write, imm: false };
pub(super) const WRITE_IMM: Kind = Kind { operation: Operation::Write, imm: true };

/// Returns the range as a list of elements, which is empty if the range is.
pub(super) fn piece(at: usize, length: usize) -> Vec<Piece> {
    if length == 0 { Vec::new() } else { vec![(at, length)] }
}

/// Returns the guard ranges before and after a range.
pub(super) fn guards(at: usize, length: usize) -> [Piece; 2] {
    [(at - GUARD, GUARD), (at + length, GUARD)]
}

pub(super) fn messages(scene: &mut Scene<'_>, kind: Kind) -> Result<()> {
    scene.connect(Service::Rc)?;
    for (n, length) in (1..).zip(scene.options.lengths()) {
        let (source, sink) = (scene.source(), scene.sink());
        let (data, before) = (scene.seed(), scene.seed());
        let [front, back] = guards(sink, length);
        scene.fill(A, &[((source, length), data)])?;
        scene.fill(B, &[(front, before), ((sink, length), before), (back, before)])?;
        let sends = kind.operation == Operation::Send;
        if sends || kind.imm {
            let into = if sends { piece(sink, length) } else { Vec::new() };
            scene.receive(B, 100 + n, &into)?;
        }
        let imm = kind.imm.then_some(0xfeed_0000 | length as u32);
        let request = scene.request(n, kind.operation, &piece(source, length))?;
        scene.post(A, &[SendWr { imm, ..request }])?;
        scene.succeed((A, Queue::Send), n)?;
        if sends || kind.imm {
            let got = scene.succeed((B, Queue::Receive), 100 + n)?;
            ensure_received(&got, length, sends, imm)?;
        }
        let data: &[u64] = &[data];
        scene.expect(B, &[((sink, length), data), (front, &[before]), (back, &[before])])?;
    }
    Ok(())
}

/// Checks that the completion of a receive describes the message.
pub(super) fn ensure_received(
    got: &Completion,
    length: usize,
    sent: bool,
    imm: Option<u32>,
) -> Result<()> {
    let opcode = if sent { Opcode::IBV_WC_RECV } else { Opcode::IBV_WC_RECV_RDMA_WITH_IMM };
    ensure!(got.opcode == opcode.0, "the receive should be {opcode:?}: {got:?}");
    ensure!(got.bytes as usize == length, "the receive should have {length} bytes: {got:?}");
    let with_imm = got.flags & Flags::IBV_WC_WITH_IMM.0 != 0;
    ensure!(with_imm.then_some(got.imm) == imm, "the immediate data should be {imm:x?}: {got:x?}");
    Ok(())
}

/// Checks that a window can be bound, written through and invalidated, and is unusable afterwards.
pub(super) fn invalidations(scene: &mut Scene<'_>) -> Result<()> {
    if !(scene.facts(A).windows && scene.facts(B).windows) {
        return Err(Skip("a device has no memory windows of type 2").into());
    }
    for length in [0, 24, scene.options.mtu + 1] {
        // SoftRoCE cannot bind a window twice, so each length uses a new connection and window.
        scene.connect_to_fail()?;
        let (source, sink) = (scene.source(), scene.sink());
        let (data, before) = (scene.seed(), scene.seed());
        scene.fill(A, &[((source, length.max(8)), data)])?;
        scene.fill(B, &[((sink, 8), before)])?;
        let key = scene.bind(B, (sink, 8))?;
        let mut write = scene.request(1, Operation::Write, &[(source, 8)])?;
        write.remote.1 = key;
        let into = sink + 2 * GUARD;
        scene.receive(B, 100, &piece(into, length))?;
        let invalidate = Operation::SendInvalidate { key };
        let invalidate = scene.request(2, invalidate, &piece(source, length))?;
        scene.post(A, &[write.clone(), invalidate])?;
        scene.succeed((A, Queue::Send), 1)?;
        scene.succeed((A, Queue::Send), 2)?;
        let got = scene.succeed((B, Queue::Receive), 100)?;
        ensure_received(&got, length, true, None)?;
        let says = got.flags & Flags::IBV_WC_WITH_INV.0 != 0;
        let found = says.then_some(got.invalidated);
        let expected = scene.expected(B, Some(key), "with-invalidate-flag", None);
        ensure!(found == expected, "the key {expected:x?} should be invalidated, not {found:x?}");
        scene.expect(B, &[((into, length), &[data]), ((sink, 8), &[data])])?;
        write.wr_id = 3;
        scene.post(A, &[write])?;
        refused(scene, 3)?;
    }
    Ok(())
}

/// Checks that a request fails with a remote access error. If that answer is lost, the responder
/// does not repeat it, because its queue pair is in error. So the requester may time out instead.
pub(super) fn refused(scene: &mut Scene<'_>, wr_id: u64) -> Result<()> {
    let done = scene.take((A, Queue::Send)).context("waiting for a refusal")?;
    let statuses = [Status::IBV_WC_REM_ACCESS_ERR, Status::IBV_WC_RETRY_EXC_ERR];
    ensure_status(&done, wr_id, &statuses[..1 + usize::from(scene.options.lossy)])
}

pub(super) fn reads(scene: &mut Scene<'_>) -> Result<()> {
    scene.connect(Service::Rc)?;
    for (n, length) in (1..).zip(scene.options.lengths()) {
        let (source, sink) = (scene.source(), scene.sink());
        let (data, before) = (scene.seed(), scene.seed());
        let [front, back] = guards(sink, length);
        scene.fill(B, &[((source, length), data)])?;
        scene.fill(A, &[(front, before), ((sink, length), before), (back, before)])?;
        let mut request = scene.request(n, Operation::Read, &piece(sink, length))?;
        request.remote = scene.remote(source)?;
        scene.post(A, &[request])?;
        let done = scene.succeed((A, Queue::Send), n)?;
        ensure!(done.opcode == Opcode::IBV_WC_RDMA_READ.0, "{done:?}");
        ensure!(done.bytes as usize == length, "the READ should have {length} bytes: {done:?}");
        let data: &[u64] = &[data];
        scene.expect(A, &[((sink, length), data), (front, &[before]), (back, &[before])])?;
    }
    Ok(())
}

/// Executes an atomic on a word of B. Returns the word's previous value.
fn atomic(scene: &mut Scene<'_>, wr_id: u64, operation: Operation) -> Result<u64> {
    let at = scene.source();
    let request = scene.request(wr_id, operation, &[(at, 8)])?;
    scene.post(A, &[request])?;
    let done = scene.succeed((A, Queue::Send), wr_id)?;
    let opcode = match operation {
        Operation::FetchAdd { .. } => Opcode::IBV_WC_FETCH_ADD,
        _ => Opcode::IBV_WC_COMP_SWAP,
    };
    ensure!(
        (done.opcode, done.bytes) == (opcode.0, 8),
        "the completion should be that of an atomic: {done:?}"
    );
    scene.word(A, at)
}

const FIRST: u64 = 0x0123_4567_89ab_cdef;

/// Connects, and writes a word to B's memory, between bytes that must not change. Returns the seed
/// of these bytes.
fn with_word(scene: &mut Scene<'_>) -> Result<u64> {
    scene.connect(Service::Rc)?;
    let (sink, before) = (scene.sink(), scene.seed());
    let [front, back] = guards(sink, 8);
    scene.fill(B, &[(front, before), (back, before)])?;
    scene.write(B, sink, &FIRST.to_ne_bytes())?;
    Ok(before)
}

fn ensure_word(scene: &mut Scene<'_>, expected: u64, around: u64) -> Result<()> {
    let sink = scene.sink();
    let found = scene.word(B, sink)?;
    ensure!(found == expected, "the word should be {expected:#x}, not {found:#x}");
    let [front, back] = guards(sink, 8);
    scene.expect(B, &[(front, &[around]), (back, &[around])])
}

pub(super) fn compare_swaps(scene: &mut Scene<'_>) -> Result<()> {
    let around = with_word(scene)?;
    let mut word = FIRST;
    for n in 1..20 {
        // In every third operation, the comparison fails.
        let compare = if n % 3 == 0 { !word } else { word };
        let swap = word.rotate_left(7) ^ n;
        let found = atomic(scene, n, Operation::CompareSwap { compare, swap })?;
        ensure!(found == word, "the word was {word:#x}, not {found:#x}");
        word = if compare == word { swap } else { word };
        ensure_word(scene, word, around)?;
    }
    Ok(())
}

pub(super) fn fetch_adds(scene: &mut Scene<'_>) -> Result<()> {
    let around = with_word(scene)?;
    let mut word = FIRST;
    for n in 1..20 {
        let add = if n % 4 == 0 { u64::MAX - n } else { n << (3 * n) };
        let found = atomic(scene, n, Operation::FetchAdd { add })?;
        ensure!(found == word, "the word was {word:#x}, not {found:#x}");
        word = word.wrapping_add(add);
    }
    ensure_word(scene, word, around)
}
