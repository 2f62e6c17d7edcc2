//! All types can be used by any thread. Values can also be copied and compared.

use core::fmt::Debug;
use core::hash::Hash;

use rdma_message::frame::{
    Body, CallId, CloseReason, Frame, FrameError, Header, Hello, Limits, Mode, Remote, Role,
};
use rdma_message::{
    Chunk, ConnectionError, Counters, Delivery, Incoming, Messages, Operation, OperationError,
    Options, OptionsError, Output, Payload, SendError, Stream, Transmit,
};

fn value<T: Copy + Eq + Hash + Debug + Send + Sync + Unpin>() {}
fn plain<T: Copy + Eq + Debug + Send + Sync + Unpin>() {}
fn once<T: Eq + Debug + Send + Sync + Unpin>() {}
fn machine<T: Debug + Send + Sync + Unpin>() {}
fn error<T: core::error::Error + Send + Sync + 'static>() {}

#[test]
fn values_are_copied_and_compared_in_any_thread() {
    value::<CallId>();
    value::<CloseReason>();
    value::<Hello>();
    value::<Incoming>();
    value::<Limits>();
    value::<Mode>();
    value::<Operation>();
    value::<Remote>();
    value::<Role>();
    plain::<Body>();
    plain::<Counters>();
    plain::<Delivery>();
    plain::<Frame>();
    plain::<Header>();
    plain::<Options>();
    plain::<Payload>();
    plain::<Transmit>();
}

#[test]
fn machines_and_outputs_move_between_threads() {
    once::<Chunk>();
    once::<Output>();
    machine::<Messages>();
    machine::<Stream>();
}

#[test]
fn errors_are_errors_of_any_thread() {
    error::<ConnectionError>();
    error::<FrameError>();
    error::<OperationError>();
    error::<OptionsError>();
    error::<SendError>();
}
