//! Feeds arbitrary bytes to everything that decodes data of a peer. These are endpoints in each of their forms,
//! messages of an exchange, descriptions of memory, and addresses as text. Decoded values must encode to the same
//! bytes.

use std::io;
use std::str::FromStr;
use std::time::Duration;

use rdma_channel::{QueuePairEndpoint, TimedStream, exchange_all};
use rdma_mem::{Gid, RemoteMemoryRegion};
use rdma_types::{Guid, Psn, Qpn};

const BYTES: usize = QueuePairEndpoint::BYTES;

pub(crate) fn run(bytes: &[u8]) {
    endpoint(bytes);
    if let Some(beginning) = bytes.get(..BYTES) {
        endpoint(beginning);
    }
    for count in [1, 2] {
        message(bytes, count);
    }
    memory(bytes);
    #[cfg(feature = "serde")]
    serialized::run(bytes);
    if let Ok(text) = str::from_utf8(bytes) {
        comes_back::<Gid>(text);
        comes_back::<Guid>(text);
    }
}

fn endpoint(bytes: &[u8]) {
    match QueuePairEndpoint::from_bytes(bytes) {
        Ok(endpoint) => {
            // Endpoints of version 1 are written in version 2.
            let written = endpoint.to_bytes();
            assert_eq!(QueuePairEndpoint::from_bytes(&written).as_ref(), Ok(&endpoint));
            if bytes.len() == written.len() {
                assert_eq!(written, bytes, "{endpoint:?}");
            }
            assert!(endpoint.gids().len() <= QueuePairEndpoint::MAX_GIDS);
            #[cfg(feature = "serde")]
            serialized::both_forms(&endpoint);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A peer that sends these bytes, whatever it receives, and closes the stream.
struct Peer<'a> {
    left: &'a [u8],
    told: usize,
}

impl TimedStream for Peer<'_> {
    fn read_within(&mut self, room: &mut [u8], _: Duration) -> io::Result<usize> {
        // Sends pieces of various lengths, the same in each run.
        let most = 1 + self.left.len() % 97;
        let count = self.left.len().min(room.len()).min(most);
        let (now, left) = self.left.split_at(count);
        room[..count].copy_from_slice(now);
        self.left = left;
        Ok(count)
    }

    fn write_within(&mut self, bytes: &[u8], _: Duration) -> io::Result<usize> {
        self.told += bytes.len();
        Ok(bytes.len())
    }
}

/// Decodes the bytes as the message of a peer, in an exchange of `count` endpoints.
fn message(bytes: &[u8], count: u32) {
    let own = |n| QueuePairEndpoint::new(Qpn::masked(0x00ff_fff0 + n), Psn::masked(7));
    let own: Vec<_> = (0..count).map(own).collect();
    let length = 8 + own.len() * BYTES;
    let mut peer = Peer { left: bytes, told: 0 };
    match exchange_all(&mut peer, &own, Duration::MAX) {
        Ok(peers) => {
            let again: Vec<u8> = peers.iter().flat_map(QueuePairEndpoint::to_bytes).collect();
            assert_eq!(again, bytes[8..length]);
            assert_eq!(peer.left.len(), bytes.len() - length, "a byte after the message was read");
            assert_eq!(peer.told, length);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Decodes the bytes as a peer's memory and a part of it; no part may reach beyond the whole.
fn memory(bytes: &[u8]) {
    let Some((numbers, _)) = bytes.split_first_chunk::<32>() else { return };
    let (words, _) = numbers.as_chunks::<8>();
    let [address, length, from, to] =
        std::array::from_fn(|n| u64::from_le_bytes(words[n]) >> (bytes.len() % 64));
    let [length, from, to] = [length, from, to].map(|n| n as usize);
    let whole = RemoteMemoryRegion::new(address, length, 7);
    let within = |part: RemoteMemoryRegion| {
        let end =
            |region: RemoteMemoryRegion| u128::from(region.address()) + region.length() as u128;
        assert!(part.address() >= address && end(part) <= end(whole), "{part:?} of {whole:?}");
    };
    if let Some(rest) = whole.sub_region(from) {
        assert_eq!(rest, whole.sub_region_unchecked(from));
        within(rest);
    }
    if let Some(part) = whole.slice(from..to) {
        assert_eq!(part.length(), to - from);
        assert!(part.address().checked_add(part.length() as u64).is_some());
        within(part);
    }
    assert!(whole.sub_region_unchecked(from).length() <= length);
}

/// Checks that a parsed value can be parsed again from its text.
fn comes_back<T: FromStr + ToString + PartialEq>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        let shown = value.to_string();
        assert!(shown.parse().is_ok_and(|again: T| again == value), "{text} is shown as {shown}");
    }
}

#[cfg(feature = "serde")]
mod serialized {
    use std::fmt::Debug;

    use rdma_channel::{PeerRemoteMemoryRegion, QueuePairEndpoint};
    use rdma_mem::RemoteMemoryRegion;
    use serde::Serialize;
    use serde::de::DeserializeOwned;

    pub(super) fn run(bytes: &[u8]) {
        if let Some(endpoint) = read::<QueuePairEndpoint>(bytes) {
            let own = QueuePairEndpoint::from_bytes(&endpoint.to_bytes());
            assert_eq!(own, Ok(endpoint), "each endpoint has its bytes");
        }
        read::<RemoteMemoryRegion>(bytes);
        read::<PeerRemoteMemoryRegion>(bytes);
    }

    /// Decodes a value from either form.
    fn read<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) -> Option<T> {
        let value = postcard::from_bytes(bytes).ok().or_else(|| serde_json::from_slice(bytes).ok());
        value.inspect(both_forms)
    }

    pub(super) fn both_forms<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) {
        let bytes = postcard::to_allocvec(value).expect("it has a form");
        assert_eq!(postcard::from_bytes::<T>(&bytes).as_ref(), Ok(value));
        let text = serde_json::to_string(value).expect("it has a form");
        assert_eq!(&serde_json::from_str::<T>(&text).expect("it was written"), value);
    }
}
