//! Finding regions in every order of threads. The model checker tries stale values for a load only if the load runs
//! after the newer store. So readers are the spawned threads.

use super::*;
use crate::fabric::random::{Purpose, Seed};
use loom::thread;
use std::sync::Arc;

fn whole(n: u32) -> Region {
    let long = u64::from(n);
    Region { address: long, iova: long, length: long, access: n, scope: n.into() }
}

/// Creates a table whose only slot never rests, and registers a region in it. Returns the table and the region's key.
/// All tables created here assign the same keys.
fn table() -> (RegionTable, u32) {
    let table = RegionTable::with_slots(1, 0, Seed::new(1).stream(Purpose::Keys));
    let key = table.insert(&whole(1)).unwrap();
    (table, key)
}

/// Registers another region in the same slot.
fn renew(table: &RegionTable, old: u32) -> u32 {
    assert!(table.unpublish(old));
    table.release(old);
    table.insert(&whole(2)).unwrap()
}

/// A reader that overlaps a deregistration and a new registration in the same slot sees one whole region or none. It
/// never sees the fields of both.
#[test]
fn loom_no_region_is_torn() {
    loom::model(|| {
        let (table, old) = table();
        let table = Arc::new(table);
        let reader = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.find(old))
        };
        let new = renew(&table, old);
        let seen = reader.join().unwrap();
        assert!(seen.is_none_or(|region| region == whole(1)), "{seen:?}");
        assert_eq!(table.find(new), Some(whole(2)));
        assert_eq!(table.find(old), None);
    });
}

/// A key that a peer guessed, without having received it, also names a whole region or none.
#[test]
fn loom_a_guessed_key_finds_no_torn_region() {
    loom::model(|| {
        let (twin, old) = table();
        let guess = renew(&twin, old);
        let table = Arc::new(table().0);
        let reader = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.find(guess))
        };
        assert_eq!(renew(&table, old), guess);
        let seen = reader.join().unwrap();
        assert!(seen.is_none_or(|region| region == whole(2)), "{seen:?}");
    });
}

/// A thread that has received a key finds the region.
#[test]
fn loom_a_published_key_is_found() {
    loom::model(|| {
        let (table, old) = table();
        let table = Arc::new(table);
        let published = Arc::new(AtomicU32::new(0));
        let reader = {
            let (table, published) = (Arc::clone(&table), Arc::clone(&published));
            thread::spawn(move || match published.load(Ordering::Acquire) {
                0 => {}
                key => assert_eq!(table.find(key), Some(whole(2))),
            })
        };
        published.store(renew(&table, old), Ordering::Release);
        reader.join().unwrap();
    });
}

/// If two threads unpublish one key, exactly one finds it.
#[test]
fn loom_a_key_is_unpublished_once() {
    loom::model(|| {
        let (table, key) = table();
        let table = Arc::new(table);
        let other = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.unpublish(key))
        };
        let here = table.unpublish(key);
        assert_ne!(here, other.join().unwrap());
        assert_eq!(table.find(key), None);
    });
}
