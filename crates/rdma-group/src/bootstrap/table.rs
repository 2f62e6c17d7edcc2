//! The messages with which ranks join, and the table of all ranks.

use std::net::SocketAddr;

use super::link::Nonce;

/// A rank that joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Join {
    pub(crate) nonce: Nonce,
    pub(crate) rank: u32,
    pub(crate) world_size: u32,
    pub(crate) epoch: u64,
    pub(crate) entry: Entry,
}

/// A rank's address for connections, and the name of its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) address: SocketAddr,
    pub(crate) host: String,
}

/// All ranks of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    /// A random number that distinguishes this group from all others.
    pub(crate) session: Nonce,
    pub(crate) entries: Vec<Entry>,
}

impl Join {
    /// The maximum length in bytes.
    pub(crate) const MOST: usize = 32 + Entry::MOST;

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.nonce.to_vec();
        bytes.extend_from_slice(&self.rank.to_le_bytes());
        bytes.extend_from_slice(&self.world_size.to_le_bytes());
        bytes.extend_from_slice(&self.epoch.to_le_bytes());
        self.entry.write(&mut bytes);
        bytes
    }

    pub(crate) fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let join = Self {
            nonce: *take(&mut bytes)?,
            rank: u32::from_le_bytes(*take(&mut bytes)?),
            world_size: u32::from_le_bytes(*take(&mut bytes)?),
            epoch: u64::from_le_bytes(*take(&mut bytes)?),
            entry: Entry::read(&mut bytes)?,
        };
        bytes.is_empty().then_some(join)
    }
}

impl Entry {
    /// The maximum length in bytes: an address and a host's name, each after its length.
    const MOST: usize = 2 * 256;

    fn write(&self, bytes: &mut Vec<u8>) {
        for text in [&self.address.to_string(), &self.host] {
            let text = text.as_bytes().get(..255).unwrap_or(text.as_bytes());
            bytes.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
            bytes.extend_from_slice(text);
        }
    }

    fn read(bytes: &mut &[u8]) -> Option<Self> {
        let mut text = || {
            let [length] = take(bytes)?;
            let (text, rest) = bytes.split_at_checked(usize::from(*length))?;
            *bytes = rest;
            Some(String::from_utf8_lossy(text).into_owned())
        };
        Some(Self { address: text()?.parse().ok()?, host: text()? })
    }
}

impl Table {
    /// Returns the maximum length in bytes for that many ranks.
    pub(crate) const fn most(world_size: usize) -> usize {
        16 + world_size * Entry::MOST
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.session.to_vec();
        self.entries.iter().for_each(|entry| entry.write(&mut bytes));
        bytes
    }

    /// Decodes a table of that many ranks.
    pub(crate) fn from_bytes(mut bytes: &[u8], world_size: usize) -> Option<Self> {
        let session = *take(&mut bytes)?;
        let entries = (0..world_size).map(|_| Entry::read(&mut bytes)).collect::<Option<_>>()?;
        bytes.is_empty().then_some(Self { session, entries })
    }
}

/// Takes bytes from the front.
fn take<'b, const N: usize>(bytes: &mut &'b [u8]) -> Option<&'b [u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(port: u16) -> Entry {
        Entry { address: ([127, 0, 0, 1], port).into(), host: format!("host{port}") }
    }

    #[test]
    fn messages_are_decoded_only_if_complete() {
        let join = Join { nonce: [7; 16], rank: 3, world_size: 8, epoch: 2, entry: entry(5) };
        let bytes = join.to_bytes();
        assert!(bytes.len() <= Join::MOST);
        assert_eq!(Join::from_bytes(&bytes), Some(join));
        assert!((0..bytes.len()).all(|length| Join::from_bytes(&bytes[..length]).is_none()));

        let table = Table { session: [9; 16], entries: (1..4).map(entry).collect() };
        let bytes = table.to_bytes();
        assert!(bytes.len() <= Table::most(3));
        assert_eq!(Table::from_bytes(&bytes, 3), Some(table));
        assert!((0..bytes.len()).all(|length| Table::from_bytes(&bytes[..length], 3).is_none()));
        assert_eq!(Table::from_bytes(&bytes, 2), None);
    }
}
