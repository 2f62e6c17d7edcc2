//! A device that uses memory while threads await and drop its requests, so that Miri can detect data races.

use std::thread;

use super::*;
use crate::mock::block_on;

#[test]
fn the_device_and_awaiting_threads_take_turns_with_memory() {
    const EACH: usize = if cfg!(miri) { 8 } else { 500 };
    let whole = Rig::new();
    let connection = whole.connect([2, 2]);
    let rig = &whole;
    let task = |connection: Connection| {
        for n in 0..EACH {
            let mut sent = block_on(connection.send(filled(rig, 1)).into_future()).unwrap();
            sent.fill(2);
            let received = block_on(connection.receive(sent).into_future()).unwrap();
            assert_eq!(received.memory[..received.length], *b"message");
            if n % 4 == 0 {
                drop(block_on(connection.write(received.memory, remote()).post()).unwrap());
                // One atomic operation for each write; `requests` below counts both.
                block_on(connection.fetch_add(remote(), 1).into_future()).unwrap();
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| rig.drive());
        let requests = 2 * (2 * EACH + 2 * EACH.div_ceil(4));
        let device = scope.spawn(move || rig.nic.serve(requests));
        let tasks = [(); 2].map(|()| {
            let connection = connection.clone();
            scope.spawn(|| task(connection))
        });
        tasks.into_iter().for_each(|task| task.join().unwrap());
        device.join().unwrap();
        rig.nic.stop_waiting();
    });
    drop(connection);
    end(whole);
}
