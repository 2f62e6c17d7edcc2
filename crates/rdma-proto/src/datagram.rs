//! Unreliable datagrams: messages of one packet, each with an address.

use rdma_types::{Mtu, Psn, Qpn};

use crate::burst::Burst;
use crate::counters::{Counters, count};
use crate::host::Host;
use crate::operation::MessageEnd;
use crate::wire::{Bth, Deth, Headers, ImmDt, Opcode, Operation, PadCount, Service};

/// The sender of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The sending queue pair.
    pub qpn: Qpn,
    /// The Q_Key in the datagram.
    pub qkey: u32,
    /// The route header to store before the datagram in memory. It is the IPv6 header of the
    /// received packet, or 20 zeros and the IPv4 header (IBTA annex A17).
    pub route: [u8; 40],
}

/// The result of delivering a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Delivered {
    /// The datagram was delivered to a receive.
    Whole,
    /// The datagram was dropped: no receive was posted, or the receive was too small or unusable.
    Dropped,
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The destination queue pair; [`Qpn::MULTICAST`] for a group.
    pub qpn: Qpn,
    /// The Q_Key that the destination expects.
    pub qkey: u32,
    /// The partition.
    pub p_key: u16,
}

/// The sending and the receiving half of a datagram queue pair (IBTA chapter 9, unreliable datagrams).
#[derive(Debug)]
pub struct Datagrams {
    own: Qpn,
    mtu: Mtu,
    psn: Psn,
    counters: Counters,
}

impl Datagrams {
    /// Creates both halves for queue pair `own`, on a port with this MTU. `psn` is the PSN of the
    /// first packet to send.
    #[must_use]
    pub fn new(own: Qpn, mtu: Mtu, psn: Psn) -> Self {
        Self { own, mtu, psn, counters: Counters::default() }
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the packet for a datagram. The caller keeps the payload. Returns `None`, and sends
    /// nothing, if the payload is longer than the MTU (IBTA C10-93.1.1). The caller decides how the
    /// request then completes. The specification lets it succeed, as SoftRoCE does; adapters fail
    /// it with a local length error.
    pub fn send(&mut self, to: &Destination, end: &MessageEnd) -> Option<Burst> {
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

    /// Receives packets for this queue pair, whose current Q_Key is `qkey`. `route` is the route
    /// header of the packets. The PSN is ignored. Drops a packet that is not a datagram, whose
    /// Q_Key differs from `qkey`, or whose payload is longer than the MTU (IBTA C9-205).
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
            let end = MessageEnd { length, immediate, invalidate: None, solicited };
            if host.datagram(&from, &end, payload) == Delivered::Dropped {
                count(&mut self.counters.out_of_buffer);
            }
        }
    }
}
