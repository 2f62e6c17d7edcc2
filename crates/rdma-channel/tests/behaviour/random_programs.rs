//! Random programs of safe calls: each scope ends, nothing overflows or is left in flight, and an open channel works
//! like a new one.

use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use crate::common::random::{Handle, Random, serve, treat};
use crate::common::{LATE, Pair, in_flight, must_end, short};
use rdma_channel::{Channel, CloseReason, Scope, ScopeError, TransportError};
use rdma_mem::{GatherElement, RemoteMemoryRegion, ScatterElement, SharedElement, SharedRegion};
use rdma_qp::{ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WriteWorkRequest};

/// The memory and channels of the programs.
struct Stage<'a> {
    memory: &'a SharedRegion,
    board: &'a SharedRegion,
    remote: RemoteMemoryRegion,
    peer: &'a Channel,
    release: &'a dyn Fn(u32),
}

fn element<'a>(region: &'a SharedRegion, random: &mut Random) -> SharedElement<'a> {
    let begin = usize::try_from(random.below(8)).unwrap() * 8;
    region.element(begin..begin + 8).unwrap()
}

/// One post of a random kind and form.
fn post<'scope>(
    s: &'scope Scope<'scope, '_>,
    stage: &Stage<'scope>,
    random: &mut Random,
) -> Result<Handle<'scope>, TransportError> {
    let (element, remote) = (element(stage.memory, random), stage.remote);
    let signaled = random.one_in(2);
    let gather = [GatherElement::from(element)];
    let mut scatter = [ScatterElement::from(element)];
    Ok(match random.below(10) {
        0 => Handle::Rented(s.send_from(element)?),
        1 => Handle::Rented(s.write_from(element, remote)?),
        2 => Handle::Rented(s.read_into(element, remote)?),
        3 => Handle::Rented(s.receive_into(element)?),
        4 => Handle::Borrowed(s.post_send(SendWorkRequest::new(&gather).signaled(signaled))?),
        5 | 6 => {
            let request = WriteWorkRequest::new(&gather, remote);
            Handle::Borrowed(s.post_write(request.signaled(signaled))?)
        }
        7 => {
            let request = ReadWorkRequest::new(&mut scatter, remote);
            Handle::Borrowed(s.post_read(request.signaled(signaled))?)
        }
        8 => Handle::Borrowed(s.post_receive(ReceiveWorkRequest::new(&mut scatter))?),
        _ => {
            let request = || WriteWorkRequest::new(&gather, remote).signaled(signaled).into();
            let [first, second] = s.post_batch([request(), request()])?;
            drop(first);
            Handle::Borrowed(second)
        }
    })
}

struct Thrown;

fn closure<'scope>(
    s: &'scope Scope<'scope, '_>,
    stage: &Stage<'scope>,
    random: &mut Random,
) -> Result<(), TransportError> {
    let mut handles = Vec::new();
    for _ in 0..random.below(40) {
        match random.below(8) {
            0..4 => match post(s, stage, random) {
                Ok(handle) => handles.push(handle),
                Err(error @ TransportError::Closed { .. }) => return Err(error),
                Err(
                    TransportError::WouldBlock
                    | TransportError::Timeout { .. }
                    | TransportError::BatchTooLarge { .. },
                ) => {}
                Err(error) => panic!("{error}"),
            },
            4 => serve(stage.peer, element(stage.board, random), random),
            5 => (stage.release)(1 + u32::try_from(random.below(3)).unwrap()),
            _ if !handles.is_empty() => {
                let place = usize::try_from(random.below(handles.len() as u64)).unwrap();
                let handle = handles.swap_remove(place);
                handles.extend(treat(handle, random));
            }
            _ => {}
        }
    }
    if !random.one_in(4) {
        (0..30).for_each(|_| serve(stage.peer, element(stage.board, random), random));
        (stage.release)(u32::MAX);
    }
    match random.below(6) {
        0 => Err(TransportError::WouldBlock),
        1 => resume_unwind(Box::new(Thrown)),
        _ => Ok(()),
    }
}

/// Checks that an open channel holds as many requests as before, twice, and that each completes.
fn assert_as_new(pair: &mut Pair, element: SharedElement<'_>) {
    let (sends, _) = pair.here.depths();
    let (soft, qpn, remote) = (pair.device, pair.here.qpn().unwrap(), pair.board.remote());
    for _ in 0..2 {
        pair.here
            .scope(|s| {
                let mut handles = Vec::new();
                for _ in 0..sends {
                    handles.push(s.write_from(element, remote)?);
                }
                let full = s.write_from(element, remote);
                assert!(full.is_err() || soft.name() != crate::common::HELD);
                drop(full);
                soft.release(qpn, u32::MAX);
                for handle in handles {
                    handle.wait(Duration::from_secs(10)).unwrap().result?;
                }
                soft.release(qpn, u32::MAX);
                Ok::<(), TransportError>(())
            })
            .unwrap();
    }
}

/// Runs a pair of channels until it closes, or for some scopes.
fn program(device: &str, random: &mut Random) -> u32 {
    let depth = |random: &mut Random| 1 + u32::try_from(random.below(9)).unwrap();
    let (sends, receives) = (depth(random), depth(random));
    let (all, extended) = (random.one_in(4), random.one_in(4));
    let mut pair = Pair::with(device, move |builder| {
        let builder = short(builder).max_send_wr(sends).max_recv_wr(receives);
        let builder = builder.sq_sig_all(all).extended(extended);
        let brief = Duration::from_millis(1);
        builder.send_timeout(brief).write_timeout(brief).read_timeout(brief)
    });
    let memory = pair.pd.allocate_shared_region(64, crate::common::everything(&pair.pd)).unwrap();
    let remote = pair.board.remote();
    let (soft, qpns) = (pair.device, [&pair.here, &pair.there].map(|end| end.qpn().unwrap()));
    let release = |count| {
        let _ = qpns.map(|qpn| soft.release(qpn, count));
    };
    for scopes in 0..6 {
        let stage = Stage {
            memory: &memory,
            board: &pair.board,
            remote,
            peer: &pair.there,
            release: &release,
        };
        let left =
            catch_unwind(AssertUnwindSafe(|| pair.here.scope(|s| closure(s, &stage, random))));
        match &left {
            Err(payload) => assert!(payload.is::<Thrown>()),
            Ok(Err(ScopeError::ClosureError(error))) => {
                assert!(
                    matches!(error, TransportError::WouldBlock | TransportError::Closed { .. }),
                    "{error}"
                );
            }
            Ok(_) => {}
        }
        assert_eq!((in_flight(soft, &pair.here), pair.here.stray_completions()), (0, 0));
        match pair.here.closed() {
            None => assert_as_new(&mut pair, memory.element(0..8).unwrap()),
            Some(CloseReason::Timeout { .. }) => return scopes,
            Some(CloseReason::Unsignaled { .. }) if !all => return scopes,
            Some(reason) => panic!("{reason}"),
        }
    }
    6
}

#[test]
fn random_programs_end_and_leave_nothing_in_flight() {
    let number = |name| env::var(name).ok().and_then(|number| number.parse().ok());
    let (seeds, count) = (number("RDMA_TEST_SEED"), number("RDMA_TEST_SEEDS").unwrap_or(100));
    for device in LATE {
        let mut scopes = 0;
        for seed in seeds.map_or(1..=count, |seed| seed..=seed) {
            let ran = catch_unwind(|| must_end(move || program(device, &mut Random(seed))));
            scopes += ran.unwrap_or_else(|payload| {
                eprintln!("RDMA_TEST_SEED={seed} on {device}");
                resume_unwind(payload)
            });
        }
        assert!(seeds.is_some() || scopes > 50, "{scopes} scopes left their channel open");
    }
}
