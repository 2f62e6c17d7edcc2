//! Rented memory whose requests carry more than bytes.

use std::error::Error;
use std::mem::discriminant;
use std::sync::LazyLock;
use std::time::Duration;

use rdma_channel::{Channel, CloseReason, Operation, ScopeError, TransportError, prelude::*};
use rdma_mem::{AccessFlags, InlineElement, ProtectionDomain, Rkey};
use rdma_qp::{PostErrorKind, ReceiveWorkRequest, SendWorkRequest, WorkErrorClass};

const LIMIT: Duration = Duration::from_secs(10);

fn looped() -> (ProtectionDomain, Channel) {
    rdma_soft::install();
    let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
    let prepared = pd.create_channel().drain_timeout(Duration::from_millis(40)).build().unwrap();
    let endpoint = prepared.endpoint();
    (pd, prepared.handshake(endpoint).unwrap())
}

#[test]
fn a_send_and_a_write_carry_the_additions_of_their_closures() {
    let (pd, mut channel) = looped();
    let access = AccessFlags::new().with_local_write().with_remote_write();
    let board = pd.allocate_shared_region(4, access).unwrap();
    let (mut from, mut to) = (pd.allocate_region(4).unwrap(), pd.allocate_region(4).unwrap());
    from.copy_from_slice(b"data");
    let scope = channel.scope(|s| {
        let room = s.receive_into(to.as_slice_mut())?;
        let told = s.post_receive(ReceiveWorkRequest::only_immediate())?;
        let sent =
            s.send_from_with(from.as_slice_mut(), |w| w.with_immediate(1).solicited().fence())?;
        let from = sent.wait(LIMIT).unwrap().buf;
        let written = s.write_from_with(from, board.remote(), |w| w.with_immediate(2))?;
        let arrived = room.wait(LIMIT).unwrap();
        assert_eq!((&arrived.buf[..], arrived.result?.immediate_data()), (&b"data"[..], Some(1)));
        assert_eq!(told.wait(LIMIT)?.immediate_data(), Some(2));
        written.wait(LIMIT).unwrap().result
    });
    scope.unwrap();
    let mut written = [0; 4];
    board.read(0, &mut written).unwrap();
    assert_eq!(&written, b"data");
}

#[test]
fn an_unsignaled_request_completes_with_the_next() {
    let (pd, mut channel) = looped();
    let access = AccessFlags::new().with_local_write().with_remote_write();
    let board = pd.allocate_shared_region(4, access).unwrap();
    let mut memory = pd.allocate_region(8).unwrap();
    let scope = channel.manual_scope(|s| {
        let (one, other) = memory.split_at(4);
        let silent = s.write_from_with(one, board.remote(), |w| w.signaled(false))?;
        let silent = silent.wait(Duration::from_millis(1)).unwrap_err().handle;
        s.write_from(other, board.remote())?.wait(LIMIT).unwrap().result?;
        silent.wait(LIMIT).unwrap().result
    });
    scope.unwrap();
}

static LARGE: LazyLock<[InlineElement<'static>; 1]> =
    LazyLock::new(|| [InlineElement::new(&[0; 1 << 16])]);

#[test]
fn a_request_made_invalid_by_its_closure_is_refused_with_its_memory() {
    let (pd, mut channel) = looped();
    let mut memory = pd.allocate_region(1 << 16).unwrap();
    let scope = channel.scope(|s| {
        let refused = s.send_from_with(memory.as_slice_mut(), |_| SendWorkRequest::inline(&*LARGE));
        let refused = refused.unwrap_err();
        assert_eq!(refused.buf.map(|buf| buf.len()), Some(1 << 16));
        let TransportError::PostError(error) = refused.error else { panic!("{}", refused.error) };
        Ok::<_, TransportError>(error.kind())
    });
    assert_eq!(scope.unwrap(), PostErrorKind::TooMuchInline);
    assert!(channel.closed().is_none());
}

#[test]
fn a_scope_reports_what_has_closed_its_channel() {
    let (pd, mut channel) = looped();
    let mut memory = pd.allocate_region(8).unwrap();
    let nowhere = rdma_mem::RemoteMemoryRegion::new(0, 8, Rkey::new(0));
    channel
        .manual_scope(|s| {
            assert!(s.closed().is_none());
            let receive = s.post_receive(ReceiveWorkRequest::only_immediate())?;
            let write = s.write_from(memory.as_slice_mut(), nowhere)?;
            let TransportError::WorkError(flushed) = receive.wait(LIMIT).unwrap_err() else {
                panic!("it was not flushed");
            };
            assert_eq!(flushed.class(), WorkErrorClass::Flushed);
            let Some(CloseReason::Work { operation: Operation::Write, error }) = s.closed() else {
                panic!("{:?}", s.closed());
            };
            assert_ne!(error.class(), WorkErrorClass::Flushed);
            let _ = write.wait(LIMIT).unwrap().result.unwrap_err();
            Ok::<_, TransportError>(())
        })
        .unwrap();
}

/// The errors of scopes that fail by `?` of a wait and of a post, while the memory is borrowed.
macro_rules! failed_with {
    ($error:ty) => {{
        let (pd, mut channel) = looped();
        let mut memory = pd.allocate_region(1 << 16).unwrap();
        let post = channel.scope(|s| {
            let _ =
                s.send_from_with(memory.as_slice_mut(), |_| SendWorkRequest::inline(&*LARGE))?;
            Ok::<(), $error>(())
        });
        let wait = channel.scope(|s| {
            s.receive_into(memory.as_slice_mut())?.wait(Duration::ZERO)?.ok()?;
            Ok::<(), $error>(())
        });
        [wait, post].map(|failed| match failed {
            Err(ScopeError::ClosureError(error)) => error,
            left => panic!("{left:?}"),
        })
    }};
}

#[test]
fn carriers_of_memory_convert_to_the_expected_error() {
    let plain = failed_with!(TransportError);
    let boxed = failed_with!(Box<dyn Error>);
    let sent = failed_with!(Box<dyn Error + Send + Sync>);
    assert!(matches!(plain[0], TransportError::Timeout { timeout: Duration::ZERO, .. }));
    assert!(matches!(plain[1], TransportError::PostError(_)));
    for (place, plain) in plain.iter().enumerate() {
        let same = |error: Option<&TransportError>| {
            // Errors of another channel, so that they name another peer.
            assert_eq!(error.map(discriminant), Some(discriminant(plain)));
        };
        same(boxed[place].downcast_ref());
        same(sent[place].downcast_ref());
    }
}

#[test]
fn a_finished_operation_returns_its_memory_and_its_result() {
    let (pd, mut channel) = looped();
    let (mut from, mut to) = (pd.allocate_region(4).unwrap(), pd.allocate_region(4).unwrap());
    from.copy_from_slice(b"data");
    let nowhere = rdma_mem::RemoteMemoryRegion::new(0, 4, Rkey::new(0));
    let scope = channel.manual_scope(|s| {
        let room = s.receive_into(to.as_slice_mut())?;
        let (from, _) = s.send_from(from.as_slice_mut())?.done(LIMIT)?;
        let (to, message) = room.done(LIMIT)?;
        assert_eq!((&to[..], message.scattered_bytes()), (&b"data"[..], Some(4)));
        let late = s.receive_into(to)?.done(Duration::ZERO);
        assert!(matches!(late, Err(TransportError::Timeout { .. })), "{late:?}");
        let refused = s.write_from(from, nowhere)?.done(LIMIT);
        assert!(matches!(refused, Err(TransportError::WorkError(_))), "{refused:?}");
        Err::<(), _>(TransportError::WouldBlock)
    });
    assert!(matches!(scope, Err(TransportError::WouldBlock)), "{scope:?}");
}
