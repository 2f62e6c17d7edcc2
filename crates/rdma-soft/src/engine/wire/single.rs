//! Messages of one packet between two processes of a host, in a form that is cheaper than packets.

use rdma_proto::Burst;
use rdma_proto::wire::{Bth, Headers, ImmDt, Opcode as WireOpcode, Operation as Packet, PadCount};
use rdma_types::{Psn, Qpn};

use crate::address::Path;
use crate::engine::operation::{Opcode, Operation};
use crate::engine::wire::word::WordKey;

/// A SEND whose data fits one packet, on a reliable connection. It replaces this packet, and takes its PSN. An end that
/// needs the packet, for example because the PSN is not the expected one, [makes it](Self::burst).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Single {
    /// The path from its sender to its receiver.
    pub(crate) path: Path,
    /// The number of the receiving queue pair.
    pub(crate) to: Qpn,
    pub(crate) psn: Psn,
    /// The key of the word that shows the sender how far its requests are executed.
    pub(crate) word: WordKey,
    /// Immediate data in network order, if the message has any.
    pub(crate) immediate: Option<u32>,
    pub(crate) solicited: bool,
    /// The number of bytes of its data, at most the MTU.
    pub(crate) length: u16,
}

impl Single {
    pub(crate) fn operation(&self) -> Operation {
        let (opcode, imm) = match self.immediate {
            Some(imm) => (Opcode::SendWithImm, imm),
            None => (Opcode::Send, 0),
        };
        Operation { opcode, imm, solicited: self.solicited, ..Operation::EMPTY }
    }

    /// Returns the packet that this message replaces.
    pub(crate) fn burst(&self) -> Burst {
        let operation = match self.immediate {
            Some(_) => Packet::SendOnlyWithImmediate,
            None => Packet::SendOnly,
        };
        let bth = Bth {
            solicited: self.solicited,
            ack_request: true,
            pad_count: PadCount::of(self.length.into()),
            ..Bth::new(WireOpcode::reliable(operation), self.to, self.psn)
        };
        let imm = self.immediate.map(|imm| ImmDt { immediate: u32::from_be(imm) });
        Burst::single(Headers { imm, ..Headers::new(bth) }, self.length.into())
    }
}
