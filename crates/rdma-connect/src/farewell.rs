//! The last message that an end sends. It distinguishes an orderly close from a process that died.

use std::fmt;

use crate::error::connect_error::ConnectError;

/// The message with which a program ends its side of a connection. It can contain up to 64 bytes for the peer's
/// program.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Farewell {
    length: u8,
    reason: [u8; Self::MOST],
}

/// The head of the message on a stream that serves a single connection. Like the head of every frame on a control
/// connection, it contains kind, length, connection and epoch.
const HEAD: [u8; 12] = [0, 14, 0, 65, 0, 0, 0, 0, 0, 0, 0, 0];

impl Farewell {
    /// The maximum length of a reason, in bytes.
    pub const MOST: usize = 64;
    /// The kind of a farewell's frame on a control connection.
    pub const KIND: u16 = 14;
    /// The size of a farewell on a control connection, without the head of its frame.
    pub const BYTES: usize = 1 + Self::MOST;
    /// The size of a farewell on a stream that serves a single connection.
    pub const FRAME: usize = HEAD.len() + Self::BYTES;
    /// A farewell without a reason.
    pub const PLAIN: Self = Self { length: 0, reason: [0; Self::MOST] };

    /// Creates a farewell with this reason.
    ///
    /// # Errors
    /// [`ConnectError::ReasonTooLong`] if the reason has more than 64 bytes.
    pub fn new(reason: &[u8]) -> Result<Self, ConnectError> {
        let too_long = ConnectError::ReasonTooLong { length: reason.len() };
        let mut farewell = Self::PLAIN;
        let place = farewell.reason.get_mut(..reason.len()).ok_or(too_long)?;
        place.copy_from_slice(reason);
        farewell.length = u8::try_from(reason.len()).unwrap_or(0);
        Ok(farewell)
    }

    /// Returns the reason, or an empty slice if there is none.
    #[must_use]
    pub fn reason(&self) -> &[u8] {
        self.reason.get(..self.length.into()).unwrap_or_default()
    }

    /// Returns the encoding on a control connection, without the head of its frame.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let [length, rest @ ..] = &mut bytes;
        (*length, *rest) = (self.length, self.reason);
        bytes
    }

    /// Decodes the result of [`to_bytes`](Self::to_bytes). Returns `None` if the bytes are not a farewell.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (&length, reason) = bytes.split_first()?;
        let reason = reason.try_into().ok()?;
        (usize::from(length) <= Self::MOST).then_some(Self { length, reason })
    }

    /// Returns the encoding on a stream that serves a single connection.
    #[must_use]
    pub fn to_frame(&self) -> [u8; Self::FRAME] {
        let mut bytes = [0; Self::FRAME];
        for (to, from) in bytes.iter_mut().zip(HEAD.into_iter().chain(self.to_bytes())) {
            *to = from;
        }
        bytes
    }

    /// Decodes all bytes of a stream that serves a single connection. Returns `None` if they are not exactly one
    /// farewell.
    #[must_use]
    pub fn from_frame(bytes: &[u8]) -> Option<Self> {
        Self::from_bytes(bytes.strip_prefix(&HEAD)?)
    }
}

/// Prints only the length, because the reason may be secret.
impl fmt::Debug for Farewell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Farewell({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_comes_back_and_a_longer_one_is_refused() {
        for length in [0, 1, 63, 64] {
            let reason = vec![7; length];
            let farewell = Farewell::new(&reason).unwrap();
            assert_eq!(Farewell::from_bytes(&farewell.to_bytes()).unwrap().reason(), reason);
            assert_eq!(Farewell::from_frame(&farewell.to_frame()), Some(farewell));
        }
        let refused = Farewell::new(&[7; 65]);
        assert!(matches!(refused, Err(ConnectError::ReasonTooLong { length: 65 })));
    }

    /// This format is the same in every release.
    #[test]
    fn the_format() {
        let frame = Farewell::new(b"bye").unwrap().to_frame();
        assert_eq!(frame[..16], *b"\0\x0e\0\x41\0\0\0\0\0\0\0\0\x03bye");
        assert_eq!(frame[16..], [0; 61]);
    }

    #[test]
    fn other_bytes_are_refused() {
        assert_eq!(Farewell::from_bytes(&[]), None);
        assert_eq!(Farewell::from_bytes(&[65; 65]), None);
        assert_eq!(Farewell::from_bytes(&[0; 66]), None);
        let frame = Farewell::PLAIN.to_frame();
        assert_eq!(Farewell::from_frame(&frame[1..]), None);
        assert_eq!(Farewell::from_frame(&[frame.as_slice(), b"?"].concat()), None);
    }
}
