//! Many clients, one after another and at the same time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use test_support::crowd::allow_files;

use crate::rendezvous::{LATER, assert_connected, client, domain, listener, patient};

#[test]
fn two_hundred_clients_connect_one_after_another() {
    for device in crate::rendezvous::DEVICES {
        let mut listener = listener(device);
        let address = listener.local_addr();
        let clients = thread::spawn(move || {
            let pd = domain(device);
            for _ in 0..200 {
                patient(&pd).connect(address).unwrap();
            }
        });
        for _ in 0..200 {
            listener.accept().unwrap();
        }
        clients.join().unwrap();
        assert_eq!(listener.refused(), 0);
    }
}

/// Each has its own context, like a process, and all channels exist at the same time.
#[test]
fn a_thousand_clients_at_a_time_all_work() {
    const CLIENTS: usize = 1000;
    const THREADS: usize = 8;
    // Two files for each context, two for each end to sleep on, and those of the rendezvous.
    allow_files(6 * CLIENTS as u64 + 500);
    let mut listener = listener("soft0");
    let address = listener.local_addr();
    let next = AtomicUsize::new(0);
    let begin = Instant::now();
    let (mut servers, clients) = thread::scope(|threads| {
        let clients: Vec<_> = (0..THREADS)
            .map(|_| {
                threads.spawn(|| {
                    let mut clients = Vec::new();
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        if index >= CLIENTS {
                            return clients;
                        }
                        let pd = domain("soft0");
                        let builder = patient(&pd).user_bytes(&index.to_be_bytes());
                        let (channel, told) = builder.connect(address).unwrap();
                        assert_eq!(*told, index.to_be_bytes());
                        clients.push((index, channel));
                    }
                })
            })
            .collect();
        let mut servers: Vec<_> = (0..CLIENTS).map(|_| None).collect();
        for _ in 0..CLIENTS {
            let incoming = listener.incoming(Some(LATER)).unwrap();
            let index = usize::from_be_bytes(incoming.user_bytes().try_into().unwrap());
            let echo = index.to_be_bytes();
            assert!(servers[index].replace(incoming.accept(&echo).unwrap()).is_none());
        }
        let clients: Vec<_> = clients.into_iter().flat_map(|t| t.join().unwrap()).collect();
        (servers, clients)
    });
    println!("{CLIENTS} clients in {:?}", begin.elapsed());
    assert_eq!(listener.refused(), 0);
    for (index, mut client) in clients {
        assert_connected(servers[index].as_mut().unwrap(), &mut client);
    }
}

/// More clients than can be half-open at a time.
#[test]
fn a_hundred_clients_whose_server_is_late_all_get_in() {
    let mut listener = listener("soft0");
    let address = listener.local_addr();
    let clients: Vec<_> = (0..100).map(|_| client("soft0", address, b"")).collect();
    let first = listener.incoming(Some(LATER)).unwrap();
    // Gives the others time to reach the socket. The test passes however far they get.
    thread::sleep(crate::rendezvous::SOON);
    let mut servers = vec![first.accept(b"").unwrap()];
    servers.extend((1..100).map(|_| listener.accept().unwrap()));
    for client in clients {
        client.join().unwrap().unwrap();
    }
    assert_eq!((servers.len(), listener.refused()), (100, 0));
}
