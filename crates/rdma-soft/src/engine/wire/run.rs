//! Runs of packets. A copy where memory may be gone is a system call, so that what the packets of a run carry is copied by
//! one, not by one for each.

use rdma_proto::wire::Operation;
use rdma_types::Mtu;

use crate::link::memory::Letter;

/// The packets of one burst, as a protocol takes them one after the other.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Run<'a> {
    /// What all of them carry but the last. Headers of those in between follow from the first: if that one is right, they
    /// are.
    payload: &'a [u8],
    /// So much of the message is there.
    upto: u32,
}

impl<'a> Run<'a> {
    pub(crate) fn of(letter: &'a Letter, mtu: Mtu) -> Self {
        use Operation as Op;
        let burst = &letter.burst;
        let goes_on = matches!(
            burst.header.bth.opcode.operation(),
            Op::SendFirst
                | Op::SendMiddle
                | Op::RdmaWriteFirst
                | Op::RdmaWriteMiddle
                | Op::RdmaReadResponseFirst
                | Op::RdmaReadResponseMiddle
        );
        let before_last = usize::from(burst.segments.saturating_sub(1));
        let are_full = u32::from(burst.segment) == mtu.bytes();
        let bytes = if goes_on && are_full { before_last * usize::from(burst.segment) } else { 0 };
        Self { payload: letter.payload().get(..bytes).unwrap_or_default(), upto: 0 }
    }

    /// Has `copy` put the payload of a packet where it belongs, `at` bytes behind the first of a message of so many bytes in
    /// all: together with that of the packets behind it, if they do not end the message, and all of it can be copied.
    pub(crate) fn place<E>(
        &mut self,
        at: u32,
        payload: &[u8],
        in_all: u64,
        mut copy: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let end =
            |bytes: &[u8]| u32::try_from(bytes.len()).ok().and_then(|len| at.checked_add(len));
        if end(payload).is_some_and(|end| end <= self.upto) {
            return Ok(());
        }
        let rest = self.from(payload);
        if rest.len() > payload.len()
            && let Some(upto) = end(rest).filter(|&upto| u64::from(upto) < in_all)
            && copy(rest).is_ok()
        {
            self.upto = upto;
            return Ok(());
        }
        // Of what cannot be copied as a whole, some may.
        self.payload = &[];
        copy(payload)
    }

    /// What the packets carry from the one on that has this payload.
    fn from(&self, payload: &[u8]) -> &'a [u8] {
        let begin = payload.as_ptr().addr().wrapping_sub(self.payload.as_ptr().addr());
        self.payload.get(begin..).unwrap_or_default()
    }
}
