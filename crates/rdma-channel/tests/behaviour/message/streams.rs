//! Streams carry all bytes in order.

use std::io::{BufRead as _, ErrorKind, IoSlice, Read, Write};
use std::thread;
use std::time::Duration;

use rdma_channel::message::Options;

use super::rig::{bytes, on_each, once, short};

/// Writes the bytes in pieces of growing lengths.
fn write_in_pieces(writer: &mut impl Write, mut rest: &[u8]) {
    for length in 1.. {
        let (piece, later) = rest.split_at(length.min(rest.len()));
        writer.write_all(piece).unwrap();
        rest = later;
        if rest.is_empty() {
            return writer.flush().unwrap();
        }
    }
}

#[test]
fn bytes_arrive_in_order_in_both_directions_at_once() {
    on_each(|rig| {
        for options in [Options::new(), short()] {
            let (client, server) = rig.streams(options);
            let all = bytes(50_000);
            thread::scope(|threads| {
                for (mut reader, mut writer) in [client.into_split(), server.into_split()] {
                    let all = &all;
                    threads.spawn(move || {
                        write_in_pieces(&mut writer, all);
                        writer.shutdown().unwrap();
                    });
                    threads.spawn(move || {
                        let mut found = Vec::new();
                        reader.read_to_end(&mut found).unwrap();
                        assert!(found == *all);
                        assert_eq!(reader.read(&mut [0; 8]).unwrap(), 0);
                    });
                }
            });
        }
    });
}

#[test]
fn lines_slices_and_chunks_are_read() {
    once(|rig| {
        let (mut client, mut server) = rig.streams(Options::new());
        let slices = [IoSlice::new(b"a line"), IoSlice::new(b"\n"), IoSlice::new(b"rest")];
        assert_eq!(client.write_vectored(&slices).unwrap(), 11);
        let mut line = String::new();
        server.read_line(&mut line).unwrap();
        assert_eq!(line, "a line\n");
        let mut first = [0; 1];
        server.read_exact(&mut first).unwrap();
        let rest = server.read_chunk().unwrap().unwrap();
        client.write_all(b"more").unwrap();
        let more = server.read_chunk().unwrap().unwrap();
        client.shutdown().unwrap();
        assert!(server.read_chunk().unwrap().is_none());
        // Chunks outlive the stream, and may be dropped in any order.
        drop(server);
        assert_eq!((&first, &*rest, &*more), (b"r", &b"est"[..], &b"more"[..]));
        drop(more);
        drop(rest);
    });
}

#[test]
fn a_read_or_a_write_that_exceeds_its_limit_loses_nothing() {
    on_each(|rig| {
        let (mut client, mut server) =
            rig.within(Duration::from_millis(20)).streams(short().window_bytes(512));
        assert_eq!(client.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::TimedOut);
        let (all, mut written) = (bytes(5000), 0);
        let error = loop {
            match client.write(&all[written..]) {
                Ok(count) => written += count,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let mut found = vec![0; written];
        server.read_exact(&mut found).unwrap();
        assert!(found == all[..written]);
        while let Err(error) = client.write_all(b"x") {
            assert_eq!(error.kind(), ErrorKind::TimedOut);
        }
        server.read_exact(&mut found[..1]).unwrap();
        assert_eq!(found[0], b'x');
    });
}
