//! All types can be used by any thread. Headers can also be copied and compared.

use std::hash::Hash;

use rdma_proto::cm::wire::{
    Answer, Drep, Dreq, Mad, MadError, Message, Mra, Offer, Path, Query, Reason, Rej, Rejection,
    Rep, Req, Resolution, Rtu, SidrRep, SidrReq, SidrStatus, Subject, Timeout, TooLong,
};
use rdma_proto::cm::{
    self, Address, Cause, CommId, Event, IpCmHeader, Manager, Output, PortSpace, ServiceId,
    Transmit,
};
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

#[test]
fn messages_are_copied_and_compared_in_any_thread() {
    value::<Answer<'_>>();
    value::<CommId>();
    value::<Drep<'_>>();
    value::<Dreq<'_>>();
    value::<Mad<'_>>();
    value::<Message<'_>>();
    value::<Mra<'_>>();
    value::<Offer<'_>>();
    value::<Path>();
    value::<Query<'_>>();
    value::<Reason>();
    value::<Rej<'_>>();
    value::<Rejection<'_>>();
    value::<Rep<'_>>();
    value::<Req<'_>>();
    value::<Resolution<'_>>();
    value::<Rtu<'_>>();
    value::<SidrRep<'_>>();
    value::<SidrReq<'_>>();
    value::<SidrStatus>();
    value::<Subject>();
    value::<Timeout>();
    value::<cm::wire::Header>();
    value::<cm::wire::Transport>();
    value::<Address>();
    value::<IpCmHeader>();
    value::<PortSpace>();
    value::<ServiceId>();
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
    plain::<Cause<'_>>();
    plain::<Event<'_>>();
    plain::<Output<'_>>();
    plain::<Transmit>();
    plain::<cm::Counters>();
    plain::<cm::Settings>();
    plain::<requester::Settings>();
    plain::<responder::Settings>();
    machine::<Datagrams>();
    machine::<Manager>();
    machine::<Requester>();
    machine::<Responder>();
    machine::<UnreliableRequester>();
    machine::<UnreliableResponder>();
}

#[test]
fn errors_are_errors_of_any_thread() {
    error::<EmitError>();
    error::<ParseError>();
    error::<MadError>();
    error::<TooLong>();
    error::<cm::Error>();
}
