//! Feeds arbitrary bytes to the frame reader, and to connections whose programs, devices and peers
//! act as the bytes determine.

#[allow(dead_code)] // The behaviour tests use the rest.
#[path = "../../behaviour/pair/mod.rs"]
mod pair;
mod tampered;

use arbitrary::Unstructured;
use rdma_message::frame::{Body, Frame, MAX_HEADER_BYTES};
use rdma_message::{Messages, Stream};
use test_support::fuzz::number;

use pair::{Choices, Conversation, converse};

/// Decodes a frame, and encodes it again. The features of a hello that are unknown are ignored.
pub(crate) fn frame(bytes: &[u8]) {
    let (frame, payload) = match Frame::decode(bytes) {
        Ok(decoded) => decoded,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!(payload <= bytes.len().min(MAX_HEADER_BYTES));
    let header = frame.encode();
    if !matches!(frame.body, Body::Hello(_)) {
        assert_eq!(header.as_bytes(), &bytes[..payload]);
    }
    let again = [header.as_bytes(), &bytes[payload..]].concat();
    assert_eq!(Frame::decode(&again), Ok((frame, payload)));
}

/// The kinds of inputs for [`machine`], which the first byte selects.
pub(crate) const KINDS: u8 = 5;

/// Runs a connection.
pub(crate) fn machine(bytes: &[u8]) {
    let mut input = Input(Unstructured::new(bytes));
    match number::<u8>(&mut input.0) % KINDS {
        0 => _ = messages(input).finish(),
        1 => messages(input).cut(),
        2 => converse(&mut input),
        3 => tampered::run::<Messages>(&mut input),
        _ => tampered::run::<Stream>(&mut input),
    }
}

fn messages(input: Input<'_>) -> Conversation<Input<'_>> {
    let mut conversation = Conversation::new(input);
    while !conversation.choices.is_over() {
        conversation.step();
    }
    conversation
}

/// Choices that the fuzzer makes: the first ones if the input is over.
struct Input<'a>(Unstructured<'a>);

impl Choices for Input<'_> {
    fn below(&mut self, end: usize) -> usize {
        let number =
            if end <= 256 { number::<u8>(&mut self.0).into() } else { number::<u16>(&mut self.0) };
        usize::from(number) % end
    }

    fn is_over(&self) -> bool {
        self.0.is_empty()
    }
}
