//! Headers are copied, compared, and at home in every thread.

use std::hash::Hash;

use rdma_proto::wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, CreditCount, Deth, EmitError, Header, Headers, Ieth, ImmDt,
    IpHeader, Ipv4Header, Ipv6Header, NakCode, Opcode, Operation, Packet, PadCount, ParseError,
    Reth, Service, Syndrome, UdpHeader,
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
fn errors_are_errors_of_any_thread() {
    error::<EmitError>();
    error::<ParseError>();
}
