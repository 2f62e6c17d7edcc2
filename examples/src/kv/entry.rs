//! A slot of the table.

/// The maximum length of a key, in bytes.
pub const KEY: usize = 40;
/// The maximum length of a value, in bytes.
pub const VALUE: usize = 192;
/// The length of a slot. The fields are: checksum (8 bytes), version (8), length of the key (2),
/// length of the value (2), padding (4), key, value.
pub const SLOT: usize = 24 + KEY + VALUE;

/// The contents of a slot. A slot with an empty key is free.
///
/// A client's read of a slot may overlap with a write by the server. It then returns some old bytes
/// and some new ones. Which ones is arbitrary, because the device may fetch the bytes of one RDMA
/// read in any order. So a version before the data and one after it could both be new although the
/// data is old; versions alone would need three consecutive reads. With a checksum of the whole
/// slot, one read is enough: a mixture of two entries matches the checksum only once in 2^64. The
/// order in which the server writes does not matter either.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The number of times that the slot has been written. It is included in the checksum, so that
    /// two writes of the same value differ.
    pub version: u64,
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
}

impl Entry {
    /// Encodes the entry as the bytes of a slot. Returns `None` if the key or the value is too
    /// long.
    #[must_use]
    pub fn to_bytes(&self) -> Option<[u8; SLOT]> {
        let Self { version, key, value } = self;
        let mut slot = [0; SLOT];
        slot[8..16].copy_from_slice(&version.to_le_bytes());
        slot[16..18].copy_from_slice(&u16::try_from(key.len()).ok()?.to_le_bytes());
        slot[18..20].copy_from_slice(&u16::try_from(value.len()).ok()?.to_le_bytes());
        slot[24..].get_mut(..key.len())?.copy_from_slice(key);
        slot[24 + KEY..].get_mut(..value.len())?.copy_from_slice(value);
        let checksum = hash(&slot[8..]);
        slot[..8].copy_from_slice(&checksum.to_le_bytes());
        Some(slot)
    }

    /// Parses the bytes of a slot. Returns `None` if they mix two entries, because the server was
    /// writing. The caller should read again.
    #[must_use]
    pub fn from_bytes(slot: &[u8]) -> Option<Self> {
        let (checksum, rest) = slot.split_first_chunk()?;
        if hash(rest) != u64::from_le_bytes(*checksum) {
            return None;
        }
        let (version, rest) = rest.split_first_chunk()?;
        let (key_length, rest) = rest.split_first_chunk()?;
        let (value_length, rest) = rest.split_first_chunk()?;
        let (key, value) = rest.get(4..)?.split_at_checked(KEY)?;
        Some(Self {
            version: u64::from_le_bytes(*version),
            key: key.get(..u16::from_le_bytes(*key_length).into())?.to_vec(),
            value: value.get(..u16::from_le_bytes(*value_length).into())?.to_vec(),
        })
    }
}

/// Checks that a table can store this key and this value.
///
/// # Errors
/// Returns a message that states the limit that the key or the value violates.
pub fn check(key: &[u8], value: &[u8]) -> Result<(), String> {
    let (keys, values) = (key.len(), value.len());
    match () {
        () if keys == 0 => {
            Err("a key must have at least 1 byte: an empty key marks a free slot".into())
        }
        () if keys > KEY => Err(format!("the key has {keys} bytes, and a slot has room for {KEY}")),
        () if values > VALUE => {
            Err(format!("the value has {values} bytes, and a slot has room for {VALUE}"))
        }
        () => Ok(()),
    }
}

/// Returns the FNV-1a hash of the bytes. It is short, and the same at both ends.
#[must_use]
pub fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_with_bytes_of_two_entries_is_noticed() {
        let entry =
            |version, value: &[u8]| Entry { version, key: b"k".into(), value: value.into() };
        let (old, new) = (entry(1, b"red"), entry(2, b"green"));
        let [from, to] = [&old, &new].map(|entry| entry.to_bytes().expect("it fits"));
        assert_eq!(Entry::from_bytes(&from), Some(old));
        assert_eq!(Entry::from_bytes(&to), Some(new));
        for (at, differs) in from.iter().zip(&to).map(|(from, to)| from != to).enumerate() {
            if differs {
                let mut mixed = from;
                mixed[at] = to[at];
                assert_eq!(Entry::from_bytes(&mixed), None, "byte {at}");
            }
        }
        assert_eq!(Entry::from_bytes(&[0; SLOT]), None, "never written");
    }

    #[test]
    fn keys_and_values_that_are_too_long_are_refused_with_the_limit() {
        assert!(check(&[1; KEY], &[1; VALUE]).is_ok());
        for (key, value, said) in [(0, 0, "at least 1"), (KEY + 1, 0, "40"), (1, VALUE + 1, "192")]
        {
            let error = check(&vec![1; key], &vec![1; value]).expect_err(said);
            assert!(error.contains(said), "{error}");
        }
    }
}
