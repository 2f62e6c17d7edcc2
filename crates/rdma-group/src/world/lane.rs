//! Long pieces between two ranks, which a rank writes to memory of its peer.
//!
//! Each end provides a *landing*: registered memory that only this peer writes. It has [`SLOTS`] slots. The sender writes a
//! piece to the next slot, and then sends a message that announces it. Messages and WRITEs are in order, so the bytes have
//! arrived before the message. The receiver copies the piece and sends a message that grants the slot again.
//! A landing belongs to one connection, and no program sees it. So a WRITE that arrives late harms nothing.

use std::mem;

use rdma_mem::{AccessFlags, Error, ProtectionDomain, RemoteMemoryRegion, SharedRegion};

use crate::call::Call;

/// The maximum length of a piece.
pub(crate) const PIECE_BYTES: usize = 256 << 10;

const SLOTS: usize = 2;

/// The form of a message, which is in a byte that calls do not use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A call, the length of the whole block, and data.
    Short,
    /// A call and the length of the whole block. The data of the piece is in the landing.
    Long,
    /// A slot of the landing is free again.
    Granted,
    /// The address of the landing.
    Landing,
    /// A call and the length of the whole block. The sender waits for the landing.
    Asked,
    /// A call. The sender has waited long for this rank, or has found that their calls differ.
    Stated,
    /// A [`Notice`](crate::bootstrap::star::Notice): the sender closes the group, for this reason.
    Noticed,
}

const FORMS: [Form; 7] = [
    Form::Short,
    Form::Long,
    Form::Granted,
    Form::Landing,
    Form::Asked,
    Form::Stated,
    Form::Noticed,
];

impl Form {
    /// Returns the form of a message. A message that is too short for a form is short for its call, too.
    pub(crate) fn of(message: &[u8]) -> Self {
        let form = message.get(Call::FORM_BYTE).and_then(|form| FORMS.get(usize::from(*form)));
        form.copied().unwrap_or(Self::Short)
    }

    /// Returns the beginning of a message of this form without a call.
    pub(crate) fn to_bytes(self) -> Grant {
        let mut bytes = [0; Call::FORM_BYTE + 1];
        bytes[Call::FORM_BYTE] = self as u8;
        bytes
    }
}

/// A message that has only a form, for example one that grants a slot.
pub(crate) type Grant = [u8; Call::FORM_BYTE + 1];

/// The landings of a connection.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    landing: Option<SharedRegion>,
    /// The number of pieces that were received.
    received: usize,
    /// The landing of the peer.
    target: Option<RemoteMemoryRegion>,
    /// Whether a call was sent because the peer has no landing yet.
    has_asked: bool,
    /// The number of pieces that were sent, and of those whose slots are free again.
    sent: usize,
    granted: usize,
}

impl Lane {
    /// Returns true if this end has a landing.
    pub(crate) const fn is_open(&self) -> bool {
        self.landing.is_some()
    }

    /// Allocates the landing.
    pub(crate) fn landing(pd: &ProtectionDomain) -> Result<SharedRegion, Error> {
        let access = AccessFlags::new().with_local_write().with_remote_read().with_remote_write();
        pd.allocate_shared_region(SLOTS * PIECE_BYTES, access)
    }

    /// Sets the landing. Returns the message that describes it.
    pub(crate) fn open(&mut self, landing: SharedRegion) -> Vec<u8> {
        let mut message = Form::Landing.to_bytes().to_vec();
        message.extend_from_slice(&landing.remote().to_bytes());
        self.landing = Some(landing);
        message
    }

    /// Returns true once, if the peer has no landing yet. The sender then sends its call, because the peer may have made
    /// another call, which opens no landing.
    pub(crate) const fn asks(&mut self) -> bool {
        self.target.is_none() && !mem::replace(&mut self.has_asked, true)
    }

    /// Processes a message about landings, a statement or a notice. Returns false for a message of a run.
    pub(crate) fn process(&mut self, message: &[u8]) -> bool {
        match Form::of(message) {
            Form::Granted => self.granted = self.sent.min(self.granted + 1),
            Form::Landing => {
                let bytes = message.get(Call::FORM_BYTE + 1..).map(TryInto::try_into);
                self.target = bytes.and_then(Result::ok).map(RemoteMemoryRegion::from_bytes);
            }
            // Only a run compares calls, and only the ranks know whether a notice is valid.
            Form::Stated | Form::Noticed => {}
            Form::Short | Form::Long | Form::Asked => return false,
        }
        true
    }

    /// Returns the slot for the next piece, if one is free.
    pub(crate) fn next_target(&mut self, length: usize) -> Option<RemoteMemoryRegion> {
        if self.sent - self.granted >= SLOTS {
            return None;
        }
        let start = self.sent % SLOTS * PIECE_BYTES;
        let target = self.target?.slice(start..start + length)?;
        self.sent += 1;
        Some(target)
    }

    /// Copies bytes at this offset of the next piece that is to be received.
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) {
        let start = self.received % SLOTS * PIECE_BYTES + offset;
        // A piece has at most the length of a slot. Without a landing, there is no piece.
        let _ = self.landing.as_ref().map(|landing| landing.read(start, bytes));
    }

    /// Frees the slot if this message announced a piece, which was read. Returns the message that grants the slot again.
    pub(crate) fn received(&mut self, message: &[u8]) -> Option<Grant> {
        (Form::of(message) == Form::Long).then(|| {
            self.received += 1;
            Form::Granted.to_bytes()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns both ends. The second has a landing.
    fn lanes() -> [Lane; 2] {
        rdma_soft::install();
        let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
        let [mut sender, mut receiver] = [Lane::default(), Lane::default()];
        assert!(!receiver.is_open() && sender.next_target(1).is_none());
        let message = receiver.open(Lane::landing(&pd).unwrap());
        assert!(receiver.is_open() && sender.process(&message));
        [sender, receiver]
    }

    #[test]
    fn a_slot_is_used_again_only_after_it_was_granted() {
        let [mut sender, mut receiver] = lanes();
        let targets: Vec<_> =
            (0..SLOTS).map(|_| sender.next_target(PIECE_BYTES).unwrap()).collect();
        assert!(targets.windows(2).all(|pair| pair[0].address() != pair[1].address()));
        assert_eq!(sender.next_target(1), None);
        let header = Call::split(&[0; Call::BYTES]).unwrap().0.to_bytes();
        assert_eq!(receiver.received(&header), None);
        let mut announcement = header;
        announcement[Call::FORM_BYTE] = Form::Long as u8;
        let grant = receiver.received(&announcement).unwrap();
        assert!(!sender.process(&announcement) && sender.process(&grant));
        assert_eq!(sender.next_target(9).unwrap(), targets[0].slice(0..9).unwrap());
        assert_eq!(sender.next_target(1), None);
    }

    #[test]
    fn a_piece_is_read_from_its_own_slot() {
        let [_, mut receiver] = lanes();
        let landing = receiver.landing.take().unwrap();
        for (slot, byte) in (0..SLOTS).zip(1..) {
            landing.write(slot * PIECE_BYTES + 5, &[byte]).unwrap();
        }
        receiver.landing = Some(landing);
        for piece in 0..2 * SLOTS {
            let mut byte = [0];
            receiver.read(5, &mut byte);
            assert_eq!(usize::from(byte[0]), piece % SLOTS + 1);
            receiver.received(&[0, 0, 0, Form::Long as u8]).unwrap();
        }
    }

    #[test]
    fn grants_and_landings_of_a_peer_cannot_exceed_the_memory() {
        let [mut sender, _] = lanes();
        for _ in 0..5 {
            assert!(sender.process(&Form::Granted.to_bytes()));
        }
        assert_eq!((0..9).filter(|_| sender.next_target(1).is_some()).count(), SLOTS);
        assert!(sender.process(&Form::Granted.to_bytes()));
        assert_eq!(sender.next_target(PIECE_BYTES * SLOTS + 1), None);
        let mut short = Form::Landing.to_bytes().to_vec();
        short.extend(RemoteMemoryRegion::new(0x1000, 64, 1).to_bytes());
        assert!(sender.process(&short) && sender.next_target(65).is_none());
        assert!(sender.process(&short[..10]) && sender.next_target(1).is_none());
        assert!(!sender.process(&[1, 2]));
    }
}
