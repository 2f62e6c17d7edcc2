//! Requests with inline data, and requests with several elements.

use anyhow::{Result, bail, ensure};

use super::reliable::{ensure_received, piece};
use crate::interop::command::{Completion, Operation, Piece, Queue, SendWr, Service};
use crate::interop::pattern;
use crate::interop::scene::{A, B, GUARD, Scene};
use crate::interop::station::{ELEMENTS, INLINE};

/// Returns the length of the header before each received message.
pub(super) fn header(service: Service) -> usize {
    if service == Service::Ud { test_support::rig::datagram::HEADER } else { 0 }
}

/// The maximum number of attempts to send a message that may be lost.
const ATTEMPTS: usize = 20;

/// Sends a message repeatedly until it arrives in the receive that is already posted. Calls
/// `prepare` before each attempt, and `posted` right after the message was posted.
pub(super) fn deliver(
    scene: &mut Scene<'_>,
    service: Service,
    request: &SendWr,
    mut prepare: impl FnMut(&mut Scene<'_>) -> Result<()>,
    mut posted: impl FnMut(&mut Scene<'_>) -> Result<()>,
) -> Result<Completion> {
    for _ in 0..ATTEMPTS {
        prepare(scene)?;
        scene.post(A, std::slice::from_ref(request))?;
        posted(scene)?;
        scene.succeed((A, Queue::Send), request.wr_id)?;
        let got = match service {
            Service::Rc => Some(scene.take((B, Queue::Receive))?),
            Service::Uc | Service::Ud => scene.arrived()?,
        };
        if let Some(got) = got {
            return Ok(got);
        }
    }
    bail!("a message did not arrive in {ATTEMPTS} attempts");
}

/// Checks that an inline request sends the bytes that the memory contains when the request is
/// posted, whatever is written to the memory later.
pub(super) fn inline(scene: &mut Scene<'_>, service: Service) -> Result<()> {
    scene.connect(service)?;
    let (source, sink) = (scene.source(), scene.sink());
    for (n, length) in (1..).zip([0, 1, 3, INLINE / 2, INLINE]) {
        let (data, after, before) = (scene.seed(), scene.seed(), scene.seed());
        let whole = header(service) + length;
        scene.fill(B, &[((sink, whole + GUARD), before)])?;
        scene.receive(B, 100 + n, &piece(sink, whole))?;
        let request = scene.request(n, Operation::Send, &piece(source, length))?;
        let request = SendWr { inline: true, ..request };
        let fill = move |scene: &mut Scene<'_>| scene.fill(A, &[((source, INLINE), data)]);
        let spoil = move |scene: &mut Scene<'_>| scene.fill(A, &[((source, INLINE), after)]);
        let got = deliver(scene, service, &request, fill, spoil)?;
        ensure!(got.status == 0 && got.wr_id == 100 + n, "{got:?}");
        ensure_received(&got, whole, true, None)?;
        scene.expect(B, &[((sink + header(service), length), &[data])])?;
        if service != Service::Rc {
            continue;
        }
        let request = scene.request(n, Operation::Write, &piece(source, length))?;
        let (data, after) = (scene.seed(), scene.seed());
        scene.fill(A, &[((source, INLINE), data)])?;
        scene.post(A, &[SendWr { inline: true, ..request }])?;
        scene.fill(A, &[((source, INLINE), after)])?;
        scene.succeed((A, Queue::Send), n)?;
        scene.expect(B, &[((sink, length), &[data])])?;
    }
    Ok(())
}

/// Returns consecutive ranges with these lengths, separated by gaps.
fn spread(at: usize, lengths: [usize; ELEMENTS]) -> Vec<Piece> {
    let mut at = at;
    let mut next = |length| {
        let piece = (at, length);
        at += length + GUARD;
        piece
    };
    lengths.map(&mut next).to_vec()
}

/// Writes bytes to the ranges, in order.
fn scatter(scene: &mut Scene<'_>, into: &[Piece], bytes: &[u8]) -> Result<()> {
    let mut rest = bytes;
    for &(at, length) in into {
        let (part, more) = rest.split_at(length);
        scene.write(A, at, part)?;
        rest = more;
    }
    Ok(())
}

fn gathered(
    scene: &mut Scene<'_>,
    side: crate::interop::scene::Side,
    from: &[Piece],
) -> Result<Vec<u8>> {
    let parts: Result<Vec<_>> = from.iter().map(|&piece| scene.bytes(side, piece)).collect();
    Ok(parts?.concat())
}

/// Checks that a message gathered from several elements arrives in a receive whose elements
/// have different lengths.
pub(super) fn elements(scene: &mut Scene<'_>, service: Service) -> Result<()> {
    scene.connect(service)?;
    let (mtu, front) = (scene.options.mtu, header(service));
    let (lengths, into) = match service {
        Service::Ud => ([5, 64, mtu / 4 + 1, 3], [front, 7, mtu / 4, 66]),
        Service::Rc | Service::Uc => ([5, mtu - 2, mtu + 1, 7], [mtu + 3, 1, mtu - 1, 8]),
    };
    let total = lengths.iter().sum::<usize>();
    ensure!(
        total + front == into.iter().sum::<usize>(),
        "the lengths of the check are inconsistent"
    );
    let (from, into) = (spread(scene.source(), lengths), spread(scene.sink(), into));
    let data = pattern::bytes(scene.seed(), total);
    scatter(scene, &from, &data)?;
    scene.receive(B, 100, &into)?;
    let request = scene.request(1, Operation::Send, &from)?;
    let got = deliver(scene, service, &request, |_| Ok(()), |_| Ok(()))?;
    ensure!(got.status == 0 && got.wr_id == 100, "{got:?}");
    ensure_received(&got, total + front, true, None)?;
    let found = gathered(scene, B, &into)?;
    ensure!(found[front..] == data, "the bytes of the message differ");
    Ok(())
}

pub(super) fn elements_of_writes_and_reads(scene: &mut Scene<'_>) -> Result<()> {
    scene.connect(Service::Rc)?;
    let mtu = scene.options.mtu;
    let pieces = spread(scene.source(), [mtu + 1, 3, mtu - 3, 130]);
    let total = pieces.iter().map(|piece| piece.1).sum();
    let (sink, before, other) = (scene.sink(), scene.seed(), scene.seed());
    let data = pattern::bytes(scene.seed(), total);
    scatter(scene, &pieces, &data)?;
    scene.fill(B, &[((sink, total), before)])?;
    let write = scene.request(1, Operation::Write, &pieces)?;
    scene.post(A, &[write])?;
    scene.succeed((A, Queue::Send), 1)?;
    let found = scene.bytes(B, (sink, total))?;
    ensure!(found == data, "the bytes of the WRITE differ");
    scene.fill(B, &[((sink, total), other)])?;
    let read = scene.request(2, Operation::Read, &pieces)?;
    scene.post(A, &[read])?;
    scene.succeed((A, Queue::Send), 2)?;
    let found = gathered(scene, A, &pieces)?;
    ensure!(found == pattern::bytes(other, total), "the bytes of the READ differ");
    Ok(())
}
