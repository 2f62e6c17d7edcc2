//! The code of the fuzz targets, with the compiler and in the time that each change has. It runs on
//! the seeds, on parts of them and on random bytes. See `docs/testing.md` for how to fuzz.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failing helper fails its test.

mod harness;

use fastrand::Rng;
use proptest::prelude::*;
use rdma_message::frame::{Body, CallId, CloseReason, Frame, Hello, Limits, Mode, Remote, Role};
use rdma_types::Rkey;
use test_support::fuzz::write_seed;

fn run(target: &str, bytes: &[u8]) {
    match target {
        "message_frame" => harness::frame(bytes),
        _ => harness::machine(bytes),
    }
}

fn frames() -> Vec<Vec<u8>> {
    let hello = Hello {
        version: 1,
        mode: Mode::Messages,
        fetches: true,
        receive_bytes: 4096,
        max_message: 1 << 20,
        calls: 16,
    };
    let id = CallId::new(1, 2);
    let source = Remote { va: 3, rkey: Rkey::new(4) };
    let bodies = [
        Body::Hello(hello),
        Body::Credit,
        Body::Acknowledge,
        Body::Close(CloseReason::ABORTED),
        Body::First { role: Role::Request(id), length: 9 },
        Body::Rest,
        Body::Offer { role: Role::Reply(id), length: 9, source },
        Body::Cancel(id),
        Body::Refusal(id),
        Body::Finish,
        Body::Data,
    ];
    let encode = |body| Frame::new(Limits::default(), body).encode().as_bytes().to_vec();
    let mut frames = bodies.map(encode).to_vec();
    for at in [4, 5, 10] {
        frames[at].push(7);
    }
    frames
}

/// Returns targets and inputs.
fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let mut random = Rng::with_seed(1);
    let mut conversation = |kind| {
        let length = random.usize(500..3_000);
        let choices = std::iter::repeat_with(|| random.u8(..)).take(length);
        std::iter::once(kind).chain(choices).collect()
    };
    let kinds = (0..20).map(|n| n % harness::KINDS);
    let mut seeds: Vec<_> = kinds.map(|kind| ("message_machine", conversation(kind))).collect();
    seeds.extend(frames().into_iter().map(|frame| ("message_frame", frame)));
    seeds
}

/// The fuzzers look for seeds in the folder where this writes them.
#[test]
fn frames_and_conversations_are_written_as_seeds() {
    for (n, (target, bytes)) in seeds().into_iter().enumerate() {
        run(target, &bytes);
        write_seed(env!("CARGO_TARGET_TMPDIR"), target, &n.to_string(), &bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_seeds_break_no_rule(
        seed in prop::sample::select(seeds()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..9),
        end in any::<prop::sample::Index>(),
    ) {
        let (target, mut bytes) = seed;
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        run(target, &bytes);
        run(target, &bytes[..end.index(bytes.len())]);
    }

    #[test]
    fn any_bytes_as_a_frame_break_no_rule(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        harness::frame(&bytes);
    }

    #[test]
    fn any_bytes_for_a_machine_break_no_rule(bytes in prop::collection::vec(any::<u8>(), 0..3_000)) {
        harness::machine(&bytes);
    }
}
