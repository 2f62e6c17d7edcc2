use std::vec::Vec;

use rdma_types::Rkey;

use super::*;
use crate::frame::Remote;
use crate::output::{Delivery, Payload};

/// Runs both ends until they are idle, while requests get empty replies. Returns the lengths of the
/// messages that end 1 took.
fn run(ends: &mut [Messages; 2]) -> Vec<u32> {
    let (mut slots, mut taken) = ([0; 2], Vec::new());
    loop {
        let mut is_idle = true;
        for at in 0..2 {
            while let Some(output) = ends[at].poll_output() {
                is_idle = false;
                match output {
                    Output::Send(transmit) => {
                        let mut frame = transmit.header.as_bytes().to_vec();
                        if let Payload::Message { len, .. } = transmit.payload {
                            frame.resize(frame.len() + len as usize, 7);
                        }
                        slots[1 - at] += 1;
                        ends[1 - at].received(slots[1 - at], &frame);
                        ends[at].sent(transmit.slot);
                    }
                    Output::Fetch { message, .. } => ends[at].fetched(message),
                    Output::Lend { operation, .. } => {
                        ends[at].lent(operation, Some(Remote { va: 1, rkey: Rkey::new(2) }));
                    }
                    Output::Part { chunk, .. } => ends[at].release(chunk),
                    Output::Deliver { message, length, delivery } => {
                        if let Delivery::Request(id) = delivery {
                            ends[at].reply(id, 0).unwrap();
                        }
                        if !matches!(delivery, Delivery::Reply(_)) {
                            ends[at].taken(message);
                            taken.push(length);
                        }
                    }
                    Output::Completed { result, .. } => assert_eq!(result, Ok(())),
                    Output::Disconnect(error) => panic!("{error:?}"),
                    _ => {}
                }
            }
        }
        if is_idle {
            return taken;
        }
    }
}

#[test]
fn counters_wrap() {
    for before in [0_u32, 1, 2, 5, 100, 10_000] {
        let mut options = Options::default();
        (options.receives, options.window_bytes, options.offers) = (4, 9_000, 2);
        let new = || Messages::new(&options).unwrap();
        let mut ends = [new(), new()];
        for end in &mut ends {
            end.link.start_at(before.wrapping_neg());
            end.peer_fetched = end.link.peer_fetched();
        }
        run(&mut ends);
        for _ in 0..20 {
            let lengths = [10, 0, 5_000, 50_000, 20_000];
            for length in lengths {
                ends[0].send(length).unwrap();
                ends[0].call(length).unwrap();
            }
            let taken: Vec<_> = run(&mut ends).iter().map(|&length| length as usize).collect();
            assert_eq!(taken, lengths.map(|length| [length; 2]).as_flattened());
        }
        for end in &ends {
            let counters = [end.link.fetched, end.link.peer_fetched()];
            assert!(before >= 100 || counters.iter().any(|&it| it < 100), "{counters:?}");
        }
    }
}

#[test]
fn an_operation_that_is_held_keeps_its_place() {
    let mut ends = [(); 2].map(|()| Messages::new(&Options::default()).unwrap());
    run(&mut ends);
    let held = ends[0].send(50_000).unwrap();
    ends[0].hold(held);
    ends[0].send(10).unwrap();
    assert_eq!(run(&mut ends), []);
    ends[0].resume(held);
    assert_eq!(run(&mut ends), [50_000, 10]);
    let held = ends[0].send(30).unwrap();
    ends[0].hold(held);
    ends[0].send(20).unwrap();
    ends[0].lost();
    let mut results = Vec::new();
    while let Some(output) = ends[0].poll_output() {
        if let Output::Completed { result, .. } = output {
            results.push(result);
        }
    }
    assert_eq!(results, [Err(OperationError::NotSent); 2]);
}
