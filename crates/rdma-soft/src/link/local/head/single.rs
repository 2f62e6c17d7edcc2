//! The header of a [message of one packet](Single). It begins in the gap before the message, so that 40 bytes of data fit
//! one cache line, and 104 fit two.
//!
//! | bytes | what |
//! |---|---|
//! | 0 to 3 | the length of the message after the gap: the rest of this header, and the data |
//! | 4 | [flags](SINGLE) |
//! | 5 | 0 |
//! | 6, 7 | the index of the sender's GID, and of the receiver's; 0 on InfiniBand |
//! | 8 to 11 | the number of the receiving queue pair |
//! | 12 to 15 | the PSN |
//! | 16 to 19 | the [key](WordKey) of the word that shows the progress |
//! | 20 to 23 | immediate data, as it is passed through |

use rdma_types::{Psn, Qpn};

use super::{LONGEST, address_at, index_of};
use crate::address::Path;
use crate::device::Device;
use crate::engine::wire::single::Single;
use crate::engine::wire::word::WordKey;
use crate::link::local::shared::GAP;

/// The size of this header in bytes.
pub(in crate::link::local) const SINGLE_HEAD: u32 = 24;
pub(in crate::link::local) type SingleHead = [u8; SINGLE_HEAD as usize];
/// The number of its bytes after the gap.
pub(in crate::link::local) const AFTER_GAP: usize = (SINGLE_HEAD - GAP) as usize;

/// The message has this header. In other messages, this byte is 0.
const SINGLE: u8 = 1;
const WITH_IMMEDIATE: u8 = 2;
const SOLICITED: u8 = 4;

/// Encodes the header. Returns `None` if an address of its path is not shared.
pub(in crate::link::local) fn encode_single(
    device: &Device,
    single: &Single,
) -> Option<SingleHead> {
    let mut head = [0; SINGLE_HEAD as usize];
    let length = AFTER_GAP + usize::from(single.length);
    head[..4].copy_from_slice(&u32::try_from(length).ok()?.to_le_bytes());
    head[4] = SINGLE
        | if single.immediate.is_some() { WITH_IMMEDIATE } else { 0 }
        | if single.solicited { SOLICITED } else { 0 };
    head[6] = index_of(device, &single.path.local)?;
    head[7] = index_of(device, &single.path.remote)?;
    head[8..12].copy_from_slice(&single.to.get().to_le_bytes());
    head[12..16].copy_from_slice(&single.psn.get().to_le_bytes());
    head[16..20].copy_from_slice(&single.word.raw().to_le_bytes());
    head[20..].copy_from_slice(&single.immediate.unwrap_or(0).to_le_bytes());
    Some(head)
}

/// Returns true if a message has this header.
pub(in crate::link::local) fn is_single(head: &SingleHead) -> bool {
    head[4] != 0
}

/// Decodes the header of a message with this length after the gap. Returns `None` if no device sends such a message.
pub(in crate::link::local) fn decode_single(
    device: &Device,
    head: &SingleHead,
    length: usize,
) -> Option<Single> {
    let number =
        |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (flags, reserved) = (head[4], head[5]);
    let length = length.checked_sub(AFTER_GAP).filter(|&length| length <= LONGEST)?;
    if flags & SINGLE == 0 || flags & !(SINGLE | WITH_IMMEDIATE | SOLICITED) != 0 || reserved != 0 {
        return None;
    }
    let path = Path { local: address_at(device, head[6])?, remote: address_at(device, head[7])? };
    Some(Single {
        path,
        to: Qpn::new(number(8)).filter(|&to| to != Qpn::MULTICAST)?,
        psn: Psn::new(number(12))?,
        word: WordKey::of(number(16))?,
        immediate: (flags & WITH_IMMEDIATE != 0).then(|| number(20)),
        solicited: flags & SOLICITED != 0,
        length: u16::try_from(length).ok()?,
    })
}
