use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![
        Just(Role::Message),
        any::<u64>().prop_map(|id| Role::Request(CallId(id))),
        any::<u64>().prop_map(|id| Role::Reply(CallId(id))),
    ]
}

fn hello() -> impl Strategy<Value = Hello> {
    let mode = prop_oneof![Just(Mode::Messages), Just(Mode::Stream)];
    let numbers = any::<(bool, u32, u32, u32)>();
    (1_u16.., mode, numbers).prop_map(
        |(version, mode, (fetches, receive_bytes, max_message, calls))| Hello {
            version,
            mode,
            fetches,
            receive_bytes,
            max_message,
            calls,
        },
    )
}

/// Returns a body with the length of a payload that it may have.
fn body() -> impl Strategy<Value = (Body, usize)> {
    let call = || any::<u64>().prop_map(CallId);
    let source = any::<(u64, u32)>().prop_map(|(va, key)| Remote { va, rkey: Rkey::new(key) });
    prop_oneof![
        hello().prop_map(|hello| (Body::Hello(hello), 0)),
        Just((Body::Credit, 0)),
        Just((Body::Acknowledge, 0)),
        any::<u16>().prop_map(|reason| (Body::Close(CloseReason(reason)), 0)),
        (role(), 0_u32..100).prop_map(|(role, n)| (Body::First { role, length: n }, n as usize)),
        (1_usize..100).prop_map(|n| (Body::Rest, n)),
        (role(), 1_u32.., source)
            .prop_map(|(role, length, source)| { (Body::Offer { role, length, source }, 0) }),
        call().prop_map(|call| (Body::Cancel(call), 0)),
        call().prop_map(|call| (Body::Refusal(call), 0)),
        Just((Body::Finish, 0)),
        (1_usize..100).prop_map(|n| (Body::Data, n)),
    ]
}

proptest! {
    #[test]
    fn frames_are_read_as_they_were_written(
        (acknowledges, stops) in any::<(bool, bool)>(),
        (receives, bytes, fetched) in any::<(u32, u32, u32)>(),
        (body, payload) in body(),
    ) {
        let limits = Limits { receives, bytes, fetched };
        let frame = Frame { acknowledges, stops, limits, body };
        let mut bytes = frame.encode().as_bytes().to_vec();
        let start = bytes.len();
        prop_assert_eq!(u32::try_from(start), Ok(body.header_bytes()));
        bytes.resize(start + payload, 7);
        prop_assert_eq!(Frame::decode(&bytes), Ok((frame, start)));
        for end in 0..start {
            prop_assert_eq!(Frame::decode(&bytes[..end]), Err(FrameError::Truncated));
        }
    }

    #[test]
    fn any_bytes_are_refused_or_written_back(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        if let Ok((frame, start)) = Frame::decode(&bytes)
            && !matches!(frame.body, Body::Hello(_))
        {
            let header = frame.encode();
            prop_assert_eq!(header.as_bytes(), &bytes[..start]);
        }
    }
}

/// Returns a frame with these bytes at these offsets.
fn patched(body: Body, payload: usize, patches: &[(usize, u8)]) -> Vec<u8> {
    let mut bytes = Frame::new(Limits::default(), body).encode().as_bytes().to_vec();
    bytes.resize(bytes.len() + payload, 0);
    for &(at, byte) in patches {
        bytes[at] = byte;
    }
    bytes
}

#[test]
fn each_mistake_has_its_error() {
    let first = |length| Body::First { role: Role::Message, length };
    let offer = Body::Offer {
        role: Role::Message,
        length: 0,
        source: Remote { va: 1, rkey: Rkey::new(2) },
    };
    let hello = Body::Hello(Hello {
        version: 1,
        mode: Mode::Stream,
        fetches: false,
        receive_bytes: 64,
        max_message: 64,
        calls: 0,
    });
    let cases = [
        (patched(Body::Credit, 0, &[(0, 0x7f)]), FrameError::Kind(0x7f)),
        (patched(Body::Credit, 0, &[(1, 4)]), FrameError::Reserved { flags: 4, zero: 0 }),
        (patched(Body::Credit, 0, &[(3, 1)]), FrameError::Reserved { flags: 0, zero: 1 }),
        (patched(Body::Credit, 1, &[]), FrameError::Payload { kind: 2, bytes: 1 }),
        (patched(first(3), 4, &[]), FrameError::Length { length: 3, payload: 4 }),
        (patched(first(3), 0, &[]), FrameError::Length { length: 3, payload: 0 }),
        (patched(Body::Rest, 0, &[]), FrameError::Empty(0x13)),
        (patched(offer, 0, &[]), FrameError::Empty(0x14)),
        (patched(hello, 0, &[(16, 0)]), FrameError::Magic(0x0044_4d53)),
        (patched(hello, 0, &[(21, 0)]), FrameError::Version(0)),
        (patched(hello, 0, &[(22, 9)]), FrameError::Mode(9)),
    ];
    for (bytes, error) in cases {
        assert_eq!(Frame::decode(&bytes), Err(error));
    }
}

#[test]
fn the_hello_of_a_later_version_may_be_longer() {
    let hello = Hello {
        version: 2,
        mode: Mode::Messages,
        fetches: true,
        receive_bytes: 4096,
        max_message: 1 << 20,
        calls: 16,
    };
    let bytes = patched(Body::Hello(hello), 12, &[]);
    assert_eq!(Frame::decode(&bytes).unwrap().0.body, Body::Hello(hello));
}

#[test]
fn call_ids_keep_their_parts() {
    let id = CallId::new(CallId::MAX_SERIAL, 0xabcd);
    assert_eq!((id.serial(), id.index()), (CallId::MAX_SERIAL, 0xabcd));
}
