//! The frames of an end that breaks the protocol.

use fastrand::Rng;
use rdma_message::frame::{Body, CallId, CloseReason, Frame, Hello, Limits, Mode, Remote, Role};
use rdma_types::Rkey;

use super::script::Connection;

/// The limits that the end grants its peer.
const GRANTED: Limits = Limits { receives: 16, bytes: 1 << 20, fetched: 0 };
/// The greatest length of a frame's header.
const HEADER: u32 = 40;

/// Returns the first frame, which is valid.
pub(super) fn hello(connection: &Connection) -> Vec<u8> {
    let limits = &connection.limits[1];
    let hello = Hello {
        version: Hello::VERSION,
        mode: if connection.is_stream { Mode::Stream } else { Mode::Messages },
        fetches: true,
        receive_bytes: limits.frame_bytes,
        max_message: limits.max_message,
        calls: limits.calls,
    };
    Frame::new(GRANTED, Body::Hello(hello)).encode().as_bytes().to_vec()
}

/// Returns a frame. Most frames are valid, except that the end does not count its credit.
pub(super) fn frame(seed: u64, connection: &Connection) -> Vec<u8> {
    let mut rng = Rng::with_seed(seed);
    let length = rng.u32(1..=connection.limits[0].frame_bytes - HEADER);
    let call = CallId::new(rng.u64(..4), rng.u16(..4));
    let role = match rng.u32(..8) {
        0 => Role::Reply(call),
        1..4 => Role::Request(call),
        _ => Role::Message,
    };
    let source = Remote { va: rng.u64(..), rkey: Rkey::new(rng.u32(..)) };
    let mut payload = 0;
    let body = match rng.u32(..64) {
        0 => return std::iter::repeat_with(|| rng.u8(..)).take(length as usize).collect(),
        1 => Body::Credit,
        2 => Body::Acknowledge,
        3 => Body::Finish,
        4 => Body::Cancel(call),
        5 => Body::Refusal(call),
        6 => Body::Close(CloseReason(rng.u16(..6))),
        7 => Body::Offer { role, length, source },
        with_payload => {
            payload = length;
            match with_payload {
                8 => Body::First { role, length: rng.u32(..) },
                9 => Body::Rest,
                10 => Body::Finish,
                _ if connection.is_stream => Body::Data,
                11..16 => Body::First { role, length },
                _ => Body::First { role: Role::Message, length },
            }
        }
    };
    let limits = match rng.u32(..64) {
        0 => Limits { receives: rng.u32(..), bytes: rng.u32(..), fetched: rng.u32(..) },
        _ => GRANTED,
    };
    let mut bytes = Frame::new(limits, body).encode().as_bytes().to_vec();
    bytes.extend(std::iter::repeat_with(|| rng.u8(..)).take(payload as usize));
    bytes
}
