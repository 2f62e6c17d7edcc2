//! Where the packets of one other process come in: a connection on which this process only reads.

use std::io::IoSliceMut;
use std::sync::{Arc, Weak};

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, recvmsg};

use super::descriptor::{Descriptor, ProcessId};
use super::head::{HEAD, decode};
use super::{End, LocalLink};
use crate::device::Device;
use crate::fabric::clock::Time;
use crate::fabric::timers::{Alarm, Alarmed};
use crate::fabric::turns::{Driven, Place};
use crate::link::memory::Letter;
use crate::sync::{AtomicBool, Mutex, Ordering, locked_for_calls};

/// How many messages are read in a turn.
const TURN: u32 = 16;

/// More than a socket holds.
const MOST_TURNS: u32 = 64;

#[derive(Debug)]
pub(super) struct Inlet {
    link: &'static LocalLink,
    device: &'static Device,
    /// Who sends, if it has a number here.
    pub(super) process: Option<ProcessId>,
    connection: Descriptor,
    /// Where the link finds it.
    pub(super) end: End,
    /// Held by the thread that reads, so that messages stay in order.
    reading: Mutex<()>,
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
        link: &'static LocalLink,
        device: &'static Device,
        process: Option<ProcessId>,
        connection: Descriptor,
        end: End,
    ) -> Arc<Self> {
        Arc::new_cyclic(|weak: &Weak<Self>| Self {
            link,
            device,
            process,
            connection,
            end,
            reading: Mutex::default(),
            waits: AtomicBool::new(false),
            place: Place::default(),
            alarm: Alarm::new(device.fabric, weak.clone()),
        })
    }

    pub(super) fn connection(&self) -> &Descriptor {
        &self.connection
    }

    /// Reads a message into a buffer of the device's inbox, which takes it.
    fn read(self: &Arc<Self>) -> Read {
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
        let message = match received {
            Err(Errno::AGAIN | Errno::INTR) => {
                inbox.give_back(buffer);
                return Read::Nothing;
            }
            // At its end there is nothing to read.
            Ok(message) if message.bytes > 0 => {
                let whole = !message.flags.contains(ReturnFlags::TRUNC);
                let length = message.bytes.checked_sub(HEAD).filter(|_| whole);
                let decoded = length.and_then(|length| decode(self.device, &head, length));
                if decoded.is_none() {
                    self.device.tally.rare.malformed.count();
                }
                decoded
            }
            Ok(_) | Err(_) => None,
        };
        let Some((path, burst, datagram)) = message else {
            inbox.give_back(buffer);
            return Read::End;
        };
        inbox.arrive(Letter::of_process(path, burst, datagram, buffer));
        Read::Message
    }

    /// Looks for messages where the last ones came from, in as few calls as can be: small ones come one at a time. Whether
    /// there was one.
    pub(super) fn look(self: &Arc<Self>) -> bool {
        let _reading = locked_for_calls(&self.reading);
        self.take_one()
    }

    /// Takes all messages that have come by now, and returns when they are executed. The caller holds no lock.
    pub(super) fn read_all(self: &Arc<Self>) {
        // Who sends without end is not waited for.
        for _ in 0..MOST_TURNS {
            let more = Arc::clone(self).take_turn();
            self.device.inbox().execute_all();
            if !more {
                return;
            }
        }
    }

    /// Takes a message, if there is one.
    fn take_one(self: &Arc<Self>) -> bool {
        if self.waits.swap(false, Ordering::Relaxed) {
            self.link.hear_of(self.end, self.connection(), true);
        }
        match self.read() {
            Read::Message => return true,
            Read::Nothing => {}
            Read::NoRoom => {
                // The inbox calls when it has space; nobody is to look for messages until then.
                self.waits.store(true, Ordering::Relaxed);
                self.link.hear_of(self.end, self.connection(), false);
            }
            Read::End => self.link.close(self.end),
        }
        false
    }
}

impl Driven for Inlet {
    fn place(&self) -> &Place {
        &self.place
    }

    fn take_turn(self: Arc<Self>) -> bool {
        let _reading = locked_for_calls(&self.reading);
        (0..TURN).all(|_| self.take_one())
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
