//! The kinds of operations, with the memory and the output of each.

use std::marker::PhantomData;
use std::ops::Deref;

use rdma_connect::Operation;
use rdma_qp::{WcOpcode, WorkSuccess};

use crate::buffer::held::sealed::Lease;
use crate::buffer::held::{Source, Target};

pub(crate) mod sealed {
    #[allow(unnameable_types)] // this seals the trait
    pub trait Sealed {}
}

/// A kind of operation. Sealed.
pub trait Kind: sealed::Sealed {
    /// The memory that the operation owns while it is in flight, and returns afterwards.
    type Memory: Lease;
    /// The output of a successful operation.
    type Output;

    #[doc(hidden)]
    const OPERATION: Operation;

    /// Whether the time limit of the connection applies to operations of this kind.
    #[doc(hidden)]
    const HAS_LIMIT: bool = true;

    #[doc(hidden)]
    fn finish(memory: Self::Memory, success: &WorkSuccess, word: u64) -> Self::Output;
}

/// Takes the memory of an operation that the device does not hold.
#[inline]
pub(crate) fn take<M: Lease>(memory: &mut Option<M>) -> M {
    let Some(memory) = memory.take() else {
        unreachable!("a slot returns the memory that it was given")
    };
    memory
}

/// A received message.
#[derive(Debug)]
#[non_exhaustive]
pub struct Received<B> {
    /// The memory of the receive, which begins with the message.
    pub memory: B,
    /// The number of bytes in the message. For an RDMA write with immediate data, the number of bytes that were written
    /// elsewhere.
    pub length: usize,
    /// The immediate data of the message, if it has any.
    pub immediate: Option<u32>,
    /// Whether the message is an RDMA write.
    is_write: bool,
}

impl<B> Received<B> {
    pub(crate) fn new(memory: B, success: &WorkSuccess) -> Self {
        let length = success.scattered_bytes().unwrap_or(0);
        let is_write = success.opcode() == WcOpcode::RECV_RDMA_WITH_IMM;
        Self { memory, length, immediate: success.immediate_data(), is_write }
    }
}

impl<B: Deref<Target = [u8]>> Received<B> {
    /// Returns the bytes of the message. Empty for an RDMA write, whose bytes are elsewhere.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let length = if self.is_write { 0 } else { self.length.min(self.memory.len()) };
        &self.memory[..length]
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident<$b:ident: $bound:path>($operation:ident) => $output:ty, |$memory:ident, $success:ident| $done:expr;)+) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name<$b>(PhantomData<fn() -> $b>);

        impl<$b> sealed::Sealed for $name<$b> {}

        impl<$b: $bound> Kind for $name<$b> {
            type Memory = $b;
            type Output = $output;

            const OPERATION: Operation = Operation::$operation;

            #[inline]
            fn finish($memory: $b, $success: &WorkSuccess, _: u64) -> $output {
                $done
            }
        }
    )+};
}

kinds! {
    /// A message to the peer. Returns the memory of the message.
    SendOut<B: Source>(Send) => B, |memory, _success| memory;
    /// Memory for a message from the peer.
    Receive<B: Target>(Receive) => Received<B>, |memory, success| Received::new(memory, success);
    /// A write to the peer's memory. Returns the local memory.
    Write<B: Source>(Write) => B, |memory, _success| memory;
    /// A read of the peer's memory. Returns the local memory, which contains the bytes that were read.
    Read<B: Target>(Read) => B, |memory, _success| memory;
}

/// A receive without memory, which returns only immediate data.
#[derive(Debug)]
#[allow(clippy::exhaustive_structs)] // only names a kind
pub struct ReceiveImmediate;

impl sealed::Sealed for ReceiveImmediate {}

impl Kind for ReceiveImmediate {
    type Memory = ();
    type Output = Option<u32>;

    const OPERATION: Operation = Operation::Receive;

    fn finish((): (), success: &WorkSuccess, _: u64) -> Option<u32> {
        success.immediate_data()
    }
}

/// An atomic operation on the peer's memory, which returns the old value.
#[derive(Debug)]
#[allow(clippy::exhaustive_structs)] // only names a kind
pub struct Atomic;

impl sealed::Sealed for Atomic {}

impl Kind for Atomic {
    type Memory = ();
    type Output = u64;

    const OPERATION: Operation = Operation::Atomic;

    fn finish((): (), _: &WorkSuccess, word: u64) -> u64 {
        word
    }
}
