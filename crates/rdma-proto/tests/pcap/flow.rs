//! The captured packets of reliable connections, by the two ends of each.

use rdma_proto::wire::{Headers, IpHeader, NakCode, Operation, Packet, Service, Syndrome};
use rdma_types::{Psn, Qpn};

use super::pcap;

/// A requester, by the last byte of its address and the queue pair of its peer; and its own queue pair.
pub(crate) struct Flow {
    pub(crate) capture: &'static str,
    pub(crate) requester: u8,
    pub(crate) to: u32,
    pub(crate) from: u32,
}

const fn flow(capture: &'static str, requester: u8, to: u32, from: u32) -> Flow {
    Flow { capture, requester, to, from }
}

/// All flows of reliable connections.
pub(crate) const FLOWS: [Flow; 13] = [
    flow("rxe", 1, 0x11, 0x11),
    flow("rxe", 1, 0x14, 0x14),
    flow("rxe", 1, 0x15, 0x15),
    flow("rxe", 1, 0x16, 0x16),
    flow("rxe", 1, 0x18, 0x18),
    flow("rxe", 1, 0x1c, 0x1c),
    flow("rxe", 2, 0x1c, 0x1c),
    flow("rxe", 2, 0x1d, 0x1d),
    flow("rxe", 2, 0x1e, 0x1e),
    flow("loss", 1, 0x11, 0x11),
    flow("big", 1, 0x1b, 0x1b),
    flow("user", 1, 0x123, 0x11),
    flow("user", 2, 0x11, 0x123),
];

#[derive(Clone, Copy)]
pub(crate) struct Captured {
    pub(crate) headers: Headers,
    pub(crate) payload: &'static [u8],
}

impl Captured {
    pub(crate) fn operation(&self) -> Operation {
        self.headers.bth.opcode.operation()
    }

    pub(crate) fn psn(&self) -> Psn {
        self.headers.bth.psn
    }

    pub(crate) fn syndrome(&self) -> Option<Syndrome> {
        self.headers.aeth.map(|aeth| aeth.syndrome)
    }
}

/// Returns the packets of a flow, both ways, in the order of the capture.
pub(crate) fn conversation(flow: &Flow) -> Vec<Captured> {
    let mut found: Vec<Captured> = Vec::new();
    for (at, bytes) in pcap::datagrams(flow.capture).into_iter().enumerate() {
        let Ok((IpHeader::V4(ip), carried)) = IpHeader::parse(bytes) else { continue };
        let carried = &carried[8..];
        let packets = match (flow.capture, at) {
            // Their ICRC is wrong, and SoftRoCE dropped them.
            ("user", 28..=31) => continue,
            // The kernel sent it as three packets.
            ("user", 32) => carried.chunks(40).collect(),
            _ => vec![carried],
        };
        for Packet { headers, payload, .. } in
            packets.into_iter().map(|it| Packet::parse(it).unwrap())
        {
            let bth = headers.bth;
            let is_request = !bth.opcode.operation().is_response();
            let ours = ip.source.octets()[3] == flow.requester;
            let qpn = if is_request { flow.to } else { flow.from };
            if bth.opcode.service() == Service::Rc
                && is_request == ours
                && bth.destination == qpn_of(qpn)
            {
                found.push(Captured { headers, payload });
            }
        }
    }
    let quirk = |pair: &[Captured]| {
        matches!(pair[0].syndrome(), Some(Syndrome::RnrNak(_)))
            && pair[1].syndrome() == Some(Syndrome::Nak(NakCode::PsnSequence))
            && pair[0].psn() == pair[1].psn()
    };
    let answers: Vec<_> =
        (0..found.len()).filter(|&at| found[at].operation().is_response()).collect();
    let quirks: Vec<_> = answers
        .windows(2)
        .filter(|at| quirk(&[found[at[0]], found[at[1]]]))
        .map(|at| at[1])
        .collect();
    quirks.into_iter().rev().for_each(|at| _ = found.remove(at));
    found
}

pub(crate) fn qpn_of(number: u32) -> Qpn {
    Qpn::masked(number)
}
