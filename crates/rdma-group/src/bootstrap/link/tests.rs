use rustix::net::sockopt;

use super::*;
use crate::bootstrap::tests::pair;

const LIMIT: Duration = Duration::from_secs(60);

/// Returns the header of a frame. Its kind and length may be invalid.
pub(crate) fn header(version: u16, kind: u8, length: u32) -> Vec<u8> {
    [&MAGIC[..], &version.to_le_bytes(), &[kind, 0], &length.to_le_bytes()].concat()
}

/// Returns headers of frames that a rank refuses at once, and the reason.
pub(crate) fn invalid_headers() -> [(Vec<u8>, String); 4] {
    let (join, theirs) = (Kind::Join as u8, VERSION + 1);
    let version = format!("the other end has version {theirs}, but this end has {VERSION}: use");
    [
        (b"GET / HTTP/1".to_vec(), "the process at the other end is not of a group".to_owned()),
        (header(theirs, join, 0), version),
        (
            header(VERSION, join, u32::MAX),
            "a frame of 4294967295 bytes, 1000 are allowed".to_owned(),
        ),
        (header(VERSION, 9, 0), "a frame of the unknown kind 9".to_owned()),
    ]
}

/// Receives until the bytes that have been sent are refused. Returns the reason.
fn refused(link: &mut Link) -> String {
    let error = link.receive(Instant::now() + LIMIT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    error.to_string()
}

#[test]
fn an_invalid_header_is_refused_before_the_frame_is_complete() {
    for (header, expected) in invalid_headers() {
        for root in [true, false] {
            let mut ends = pair(&Arc::new(Keys::new(b"")));
            if root {
                ends.reverse();
            }
            let [sender, receiver] = &mut ends;
            sender.write(&header, Instant::now() + LIMIT).unwrap();
            let error = refused(receiver);
            assert!(error.starts_with(&expected), "{error}");
        }
    }
}

/// Returns the frame that an end sends, with the nonces of another rank and of rank 0.
fn frame(is_root: bool, nonces: [Nonce; 2]) -> Vec<u8> {
    let [mut root, mut other] = pair(&Arc::new(Keys::new(b"secret")));
    let (sender, receiver) =
        if is_root { (&mut root, &mut other) } else { (&mut other, &mut root) };
    sender.agree(nonces);
    sender.send(Kind::Goodbye, b"payload", Instant::now() + LIMIT).unwrap();
    sender.stream.shutdown(Shutdown::Write).unwrap();
    let mut bytes = Vec::new();
    receiver.stream.set_nonblocking(false).unwrap();
    receiver.stream.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_frame_with_other_nonces_bytes_or_direction_is_refused() {
    let nonces = [[1; 16], [2; 16]];
    let receive = |is_root, bytes: &[u8]| {
        let [mut root, mut other] = pair(&Arc::new(Keys::new(b"secret")));
        let (receiver, sender) =
            if is_root { (&mut root, &mut other) } else { (&mut other, &mut root) };
        receiver.agree(nonces);
        sender.write(bytes, Instant::now() + LIMIT).unwrap();
        receiver.receive(Instant::now() + LIMIT)
    };
    for is_root in [true, false] {
        let valid = frame(!is_root, nonces);
        assert_eq!(receive(is_root, &valid).unwrap(), (Kind::Goodbye, b"payload".to_vec()));
        let mut changed = valid.clone();
        changed[HEADER] ^= 1;
        let reflected = frame(is_root, nonces);
        let [of_another_rank, of_another_root] =
            [[[9; 16], nonces[1]], [nonces[0], [9; 16]]].map(|nonces| frame(!is_root, nonces));
        for invalid in [changed, reflected, of_another_rank, of_another_root] {
            let error = receive(is_root, &invalid).unwrap_err();
            assert!(error.to_string().contains("another secret"), "{error}");
        }
    }
}

#[test]
fn the_kernel_probes_the_other_end_of_a_link() {
    for Link { stream, .. } in pair(&Arc::new(Keys::new(b""))) {
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        let user_timeout = sockopt::tcp_user_timeout(&stream).unwrap();
        assert_eq!(user_timeout, KeepAlive::within(SILENCE).user_timeout_ms);
    }
}
