//! Counters of channels.

use rdma_channel::{RemoteMemoryRegion, TransportError};
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};

use crate::common::{DEVICES, DRAIN, HELD, Pair, must_end, short};

fn counts(pair: &Pair) -> (u64, u64, u64, u64) {
    let all = pair.here.counters();
    (all.posted, all.completed, all.failed, all.slot_waits)
}

#[test]
fn dropped_handles_batches_and_unsignaled_requests_all_count() {
    must_end(|| {
        let mut pair = Pair::with("soft0", |builder| builder.max_send_wr(16));
        let data = pair.memory(8, 5);
        let remote = pair.board.remote();
        assert_eq!(counts(&pair), (0, 0, 0, 0));
        pair.here
            .scope(|s| {
                drop(s.write_from(data.as_slice(), remote)?);
                let _ = s.write_from(data.as_slice(), remote)?;
                Ok::<(), TransportError>(())
            })
            .unwrap();
        assert_eq!(counts(&pair), (2, 2, 0, 0));
        let requests = [(); 3].map(|()| ReceiveWorkRequest::only_immediate());
        pair.here
            .scope(|s| {
                let receives = s.post_receive_batch(requests)?;
                for _ in 0..3 {
                    pair.there.send(SendWorkRequest::only_immediate(1))?;
                }
                drop(receives);
                Ok::<(), TransportError>(())
            })
            .unwrap();
        assert_eq!(counts(&pair), (5, 5, 0, 0));
        assert_eq!(pair.there.counters().posted, 3);
    });
}

#[test]
fn a_refused_write_and_the_receive_that_is_flushed_with_it_have_failed() {
    for device in DEVICES {
        must_end(move || {
            let mut pair = Pair::new(device);
            let (soft, qpn) = (pair.device, pair.here.qpn().unwrap());
            let data = pair.memory(8, 5);
            let known = pair.board.remote();
            let beyond =
                RemoteMemoryRegion::new(known.address() + 4096, known.length(), known.rkey());
            let left = pair.here.scope(|s| {
                let _ = s.post_receive(ReceiveWorkRequest::only_immediate())?;
                drop(s.write_from(data.as_slice(), beyond)?);
                while device == HELD && soft.in_flight(qpn) > 0 {
                    soft.release(qpn, 1);
                }
                Ok::<(), TransportError>(())
            });
            left.unwrap_err();
            assert_eq!(counts(&pair), (2, 2, 2, 0), "{device}");
        });
    }
}

#[test]
fn a_wait_for_a_slot_counts_once_and_the_marker_of_a_closing_channel_does_not_count() {
    must_end(|| {
        let mut pair = Pair::with(HELD, |builder| short(builder).max_send_wr(2));
        let data = pair.memory(8, 5);
        let remote = pair.board.remote();
        let left = pair.here.scope(|s| {
            let _ = s.write_from(data.as_slice(), remote)?;
            let _ = s.write_from(data.as_slice(), remote)?;
            let full = s.write_from(data.as_slice(), remote).unwrap_err();
            assert!(
                matches!(full.error, TransportError::Timeout { timeout: DRAIN, .. }),
                "{}",
                full.error
            );
            Err::<(), TransportError>(TransportError::WouldBlock)
        });
        left.unwrap_err();
        assert_eq!(counts(&pair), (2, 2, 2, 1));
    });
}
