//! Ranks whose connection with rank 0 ends before they have joined.

use super::*;

/// Listens as rank 0, which joins no rank yet. Its listener blocks.
fn listening<'s>(settings: &'s Settings, keys: &'s Arc<Keys>) -> Root<'s> {
    let root = root(settings, keys, LIMIT);
    root.listener.set_nonblocking(false).unwrap();
    root
}

/// Accepts a process at the address of rank 0, and sends a challenge.
fn challenged(listener: &TcpListener, keys: &Arc<Keys>) -> Link {
    let mut link =
        Link::new(listener.accept().unwrap().0, Arc::clone(keys), true, Join::MOST).unwrap();
    link.send(Kind::Challenge, &Nonce::default(), Instant::now()).unwrap();
    link
}

/// A flood of strangers can replace a rank that has not answered the challenge yet.
#[test]
fn a_rank_that_is_dropped_before_it_has_joined_connects_again() {
    let master = free_address();
    let (root_settings, keys) = (settings(0, 2, master), Arc::new(Keys::new(b"")));
    let root = listening(&root_settings, &keys);
    thread::scope(|threads| {
        let rank = spawn(threads, settings(1, 2, master));
        drop(challenged(&root.listener, &keys));
        root.listener.set_nonblocking(true).unwrap();
        assert!(root.gather(Instant::now() + LIMIT).is_ok());
        assert!(rank.join().unwrap().is_ok());
    });
}

/// Drops a rank after its own limit, and returns whether it has joined.
fn joins_after_its_limit() -> bool {
    let master = free_address();
    let (root_settings, keys) = (settings(0, 2, master), Arc::new(Keys::new(b"")));
    let limit = Duration::from_millis(500);
    let root = listening(&root_settings, &keys);
    thread::scope(|threads| {
        let rank = threads.spawn(move || join_as(&settings(1, 2, master), limit));
        let link = challenged(&root.listener, &keys);
        thread::sleep(limit);
        drop(link);
        // Rank 0 is busy.
        thread::sleep(Duration::from_millis(100));
        root.listener.set_nonblocking(true).unwrap();
        let rank_0 = root.gather(Instant::now() + LIMIT / 8);
        rank.join().unwrap().is_ok() && rank_0.is_ok()
    })
}

/// Rank 0 may have started later than the other rank, so its limit is not over.
#[test]
fn a_rank_that_is_dropped_after_its_own_limit_connects_again() {
    // On a busy machine, the rank may be too late.
    assert!((0..10).any(|_| joins_after_its_limit()));
}

/// Another program may repeat a challenge that it has recorded.
#[test]
fn a_rank_that_is_dropped_again_and_again_gives_up() {
    let master = free_address();
    let (keys, limit) = (Arc::new(Keys::new(b"")), Duration::from_millis(500));
    let (listener, given_up) = (TcpListener::bind(master).unwrap(), AtomicBool::new(false));
    thread::scope(|threads| {
        let rank = threads.spawn(|| {
            let joined = join_as(&settings(1, 2, master), limit);
            given_up.store(true, Ordering::Relaxed);
            // The last one.
            drop(TcpStream::connect(master));
            joined
        });
        let mut drops = 0;
        while !given_up.load(Ordering::Relaxed) && drops < 1000 {
            drop(challenged(&listener, &keys));
            drops += 1;
        }
        drop(listener);
        assert!(drops < 1000, "dropped {drops} times");
        let joined = rank.join().unwrap();
        assert!(matches!(joined, Err(Error::Join { .. })), "{:?}", joined.err());
    });
}

/// A proxy accepts connections before rank 0 listens.
#[test]
fn a_rank_that_is_dropped_before_the_challenge_connects_again() {
    let master = free_address();
    let (root_settings, keys) = (settings(0, 2, master), Arc::new(Keys::new(b"")));
    let root = listening(&root_settings, &keys);
    thread::scope(|threads| {
        let rank = spawn(threads, settings(1, 2, master));
        drop(root.listener.accept().unwrap());
        root.listener.set_nonblocking(true).unwrap();
        let rank_0 = root.gather(Instant::now() + LIMIT / 4);
        let joined = rank.join().unwrap();
        assert!(rank_0.is_ok() && joined.is_ok(), "{:?}", joined.err());
    });
}
