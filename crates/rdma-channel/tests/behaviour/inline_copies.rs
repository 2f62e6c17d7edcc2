//! Inline data on devices that support less of it than requested, or none.

use std::thread;

use crate::common::{DRAIN, HANG, Pair, everything, lacks, open, short};
use rdma_channel::{Channel, Inline, TransportError, prelude::*};
use rdma_qp::PostErrorKind;
use rdma_soft::{Builder, Limits, Schedule};
use test_support::features::Feature;

/// Devices that execute requests within their post, later, and when a test releases them. None supports inline data.
const BARE: [(&str, Schedule); 3] = [
    ("softbare0", Schedule::Immediate),
    ("softbare1", Schedule::Deferred { seed: 3 }),
    ("softbare2", Schedule::Held),
];
/// A device with at most 40 bytes of inline data per request.
const FEW: &str = "softfewinline0";

fn devices() {
    for (name, schedule) in BARE {
        // Another test may have installed it first.
        let _ = Builder::new(name)
            .limits(Limits::default().max_inline_data(0))
            .schedule(schedule)
            .install();
    }
    let _ = Builder::new(FEW).limits(Limits::default().max_inline_data(40)).install();
}

fn pair(device: &str) -> Pair {
    devices();
    Pair::with(device, |builder| builder)
}

fn given(channel: &Channel) -> u32 {
    channel.query().unwrap().capabilities.max_inline_data
}

#[test]
fn a_channel_sends_a_few_bytes_inline_without_an_option_on_every_device() {
    if lacks("soft0", Feature::Inline(64)) {
        return;
    }
    for (device, inline) in [("soft0", 64), (FEW, 32), (BARE[0].0, 0), (BARE[1].0, 0)] {
        let mut pair = pair(device);
        assert_eq!(given(&pair.here), inline, "{device}");
        let (remote, mut room) =
            (pair.board.remote(), pair.there.pd().allocate_region(128).unwrap());
        for length in [0, 4, 33, 64] {
            let bytes: Vec<u8> = (1..=length).collect();
            let Pair { here, there, board, .. } = &mut pair;
            thread::scope(|threads| {
                threads.spawn(|| here.send_inline(&bytes).unwrap());
                assert_eq!(there.receive_into(&mut room).unwrap(), bytes.len(), "{device}");
            });
            assert_eq!(room[..bytes.len()], bytes, "{device}");
            here.write_inline(&bytes, remote).unwrap();
            let mut written = vec![0; bytes.len()];
            board.read(0, &mut written).unwrap();
            assert_eq!(written, bytes, "{device}");
        }
        let error = pair.here.send_inline(&[0; 65]).unwrap_err();
        let TransportError::PostError(refused) = error else { panic!("{error}") };
        assert_eq!(refused.kind(), PostErrorKind::TooMuchInline, "{device}");
        assert!(pair.here.closed().is_none(), "{device}");
    }
}

#[test]
fn the_bytes_of_each_request_in_flight_have_their_own_buffer() {
    for (device, _) in BARE {
        let mut pair = pair(device);
        let (probe, own) = (pair.device, pair.here.qpn().unwrap());
        let mut memory = pair.there.pd().allocate_region(8 * 4).unwrap();
        let (here, there) = (&mut pair.here, &mut pair.there);
        let (count, _) = here.depths();
        there
            .scope(|s| {
                let slices = memory.as_slice_mut().into_chunks(4);
                let rooms: Vec<_> =
                    slices.map(|slice| s.receive_into(slice)).collect::<Result<_, _>>()?;
                here.scope(|s| {
                    let (mut line, mut sent) = (String::new(), Vec::new());
                    for number in 0..8 {
                        line.clear();
                        line.push_str(&format!("no {number}"));
                        sent.push(s.send_inline(line.as_bytes())?);
                    }
                    if device == BARE[2].0 {
                        assert_eq!(probe.in_flight(own), 8, "all of {count} are held");
                        assert_eq!(probe.release(own, u32::MAX), 8);
                    }
                    sent.iter().try_for_each(|sent| sent.wait(HANG).map(drop))
                })
                .map_err(rdma_channel::ScopeError::flatten)?;
                for (number, room) in rooms.into_iter().enumerate() {
                    let (bytes, _) = room.done(HANG)?;
                    assert_eq!(*bytes, *format!("no {number}").as_bytes(), "{device}");
                }
                Ok::<_, TransportError>(())
            })
            .unwrap();
    }
}

#[test]
fn a_buffer_is_not_reused_before_its_request_has_completed() {
    devices();
    let mut pair = Pair::with(BARE[2].0, |builder| short(builder).max_send_wr(1));
    let (probe, own, remote) = (pair.device, pair.here.qpn().unwrap(), pair.board.remote());
    let (first, second) = pair
        .here
        .manual_scope(|s| {
            let first = s.write_inline(b"first...", remote)?;
            let second = s.write_inline(b"second..", remote.slice(8..16).unwrap()).map(drop);
            assert_eq!(probe.release(own, u32::MAX), 1);
            first.wait(HANG)?;
            drop(first);
            let third = s.write_inline(b"third...", remote.slice(16..24).unwrap())?;
            assert_eq!(probe.release(own, u32::MAX), 1);
            third.wait(HANG)?;
            Ok::<_, TransportError>((b"first...", second))
        })
        .unwrap();
    let is_full = matches!(second, Err(TransportError::Timeout { timeout: DRAIN, .. }));
    assert!(is_full, "{second:?}");
    let mut board = [0; 24];
    pair.board.read(0, &mut board).unwrap();
    assert_eq!(
        (&board[..8], &board[8..16], &board[16..]),
        (&first[..], &[0; 8][..], &b"third..."[..])
    );
}

#[test]
fn an_exchange_of_a_few_bytes_works_on_every_device() {
    for (device, _) in BARE.into_iter().take(2) {
        devices();
        let pd = open(device).allocate_pd().unwrap();
        let channel = pd.create_channel().build().unwrap();
        let endpoint = channel.endpoint();
        let mut channel = channel.handshake(endpoint).unwrap(); // to itself
        let mut answer = pd.allocate_region(8).unwrap();
        assert_eq!(channel.exchange_inline(b"hello", &mut answer).unwrap(), 5, "{device}");
        assert_eq!(answer[..5], *b"hello");
    }
}

#[test]
fn peers_added_later_have_buffers_for_inline_data_too() {
    devices();
    let pd = open(BARE[0].0).allocate_pd().unwrap();
    let prepared =
        pd.create_multi_channel().num_channels(0).max_channels(2).access(everything(&pd)).build();
    let mut center = prepared.unwrap().handshake([]).unwrap();
    for _ in 0..2 {
        let other = pd.create_channel().access(everything(&pd)).build().unwrap();
        let prepared = center.prepare().unwrap();
        let endpoint = prepared.endpoint();
        let peer = center.add(prepared, other.endpoint()).unwrap();
        let mut other = other.handshake(endpoint).unwrap();
        let board = pd.allocate_shared_region(16, everything(&pd)).unwrap();
        let written =
            center.scope(|s| s.to(peer)?.write_inline(b"written", board.remote()).map(drop));
        written.unwrap();
        let mut room = pd.allocate_region(8).unwrap();
        thread::scope(|threads| {
            threads.spawn(|| assert_eq!(other.receive_into(&mut room).unwrap(), 4));
            let sent = center.scope(|s| {
                let to = s.to(peer)?;
                to.write_inline(b"beside", board.remote().slice(8..14).unwrap())?;
                to.send_inline(b"sent").map(drop)
            });
            sent.unwrap();
        });
        let mut bytes = [0; 14];
        board.read(0, &mut bytes).unwrap();
        assert_eq!((&bytes, &room[..4]), (b"written\0beside", &b"sent"[..]));
    }
}

#[test]
fn a_number_of_inline_bytes_that_the_device_lacks_is_refused_by_name() {
    devices();
    let pd = open(FEW).allocate_pd().unwrap();
    assert!(pd.create_channel().max_inline_data(40).build().is_ok());
    let refused = pd.create_channel().max_inline_data(41).build().unwrap_err().to_string();
    assert!(refused.contains("it refuses this `max_inline_data`"), "{refused}");
    assert!(pd.create_channel().max_inline_data(Inline::UpTo(41)).build().is_ok());
}
