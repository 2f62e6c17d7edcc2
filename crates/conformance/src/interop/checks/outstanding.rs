//! Many requests that are posted in one call and in flight at the same time.

use anyhow::{Context as _, Result, ensure};
use rdma_sys::ibv_wc_status as Status;

use super::reliable::ensure_received;
use super::shapes::header;
use crate::interop::command::{Operation, Piece, Queue, SendWr, Service};
use crate::interop::scene::{A, B, GUARD, Scene, ensure_status};

/// Returns the range of request `n`, in an area that starts at `base`. The lengths differ between
/// requests.
fn slot(scene: &Scene<'_>, base: usize, n: usize) -> Piece {
    let mtu = scene.options.mtu;
    (base + n * (2 * mtu + GUARD), 1 + n * 97 % (2 * mtu - 1))
}

/// The operations on the reliable connection, used in turn, and whether each has immediate data.
const TURNS: [(Operation, bool); 6] = [
    (Operation::Send, true),
    (Operation::Write, false),
    (Operation::Read, false),
    (Operation::FetchAdd { add: 1 }, false),
    (Operation::Write, true),
    (Operation::Send, false),
];

pub(super) fn mixed(scene: &mut Scene<'_>, count: usize) -> Result<()> {
    scene.connect(Service::Rc)?;
    let (source, sink) = (scene.source(), scene.sink());
    // All atomics use one word, in the range of the first atomic.
    let word = slot(scene, sink, 3).0;
    let (mut at_a, mut at_b, mut requests) = (Vec::new(), Vec::new(), Vec::new());
    let (mut receives, mut words) = (Vec::new(), Vec::new());
    for n in 0..count {
        let (operation, imm) = TURNS[n % TURNS.len()];
        let (out, into, data) = (slot(scene, source, n), slot(scene, sink, n), scene.seed());
        let mut request = scene.request(n as u64, operation, &[out])?;
        request.imm = imm.then_some(n as u32);
        match operation {
            Operation::Read => {
                request.pieces = vec![into];
                request.remote = scene.remote(out.0)?;
                at_b.push((out, data));
            }
            Operation::FetchAdd { .. } => {
                request.pieces = vec![(out.0, 8)];
                request.remote = scene.remote(word)?;
                words.push(out.0);
            }
            _ => {
                request.remote = scene.remote(into.0)?;
                at_a.push((out, data));
                if operation == Operation::Send {
                    receives.push((n, vec![into], request.imm));
                } else if imm {
                    receives.push((n, Vec::new(), request.imm));
                }
            }
        }
        requests.push(request);
    }
    scene.fill(A, &at_a)?;
    scene.fill(B, &at_b)?;
    scene.write(B, word, &0_u64.to_ne_bytes())?;
    for (n, pieces, _) in &receives {
        scene.receive(B, *n as u64, pieces)?;
    }
    scene.post(A, &requests)?;
    for (n, done) in scene.take_many((A, Queue::Send), count)?.iter().enumerate() {
        ensure_status(done, n as u64, &[Status::IBV_WC_SUCCESS])?;
    }
    let got = scene.take_many((B, Queue::Receive), receives.len())?;
    for (got, (n, pieces, imm)) in got.iter().zip(&receives) {
        ensure_status(got, *n as u64, &[Status::IBV_WC_SUCCESS])?;
        ensure_received(got, slot(scene, sink, *n).1, !pieces.is_empty(), *imm)?;
    }
    for (n, at) in words.iter().enumerate() {
        let found = scene.word(A, *at)?;
        ensure!(found == n as u64, "atomic {n} returned {found}");
    }
    let sum = scene.word(B, word)?;
    ensure!(sum == words.len() as u64, "{} atomics made {sum}", words.len());
    let distance = sink - source;
    for (side, ranges) in [(B, at_a), (A, at_b)] {
        let moved = ranges.iter().map(|&((at, length), data)| ((at + distance, length), [data]));
        let moved: Vec<_> = moved.collect();
        let moved: Vec<_> = moved.iter().map(|(piece, data)| (*piece, &data[..])).collect();
        scene.expect(side, &moved)?;
    }
    Ok(())
}

/// The number of messages that are sent on UC and UD.
const MESSAGES: usize = 32;

pub(super) fn sends(scene: &mut Scene<'_>, service: Service) -> Result<()> {
    scene.connect(service)?;
    let (source, sink, front) = (scene.source(), scene.sink(), header(service));
    let longest = scene.options.mtu * if service == Service::Ud { 1 } else { 2 };
    let out = |scene: &Scene<'_>, n| {
        let (at, length) = slot(scene, source, n);
        (at, length.min(longest))
    };
    let (mut data, mut requests) = (Vec::new(), Vec::new());
    for n in 0..MESSAGES {
        let piece = out(scene, n);
        data.push((piece, scene.seed()));
        let request = scene.request(n as u64, Operation::Send, &[piece])?;
        requests.push(SendWr { imm: Some(n as u32), ..request });
        scene.receive(B, n as u64, &[(slot(scene, sink, n).0, front + longest)])?;
    }
    scene.fill(A, &data)?;
    scene.post(A, &requests)?;
    for (n, done) in scene.take_many((A, Queue::Send), MESSAGES)?.iter().enumerate() {
        ensure_status(done, n as u64, &[Status::IBV_WC_SUCCESS])?;
    }
    let (mut next, mut receives) = (0, 0..);
    while next < MESSAGES {
        let Some(got) = scene.arrived()? else { break };
        let receive = receives.next().context("an endless range")?;
        ensure_status(&got, receive, &[Status::IBV_WC_SUCCESS])?;
        let n = got.imm as usize;
        ensure!(next <= n && n < MESSAGES, "message {n} arrived, but {next} was next");
        ensure!(scene.options.lossy || n == next, "message {n} arrived instead of {next}");
        let ((_, length), seed) = data[n];
        ensure_received(&got, front + length, true, Some(n as u32))?;
        let into = slot(scene, sink, receive as usize).0 + front;
        scene.expect(B, &[((into, length), &[seed])])?;
        next = n + 1;
    }
    ensure!(next > 0, "nothing arrived");
    Ok(())
}
