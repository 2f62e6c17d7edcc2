//! Unreliable datagrams: messages of one packet, each with an address.

use rdma_types::{Mtu, Psn, Qpn};

use crate::burst::Burst;
use crate::counters::{Counters, count};
use crate::host::Host;
use crate::operation::End;
use crate::wire::{Bth, Deth, Headers, ImmDt, Opcode, Operation, PadCount, Service};

/// Where a datagram came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The queue pair that sent it.
    pub qpn: Qpn,
    /// What it showed.
    pub qkey: u32,
    /// The route header that stands before it in memory: the IPv6 header that it came with, or 20 zeros and the
    /// IPv4 header (IBTA annex A17).
    pub route: [u8; 40],
}

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Delivered {
    /// It is there.
    Whole,
    /// There was no receive, or it was too small or unusable.
    Dropped,
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The queue pair there; [`Qpn::MULTICAST`] for a group.
    pub qpn: Qpn,
    /// What it has to be shown.
    pub qkey: u32,
    /// The partition.
    pub p_key: u16,
}

/// The sending and receiving of a queue pair of datagrams (IBTA chapter 9, unreliable datagrams).
#[derive(Debug)]
pub struct Datagrams {
    own: Qpn,
    mtu: Mtu,
    psn: Psn,
    counters: Counters,
}

impl Datagrams {
    /// Of the queue pair with that number, on a port with that MTU; the first packet that it sends has that
    /// PSN.
    #[must_use]
    pub fn new(own: Qpn, mtu: Mtu, psn: Psn) -> Self {
        Self { own, mtu, psn, counters: Counters::default() }
    }

    /// What it counted.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The packet of a datagram, whose payload the caller has. `None` if that is more than the MTU: nothing is
    /// sent of it (IBTA C10-93.1.1). What becomes of the request is for the caller to say: the specification has
    /// it succeed, as SoftRoCE does, and adapters let it fail with a local length error.
    pub fn send(&mut self, to: &Destination, end: &End) -> Option<Burst> {
        if end.length > self.mtu.bytes() {
            return None;
        }
        let operation = match end.immediate {
            Some(_) => Operation::SendOnlyWithImmediate,
            None => Operation::SendOnly,
        };
        let opcode = Opcode::new(Service::Ud, operation)?;
        let mut headers = Headers::new(Bth {
            p_key: to.p_key,
            solicited: end.solicited,
            pad_count: PadCount::of(end.length as usize),
            ..Bth::new(opcode, to.qpn, self.psn)
        });
        headers.deth = Some(Deth { qkey: to.qkey, source: self.own });
        headers.imm = end.immediate.map(|immediate| ImmDt { immediate });
        self.psn = self.psn.wrapping_add(1);
        count(&mut self.counters.sent_pkts);
        Some(Burst::single(headers, end.length as usize))
    }

    /// Takes packets for this queue pair, which shows and expects that Q_Key now. They came with that route
    /// header. The PSN says nothing. A packet with another Q_Key is dropped, and so is one that is
    /// longer than the MTU (IBTA C9-205).
    pub fn receive<H: Host + ?Sized>(
        &mut self,
        qkey: u32,
        route: &[u8; 40],
        burst: &Burst,
        payload: &[u8],
        host: &mut H,
    ) {
        for (headers, payload) in burst.packets(payload) {
            count(&mut self.counters.rcvd_pkts);
            let is_datagram = headers.bth.opcode.service() == Service::Ud;
            let Some(deth) = headers.deth.filter(|_| is_datagram) else {
                count(&mut self.counters.wrong_opcode);
                continue;
            };
            if deth.qkey != qkey {
                count(&mut self.counters.qkey_viol_cntr);
                continue;
            }
            let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
            if length > self.mtu.bytes() {
                count(&mut self.counters.resp_invalid_request_errors);
                continue;
            }
            let from = Source { qpn: deth.source, qkey: deth.qkey, route: *route };
            let immediate = headers.imm.map(|imm| imm.immediate);
            let solicited = headers.bth.solicited;
            let end = End { length, immediate, invalidate: None, solicited };
            if host.datagram(&from, &end, payload) == Delivered::Dropped {
                count(&mut self.counters.out_of_buffer);
            }
        }
    }
}
