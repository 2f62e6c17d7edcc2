//! Windows that are unbound, invalidated or deallocated while a peer writes through them.

use super::*;
use crate::engine::Refusal;
use crate::memory::window::{Bind, Name, WindowKind};

/// Returns a window of `b` that is bound to all of `sink`, and the element with which the peer uses the window.
fn bound(model: &Model, kind: WindowKind, sink: &Memory) -> (Name, Sge) {
    let name = model.b.pd.allocate_window(kind).unwrap();
    let access = AccessFlags::REMOTE_WRITE.bits();
    bind(model, Bind { access, ..part(name, sink, 4) });
    (name, Sge { lkey: name.key, ..sink.sge() })
}

fn part(name: Name, sink: &Memory, length: u64) -> Bind {
    let Name { number: window, key } = name;
    let region = sink.registration.key;
    Bind { window, key, region, access: 0, address: sink.address(), length }
}

fn bind(model: &Model, bind: Bind) {
    done_at_b(model, 20, bind.into_operation());
}

/// Executes a request on `b` that does not involve a peer, and checks that it succeeds.
fn done_at_b(model: &Model, wr_id: u64, operation: Operation) {
    let request = Request { wr_id, signaled: true, operation, ..Request::EMPTY };
    let mut list = Some(Ok((request, Payload::keyed(&[]))));
    post_each(&model.b, || list.take()).unwrap();
    assert_eq!(polled(&model.b.send_cq), [(wr_id, WcStatus::SUCCESS)]);
}

/// Calls `take_back`, which ends the use of a window, while `a` writes through that window. Checks that no byte changes
/// afterwards.
fn takes_back(kind: WindowKind, take_back: impl Fn(&Model, Name, &Memory) + Sync + Send + 'static) {
    loom::model(move || {
        let model = Model::new();
        let source = Memory::new(&model.a.pd, 1);
        let mut sink = Memory::new(&model.b.pd, 0);
        let (name, to) = bound(&model, kind, &sink);
        let from = source.sge();
        let sender = {
            let a = Arc::clone(&model.a);
            thread::spawn(move || post(&a, 1, &[from], Some(to)))
        };
        take_back(&model, name, &sink);
        // The region is still registered; the program owns the memory again.
        sink.bytes.fill(FREED);
        sender.join().unwrap();
        assert!(sink.is_free(), "written after it was taken back");
        let status = polled(&model.a.send_cq)[0].1;
        assert!([WcStatus::SUCCESS, WcStatus::REM_ACCESS_ERR].contains(&status));
        model.end();
    });
}

#[test]
fn loom_no_write_after_a_local_invalidation() {
    takes_back(WindowKind::Two, |model, name, _| {
        let opcode = Opcode::LocalInvalidate;
        done_at_b(model, 21, Operation { opcode, imm: name.key, ..Operation::EMPTY });
    });
}

#[test]
fn loom_no_write_after_a_window_of_type_1_was_unbound() {
    takes_back(WindowKind::One, |model, name, sink| bind(model, part(name, sink, 0)));
}

#[test]
fn loom_no_write_after_a_deallocation() {
    for kind in [WindowKind::One, WindowKind::Two] {
        takes_back(kind, |model, name, _| model.b.pd.deallocate_window(name));
    }
}

/// A region can be deregistered and freed as soon as the window bound to it is deallocated, and not before.
#[test]
fn loom_no_write_through_a_window_deallocated_before_its_region() {
    for kind in [WindowKind::One, WindowKind::Two] {
        loom::model(move || {
            let model = Model::new();
            let source = Memory::new(&model.a.pd, 1);
            let mut sink = Memory::new(&model.b.pd, 0);
            let (name, to) = bound(&model, kind, &sink);
            let goes = {
                let pd = Arc::clone(&model.b.pd);
                thread::spawn(move || pd.deallocate_window(name))
            };
            if model.b.pd.deregister(sink.registration).is_ok() {
                sink.bytes.fill(FREED);
                post(&model.a, 1, &[source.sge()], Some(to));
                assert!(sink.is_free(), "written after it was freed");
            }
            goes.join().unwrap();
            model.end();
        });
    }
}

/// A region can be deregistered and freed right after the last window bound to it is invalidated.
#[test]
fn loom_no_write_after_the_region_of_an_invalidated_window_is_freed() {
    loom::model(|| {
        let model = Model::new();
        let source = Memory::new(&model.a.pd, 1);
        let mut sink = Memory::new(&model.b.pd, 0);
        let (name, to) = bound(&model, WindowKind::Two, &sink);
        let from = source.sge();
        let sender = {
            let a = Arc::clone(&model.a);
            thread::spawn(move || post(&a, 1, &[from], Some(to)))
        };
        assert_eq!(model.b.pd.deregister(sink.registration), Err(Refusal::Busy));
        // The send queue does this too, but then acquires the responder's lock once. This test frees the region without
        // doing so.
        assert!(model.b.pd.invalidate(name.key, model.b.id));
        sink.free(&model.b.pd);
        sender.join().unwrap();
        assert!(sink.is_free(), "written after it was freed");
        model.end();
    });
}
