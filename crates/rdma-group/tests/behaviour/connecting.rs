//! Channels between two ranks of a group, for the program's own requests.

use rdma_group::{Channel, Error, Group};

use crate::ranks::{domain, text, threads};

/// Sends its rank to the other end, and receives that of the other end.
pub(crate) fn exchange(channel: &mut Channel, own: u8, other: u8) {
    let pd = channel.pd().clone();
    let (mut sent, mut received) = (pd.allocate_region(1).unwrap(), pd.allocate_region(1).unwrap());
    sent.fill(own);
    if own < other {
        channel.send_from(&sent).unwrap();
        channel.receive_into(&mut received).unwrap();
    } else {
        channel.receive_into(&mut received).unwrap();
        channel.send_from(&sent).unwrap();
    }
    assert_eq!(received[..], [other]);
}

#[test]
fn two_ranks_connect_while_others_continue() {
    threads(3, |group| {
        let mut rest = group.split(u64::from(group.rank() == 1), 0).unwrap();
        let channel = match group.rank() {
            0 => Some((rest.connect(1).unwrap(), 0, 2)),
            2 => Some((rest.connect(0).unwrap(), 2, 0)),
            _ => None,
        };
        group.barrier().unwrap();
        if let Some((mut channel, own, other)) = channel {
            exchange(&mut channel, own, other);
        }
    });
}

#[test]
fn a_channel_outlives_its_group() {
    let channels = threads(2, |group| group.connect(1 - group.rank()).unwrap());
    let [mut one, mut other] = channels.try_into().unwrap();
    std::thread::scope(|threads| {
        threads.spawn(|| exchange(&mut one, 0, 1));
        exchange(&mut other, 1, 0);
    });
}

#[test]
fn a_rank_that_makes_another_call_is_named() {
    for connects in [0, 1] {
        let results = threads(2, |group| {
            if group.rank() == connects {
                group.connect(1 - connects).map(drop)
            } else {
                group.barrier()
            }
        });
        let errors: Vec<_> = results.into_iter().map(text).collect();
        let names =
            |error: &String| error.contains("connect (call 0") && error.contains("barrier (call 0");
        assert!(errors.iter().any(names), "{errors:?}");
    }
}

#[test]
fn a_rank_that_leaves_before_it_connects_is_lost() {
    for leaves in [0, 1] {
        let results = threads(2, |group| {
            group.barrier().unwrap();
            if group.rank() == leaves { Ok(()) } else { group.connect(leaves).map(drop) }
        });
        let lost = results.into_iter().find_map(Result::err);
        assert!(matches!(lost, Some(Error::Lost { rank, .. }) if rank == leaves), "{lost:?}");
    }
}

#[test]
fn a_rank_cannot_connect_to_itself_or_outside_the_group() {
    let mut group = Group::builder(&domain(), 0, 1, "127.0.0.1:1").join().unwrap();
    for rank in [0, 1] {
        let error = text(group.connect(rank));
        let expected = format!("rank 0 of 1 cannot connect to rank {rank}: ");
        assert!(error.starts_with(&expected), "{error}");
    }
    group.barrier().unwrap();
}
