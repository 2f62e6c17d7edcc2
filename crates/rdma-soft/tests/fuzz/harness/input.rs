//! The structure of an input: a [`Setting`], then steps. A step is a [`Tag`] byte, another byte, and records.

use arbitrary::Unstructured;
use test_support::fuzz::{number, trace};
use test_support::fuzz_record as record;

record! {
    /// The initial configuration.
    Setting {
        /// The device, see [`super::world`], and the service.
        device: u8,
        service: u8,
        /// [`Setting::EXTENDED`] and the other flags.
        flags: u8,
        /// The number of elements that a request of either kind may have.
        sges: u8,
        /// The number of requests that a queue holds.
        requests: u8,
        inline: u8,
        rd_atomic: u8,
        mtu: u8,
        retries: u8,
    }
}

impl Setting {
    /// The queue pairs can also post by function calls.
    pub(crate) const EXTENDED: u8 = 1;
    pub(crate) const SIGNAL_ALL: u8 = 2;
    /// Both queue pairs use one shared receive queue.
    pub(crate) const SHARED: u8 = 4;
    /// The queue pairs are not connected at first.
    pub(crate) const APART: u8 = 8;
    /// RNR retries are unlimited.
    pub(crate) const PATIENT: u8 = 16;
    /// The program has memory windows.
    pub(crate) const WINDOWS: u8 = 32;
}

record! {
    /// A send request, followed by its elements.
    Send {
        opcode: u8,
        /// The C flags, and some undefined ones.
        flags: u8,
        /// The number of elements that the request claims, see [`count`].
        elements: u8,
        /// Immediate data, or the key to invalidate.
        number: u8,
        /// The location of its remote memory, see [`super::world`].
        key: u8,
        zone: u8,
        at: u16,
        /// The operand of an atomic, the length of a window's binding, or an addition to an extended request.
        operand: u16,
        /// The window, or the address handle.
        other: u8,
    }
}

record! {
    /// A scatter/gather element.
    Element {
        key: u8,
        zone: u8,
        at: u16,
        length: u16,
    }
}

/// The action of a step. In the byte that follows, the lowest bit is the queue pair, and the others are parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tag {
    /// Post a list of send requests.
    Send = 0,
    /// Post requests by function calls.
    Call = 1,
    Receive = 2,
    SharedReceive = 3,
    /// Bind a window of type 1.
    Bind = 4,
    Poll = 5,
    /// Move the queue pair to another state.
    Modify = 6,
    /// Let time pass, or let held requests continue.
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

/// Returns the number of elements that a request claims, and the number that it has. A request that claims an invalid
/// number may have none: the device must not read them.
pub(crate) fn count(code: u8) -> (i32, usize) {
    match code {
        0xff => (i32::MIN, 0),
        0xfe => (-1, 0),
        0xfd => (i32::MAX, 0),
        0xfc => (0x1000, 0),
        other => (i32::from(other % 10), usize::from(other % 10)),
    }
}

/// A length: any short one, or one near the maximum message length.
pub(crate) fn length(code: u16) -> u32 {
    match code {
        0xffff => u32::MAX,
        0xfffe => 1 << 31,
        0xfffd => (1 << 31) + 1,
        0xfffc => 1 << 30,
        other => u32::from(other % 4500),
    }
}
