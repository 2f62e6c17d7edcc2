//! All types can be used by any thread. Headers can also be copied and compared.

use std::hash::Hash;

use rdma_proto::requester::{self, Fixed, Requester};
use rdma_proto::responder::{self, Responder};
use rdma_proto::wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, CreditCount, Deth, EmitError, Header, Headers, Ieth, ImmDt,
    IpHeader, Ipv4Header, Ipv6Header, NakCode, Opcode, Operation, Packet, PadCount, ParseError,
    Reth, Service, Syndrome, UdpHeader,
};
use rdma_proto::{
    Burst, Connection, Counters, Datagrams, Delivered, Destination, Kind, Last, MessageEnd,
    MessageStart, Nak, Remote, Source, Stop, Time, UnreliableRequester, UnreliableResponder, Wqe,
};

fn value<T: Copy + Eq + Hash + Send + Sync + Unpin>() {}
fn error<T: core::error::Error + Send + Sync + 'static>() {}

#[test]
fn headers_are_copied_and_compared_in_any_thread() {
    value::<Aeth>();
    value::<AtomicAckEth>();
    value::<AtomicEth>();
    value::<Bth>();
    value::<CreditCount>();
    value::<Deth>();
    value::<Header>();
    value::<Headers>();
    value::<Ieth>();
    value::<ImmDt>();
    value::<IpHeader>();
    value::<Ipv4Header>();
    value::<Ipv6Header>();
    value::<NakCode>();
    value::<Opcode>();
    value::<Operation>();
    value::<Packet<'_>>();
    value::<PadCount>();
    value::<Reth>();
    value::<Service>();
    value::<Syndrome>();
    value::<UdpHeader>();
}

fn plain<T: Copy + Eq + core::fmt::Debug + Send + Sync + Unpin>() {}
fn machine<T: core::fmt::Debug + Send + Sync + Unpin>() {}

#[test]
fn machines_move_between_threads() {
    plain::<Burst>();
    plain::<Connection>();
    plain::<Counters>();
    plain::<Delivered>();
    plain::<Destination>();
    plain::<MessageEnd>();
    plain::<Fixed>();
    plain::<Kind>();
    plain::<Last>();
    plain::<Nak>();
    plain::<Remote>();
    plain::<Wqe>();
    plain::<Source>();
    plain::<MessageStart>();
    plain::<Stop>();
    plain::<Time>();
    plain::<requester::Settings>();
    plain::<responder::Settings>();
    machine::<Datagrams>();
    machine::<Requester>();
    machine::<Responder>();
    machine::<UnreliableRequester>();
    machine::<UnreliableResponder>();
}

#[test]
fn errors_are_errors_of_any_thread() {
    error::<EmitError>();
    error::<ParseError>();
}
