//! A table of verbs can be used in every thread, like the functions in it. The structs of C are not
//! checked here: they contain raw pointers, so Rust confines them to one thread.

use rdma_sys::{
    AddressedMad, Errno, InterfaceAddress, LoadError, MadClock, Mads, PerProcess, Process,
    Provider, SignalsBlocked, UnknownProvider, Unsupported, Verbs,
};

fn send_sync<T: Send + Sync + 'static>() {}
/// The compiler finds the only implementation for a type that is not `Send`, and two for others.
trait NotSend<A> {
    fn holds() {}
}
impl<T: ?Sized> NotSend<()> for T {}
impl<T: ?Sized + Send> NotSend<u8> for T {}

fn error<T: std::error::Error + Send + Sync + 'static>() {}

#[test]
fn tables_are_for_every_thread() {
    send_sync::<Verbs>();
    send_sync::<Provider>();
    send_sync::<MadClock>();
    send_sync::<Mads>();
}

#[test]
fn processes_are_distinguished_by_any_thread() {
    send_sync::<PerProcess<u8>>();
    send_sync::<Process>();
}

#[test]
fn blocked_signals_stay_in_their_thread() {
    <SignalsBlocked as NotSend<_>>::holds();
}

#[test]
fn interfaces_and_datagrams_are_plain_data() {
    send_sync::<InterfaceAddress>();
    send_sync::<AddressedMad>();
}

#[test]
fn errors_are_errors_of_any_thread() {
    error::<Errno>();
    error::<LoadError>();
    error::<UnknownProvider>();
    error::<Unsupported>();
}
