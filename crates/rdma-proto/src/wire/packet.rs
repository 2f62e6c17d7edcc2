//! A packet: the whole payload of a RoCEv2 UDP datagram.

use super::error::{EmitError, ParseError};
use super::headers::Headers;
use super::headers::bth::PadCount;

/// A packet of RoCEv2, from the BTH to the ICRC (IBTA section 9.2, annex A17).
///
/// # Examples
///
/// ```
/// use rdma_proto::wire::{Packet, Syndrome};
///
/// let datagram = [
///     0x11, 0, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0x10, 0, 0, // BTH
///     0x1f, 0, 0, 1, // AETH
///     0x44, 0xc0, 0x87, 0xd3, // ICRC
/// ];
/// let packet = Packet::parse(&datagram)?;
/// assert_eq!(packet.headers.bth.opcode.to_string(), "RC Acknowledge");
/// assert!(matches!(packet.headers.aeth.unwrap().syndrome, Syndrome::Ack(_)));
/// assert!(packet.payload.is_empty());
/// # Ok::<(), rdma_proto::wire::ParseError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Packet<'a> {
    /// The headers, from the BTH to the payload.
    pub headers: Headers,
    /// The payload, without padding.
    pub payload: &'a [u8],
    /// The invariant CRC that the packet carries. [`icrc`](super::icrc) computes the correct value.
    pub icrc: u32,
}

impl<'a> Packet<'a> {
    /// The size of the ICRC in bytes.
    pub const ICRC_LEN: usize = 4;

    /// Reads the payload of a UDP datagram. Does not check the ICRC, because that requires the
    /// network headers.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Headers::parse`], [`ParseError::Length`] and
    /// [`ParseError::PadCount`].
    pub fn parse(datagram: &'a [u8]) -> Result<Self, ParseError> {
        let (covered, icrc) = datagram.split_last_chunk().ok_or(ParseError::Truncated)?;
        let (headers, padded) = Headers::parse(covered)?;
        if !padded.len().is_multiple_of(4) {
            return Err(ParseError::Length(datagram.len()));
        }
        let pad = headers.bth.pad_count.get();
        let len = padded.len().checked_sub(pad.into());
        let payload = len.and_then(|len| padded.get(..len)).ok_or(ParseError::PadCount(pad))?;
        Ok(Self { headers, payload, icrc: u32::from_le_bytes(*icrc) })
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn wire_len(&self) -> usize {
        let pad = usize::from(self.headers.bth.pad_count.get());
        let body = self.payload.len().saturating_add(pad);
        self.headers.wire_len().saturating_add(body).saturating_add(Self::ICRC_LEN)
    }

    /// Writes the payload of a UDP datagram to the beginning of the buffer and returns it.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Headers::emit`], and [`EmitError::PadCount`].
    pub fn emit<'b>(&self, bytes: &'b mut [u8]) -> Result<&'b mut [u8], EmitError> {
        if self.headers.bth.pad_count != PadCount::of(self.payload.len()) {
            return Err(EmitError::PadCount);
        }
        let datagram = bytes.get_mut(..self.wire_len()).ok_or(EmitError::NoRoom)?;
        let body = self.headers.emit(datagram)?;
        let (body, icrc) = body.split_last_chunk_mut().ok_or(EmitError::NoRoom)?;
        *icrc = self.icrc.to_le_bytes();
        let (payload, pad) =
            body.split_at_mut_checked(self.payload.len()).ok_or(EmitError::NoRoom)?;
        payload.copy_from_slice(self.payload);
        pad.fill(0);
        Ok(datagram)
    }
}
