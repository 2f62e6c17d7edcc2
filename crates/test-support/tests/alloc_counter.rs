//! The counter counts each kind of allocation, on every thread, and nothing else.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;

use test_support::alloc_counter::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Returns the number of allocations of `work`.
fn allocations_of(work: impl FnOnce()) -> u64 {
    let before = ALLOCATOR.allocations();
    work();
    ALLOCATOR.allocations() - before
}

fn each_kind_counts_once() {
    assert_eq!(allocations_of(|| drop(black_box(Box::new(1_u64)))), 1, "alloc");
    assert_eq!(allocations_of(|| drop(black_box(vec![0_u8; 64]))), 1, "alloc_zeroed");

    let mut grown: Vec<u64> = Vec::with_capacity(1);
    assert_eq!(allocations_of(|| black_box(&mut grown).reserve_exact(1000)), 1, "realloc");
}

fn freeing_and_plain_work_do_not_count() {
    let boxed = black_box(Box::new([0_u8; 4096]));
    assert_eq!(allocations_of(|| drop(boxed)), 0, "dealloc");

    let mut bytes = [0_u8; 4096];
    assert_eq!(allocations_of(|| black_box(&mut bytes).fill(7)), 0, "fill");
}

fn other_threads_count() {
    const THREADS: usize = 4;
    const EACH: u64 = 1000;
    // Waiting does not allocate; starting and ending a thread does, so both stay outside.
    let step = Barrier::new(THREADS + 1);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                step.wait();
                step.wait();
                for number in 0..EACH {
                    drop(black_box(Box::new(number)));
                }
                step.wait();
                step.wait();
            });
        }
        step.wait();
        let counted = allocations_of(|| {
            step.wait();
            step.wait();
        });
        step.wait();
        assert_eq!(counted, THREADS as u64 * EACH);
    });
}

fn main() {
    each_kind_counts_once();
    freeing_and_plain_work_do_not_count();
    other_threads_count();
    println!("alloc_counter: ok");
}
