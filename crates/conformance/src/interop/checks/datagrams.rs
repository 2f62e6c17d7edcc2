//! Datagrams.

use anyhow::{Result, ensure};

use super::reliable::ensure_received;
use super::shapes::{deliver, header};
use super::unreliable::each;
use crate::interop::command::{Operation, Queue, SendWr, Service};
use crate::interop::scene::{A, B, Scene};

pub(super) fn sends(scene: &mut Scene<'_>, imm: bool) -> Result<()> {
    let mut lengths = scene.options.lengths();
    lengths.retain(|&length| length <= scene.options.mtu);
    // The limit is that of the port, whatever MTU connections use.
    let longest = scene.facts(A).mtu.min(scene.facts(B).mtu) as usize;
    if longest > scene.options.mtu && longest <= scene.options.longest {
        lengths.extend([longest - 1, longest]);
    }
    each(scene, Service::Ud, &lengths, imm)
}

/// Checks that a datagram with a wrong Q_Key is lost and consumes no receive.
pub(super) fn wrong_qkey(scene: &mut Scene<'_>) -> Result<()> {
    scene.connect(Service::Ud)?;
    let (source, sink, front) = (scene.source(), scene.sink(), header(Service::Ud));
    let (bad, good) = (scene.seed(), scene.seed());
    let second = source + 128;
    scene.fill(A, &[((source, 100), bad), ((second, 90), good)])?;
    scene.receive(B, 100, &[(sink, front + 100)])?;
    let request = scene.request(1, Operation::Send, &[(source, 100)])?;
    let request = SendWr { qkey: request.qkey ^ 1, ..request };
    let before = move |scene: &mut Scene<'_>| {
        scene.post(A, std::slice::from_ref(&request))?;
        scene.succeed((A, Queue::Send), 1).map(drop)
    };
    let fits = scene.request(2, Operation::Send, &[(second, 90)])?;
    let got = deliver(scene, Service::Ud, &fits, before, |_| Ok(()))?;
    ensure!(got.status == 0 && got.wr_id == 100, "{got:?}");
    ensure_received(&got, front + 90, true, None)?;
    scene.expect(B, &[((sink + front, 90), &[good])])
}
