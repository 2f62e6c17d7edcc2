//! Invalid input: it is refused with a clear error, and the channel is unchanged.
#![allow(unsafe_code)]

use std::time::Duration;

use crate::common::{HELD, LATE, Pair, everything, lacks, must_end, open};
use rdma_channel::{PreparedChannel, ScopeError, TransportError, prelude::*};
use rdma_mem::{
    GatherElement, GatherList, OwnedRegion, ScatterElement, ScatterList, SharedElement,
};
use rdma_qp::{
    AtomicWorkRequest, CompletionQueue, Error, PostErrorKind, QueuePairEndpoint, QueuePairType,
    ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WorkErrorCode, WriteWorkRequest,
};
use test_support::features::{Feature, has};

const SECONDS: Duration = Duration::from_secs(5);

fn prepare(qp_type: QueuePairType) -> PreparedChannel {
    open("soft0").allocate_pd().unwrap().create_channel().qp_type(qp_type).build().unwrap()
}

/// The reason why these two do not fit.
fn refused(channel: PreparedChannel, endpoint: QueuePairEndpoint) -> String {
    let error = channel.handshake(endpoint).unwrap_err();
    assert!(matches!(error, Error::Handshake(_)), "{error:?}");
    error.to_string()
}

#[test]
fn an_endpoint_of_another_transport_is_refused() {
    if lacks("soft0", Feature::Ud) {
        return;
    }
    let reliable = prepare(QueuePairType::RC).endpoint();
    let context = open("soft0");
    let (pd, cq) = (context.allocate_pd().unwrap(), CompletionQueue::create(&context, 64).unwrap());
    let builder = pd.create_qp().qp_type(QueuePairType::UD).send_cq(&cq).recv_cq(&cq);
    let datagrams = builder.build().unwrap().endpoint();
    let mut pairs = vec![(QueuePairType::RC, datagrams)];
    if !lacks("soft0", Feature::Uc) {
        let unreliable = prepare(QueuePairType::UC).endpoint();
        pairs.extend([
            (QueuePairType::RC, unreliable),
            (QueuePairType::UC, reliable),
            (QueuePairType::UC, datagrams),
        ]);
    }
    for (here, there) in pairs {
        let text = refused(prepare(here), there);
        assert!(
            text.contains(&here.to_string()) && text.contains(&there.qp_type().to_string()),
            "{text}"
        );
    }
    let link = open("softib0").allocate_pd().unwrap().create_channel().build().unwrap().endpoint();
    refused(prepare(QueuePairType::RC), link);
}

#[test]
fn a_channel_for_datagrams_is_refused() {
    let pd = open("soft0").allocate_pd().unwrap();
    let error = pd.create_channel().qp_type(QueuePairType::UD).build().unwrap_err();
    assert!(matches!(error, Error::NotConnected), "{error}");
}

#[test]
fn an_endpoint_of_another_version_is_refused() {
    let bytes = prepare(QueuePairType::RC).endpoint().to_bytes();
    assert!(QueuePairEndpoint::from_bytes(&bytes).is_ok());
    for place in 0..4 {
        let mut other = bytes;
        other[place] ^= 0x40;
        let error = QueuePairEndpoint::from_bytes(&other).unwrap_err();
        assert!(!error.to_string().is_empty());
    }
    QueuePairEndpoint::from_bytes(&bytes[1..]).unwrap_err();
}

/// Its queue pair is connected already, or gone: there is no answer, and the error comes in time.
#[test]
fn a_used_endpoint_does_not_answer() {
    for device in ["soft0", LATE[0]] {
        must_end(move || {
            let pd = open(device).allocate_pd().unwrap();
            let brief = || {
                let builder = pd.create_channel();
                let builder = builder.ack_timeout(rdma_qp::AckTimeout::limited(10).unwrap());
                builder.max_ack_retries(rdma_qp::MaxAckRetries::limited(1).unwrap())
            };
            let (one, two) = (brief().build().unwrap(), brief().build().unwrap());
            let (used, gone) = (one.endpoint(), brief().build().unwrap().endpoint());
            let peer = two.endpoint();
            let (_one, _two) = (one.handshake(peer).unwrap(), two.handshake(used).unwrap());
            for endpoint in [used, gone] {
                let mut channel = brief().build().unwrap().handshake(endpoint).unwrap();
                let error = channel.send(SendWorkRequest::only_immediate(1)).unwrap_err();
                let TransportError::WorkError(error) = error else { panic!("{error}") };
                assert_eq!(error.code(), WorkErrorCode::RetryExceededError);
            }
        });
    }
}

/// Sends, writes, reads and receives of no bytes, in each form.
#[test]
fn operations_of_no_bytes_work_in_each_form() {
    for device in ["soft0", LATE[0]] {
        must_end(move || {
            let mut pair = Pair::new(device);
            let mut empty = pair.memory(8, 1);
            let remote = pair.board.remote();
            let nothing = remote.slice(0..0).unwrap();
            for remote in [remote, nothing] {
                pair.here.write(WriteWorkRequest::new(&[], remote)).unwrap();
                pair.here.read(ReadWorkRequest::new(&mut [], remote)).unwrap();
                let list = GatherList::from([empty.get_ref(0, 0).unwrap()]);
                pair.here.write(WriteWorkRequest::from_list(&list, remote)).unwrap();
                let mut list = ScatterList::from([empty.get_mut(8, 0).unwrap()]);
                pair.here.read(ReadWorkRequest::from_list(&mut list, remote)).unwrap();
                empty_in_a_scope(&mut pair, &mut empty, remote);
            }
            for _ in 0..2 {
                // SAFETY: SAFETY.md F8: the request has no memory.
                let room = unsafe { pair.there.receive_unpolled(ReceiveWorkRequest::new(&mut [])) };
                let room = room.unwrap();
                pair.here.send(SendWorkRequest::new(&[])).unwrap();
                assert_eq!(room.wait(SECONDS).unwrap().scattered_bytes(), Some(0));
            }
            assert_eq!((pair.here.closed(), &empty[..]), (None, &[1; 8][..]));
        });
    }
}

fn empty_in_a_scope(
    pair: &mut Pair,
    empty: &mut OwnedRegion,
    remote: rdma_mem::RemoteMemoryRegion,
) {
    pair.here
        .scope(|s| {
            let (left, right) = empty.split_at(0);
            s.write_from(left, remote)?.wait(SECONDS).unwrap().result?;
            let (_, right) = right.split_at(8);
            assert!(right.is_empty());
            s.read_into(right, remote)?.wait(SECONDS).unwrap().result?;
            let none: [SharedElement<'_>; 0] = [];
            s.write_from(none, remote)?.wait(SECONDS).unwrap().result?;
            s.read_into(none, remote)?.wait(SECONDS).unwrap().result?;
            s.post_write(WriteWorkRequest::new(&[], remote))?.wait(SECONDS)?;
            let ([], []) = (s.post_batch([])?, s.post_receive_batch([])?);
            Ok::<(), TransportError>(())
        })
        .unwrap();
    assert_eq!(pair.here.batch([]).unwrap(), []);
}

/// The errors of a post, in the order of the forms.
fn kinds(pair: &mut Pair, what: impl Fn(&mut Pair) -> Vec<TransportError>) -> Vec<PostErrorKind> {
    let errors = what(pair);
    assert_eq!((pair.here.closed(), pair.in_flight()), (None, 0), "the channel has changed");
    let kind = |error| match error {
        TransportError::PostError(error) => {
            assert_eq!(error.posted(), 0);
            error.kind()
        }
        error => panic!("{error}"),
    };
    errors.into_iter().map(kind).collect()
}

#[test]
fn more_elements_than_the_queue_takes_are_refused_before_the_device_sees_them() {
    for device in ["soft0", HELD] {
        must_end(move || {
            let mut pair = Pair::with(device, |builder| builder.max_send_sge(2).max_recv_sge(2));
            // A device may support more than requested.
            let region = pair.pd.allocate_shared_region(8, everything(&pair.pd)).unwrap();
            let element = region.element(0..1).unwrap();
            let kinds = kinds(&mut pair, |pair| {
                let remote = pair.board.remote();
                let gather = [GatherElement::from(element); 40];
                let mut scatter = [(); 40].map(|()| ScatterElement::from(element));
                let mut errors = vec![
                    pair.here.send(SendWorkRequest::new(&gather)).unwrap_err(),
                    pair.here.write(WriteWorkRequest::new(&gather, remote)).unwrap_err(),
                    pair.here.read(ReadWorkRequest::new(&mut scatter, remote)).unwrap_err(),
                    pair.here.receive(ReceiveWorkRequest::new(&mut scatter)).unwrap_err(),
                    pair.here
                        .batch([
                            SendWorkRequest::only_immediate(1).into(),
                            SendWorkRequest::new(&gather).into(),
                        ])
                        .unwrap_err(),
                ];
                pair.here
                    .scope(|s| {
                        errors.extend([
                            s.send_from([element; 40]).unwrap_err().error,
                            s.receive_into([element; 40]).unwrap_err().error,
                            s.post_send(SendWorkRequest::new(&gather)).unwrap_err(),
                        ]);
                        Ok::<(), TransportError>(())
                    })
                    .unwrap();
                errors
            });
            assert_eq!(kinds, [PostErrorKind::TooManyElements; 8]);
        });
    }
}

#[test]
fn elements_longer_than_the_remote_memory_are_refused_before_the_device_sees_them() {
    for device in ["soft0", HELD] {
        must_end(move || {
            let mut pair = Pair::new(device);
            let mut memory = pair.memory(64, 1);
            let short = pair.board.remote().slice(0..63).unwrap();
            let kinds = kinds(&mut pair, |pair| {
                let mut memory = pair.memory(64, 1);
                let list = GatherList::from([memory.as_slice()]);
                let mut errors =
                    vec![pair.here.write(WriteWorkRequest::from_list(&list, short)).unwrap_err()];
                let mut list = ScatterList::from([memory.as_slice_mut()]);
                let request = ReadWorkRequest::from_list(&mut list, short);
                errors.push(pair.here.read(request).unwrap_err());
                errors
            });
            assert_eq!(kinds, [PostErrorKind::RemoteTooShort; 2]);
            // Memory to be rented is returned with the error.
            pair.here
                .scope(|s| {
                    let refused = s.read_into(memory.as_slice_mut(), short).unwrap_err();
                    let mut buf = refused.buf.unwrap();
                    buf.fill(9);
                    let refused = s.write_from(buf, short).unwrap_err();
                    assert_eq!(*refused.buf.unwrap(), [9; 64]);
                    Ok::<(), TransportError>(())
                })
                .unwrap();
            assert_eq!(pair.here.closed(), None);
        });
    }
}

#[test]
fn memory_of_another_domain_and_results_that_do_not_fit_are_refused() {
    must_end(|| {
        let mut pair = Pair::new("soft0");
        let mut foreign = open("soft0").allocate_pd().unwrap().allocate_region(8).unwrap();
        let mut seven = pair.memory(7, 1);
        let mut word = pair.memory(8, 1);
        let remote = pair.board.remote().slice(0..8).unwrap();
        let odd = pair.board.remote().slice(4..12).unwrap();
        let mut errors = Vec::new();
        errors.push(
            pair.here
                .send(SendWorkRequest::from_list(&GatherList::from([foreign.as_slice()])))
                .unwrap_err(),
        );
        let mut list = ScatterList::from([seven.as_slice_mut()]);
        errors.push(
            pair.here.atomic(AtomicWorkRequest::fetch_and_add(&mut list, remote, 1)).unwrap_err(),
        );
        let mut list = ScatterList::from([word.as_slice_mut()]);
        errors.push(
            pair.here
                .atomic(AtomicWorkRequest::compare_and_swap(&mut list, odd, 0, 1))
                .unwrap_err(),
        );
        pair.here
            .scope(|s| {
                let refused = s.receive_into(foreign.as_slice_mut()).unwrap_err();
                assert!(refused.buf.is_some());
                errors.push(refused.error);
                let mut list = ScatterList::from([seven.as_slice_mut()]);
                let request = AtomicWorkRequest::fetch_and_add(&mut list, remote, 1);
                errors.push(s.post_atomic(request).unwrap_err());
                let mut list = ScatterList::from([word.as_slice_mut()]);
                let request = AtomicWorkRequest::fetch_and_add(&mut list, odd, 1);
                errors.push(s.post_atomic(request).unwrap_err());
                Ok::<(), TransportError>(())
            })
            .unwrap();
        let kinds = kinds(&mut pair, |_| errors.clone());
        use PostErrorKind::{AtomicResult, Misaligned, NoAtomics, WrongDomain};
        // A channel of a device without atomics refuses each of them for that reason.
        let [seven, odd] = match has("soft0", Feature::Atomics) {
            true => [AtomicResult, Misaligned],
            false => [NoAtomics; 2],
        };
        assert_eq!(kinds, [WrongDomain, seven, odd, WrongDomain, seven, odd]);
    });
}

/// Each form of each operation fails with the first reason.
#[test]
fn a_closed_channel_refuses_requests_with_the_first_reason() {
    for device in LATE {
        must_end(move || {
            let mut pair = Pair::new(device);
            let mut memory = pair.memory(8, 1);
            let remote = pair.board.remote().slice(0..8).unwrap();
            let request = ReceiveWorkRequest::only_immediate();
            pair.here.within(Duration::ZERO).receive(request).unwrap_err();
            let first = pair.here.closed().unwrap();
            let mut errors = vec![
                pair.here.send(SendWorkRequest::only_immediate(1)).unwrap_err(),
                pair.here.write(WriteWorkRequest::new(&[], remote)).unwrap_err(),
                pair.here.read(ReadWorkRequest::new(&mut [], remote)).unwrap_err(),
                pair.here.receive(ReceiveWorkRequest::only_immediate()).unwrap_err(),
                pair.here.batch([SendWorkRequest::only_immediate(1).into()]).unwrap_err(),
                // SAFETY: SAFETY.md F8: the request has no memory.
                unsafe { pair.here.send_unpolled(SendWorkRequest::only_immediate(1)) }.unwrap_err(),
                // SAFETY: SAFETY.md F8: the request has no memory.
                unsafe { pair.here.receive_unpolled(ReceiveWorkRequest::only_immediate()) }
                    .unwrap_err(),
            ];
            let scope = pair.here.scope(|s| {
                let refused = s.receive_into(memory.as_slice_mut()).unwrap_err();
                errors.push(refused.error);
                errors.push(s.fetch_add(remote, 1).unwrap_err());
                errors.push(s.post_batch([SendWorkRequest::only_immediate(1).into()]).unwrap_err());
                let receive = ReceiveWorkRequest::only_immediate();
                errors.push(s.post_receive_batch([receive]).unwrap_err());
                s.post_send(SendWorkRequest::only_immediate(1)).map(drop)
            });
            let Err(ScopeError::ClosureError(error)) = scope else { panic!("{scope:?}") };
            errors.push(error);
            for error in errors {
                assert!(
                    matches!(error, TransportError::Closed { reason: why, .. } if why == first),
                    "{error}"
                );
                assert!(error.to_string().contains("connect a new one"), "{error}");
            }
        });
    }
}
