//! The operations of packets, and the headers that each operation needs.

use super::opcode::Header;

/// A packet's position in its message.
#[derive(Clone, Copy, PartialEq)]
enum Position {
    First,
    Middle,
    Last,
    Only,
}

macro_rules! operations {
    ($( $code:literal $name:ident $position:ident [$($header:ident)*] $text:literal; )+) => {
        /// The operation of a packet: the lower five bits of an opcode (IBTA section 9.2).
        ///
        /// Reliable connections support all operations; for the other services, see
        /// [`Opcode`](super::Opcode).
        ///
        /// # Examples
        ///
        /// ```
        /// use rdma_proto::wire::{Header, Operation};
        ///
        /// let last = Operation::RdmaWriteLastWithImmediate;
        /// assert_eq!(last.to_string(), "RDMA WRITE Last with Immediate");
        /// assert_eq!(last.headers(), [Header::ImmDt]);
        /// assert!(last.ends_message() && !last.starts_message());
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum Operation {
            $( #[doc = concat!($text, ".")] $name = $code, )+
        }

        impl Operation {
            /// All operations, ordered by code.
            pub const ALL: &'static [Self] = &[$( Self::$name, )+];

            /// Returns the operation with this five-bit code; `None` if the specification defines
            /// none.
            #[must_use]
            #[inline]
            pub const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $( $code => Some(Self::$name), )+
                    _ => None,
                }
            }

            const fn row(self) -> Row {
                match self {
                    $( Self::$name => Row {
                        position: Position::$position,
                        headers: &[$(Header::$header),*],
                        text: $text,
                    }, )+
                }
            }
        }
    };
}

/// The properties of an operation in the table.
struct Row {
    position: Position,
    headers: &'static [Header],
    text: &'static str,
}

operations! {
    0x00 SendFirst                  First  []                  "SEND First";
    0x01 SendMiddle                 Middle []                  "SEND Middle";
    0x02 SendLast                   Last   []                  "SEND Last";
    0x03 SendLastWithImmediate      Last   [ImmDt]             "SEND Last with Immediate";
    0x04 SendOnly                   Only   []                  "SEND Only";
    0x05 SendOnlyWithImmediate      Only   [ImmDt]             "SEND Only with Immediate";
    0x06 RdmaWriteFirst             First  [Reth]              "RDMA WRITE First";
    0x07 RdmaWriteMiddle            Middle []                  "RDMA WRITE Middle";
    0x08 RdmaWriteLast              Last   []                  "RDMA WRITE Last";
    0x09 RdmaWriteLastWithImmediate Last   [ImmDt]             "RDMA WRITE Last with Immediate";
    0x0a RdmaWriteOnly              Only   [Reth]              "RDMA WRITE Only";
    0x0b RdmaWriteOnlyWithImmediate Only   [Reth ImmDt]        "RDMA WRITE Only with Immediate";
    0x0c RdmaReadRequest            Only   [Reth]              "RDMA READ Request";
    0x0d RdmaReadResponseFirst      First  [Aeth]              "RDMA READ Response First";
    0x0e RdmaReadResponseMiddle     Middle []                  "RDMA READ Response Middle";
    0x0f RdmaReadResponseLast       Last   [Aeth]              "RDMA READ Response Last";
    0x10 RdmaReadResponseOnly       Only   [Aeth]              "RDMA READ Response Only";
    0x11 Acknowledge                Only   [Aeth]              "Acknowledge";
    0x12 AtomicAcknowledge          Only   [Aeth AtomicAckEth] "ATOMIC Acknowledge";
    0x13 CompareSwap                Only   [AtomicEth]         "CmpSwap";
    0x14 FetchAdd                   Only   [AtomicEth]         "FetchAdd";
    0x16 SendLastWithInvalidate     Last   [Ieth]              "SEND Last with Invalidate";
    0x17 SendOnlyWithInvalidate     Only   [Ieth]              "SEND Only with Invalidate";
}

impl Operation {
    /// Returns true if a message or a response begins with the packet.
    #[must_use]
    pub const fn starts_message(self) -> bool {
        matches!(self.row().position, Position::First | Position::Only)
    }

    /// Returns true if a message or a response ends with the packet.
    #[must_use]
    pub const fn ends_message(self) -> bool {
        matches!(self.row().position, Position::Last | Position::Only)
    }

    /// Returns true if a packet with the operation `next` can follow this one in the same message
    /// or response.
    ///
    /// # Examples
    /// ```
    /// use rdma_proto::wire::Operation;
    ///
    /// assert!(Operation::SendFirst.goes_on_with(Operation::SendLastWithImmediate));
    /// assert!(!Operation::SendFirst.goes_on_with(Operation::RdmaWriteMiddle));
    /// assert!(!Operation::SendLast.goes_on_with(Operation::SendLast));
    /// ```
    #[must_use]
    pub const fn goes_on_with(self, next: Self) -> bool {
        match self {
            Self::SendFirst | Self::SendMiddle => matches!(
                next,
                Self::SendMiddle
                    | Self::SendLast
                    | Self::SendLastWithImmediate
                    | Self::SendLastWithInvalidate
            ),
            Self::RdmaWriteFirst | Self::RdmaWriteMiddle => matches!(
                next,
                Self::RdmaWriteMiddle | Self::RdmaWriteLast | Self::RdmaWriteLastWithImmediate
            ),
            Self::RdmaReadResponseFirst | Self::RdmaReadResponseMiddle => {
                matches!(next, Self::RdmaReadResponseMiddle | Self::RdmaReadResponseLast)
            }
            _ => false,
        }
    }

    /// Returns true if the packet answers a request. Answers go to the queue pair's requester, and
    /// all other packets to its responder.
    #[must_use]
    #[inline]
    pub const fn is_response(self) -> bool {
        matches!(
            self,
            Self::RdmaReadResponseFirst
                | Self::RdmaReadResponseMiddle
                | Self::RdmaReadResponseLast
                | Self::RdmaReadResponseOnly
                | Self::Acknowledge
                | Self::AtomicAcknowledge
        )
    }

    /// Returns the headers between the BTH and the payload on a connected queue pair, in order.
    #[must_use]
    #[inline]
    pub const fn headers(self) -> &'static [Header] {
        self.row().headers
    }
}

impl core::fmt::Display for Operation {
    /// Formats the operation as in the specification.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(self.row().text)
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn valid_codes_round_trip_and_others_are_none() {
        let known = |code| Operation::from_code(code).map(|operation| operation as u8);
        for code in 0..=u8::MAX {
            let defined = code <= 0x14 || code == 0x16 || code == 0x17;
            assert_eq!(known(code), defined.then_some(code));
        }
        assert!(Operation::ALL.iter().map(|&operation| operation as u8).is_sorted());
        assert_eq!(Operation::ALL.len(), 23);
    }

    #[test]
    fn a_packet_is_followed_by_the_middle_or_the_last_of_its_kind() {
        let kind = |operation: Operation| {
            let text = operation.to_string();
            ["SEND", "RDMA WRITE", "RDMA READ Response"]
                .into_iter()
                .find(|kind| text.starts_with(kind))
        };
        for &first in Operation::ALL {
            for &next in Operation::ALL {
                let expected =
                    !first.ends_message() && !next.starts_message() && kind(first) == kind(next);
                assert_eq!(first.goes_on_with(next), expected, "{first}, {next}");
            }
        }
    }

    #[test]
    fn texts_match_places_and_headers() {
        for &operation in Operation::ALL {
            let text = operation.to_string();
            let says = |word| text.contains(word);
            assert_eq!(operation.starts_message(), !says("Middle") && !says("Last"), "{text}");
            assert_eq!(operation.ends_message(), !says("First") && !says("Middle"), "{text}");
            let has = |header| operation.headers().contains(&header);
            assert_eq!(has(Header::ImmDt), says("Immediate"), "{text}");
            assert_eq!(has(Header::Ieth), says("Invalidate"), "{text}");
            assert_eq!(operation.is_response(), has(Header::Aeth) || says("Response"), "{text}");
        }
    }
}
