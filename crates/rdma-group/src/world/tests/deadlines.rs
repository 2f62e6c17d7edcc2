//! Deadlines of a rank whose peer does not take part, after both have connected.

use super::*;

/// The limit of the rank that waits. The other rank takes no part before this limit has passed.
const SHORT: Duration = Duration::from_millis(50);

/// More messages than a send queue and the receives of the peer have room for.
const MESSAGES: u64 = 100;

/// A wait of one of two ranks.
struct Wait {
    rank: usize,
    /// The collectives of both ranks.
    before: Vec<Case>,
    /// The call in which the other rank does not take part.
    call: &'static str,
}

/// Checks that a rank which waits fails at its limit, and that the other rank then gets this error. `call` makes calls. Its
/// last argument is the number of earlier ones.
fn check<W: Rank>(
    join: fn(Settings) -> W,
    wait: &Wait,
    call: impl Fn(&mut W, u64) -> Result<(), Error> + Sync,
) {
    let (master, calls) = (&*free_address().to_string(), wait.before.len() as u64);
    let begin = |rank| {
        let mut world = join(settings(rank, 2, master, 0));
        for (case, generation) in wait.before.iter().zip(0..) {
            execute(&mut world, case, generation).unwrap();
        }
        world
    };
    let (late, failed) = mpsc::channel::<String>();
    let (begin, call) = (&begin, &call);
    thread::scope(|threads| {
        let other = threads.spawn(move || {
            let mut world = begin(1 - wait.rank);
            let world = &mut world;
            // A rank that does not observe its limit fails the test, when this one panics.
            let reported = failed.recv_timeout(LIMIT).unwrap();
            // It completes what needs only messages that were sent before.
            let called = call(world, calls);
            match called.and_then(|()| execute(world, &BARRIER, calls + MESSAGES)) {
                Err(Error::Failed { rank, reason, .. }) => {
                    assert_eq!((rank, reason), (wait.rank, reported));
                }
                result => panic!("{result:?}"),
            }
        });
        let mut world = begin(wait.rank);
        world.set_limit(SHORT);
        let error = call(&mut world, calls).unwrap_err();
        let Error::Timeout { rank, host, call, limit } = &error else { panic!("{error}") };
        assert_eq!((*rank, &**host), (1 - wait.rank, &*world.ranks().host(1 - wait.rank)));
        assert!(call.starts_with(wait.call) && *limit == SHORT, "{error}");
        late.send(error.to_string()).unwrap();
        other.join().unwrap();
        assert!(matches!(execute(&mut world, &BARRIER, calls), Err(Error::Closed)));
    });
}

const fn broadcast(root: usize, len: usize) -> Case {
    Case::new(Collective::Broadcast { root }, len)
}

/// Checks each wait of a rank, which is rank 0 or 1.
fn check_all<W: Rank>(join: fn(Settings) -> W) {
    for rank in [0, 1] {
        let wait = |before, call| Wait { rank, before, call };
        let barrier = || vec![BARRIER];
        // For a message.
        check(join, &wait(barrier(), "barrier (call 1 "), |world, calls| {
            execute(world, &BARRIER, calls)
        });
        // For the announcement of a listener, or for a client.
        check(join, &wait(barrier(), "connect (call "), |world, _| {
            world.connect_to(1 - world.ranks().own, CONNECT)
        });
        // For room in the send queue. The messages fill all receives of the peer, and then the queue.
        check(join, &wait(vec![broadcast(rank, 1)], "broadcast (call "), |world, calls| {
            let mut messages = calls..calls + MESSAGES;
            messages.try_for_each(|call| execute(world, &broadcast(rank, 1), call))
        });
        // For the landing of the peer.
        let long = broadcast(rank, 3 * LONG_PIECE);
        check(join, &wait(barrier(), "broadcast (call 1 "), |world, calls| {
            execute(world, &long, calls)
        });
        // For a slot of the landing.
        check(join, &wait(vec![long.clone()], "broadcast (call 1 "), |world, calls| {
            execute(world, &long, calls)
        });
    }
}

#[test]
fn a_rank_whose_peer_takes_no_part_fails_at_its_limit() {
    check_all(blocking);
}

#[cfg(feature = "async")]
#[test]
fn an_asynchronous_rank_whose_peer_takes_no_part_fails_at_its_limit() {
    check_all(Asynchronous::join);
}
