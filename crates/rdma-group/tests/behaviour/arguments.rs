//! Arguments that are refused without closing the group.

use std::time::Duration;

use bytemuck::Pod;
use rdma_group::{Error, Group, Reduction};

use crate::ranks::{domain, free_address, text, threads};

#[test]
fn invalid_arguments_leave_the_group_open() {
    threads(2, |group| {
        let refused = |result: Result<(), Error>, expected: &str| {
            assert!(
                matches!(&result, Err(Error::Argument(text)) if text.contains(expected)),
                "{result:?}"
            );
        };
        refused(group.broadcast(2, &mut [0_u8]), "the root is rank 2");
        refused(group.reduce(7, &mut [0_u8], Reduction::Sum), "the root is rank 7");
        refused(group.all_gather(&mut [0_u8; 3]), "3 elements are no multiple of 2 ranks");
        refused(group.scatter_v(0, &mut [0_u8; 3], &[1, 1]), "2 counts do not divide");
        refused(group.gather_v(0, &mut [0_u8; 3], &[1, 1, 1]), "3 counts do not divide");
        refused(group.all_gather_v(&mut [0_u16; 3], &[usize::MAX, 4]), "2 counts do not divide");
        let own = [group.rank() + 1, group.rank()];
        let (sent, mut received) = (vec![0_u8; own[0] + own[1]], vec![0_u8; 2]);
        refused(group.all_to_all_v(&sent, &own, &mut received, &[2, 0]), "has two lengths");
        group.barrier().unwrap();
    });
}

#[test]
fn a_rank_outside_the_group_is_refused() {
    let pd = domain();
    let error = text(Group::builder(&pd, 3, 3, &free_address()).join());
    assert_eq!(error, "rank 3 is outside a group of 3 ranks");
}

#[test]
fn a_rank_that_does_not_take_part_is_named_after_the_limit() {
    let (pd, master) = (domain(), free_address());
    let (entered, left) = std::sync::mpsc::channel();
    std::thread::scope(|threads| {
        let (pd, master) = (&pd, &master);
        let join =
            move |rank| Group::builder(pd, rank, 2, master).limit(Duration::from_millis(50)).join();
        let other = threads.spawn(move || {
            let group = join(1).unwrap();
            // Takes no part until the other rank has failed.
            left.recv().unwrap();
            drop(group);
        });
        let mut group = join(0).unwrap();
        let error = text(group.barrier());
        let call = " did not take part in barrier (call 0 of the group, Dissemination) within 50ms";
        assert!(error.starts_with("rank 1 on ") && error.ends_with(call), "{error}");
        entered.send(()).unwrap();
        other.join().unwrap();
    });
}

#[test]
fn a_group_of_more_ranks_than_fit_is_refused() {
    let pd = domain();
    for rank in [0, 1] {
        let error = text(Group::builder(&pd, rank, usize::MAX, &free_address()).join());
        assert!(error.contains("at most 65536 ranks"), "{error}");
    }
}

#[test]
fn limits_of_any_duration_are_valid() {
    let (pd, master) = (domain(), free_address());
    std::thread::scope(|threads| {
        let join = |rank| {
            let (pd, master) = (&pd, &master);
            threads.spawn(move || {
                let builder = Group::builder(pd, rank, 2, master);
                let mut group =
                    builder.join_limit(Duration::MAX).limit(Duration::MAX).join().unwrap();
                group.all_to_all(&mut vec![rank as u64; 20_000]).unwrap();
            })
        };
        let ranks = [join(0), join(1)];
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    });
    for rank in [0, 1] {
        let builder = Group::builder(&pd, rank, 2, &master).join_limit(Duration::ZERO);
        assert!(builder.join().is_err());
    }
}

#[test]
fn empty_buffers_and_elements_without_bytes_are_valid() {
    threads(3, |group| {
        let mut units = [(); 6];
        group.broadcast(2, &mut units).unwrap();
        group.gather(1, &mut units).unwrap();
        group.all_gather_v(&mut units, &[1, 2, 3]).unwrap();
        group.all_to_all_v(&units, &[2; 3], &mut [(); 6], &[2; 3]).unwrap();
        group.all_to_all(&mut [0_u64; 0]).unwrap();
        group.scatter(1, &mut [[0_u8; 3]; 0]).unwrap();
        group.reduce(1, &mut [0.0; 0], Reduction::Sum).unwrap();
        assert_eq!(group.reduce_scatter(&mut [0_i8; 0], Reduction::Max).unwrap(), 0..0);
    });
}

#[test]
fn elements_longer_than_a_message_or_a_piece_are_valid() {
    fn exchange<T: Pod>(group: &mut Group) {
        let own = if group.rank() == 0 { 1 } else { 2 };
        let mut elements = vec![T::zeroed(); 2];
        bytemuck::bytes_of_mut(&mut elements[group.rank()]).fill(own);
        group.all_gather(&mut elements).unwrap();
        for (element, byte) in elements.iter().zip(1..) {
            assert!(bytemuck::bytes_of(element).iter().all(|it| *it == byte));
        }
        let element = &mut elements[group.rank()];
        group.broadcast(1, std::slice::from_mut(element)).unwrap();
        assert!(bytemuck::bytes_of(element).iter().all(|it| *it == 2));
    }
    threads(2, |group| {
        exchange::<[[u8; 4096]; 10]>(group);
        exchange::<[[u8; 4096]; 96]>(group);
    });
}
