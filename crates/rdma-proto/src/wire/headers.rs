//! The headers of a packet that precede the payload.

pub(super) mod aeth;
pub(super) mod atomic;
pub(super) mod atomic_ack;
pub(super) mod bth;
pub(super) mod deth;
pub(super) mod ieth;
pub(super) mod imm;
pub(super) mod reth;

use super::error::{EmitError, ParseError, room, take};
use super::opcode::Header;
use aeth::Aeth;
use atomic::AtomicEth;
use atomic_ack::AtomicAckEth;
use bth::Bth;
use deth::Deth;
use ieth::Ieth;
use imm::ImmDt;
use reth::Reth;

/// A BTH, and the extended transport headers that its opcode requires (IBTA section 9.3).
///
/// # Examples
///
/// ```
/// use rdma_proto::wire::{Bth, EmitError, Headers, Opcode, Operation, Reth, Service};
/// use rdma_types::{Psn, Qpn, Rkey};
///
/// let opcode = Opcode::new(Service::Rc, Operation::RdmaReadRequest).unwrap();
/// let bth = Bth::new(opcode, Qpn::masked(0x11), Psn::masked(5));
/// let reth = Reth { va: 0x1000, rkey: Rkey::new(0x2f4), length: 8 };
/// let headers = Headers { reth: Some(reth), ..Headers::new(bth) };
///
/// let mut room = [0; 32];
/// let rest = headers.emit(&mut room)?;
/// assert_eq!(rest.len(), 32 - headers.wire_len());
/// assert_eq!(Headers::parse(&room[..28]), Ok((headers, &[][..])));
///
/// assert_eq!(Headers::new(bth).emit(&mut room), Err(EmitError::Headers));
/// # Ok::<(), EmitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Headers {
    /// The base transport header, which every packet has.
    pub bth: Bth,
    /// Present in datagrams.
    pub deth: Option<Deth>,
    /// Present in the first packet of a WRITE, and in the request of a READ.
    pub reth: Option<Reth>,
    /// Present in the requests of atomics.
    pub atomic: Option<AtomicEth>,
    /// Present in acknowledgements, and in all packets of a READ response except the middle ones.
    pub aeth: Option<Aeth>,
    /// Present in the acknowledgements of atomics.
    pub atomic_ack: Option<AtomicAckEth>,
    /// Present in packets with immediate data.
    pub imm: Option<ImmDt>,
    /// Present in packets with a key to invalidate.
    pub ieth: Option<Ieth>,
}

impl Headers {
    /// Creates headers that consist only of a BTH.
    #[must_use]
    #[inline]
    pub const fn new(bth: Bth) -> Self {
        Self {
            bth,
            deth: None,
            reth: None,
            atomic: None,
            aeth: None,
            atomic_ack: None,
            imm: None,
            ieth: None,
        }
    }

    /// Returns the size in bytes of the headers that the opcode requires.
    #[must_use]
    pub fn wire_len(&self) -> usize {
        let extended: usize =
            self.bth.opcode.headers().iter().map(|header| header.wire_len()).sum();
        Bth::LEN.saturating_add(extended)
    }

    /// Reads the headers, and returns the rest of the packet.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Bth::parse`], and [`ParseError::Truncated`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let mut rest = bytes;
        let mut headers = Self::new(Bth::parse(take(&mut rest)?)?);
        for header in headers.bth.opcode.headers() {
            match header {
                Header::Deth => headers.deth = Some(Deth::parse(take(&mut rest)?)),
                Header::Reth => headers.reth = Some(Reth::parse(take(&mut rest)?)),
                Header::AtomicEth => headers.atomic = Some(AtomicEth::parse(take(&mut rest)?)),
                Header::Aeth => headers.aeth = Some(Aeth::parse(take(&mut rest)?)),
                Header::AtomicAckEth => {
                    headers.atomic_ack = Some(AtomicAckEth::parse(take(&mut rest)?));
                }
                Header::ImmDt => headers.imm = Some(ImmDt::parse(take(&mut rest)?)),
                Header::Ieth => headers.ieth = Some(Ieth::parse(take(&mut rest)?)),
            }
        }
        Ok((headers, rest))
    }

    /// Writes the headers, and returns the rest of the buffer.
    ///
    /// # Errors
    ///
    /// Returns [`EmitError::Headers`] if a required header is `None`, or if a header is present that the opcode does
    /// not allow. Returns [`EmitError::NoRoom`] if the buffer is too small.
    #[inline]
    pub fn emit<'a>(&self, bytes: &'a mut [u8]) -> Result<&'a mut [u8], EmitError> {
        let asked = self.bth.opcode.headers();
        if self.count() != asked.len() {
            return Err(EmitError::Headers);
        }
        let mut rest = bytes;
        self.bth.emit(room(&mut rest)?);
        let missing = EmitError::Headers;
        for header in asked {
            match header {
                Header::Deth => self.deth.ok_or(missing)?.emit(room(&mut rest)?),
                Header::Reth => self.reth.ok_or(missing)?.emit(room(&mut rest)?),
                Header::AtomicEth => self.atomic.ok_or(missing)?.emit(room(&mut rest)?),
                Header::Aeth => self.aeth.ok_or(missing)?.emit(room(&mut rest)?),
                Header::AtomicAckEth => self.atomic_ack.ok_or(missing)?.emit(room(&mut rest)?),
                Header::ImmDt => self.imm.ok_or(missing)?.emit(room(&mut rest)?),
                Header::Ieth => self.ieth.ok_or(missing)?.emit(room(&mut rest)?),
            }
        }
        Ok(rest)
    }

    /// Returns the number of headers that follow the BTH.
    #[inline]
    fn count(&self) -> usize {
        let Self { bth: _, deth, reth, atomic, aeth, atomic_ack, imm, ieth } = self;
        let there = [
            deth.is_some(),
            reth.is_some(),
            atomic.is_some(),
            aeth.is_some(),
            atomic_ack.is_some(),
            imm.is_some(),
            ieth.is_some(),
        ];
        there.into_iter().map(usize::from).sum()
    }
}
