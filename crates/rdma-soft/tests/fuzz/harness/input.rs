//! What an input is made of: a [`Setting`], then steps. A step is a byte, a [`Tag`], and records.

use arbitrary::Unstructured;
use test_support::fuzz::{number, trace};
use test_support::fuzz_record as record;

record! {
    /// Where all begins.
    Setting {
        /// Which device, see [`super::world`], and which service.
        device: u8,
        service: u8,
        /// [`Setting::EXTENDED`] and its kin.
        flags: u8,
        /// How many elements a request may have, of either kind.
        sges: u8,
        /// How many requests a queue has.
        requests: u8,
        inline: u8,
        rd_atomic: u8,
        mtu: u8,
        retries: u8,
    }
}

impl Setting {
    /// The queue pairs post by function calls, too.
    pub(crate) const EXTENDED: u8 = 1;
    pub(crate) const SIGNAL_ALL: u8 = 2;
    /// Both queue pairs take from one receive queue.
    pub(crate) const SHARED: u8 = 4;
    /// They are not connected at first.
    pub(crate) const APART: u8 = 8;
    /// A receiver that is not ready is asked without a limit.
    pub(crate) const PATIENT: u8 = 16;
    /// There are memory windows.
    pub(crate) const WINDOWS: u8 = 32;
}

record! {
    /// A send request. So many elements follow it as are there.
    Send {
        opcode: u8,
        /// The flags of C, and some that nobody knows.
        flags: u8,
        /// How many elements it says that it has, see [`count`].
        elements: u8,
        /// Immediate data, or the key that it invalidates.
        number: u8,
        /// Where its remote memory is, see [`super::world`].
        key: u8,
        zone: u8,
        at: u16,
        /// Of an atomic, or the length of what a window is bound to, or what an extended request does besides.
        operand: u16,
        /// Of a window, or the address handle.
        other: u8,
    }
}

record! {
    /// An element.
    Element {
        key: u8,
        zone: u8,
        at: u16,
        length: u16,
    }
}

/// What a step does. A byte follows, in which the lowest bit is the queue pair, and the others say more.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tag {
    /// A list of send requests.
    Send = 0,
    /// Requests by function calls.
    Call = 1,
    Receive = 2,
    SharedReceive = 3,
    /// A window of type 1 is bound.
    Bind = 4,
    Poll = 5,
    /// The queue pair comes to another state.
    Modify = 6,
    /// Time goes by, or what is held goes on.
    Pass = 7,
}

impl Tag {
    pub(crate) fn read(input: &mut Unstructured<'_>) -> (Self, u8) {
        let tag = match number::<u8>(input) % 8 {
            0 => Self::Send,
            1 => Self::Call,
            2 => Self::Receive,
            3 => Self::SharedReceive,
            4 => Self::Bind,
            5 => Self::Poll,
            6 => Self::Modify,
            _ => Self::Pass,
        };
        let more = number(input);
        trace(&(tag, more));
        (tag, more)
    }
}

/// How many elements a request says that it has, and how many there are. A number that no queue pair takes may have
/// none behind it: nobody may look.
pub(crate) fn count(code: u8) -> (i32, usize) {
    match code {
        0xff => (i32::MIN, 0),
        0xfe => (-1, 0),
        0xfd => (i32::MAX, 0),
        0xfc => (0x1000, 0),
        other => (i32::from(other % 10), usize::from(other % 10)),
    }
}

/// A length: all that are short, and those about the longest that a message may have.
pub(crate) fn length(code: u16) -> u32 {
    match code {
        0xffff => u32::MAX,
        0xfffe => 1 << 31,
        0xfffd => (1 << 31) + 1,
        0xfffc => 1 << 30,
        other => u32::from(other % 4500),
    }
}
