//! Messages that may be lost. Every message that does arrive must be complete.

use anyhow::{Result, ensure};
use rdma_sys::ibv_wc_status as Status;

use super::header;
use super::reliable::{ensure_received, guards, piece};
use super::shapes;
use crate::interop::command::{Operation, Queue, SendWr, Service};
use crate::interop::scene::{A, B, GUARD, Scene, Skip, ensure_status};

pub(super) fn sends(scene: &mut Scene<'_>, imm: bool) -> Result<()> {
    let lengths = scene.options.lengths();
    each(scene, Service::Uc, &lengths, imm)
}

/// Sends one message of each length. Each receive has space for the longest one.
pub(super) fn each(
    scene: &mut Scene<'_>,
    service: Service,
    lengths: &[usize],
    imm: bool,
) -> Result<()> {
    scene.connect(service)?;
    let (source, sink, front) = (scene.source(), scene.sink(), shapes::header(service));
    let room = front + lengths.iter().max().copied().unwrap_or_default();
    let before = scene.seed();
    let (mut sent, mut waiting, mut arrived) = (Vec::new(), false, 0);
    for (n, &length) in (1..).zip(lengths) {
        if !waiting {
            scene.fill(B, &[((sink, room), before), ((sink + room, GUARD), before)])?;
            scene.receive(B, 100, &[(sink, room)])?;
        }
        let data = scene.seed();
        scene.fill(A, &[((source, length), data)])?;
        let imm = imm.then_some(0xfeed_0000 | length as u32);
        let request = scene.request(n, Operation::Send, &piece(source, length))?;
        scene.post(A, &[SendWr { imm, ..request }])?;
        scene.succeed((A, Queue::Send), n)?;
        sent.push((length, data, imm));
        let Some(got) = scene.arrived()? else {
            waiting = true;
            continue;
        };
        (waiting, arrived) = (false, arrived + 1);
        ensure_status(&got, 100, &[Status::IBV_WC_SUCCESS])?;
        // A message that seemed to be lost may arrive late.
        let place = sent.iter().position(|sent| front + sent.0 == got.bytes as usize);
        let Some(place) = place else {
            anyhow::bail!("no message of that length was sent: {got:?}")
        };
        let (length, data, imm) = sent.split_off(place)[0];
        ensure_received(&got, front + length, true, imm)?;
        scene.expect(B, &[((sink + front, length), &[data]), ((sink + room, GUARD), &[before])])?;
        if service == Service::Ud {
            header::ensure(scene, &got, (sink, length), imm.is_some())?;
        }
    }
    ensure!(arrived > 0, "nothing arrived");
    Ok(())
}

/// Checks WRITEs of various lengths. Their arrival is not reported, so each is followed by a SEND,
/// whose arrival is.
pub(super) fn writes(scene: &mut Scene<'_>) -> Result<()> {
    scene.connect(Service::Uc)?;
    let (mut waiting, mut arrived) = (false, 0);
    for (n, length) in (1..).zip(scene.options.lengths()) {
        let (source, sink) = (scene.source(), scene.sink());
        let (data, before) = (scene.seed(), scene.seed());
        let [front, back] = guards(sink, length);
        scene.fill(A, &[((source, length), data)])?;
        scene.fill(B, &[(front, before), ((sink, length), before), (back, before)])?;
        if !waiting {
            scene.receive(B, 100, &[])?;
        }
        let write = scene.request(n, Operation::Write, &piece(source, length))?;
        let mark = scene.request(1000 + n, Operation::Send, &[])?;
        scene.post(A, &[write, mark])?;
        scene.succeed((A, Queue::Send), n)?;
        scene.succeed((A, Queue::Send), 1000 + n)?;
        let got = scene.arrived()?;
        waiting = got.is_none();
        if let Some(got) = got {
            ensure_status(&got, 100, &[Status::IBV_WC_SUCCESS])?;
            arrived += 1;
        }
        // A lost message may still have written some of its packets.
        let either = [data, before];
        let seeds = if scene.options.lossy { &either[..] } else { &either[..1] };
        scene.expect(B, &[((sink, length), seeds), (front, &[before]), (back, &[before])])?;
    }
    ensure!(arrived > 0, "nothing arrived");
    Ok(())
}

pub(super) fn writes_imm(scene: &mut Scene<'_>) -> Result<()> {
    scene.connect(Service::Uc)?;
    let (mut waiting, mut arrived) = (false, 0);
    for (n, length) in (1..).zip(scene.options.lengths()) {
        let (source, sink) = (scene.source(), scene.sink());
        let (data, before) = (scene.seed(), scene.seed());
        let [front, back] = guards(sink, length);
        scene.fill(A, &[((source, length), data)])?;
        scene.fill(B, &[(front, before), ((sink, length), before), (back, before)])?;
        if !waiting {
            scene.receive(B, 100, &[])?;
        }
        let imm = Some(n as u32);
        let request = scene.request(n, Operation::Write, &piece(source, length))?;
        scene.post(A, &[SendWr { imm, ..request }])?;
        scene.succeed((A, Queue::Send), n)?;
        let got = scene.arrived()?;
        waiting = got.is_none();
        let own = got.filter(|got| u64::from(got.imm) == n);
        if let Some(got) = got {
            ensure_status(&got, 100, &[Status::IBV_WC_SUCCESS])?;
            arrived += 1;
        }
        let either = [data, before];
        let seeds = match own {
            Some(got) => {
                ensure_received(&got, length, false, imm)?;
                &either[..1]
            }
            None => &either[..],
        };
        scene.expect(B, &[((sink, length), seeds), (front, &[before]), (back, &[before])])?;
        ensure!(
            own.is_some() || scene.options.lossy,
            "the immediate data are those of another message"
        );
    }
    ensure!(arrived > 0, "nothing arrived");
    Ok(())
}

/// Checks that a message longer than its receive is lost, and that the next message consumes that
/// receive.
pub(super) fn too_long(scene: &mut Scene<'_>, service: Service) -> Result<()> {
    if scene.options.lossy {
        return Err(Skip("a loss by the network looks the same").into());
    }
    scene.connect(service)?;
    let (source, sink, front) = (scene.source(), scene.sink(), shapes::header(service));
    let (data, before) = (scene.seed(), scene.seed());
    scene.fill(B, &[((sink, front + 256), before)])?;
    scene.receive(B, 100, &[(sink, front + 100)])?;
    scene.fill(A, &[((source, 100), data)])?;
    let long = scene.request(1, Operation::Send, &[(source, 200)])?;
    scene.post(A, &[long])?;
    scene.succeed((A, Queue::Send), 1)?;
    if scene.differs(B, "unreliable-receive-too-short") {
        let got = scene.take((B, Queue::Receive))?;
        return ensure_status(&got, 100, &[Status::IBV_WC_LOC_QP_OP_ERR]);
    }
    let fits = scene.request(2, Operation::Send, &[(source, 100)])?;
    scene.post(A, &[fits])?;
    scene.succeed((A, Queue::Send), 2)?;
    let got = scene.succeed((B, Queue::Receive), 100)?;
    ensure_received(&got, front + 100, true, None)?;
    scene.expect(B, &[((sink + front, 100), &[data])])
}
