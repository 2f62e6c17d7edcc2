//! Ends of streams and messages: drops, resets, deaths, and peers that break the protocol.

use std::io::{ErrorKind, Read as _, Write as _};
use std::thread;
use std::time::{Duration, Instant};

use rdma_channel::message::{
    ConnectionError, Message, MessageError, Messages, Options, SendError, Stream,
};
use rdma_channel::{Buffer, Channel, Wait};

use rdma_message::frame::{Body, Frame, Hello, Limits, Mode, Remote, Role};

use super::rig::{Rig, bytes, on_each, once, short};
use crate::common::must_end;
use crate::common::provider::{at_next_poll, faulty};

/// Writes until it fails. Returns the kind of the error.
fn write_until_it_fails(stream: &mut Stream) -> ErrorKind {
    loop {
        if let Err(error) = stream.write_all(&[7; 1000]) {
            return error.kind();
        }
    }
}

/// Fills the window of a stream with [`short`] queues, so that its end cannot be sent. Its peer, which does not read,
/// has four receives for data. A write may time out because an earlier frame has not been sent yet.
fn fill_window(stream: &mut Stream) {
    while stream.write(b"first").is_err() {}
    for _ in 1..4 {
        while stream.write(&bytes(100)).is_err() {}
    }
    let error = stream.write(&bytes(100)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
}

/// Bytes that are not a frame.
pub(super) fn garbage(rig: &Rig) -> Buffer {
    let text = b"certainly not a frame";
    let mut garbage = rig.pool.allocate(text.len()).unwrap();
    garbage.copy_from_slice(text);
    garbage
}

#[test]
fn a_dropped_stream_still_sends_what_was_written_and_ends_cleanly() {
    on_each(|rig| {
        let (mut client, mut server) = rig.streams(Options::new());
        let writer = thread::spawn(move || client.write_all(&bytes(50_000)).unwrap());
        let mut all = Vec::new();
        server.read_to_end(&mut all).unwrap();
        assert!(all == bytes(50_000));
        writer.join().unwrap();
    });
}

#[test]
fn a_dropped_reader_fails_the_writes_of_the_peer() {
    on_each(|rig| {
        let (client, mut server) = rig.streams(Options::new());
        server.write_all(b"unread").unwrap();
        drop(client);
        assert_eq!(write_until_it_fails(&mut server), ErrorKind::BrokenPipe);
        // The end of the client's stream was sent.
        assert_eq!(server.read(&mut [0; 8]).unwrap(), 0);
    });
}

#[test]
fn a_stream_that_does_not_linger_resets_its_peer() {
    on_each(|rig| {
        let at_once = short().linger(Duration::ZERO);
        let rig = rig.within(Duration::from_millis(20));
        let (mut client, mut server) = rig.streams(at_once);
        fill_window(&mut client);
        drop(client);
        let mut all = Vec::new();
        let cut_off = server.read_to_end(&mut all).unwrap_err();
        assert_eq!(cut_off.kind(), ErrorKind::ConnectionReset, "{cut_off}");
        assert!(!all.is_empty(), "what had arrived is read before the error");
        let error = server.write_all(b"late").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    });
}

#[test]
fn a_dropped_stream_whose_peer_does_not_read_is_reset_after_its_linger() {
    on_each(|rig| {
        let linger = Duration::from_millis(40);
        let rig = rig.within(Duration::from_millis(20));
        let (mut client, mut server) = rig.streams(short().linger(linger));
        fill_window(&mut client);
        let (start, buffers) = (Instant::now(), rig.pool.usage().buffers);
        drop(client);
        // The client frees its memory after the reset.
        while rig.pool.usage().buffers == buffers {
            thread::yield_now();
        }
        assert!(start.elapsed() >= linger);
        let mut all = Vec::new();
        let cut_off = server.read_to_end(&mut all).unwrap_err();
        assert_eq!(cut_off.kind(), ErrorKind::ConnectionReset, "{cut_off}");
        assert!(all.starts_with(b"first"), "what had arrived is read before the error");
    });
}

#[test]
fn dropped_messages_still_end_cleanly_and_refuse_what_arrives() {
    on_each(|rig| {
        let (client, server) = rig.messages(Options::new());
        client.send(b"a note").unwrap();
        drop(client);
        assert_eq!(*server.receive().unwrap().unwrap(), *b"a note");
        assert!(server.receive().unwrap().is_none());
        let error = server.send(b"late").unwrap_err();
        assert!(matches!(error, MessageError::NotSent(SendError::PeerFinished)), "{error}");
        server.finish().unwrap();
    });
}

#[test]
fn a_peer_that_is_gone_is_never_a_clean_end() {
    on_each(|rig| {
        let (victim, peer) = rig.channels(Options::new());
        let mut victim = Stream::new(victim, &rig.pool, Options::new()).unwrap();
        drop(peer);
        let error = victim.read(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        assert_eq!(write_until_it_fails(&mut victim), ErrorKind::ConnectionReset);
        let (victim, peer) = rig.channels(Options::new());
        let victim = Messages::new(victim, &rig.pool, Options::new()).unwrap();
        drop(peer);
        let error = victim.receive().unwrap_err();
        assert!(matches!(error, MessageError::Ended(ConnectionError::Lost)), "{error}");
        let error = victim.send(b"late").unwrap_err();
        assert!(matches!(error, MessageError::Ended(ConnectionError::Lost)), "{error}");
    });
}

/// A thread sleeps in `receive` while the program, in another one, drops the last use of the peer.
#[test]
fn a_sleeping_receiver_wakes_when_the_peer_is_gone() {
    on_each(|rig| {
        let (victim, peer) = rig.channels(Options::new());
        let victim = Messages::new(victim, &rig.pool, Options::new()).unwrap();
        thread::scope(|threads| {
            let receivers = [(); 3].map(|()| threads.spawn(|| victim.receive().unwrap_err()));
            drop(peer);
            for receiver in receivers {
                let error = receiver.join().unwrap();
                assert!(matches!(error, MessageError::Ended(ConnectionError::Lost)), "{error}");
            }
        });
    });
}

#[test]
fn a_peer_that_breaks_the_protocol_ends_the_connection() {
    on_each(|rig| {
        let (victim, mut peer) = rig.channels(Options::new());
        let mut victim = Stream::new(victim, &rig.pool, Options::new()).unwrap();
        // The hello and the close frame of the victim find receives.
        let mut memory = [(); 2].map(|()| rig.pool.allocate(4096).unwrap());
        let garbage = garbage(&rig);
        let error = thread::scope(|threads| {
            let reads = threads.spawn(|| victim.read(&mut [0; 8]).unwrap_err());
            peer.send_from(&garbage).unwrap();
            memory.iter_mut().for_each(|memory| drop(peer.receive_into(memory)));
            reads.join().unwrap()
        });
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    });
}

/// The number of frames with data that a peer accepts.
pub(super) const CREDIT: u32 = 16;

/// Receives the hello of the victim, and sends that of a peer.
pub(super) fn open(rig: &Rig, peer: &mut Channel) {
    peer.receive_into(&mut rig.pool.allocate(4096).unwrap()).unwrap();
    peer.send_from(&hello(rig, Mode::Messages)).unwrap();
}

/// The hello of a peer.
pub(super) fn hello(rig: &Rig, mode: Mode) -> Buffer {
    let hello = Hello {
        version: Hello::VERSION,
        mode,
        fetches: true,
        receive_bytes: 4096,
        max_message: 1 << 20,
        calls: 0,
    };
    frame(rig, Body::Hello(hello))
}

/// The memory of a frame without bytes of a message.
pub(super) fn frame(rig: &Rig, body: Body) -> Buffer {
    frame_after(rig, 0, body)
}

/// The same after that number of messages was fetched.
pub(super) fn frame_after(rig: &Rig, fetched: u32, body: Body) -> Buffer {
    let limits = Limits { receives: CREDIT, bytes: 1 << 20, fetched };
    let header = Frame::new(limits, body).encode();
    let mut frame = rig.pool.allocate(header.as_bytes().len()).unwrap();
    frame.copy_from_slice(header.as_bytes());
    frame
}

#[test]
fn an_offer_of_memory_that_was_not_lent_ends_the_connection() {
    on_each(|rig| {
        let (victim, mut peer) = rig.channels(Options::new());
        let victim = Messages::new(victim, &rig.pool, Options::new()).unwrap();
        thread::scope(|threads| {
            let receives = threads.spawn(|| victim.receive().unwrap_err());
            open(&rig, &mut peer);
            // The address is not memory that the peer has lent.
            let source = Remote { va: 4096, rkey: 7.into() };
            let offer = Body::Offer { role: Role::Message, length: 4096, source };
            peer.send_from(&frame(&rig, offer)).unwrap();
            let error = receives.join().unwrap();
            assert!(matches!(error, MessageError::Ended(ConnectionError::Lost)), "{error}");
        });
    });
}

/// Makes each poll of this thread find a credit frame of the peer. The peer first receives the acknowledgement of the one
/// before.
fn flood(mut peer: Channel, credit: Buffer, mut memory: Buffer, is_first: bool) {
    at_next_poll(move || {
        if !is_first {
            peer.receive_into(&mut memory).unwrap();
        }
        peer.send_from(&credit).unwrap();
        flood(peer, credit, memory, false);
    });
}

#[test]
fn a_peer_that_sends_frames_without_end_does_not_prolong_a_call() {
    must_end(|| {
        let rig = Rig::of(faulty("soft0"), Wait::Sleep).within(Duration::from_millis(20));
        let (victim, mut peer) = rig.channels(Options::new());
        let victim = Messages::new(victim, &rig.pool, Options::new()).unwrap();
        open(&rig, &mut peer);
        flood(peer, frame(&rig, Body::Credit), rig.pool.allocate(4096).unwrap(), true);
        let error = victim.receive().unwrap_err();
        assert!(matches!(error, MessageError::TimedOut { .. }), "{error}");
        at_next_poll(|| ());
    });
}

/// Its close frame never completes, because the peer has no receives.
#[test]
fn a_peer_that_receives_nothing_does_not_keep_a_broken_connection() {
    on_each(|rig| {
        let options = Options::new().linger(Duration::from_millis(20));
        let (victim, mut peer) = rig.channels(options);
        let victim = Messages::new(victim, &rig.pool, options).unwrap();
        let garbage = garbage(&rig);
        thread::scope(|threads| {
            let receives = threads.spawn(|| victim.receive().unwrap_err());
            peer.send_from(&garbage).unwrap();
            let error = receives.join().unwrap();
            assert!(matches!(error, MessageError::Ended(ConnectionError::Frame(_))), "{error}");
        });
    });
}

#[test]
fn two_kinds_of_connections_do_not_talk_to_each_other() {
    once(|rig| {
        let (one, other) = rig.channels(Options::new());
        let one = Messages::new(one, &rig.pool, Options::new()).unwrap();
        let mut other = Stream::new(other, &rig.pool, Options::new()).unwrap();
        let reads = thread::spawn(move || other.read(&mut [0; 8]).unwrap_err());
        let error = one.receive().unwrap_err();
        assert!(matches!(error, MessageError::Ended(_)), "{error}");
        assert_ne!(reads.join().unwrap().kind(), ErrorKind::TimedOut);
    });
}

#[test]
fn short_queues_and_wrong_options_are_refused() {
    once(|rig| {
        let (one, _other) = rig.channels(short());
        let error = Stream::new(one, &rig.pool, Options::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("with `fit`"), "{error}");
        let (one, _other) = rig.channels(Options::new());
        let error = Messages::new(one, &rig.pool, Options::new().receives(0)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn all_memory_returns_to_the_pool() {
    on_each(|rig| {
        let (client, server) = rig.messages(short());
        client.send(&bytes(100)).unwrap();
        let message = server.receive().unwrap().unwrap();
        thread::scope(|threads| {
            threads.spawn(|| client.finish().unwrap());
            server.finish().unwrap();
        });
        drop((client, server, message));
        while rig.pool.usage().buffers > 0 {
            thread::yield_now();
        }
    });
}

/// Waits until the pool has only that many buffers in use. Returns the number of their bytes.
fn returned(rig: &Rig, buffers: usize) -> usize {
    while rig.pool.usage().buffers > buffers {
        thread::yield_now();
    }
    assert_eq!(rig.pool.usage().buffers, buffers);
    rig.pool.usage().used_bytes
}

/// Overwrites memory that the pool has free.
fn overwrite(rig: &Rig) {
    let mut free: Vec<_> = (0..100).map(|_| rig.pool.allocate(32 << 10).unwrap()).collect();
    free.iter_mut().for_each(|buffer| buffer.fill(0xee));
}

/// Receives a message of each kind. Two have no memory of the pool, one is a copy, one has the memory where it arrived,
/// and one arrives in several frames. One is fetched if the ends lend. The last two are a reply and a request. The server
/// finishes.
fn keep(client: &Messages, server: &Messages) -> Vec<Message> {
    let lengths = [0, 10, 1000, 20_000, 100_000, 300_000];
    let receive = || server.receive().unwrap().unwrap();
    let mut kept: Vec<_> = thread::scope(|threads| {
        threads.spawn(|| lengths.map(|length| client.send(&bytes(length)).unwrap()));
        lengths.map(|_| receive()).into()
    });
    thread::scope(|threads| {
        threads.spawn(|| receive().reply(&bytes(20_000)).unwrap());
        kept.push(client.call(b"a question").unwrap());
        let finishes = threads.spawn(|| {
            let request = receive();
            server.finish().unwrap();
            request
        });
        client.call(&bytes(20_000)).unwrap_err();
        kept.push(finishes.join().unwrap());
    });
    kept
}

#[test]
fn kept_messages_keep_only_their_own_memory_after_the_end() {
    let cut_off = Options::new().linger(Duration::ZERO).offer_bytes(0);
    for (options, is_clean) in [(Options::new(), true), (cut_off, false)] {
        on_each(move |rig| {
            rig.pool.grow(4 << 20).unwrap();
            let (client, server) = rig.messages(options);
            let kept = keep(&client, &server);
            if is_clean {
                client.finish().unwrap();
            } else {
                // The server has memory for a part of it.
                client.post(&vec![7; 3 << 20]).unwrap();
            }
            drop((client, server));
            // Three messages have a frame of 32 KiB, and three have their own length.
            let used = returned(&rig, 6);
            assert!(used < 500_000, "{used}");
            overwrite(&rig);
            for kept in &kept {
                assert!(**kept == bytes(kept.len())[..], "{}", kept.len());
            }
            drop(kept);
            returned(&rig, 0);
        });
    }
}

/// Another thread releases a chunk while the connection ends.
#[test]
fn kept_chunks_keep_only_their_own_memory_after_the_end() {
    for (linger, is_clean) in [(Duration::from_secs(5), true), (Duration::ZERO, false)] {
        on_each(move |rig| {
            let (mut client, mut server) = rig.streams(Options::new().linger(linger));
            let mut chunks = Vec::new();
            for text in ["first", "second", "third"] {
                client.write_all(text.as_bytes()).unwrap();
                chunks.push(server.read_chunk().unwrap().unwrap());
            }
            client.write_all(b"unread").unwrap();
            if is_clean {
                thread::scope(|threads| {
                    threads.spawn(|| client.shutdown().unwrap());
                    server.shutdown().unwrap();
                });
            }
            let third = chunks.pop();
            thread::scope(|threads| {
                threads.spawn(|| drop(third));
                drop((client, server));
            });
            // Each chunk has a frame of 32 KiB.
            let used = returned(&rig, 2);
            assert!(used < 66_000, "{used}");
            overwrite(&rig);
            assert_eq!(*chunks[1], *b"second");
            // Its memory is freed although the other chunk keeps the session.
            drop(chunks.pop());
            returned(&rig, 1);
            assert_eq!(*chunks[0], *b"first");
            drop(chunks);
            returned(&rig, 0);
        });
    }
}
