//! Where the packets of one other process come in: a connection on which this process only reads.

use std::io::IoSliceMut;
use std::sync::{Arc, Weak};

use rdma_proto::Burst;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, recvmsg};

use super::head::{HEAD, MOST, decode, length_said};
use super::listener::Guest;
use crate::address::Path;
use crate::device::Device;
use crate::fabric::clock::Time;
use crate::fabric::timers::{Alarm, Alarmed};
use crate::fabric::turns::{Driven, Place};
use crate::link::descriptor::Descriptor;
use crate::link::driver::{Driver, End, Happened, Watched};
use crate::link::memory::{Datagram, Letter};
use crate::sync::{AtomicBool, Mutex, Ordering, locked_for_calls};

/// How many messages are read in a turn.
const TURN: u32 = 16;

/// More than a socket holds.
const MOST_TURNS: u32 = 64;

#[derive(Debug)]
pub(super) struct Inlet {
    driver: &'static Driver,
    device: &'static Device,
    connection: Descriptor,
    /// Behind the connection, which it counts until that is closed.
    _guest: Guest,
    /// Where the driver finds it.
    end: End,
    /// Held by the thread that reads, so that messages stay in order; empty otherwise.
    reading: Mutex<Vec<Letter>>,
    /// It waits for space, and not for messages.
    waits: AtomicBool,
    place: Place,
    alarm: Alarm,
}

/// What one look at a connection has found.
enum Read {
    Message,
    Nothing,
    /// There is no space for it.
    NoRoom,
    /// The process has ended, or writes what no device sends.
    End,
}

impl Inlet {
    pub(super) fn new(
        driver: &'static Driver,
        device: &'static Device,
        guest: Guest,
        connection: Descriptor,
        end: End,
    ) -> Arc<Self> {
        Arc::new_cyclic(|weak: &Weak<Self>| Self {
            driver,
            device,
            connection,
            _guest: guest,
            end,
            reading: Mutex::default(),
            waits: AtomicBool::new(false),
            place: Place::default(),
            alarm: Alarm::new(device.fabric, weak.clone()),
        })
    }

    /// Says whether the driver is to tell of messages.
    fn hear_of_messages(&self, messages: bool) {
        let flags = if messages { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        self.driver.set_flags(self.end, &self.connection, flags);
    }

    /// Reads a message into a buffer of the device's inbox, which takes it.
    fn read(self: &Arc<Self>, letters: &mut Vec<Letter>) -> Read {
        let inbox = self.device.inbox();
        let Some(mut buffer) = inbox.buffer(self) else { return Read::NoRoom };
        let mut head = [0; HEAD];
        let mut parts = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut buffer)];
        let received = self.connection.get().and_then(|connection| {
            // Without ancillary data, so that descriptors that are sent along are closed by the kernel.
            recvmsg(
                connection,
                &mut parts,
                &mut RecvAncillaryBuffer::default(),
                RecvFlags::DONTWAIT,
            )
        });
        let behind = match received {
            Err(Errno::AGAIN | Errno::INTR) => {
                inbox.give_back(buffer);
                return Read::Nothing;
            }
            // At its end there is nothing to read.
            Ok(message) if message.bytes > 0 => {
                let whole = !message.flags.contains(ReturnFlags::TRUNC);
                Some(message.bytes.checked_sub(HEAD).filter(|_| whole))
            }
            Ok(_) | Err(_) => None,
        };
        let first =
            behind.flatten().and_then(|behind| self.take_apart(&head, &buffer[..behind], letters));
        let Some((path, burst, datagram)) = first else {
            letters.drain(..).for_each(|letter| inbox.give_back(letter.into_buffer()));
            if behind.is_some() {
                self.device.tally.rare.malformed.count();
            }
            inbox.give_back(buffer);
            return Read::End;
        };
        inbox.arrive(Letter::from_outside(path, burst, datagram, buffer));
        letters.drain(..).for_each(|letter| inbox.arrive(letter));
        Read::Message
    }

    /// Takes a message apart, of which that is behind its first head: says what the first burst is, and copies the others
    /// to buffers of their own. `None` if any of it is not what a device sends.
    fn take_apart(
        &self,
        head: &[u8; HEAD],
        behind: &[u8],
        letters: &mut Vec<Letter>,
    ) -> Option<(Path, Burst, Option<Datagram>)> {
        let (payload, mut rest) = behind.split_at_checked(length_said(head))?;
        let first = decode(self.device, head, payload.len())?;
        while !rest.is_empty() {
            let (head, behind) = rest.split_first_chunk()?;
            let (payload, next) = behind.split_at_checked(length_said(head))?;
            let (path, burst, datagram) = decode(self.device, head, payload.len())?;
            if letters.len() + 1 >= MOST {
                return None;
            }
            // A message is taken as a whole: there may be less space than its bursts need.
            let mut buffer = self.device.inbox().buffer_at_once();
            buffer[..payload.len()].copy_from_slice(payload);
            letters.push(Letter::from_outside(path, burst, datagram, buffer));
            rest = next;
        }
        Some(first)
    }

    /// Takes a message, if there is one.
    fn take_one(self: &Arc<Self>, letters: &mut Vec<Letter>) -> bool {
        if self.waits.swap(false, Ordering::Relaxed) {
            self.hear_of_messages(true);
        }
        match self.read(letters) {
            Read::Message => return true,
            Read::Nothing => {}
            Read::NoRoom => {
                // The inbox calls when it has space; nobody is to look for messages until then.
                self.waits.store(true, Ordering::Relaxed);
                self.hear_of_messages(false);
            }
            Read::End => self.driver.close(self.end),
        }
        false
    }
}

impl Watched for Inlet {
    fn descriptor(&self) -> &Descriptor {
        &self.connection
    }

    fn happened(self: Arc<Self>, _flags: epoll::EventFlags) -> Happened {
        self.device.fabric.unsettled.note_turn(&self);
        Happened::Messages
    }

    /// Small messages come one at a time.
    fn look(self: Arc<Self>) -> bool {
        self.take_one(&mut locked_for_calls(&self.reading))
    }

    fn read_all(self: Arc<Self>) {
        // Who sends without end is not waited for.
        for _ in 0..MOST_TURNS {
            let more = Arc::clone(&self).take_turn();
            self.device.inbox().execute_all();
            if !more {
                return;
            }
        }
    }

    fn is_used(&self) -> bool {
        true
    }
}

impl Driven for Inlet {
    fn place(&self) -> &Place {
        &self.place
    }

    fn take_turn(self: Arc<Self>) -> bool {
        let letters = &mut *locked_for_calls(&self.reading);
        (0..TURN).all(|_| self.take_one(letters))
    }

    fn call(&self) {
        self.alarm.set(Time::AT_ONCE);
    }
}

impl Alarmed for Inlet {
    fn alarm_rings(self: Arc<Self>) {
        self.device.fabric.unsettled.settle();
    }
}
