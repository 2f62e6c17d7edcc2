//! Requests for inline data, and the capacity that devices with little or none of it grant.
#![allow(unsafe_code)]

use crate::common::pair_with;
use rdma_mem::{Errno, InlineElement, ProtectionDomain, open_device};
use rdma_qp::{CompletionQueue, Error, Inline, QueuePairBuilder, SendWorkRequest, prelude::*};
use rdma_soft::{Builder, Limits};

/// Returns a domain of a new device with these limits of inline bytes and of elements.
fn domain(name: &str, inline: u32, elements: u32) -> ProtectionDomain {
    Builder::new(name)
        .limits(Limits::default().max_inline_data(inline).max_sge(elements))
        .install()
        .unwrap();
    open_device(name).unwrap().allocate_pd().unwrap()
}

/// Returns the inline capacity of a queue pair with these options.
fn given(
    pd: &ProtectionDomain,
    options: impl for<'a> FnOnce(QueuePairBuilder<'a>) -> QueuePairBuilder<'a>,
) -> Result<u32, Error> {
    let cq = CompletionQueue::create(pd.context(), 64).unwrap();
    let builder = options(pd.create_qp().send_cq(&cq).recv_cq(&cq));
    let (here, there) = (builder.clone().build()?, builder.build()?);
    let qp = here.handshake(there.endpoint())?;
    Ok(qp.capabilities().max_inline_data)
}

/// Returns the hint of a queue pair that was not created.
fn refused(
    pd: &ProtectionDomain,
    options: impl for<'a> FnOnce(QueuePairBuilder<'a>) -> QueuePairBuilder<'a>,
) -> String {
    let Err(Error::Verb(error)) = given(pd, options) else { panic!("it was created") };
    assert_eq!((error.verb, error.errno), ("ibv_create_qp", Errno::EINVAL), "{error}");
    error.hint.unwrap().into_owned()
}

#[test]
fn a_queue_pair_has_up_to_64_inline_bytes_by_default() {
    let devices =
        [("wish-all", 512, 64), ("wish-some", 40, 32), ("wish-few", 3, 0), ("wish-none", 0, 0)];
    for (name, most, gets) in devices {
        let pd = domain(name, most, 16);
        for extended in [false, true] {
            assert_eq!(given(&pd, |builder| builder.extended(extended)).unwrap(), gets, "{name}");
        }
    }
}

#[test]
fn a_few_bytes_are_sent_inline_without_an_option() {
    let (a, b) = pair_with("soft0", |builder| builder);
    let mut buffer = b.qp.pd().allocate_region(16).unwrap();
    let mut list = rdma_mem::ScatterList::from([buffer.as_slice_mut()]);
    // SAFETY: SAFETY.md F8: the region is not used before the completion.
    unsafe { b.qp.post_receive(rdma_qp::ReceiveWorkRequest::from_list(&mut list), 1) }.unwrap();
    let bytes = [InlineElement::new(b"ping")];
    // SAFETY: SAFETY.md F8: inline data is all that it has.
    unsafe { a.qp.post_send(SendWorkRequest::inline(&bytes), 2) }.unwrap();
    a.next().result().unwrap();
    assert_eq!(b.next().result().unwrap().scattered_bytes(), Some(4));
    assert_eq!(buffer[..4], *b"ping");
}

#[test]
fn a_number_is_exactly_that_many_bytes() {
    let pd = domain("wish-exactly", 96, 16);
    assert_eq!(given(&pd, |builder| builder.max_inline_data(96)).unwrap(), 96);
    assert_eq!(given(&pd, |builder| builder.max_inline_data(Inline::UpTo(1024))).unwrap(), 64);
    assert_eq!(given(&pd, |builder| builder.max_inline_data(Inline::UpTo(200))).unwrap(), 50);
    let hint = refused(&pd, |builder| builder.max_inline_data(97));
    assert!(
        hint.contains(
            "it refuses this `max_inline_data`, but accepts the other values with \
             `max_inline_data: 0`"
        ),
        "{hint}"
    );
    assert!(hint.contains("max_inline_data: 97"), "{hint}");
}

#[test]
fn the_number_of_elements_that_was_refused_is_named() {
    let pd = domain("wish-elements", 96, 4);
    let hint = refused(&pd, |builder| builder.max_send_sge(5).max_inline_data(96));
    assert!(
        hint.contains(
            "it refuses this `max_send_sge`, but accepts the other values with `max_send_sge: 1`"
        ),
        "{hint}"
    );
    let hint = refused(&pd, |builder| builder.max_recv_sge(5));
    assert!(
        hint.contains(
            "it refuses this `max_recv_sge`, but accepts the other values with `max_recv_sge: 1`"
        ),
        "{hint}"
    );
    let hint = refused(&pd, |builder| builder.max_send_wr(1 << 20));
    assert!(!hint.contains("refuses"), "{hint}");
}

#[test]
fn queue_pairs_of_trials_are_destroyed() {
    Builder::new("wish-last")
        .limits(Limits::default().max_inline_data(8).max_qp(2))
        .install()
        .unwrap();
    let pd = open_device("wish-last").unwrap().allocate_pd().unwrap();
    for _ in 0..3 {
        refused(&pd, |builder| builder.max_inline_data(9));
        assert_eq!(given(&pd, |builder| builder).unwrap(), 0);
    }
}
