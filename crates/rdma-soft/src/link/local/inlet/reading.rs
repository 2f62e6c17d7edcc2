//! Reading messages from the ring: executing their bursts, or passing them to the inboxes of their receivers.

use std::sync::Arc;

use rdma_proto::Burst;

use super::Inlet;
use crate::device::Device;
use crate::device::arrivals::{is_for_nobody, receive_single};
use crate::engine::wire::Mailbox as _;
use crate::engine::wire::in_ring::InRing;
use crate::engine::wire::letter::{ExecutedWords, Letter};
use crate::link::local::head::{
    Decoded, HEAD, MOST, SINGLE_HEAD, SingleHead, decode, decode_single, is_single, is_void,
    placed, word_of,
};
use crate::link::local::shared::{DATA, GAP, Message, RingReceiver};
use crate::link::local::socket::notify;
use crate::link::memory::Inbox;

#[derive(Debug, Default)]
pub(super) struct Reading {
    /// The bursts of the current message after its first one. Empty while no thread reads.
    letters: Vec<Letter>,
    /// The inboxes that were given these bursts of the last message, perhaps without having space.
    crowded: Vec<&'static Arc<Inbox<Device>>>,
}

/// The result of looking at the ring once.
#[derive(Debug)]
pub(super) enum RingRead {
    Message,
    Nothing,
    /// An inbox has no space for the message.
    NoRoom,
    /// The other process wrote data that no device sends.
    Malformed,
}

impl Inlet {
    /// Reads a message, and executes it or passes it to the inbox of its receiver, in a buffer of that inbox.
    pub(super) fn read(self: &Arc<Self>, reading: &mut Reading) -> RingRead {
        let mut single = [0; SINGLE_HEAD as usize];
        let Some(ring) = self.ring.get() else { return RingRead::Nothing };
        // Only the first cache line is read, because the sender may be writing its next message to the second.
        let mut message = match ring.next(&mut single) {
            Ok(Some(message)) => message,
            Ok(None) => return RingRead::Nothing,
            Err(_) => return RingRead::Malformed,
        };
        if is_single(&single) {
            return self.read_single(ring, message, &single, reading);
        }
        let mut begin = [0; GAP as usize + HEAD];
        ring.read_more(&mut message, &mut begin);
        let behind = message.length.checked_sub(HEAD);
        let Some(head) = begin.last_chunk() else { return RingRead::Malformed };
        let Some((behind, first)) = behind.zip(decode(self.device, head)) else {
            return RingRead::Malformed;
        };
        let inbox = self.inbox_of(&first.1);
        let Some(mut buffer) = self.buffer_of(inbox, reading) else { return RingRead::NoRoom };
        let (_, Burst { length, .. }, datagram) = first;
        // A capture copies the payload.
        if behind == length as usize && datagram.is_none() && self.device.tap.is_none() {
            let mut letter = self.letter(head, first, buffer);
            letter.in_ring = Some(InRing::new(ring.memory_from(DATA), letter.payload()));
            if self.executes(inbox, &mut letter) {
                self.give_back(letter);
                return self.remove(ring, message);
            }
            buffer = letter.into_buffer();
        }
        let taken = ring.take(message, &mut buffer);
        self.note_space(ring, taken == Ok(true));
        let rest = buffer.get(length as usize..behind).filter(|_| taken.is_ok());
        if rest.and_then(|rest| self.parse_rest(rest, reading)).is_none() {
            reading.letters.drain(..).for_each(|letter| self.give_back(letter));
            inbox.give_back(buffer);
            return RingRead::Malformed;
        }
        self.deliver(self.letter(head, first, buffer));
        reading.letters.drain(..).for_each(|letter| self.deliver(letter));
        RingRead::Message
    }

    /// Executes a message of one packet, if all packets before it are executed. Otherwise passes it to the inbox of its
    /// receiver as a packet.
    fn read_single(
        self: &Arc<Self>,
        ring: &RingReceiver,
        message: Message,
        head: &SingleHead,
        reading: &mut Reading,
    ) -> RingRead {
        let Some(single) = decode_single(self.device, head, message.length) else {
            return RingRead::Malformed;
        };
        let inbox = self.device.inbox(single.to.get());
        let executed = inbox.execute_at_once(|| {
            let data = ring.memory_from(SINGLE_HEAD);
            let executed = receive_single(self.device, &single, &data, &**self);
            if executed {
                self.announce();
            }
            executed
        });
        if executed == Some(true) {
            return self.remove(ring, message);
        }
        let Some(mut buffer) = self.buffer_of(inbox, reading) else { return RingRead::NoRoom };
        let taken = ring.take(message, &mut buffer);
        self.note_space(ring, taken == Ok(true));
        if taken.is_err() {
            inbox.give_back(buffer);
            return RingRead::Malformed;
        }
        let mut letter = Letter::from_outside(single.path, single.burst(), None, buffer);
        letter.word = Some(single.word);
        letter.words = Some(Arc::<Self>::clone(self) as Arc<dyn ExecutedWords>);
        self.deliver(letter);
        RingRead::Message
    }

    /// Removes an executed message from the ring.
    fn remove(&self, ring: &RingReceiver, message: Message) -> RingRead {
        let must_notify = ring.remove(message);
        self.note_space(ring, must_notify == Ok(true));
        RingRead::Message
    }

    /// Executes a letter whose payload is in the ring, or drops it if it has no receiver. Returns false if packets before it
    /// are not executed yet, or other threads use its receiver.
    fn executes(&self, inbox: &Inbox<Device>, letter: &mut Letter) -> bool {
        if is_for_nobody(self.device, &letter.path, &letter.burst, false) {
            self.driver.note_useless();
            return true;
        }
        inbox.arrive_at_once(letter)
    }

    /// Returns a buffer of an inbox, if it has space.
    fn buffer_of(
        self: &Arc<Self>,
        inbox: &Inbox<Device>,
        reading: &mut Reading,
    ) -> Option<Box<[u8]>> {
        // Otherwise, the other bursts of each message could fill their inboxes without limit.
        while let Some(crowded) = reading.crowded.last() {
            if !crowded.has_room(Arc::<Self>::downgrade(self)) {
                return None;
            }
            reading.crowded.pop();
        }
        inbox.buffer(Arc::<Self>::downgrade(self))
    }

    /// Notifies the sender of space, if it must be notified.
    fn note_space(&self, ring: &RingReceiver, must_notify: bool) {
        if must_notify && !notify(&self.connection) {
            ring.notification_failed();
        }
    }

    /// Passes a letter to its inbox.
    fn deliver(&self, letter: Letter) {
        if is_for_nobody(self.device, &letter.path, &letter.burst, false) {
            self.driver.note_useless();
            return self.give_back(letter);
        }
        self.inbox_of(&letter.burst).arrive(letter);
    }

    /// Returns the inbox for the receiver of these packets.
    fn inbox_of(&self, burst: &Burst) -> &'static Arc<Inbox<Device>> {
        self.device.inbox(burst.header.bth.destination.get())
    }

    /// Returns the buffer of a letter to its inbox.
    fn give_back(&self, letter: Letter) {
        self.inbox_of(&letter.burst).give_back(letter.into_buffer());
    }

    fn letter(
        self: &Arc<Self>,
        head: &[u8; HEAD],
        (path, burst, datagram): Decoded,
        payload: Box<[u8]>,
    ) -> Letter {
        let mut letter = Letter::from_outside(path, burst, datagram, payload);
        letter.is_void = is_void(head);
        letter.placed = placed(head);
        letter.word = word_of(head);
        letter.words = letter.word.map(|_| Arc::<Self>::clone(self) as Arc<dyn ExecutedWords>);
        letter
    }

    /// Parses the bytes of a message after its first burst, and copies the other bursts into their own buffers. Returns
    /// `None` if the message is malformed, that is, if no device would have sent it.
    fn parse_rest(self: &Arc<Self>, mut rest: &[u8], reading: &mut Reading) -> Option<()> {
        while !rest.is_empty() {
            let (head, behind) = rest.split_first_chunk()?;
            let decoded = decode(self.device, head)?;
            let (payload, next) = behind.split_at_checked(decoded.1.length as usize)?;
            if reading.letters.len() + 1 >= MOST {
                return None;
            }
            // A message is accepted completely, even if its bursts need more buffers than are left.
            let inbox = self.inbox_of(&decoded.1);
            let mut buffer = inbox.buffer_at_once();
            reading.crowded.push(inbox);
            buffer[..payload.len()].copy_from_slice(payload);
            reading.letters.push(self.letter(head, decoded, buffer));
            rest = next;
        }
        Some(())
    }
}
