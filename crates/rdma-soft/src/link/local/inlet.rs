//! Where the packets of one other process come in: a connection on which this process only reads.

use std::io::IoSliceMut;
use std::sync::{Arc, Weak};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, recvmsg};

use super::head::{HEAD, decode};
use super::listener::Guest;
use crate::device::Device;
use crate::fabric::clock::Time;
use crate::fabric::timers::{Alarm, Alarmed};
use crate::fabric::turns::{Driven, Place};
use crate::link::descriptor::Descriptor;
use crate::link::driver::{Driver, End, Happened, Watched};
use crate::link::memory::Letter;
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
        inbox.arrive(Letter::from_outside(path, burst, datagram, buffer));
        Read::Message
    }

    /// Takes a message, if there is one.
    fn take_one(self: &Arc<Self>) -> bool {
        if self.waits.swap(false, Ordering::Relaxed) {
            self.hear_of_messages(true);
        }
        match self.read() {
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
        let _reading = locked_for_calls(&self.reading);
        self.take_one()
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
