//! Opcodes: a service, and a packet's operation in that service.

use core::fmt;

use super::headers::aeth::Aeth;
use super::headers::atomic::AtomicEth;
use super::headers::atomic_ack::AtomicAckEth;
use super::headers::deth::Deth;
use super::headers::ieth::Ieth;
use super::headers::imm::ImmDt;
use super::headers::reth::Reth;
use super::operation::Operation;

/// The transport service of a queue pair: the upper three bits of an opcode (IBTA section 9.2).
///
/// Reliable datagrams, XRC and congestion notification also have codes, but are not supported here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Service {
    /// Reliable connection.
    Rc = 0b000,
    /// Unreliable connection.
    Uc = 0b001,
    /// Unreliable datagram.
    Ud = 0b011,
}

/// The first byte of a packet (IBTA section 9.2).
///
/// | service | has these operations |
/// |---|---|
/// | RC | all |
/// | UC | SEND and RDMA WRITE, without Invalidate |
/// | UD | SEND Only, with Immediate or without |
///
/// # Examples
///
/// ```
/// use rdma_proto::wire::{Header, Opcode, Operation, Service};
///
/// let opcode = Opcode::from_code(0x65).unwrap();
/// assert_eq!((opcode.service(), opcode.operation()), (Service::Ud, Operation::SendOnlyWithImmediate));
/// assert_eq!(opcode.headers(), [Header::Deth, Header::ImmDt]);
/// assert_eq!(opcode.to_string(), "UD SEND Only with Immediate");
///
/// assert_eq!(Opcode::new(Service::Ud, Operation::RdmaWriteOnly), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Opcode {
    service: Service,
    operation: Operation,
}

impl Opcode {
    /// Returns the opcode for this operation, or `None` if the service does not support it.
    #[must_use]
    #[inline]
    pub const fn new(service: Service, operation: Operation) -> Option<Self> {
        use Operation::{RdmaWriteOnlyWithImmediate, SendOnly, SendOnlyWithImmediate};
        let has = match service {
            Service::Rc => true,
            Service::Uc => operation as u8 <= RdmaWriteOnlyWithImmediate as u8,
            Service::Ud => matches!(operation, SendOnly | SendOnlyWithImmediate),
        };
        if has { Some(Self { service, operation }) } else { None }
    }

    /// Returns the opcode for this operation on a reliable connection, which supports all
    /// operations.
    #[must_use]
    #[inline]
    pub const fn reliable(operation: Operation) -> Self {
        Self { service: Service::Rc, operation }
    }

    /// Returns the opcode with this code; `None` if the code belongs to another service or is not
    /// specified.
    #[must_use]
    #[inline]
    pub const fn from_code(code: u8) -> Option<Self> {
        let service = match code >> 5 {
            0b000 => Service::Rc,
            0b001 => Service::Uc,
            0b011 => Service::Ud,
            _ => return None,
        };
        match Operation::from_code(code & 0x1f) {
            Some(operation) => Self::new(service, operation),
            None => None,
        }
    }

    /// Returns the byte in the packet.
    #[must_use]
    #[inline]
    pub const fn code(self) -> u8 {
        (self.service as u8) << 5 | self.operation as u8
    }

    /// Returns the service.
    #[must_use]
    #[inline]
    pub const fn service(self) -> Service {
        self.service
    }

    /// Returns the packet's operation.
    #[must_use]
    #[inline]
    pub const fn operation(self) -> Operation {
        self.operation
    }

    /// Returns the headers between the BTH and the payload, in order.
    #[must_use]
    #[inline]
    pub const fn headers(self) -> &'static [Header] {
        match (self.service, self.operation) {
            (Service::Ud, Operation::SendOnly) => &[Header::Deth],
            (Service::Ud, _) => &[Header::Deth, Header::ImmDt],
            (_, operation) => operation.headers(),
        }
    }
}

impl fmt::Display for Opcode {
    /// Formats the opcode as in the specification: `RC SEND Only`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let service = match self.service {
            Service::Rc => "RC",
            Service::Uc => "UC",
            Service::Ud => "UD",
        };
        write!(f, "{service} {}", self.operation)
    }
}

/// A header that an opcode requires, after the BTH (IBTA section 9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Header {
    /// [`Deth`].
    Deth,
    /// [`Reth`].
    Reth,
    /// [`AtomicEth`].
    AtomicEth,
    /// [`Aeth`].
    Aeth,
    /// [`AtomicAckEth`].
    AtomicAckEth,
    /// [`ImmDt`].
    ImmDt,
    /// [`Ieth`].
    Ieth,
}

impl Header {
    /// Returns the size in bytes.
    #[must_use]
    pub const fn wire_len(self) -> usize {
        match self {
            Self::Deth => Deth::LEN,
            Self::Reth => Reth::LEN,
            Self::AtomicEth => AtomicEth::LEN,
            Self::Aeth => Aeth::LEN,
            Self::AtomicAckEth => AtomicAckEth::LEN,
            Self::ImmDt => ImmDt::LEN,
            Self::Ieth => Ieth::LEN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_codes_round_trip_and_others_are_none() {
        let known: std::vec::Vec<u8> =
            (0..=u8::MAX).filter(|&code| Opcode::from_code(code).is_some()).collect();
        let expected = (0x00..=0x14).chain(0x16..=0x17).chain(0x20..=0x2b).chain(0x64..=0x65);
        assert!(known.iter().copied().eq(expected));
        for code in known {
            assert_eq!(Opcode::from_code(code).unwrap().code(), code);
        }
    }
}
