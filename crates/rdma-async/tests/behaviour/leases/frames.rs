//! Hand-made frames about leases.

use std::time::Duration;

use tokio::time::timeout;

use crate::common::HANG;
use crate::common::peer::Peer;

pub(crate) const LEND: u16 = 8;
pub(crate) const ASK: u16 = 9;
pub(crate) const GRANT: u16 = 10;
pub(crate) const DENY: u16 = 11;
pub(crate) const BACK: u16 = 12;
pub(crate) const OVER: u16 = 13;

/// A frame about the first connection and its first queue pair.
pub(crate) fn frame(kind: u16, words: &[u32], rest: &[u8]) -> Vec<u8> {
    frame_of((0, 0), kind, words, rest)
}

pub(crate) fn frame_of(
    (number, epoch): (u32, u32),
    kind: u16,
    words: &[u32],
    rest: &[u8],
) -> Vec<u8> {
    let body: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    let length = u16::try_from(body.len() + rest.len()).unwrap().to_be_bytes();
    let head = [&kind.to_be_bytes()[..], &length, &number.to_be_bytes(), &epoch.to_be_bytes()];
    [head.concat(), body, rest.to_vec()].concat()
}

/// The time of the leases that [`grant`] grants.
pub(crate) const GRANTED: Duration = Duration::from_secs(30);

/// Grants the memory for [`GRANTED`].
pub(crate) fn grant(ask: u32, lease: u32, rights: u32, (address, length): (u64, u64)) -> Vec<u8> {
    let key = 7_u32;
    let region = [&address.to_be_bytes()[..], &length.to_be_bytes(), &key.to_be_bytes()].concat();
    let micros = u64::try_from(GRANTED.as_micros()).unwrap();
    let descriptor = [region, micros.to_be_bytes().to_vec()].concat();
    grant_of(ask, lease, rights, &descriptor)
}

/// Grants the memory with these bytes of a descriptor.
pub(crate) fn grant_of(ask: u32, lease: u32, rights: u32, descriptor: &[u8]) -> Vec<u8> {
    frame(GRANT, &[ask, lease, rights], descriptor)
}

/// The words of the next frame, which has that kind.
pub(crate) async fn hear(peer: &mut Peer, kind: u16) -> Vec<u32> {
    let (heard, _, body) = timeout(HANG, peer.hear()).await.unwrap();
    assert_eq!(heard, kind);
    body.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect()
}
