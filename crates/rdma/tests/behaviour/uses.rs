//! Typical programs with channels: `?` with boxed errors, a ring with one deadline, a struct with a channel and its
//! memory, and a custom loop.
#![cfg(feature = "soft")]

use std::collections::VecDeque;
use std::error::Error;
use std::thread;
use std::time::Duration;

use rdma::channel::Late;
use rdma::prelude::*;
use rustix::event::{PollFd, PollFlags, poll};

/// The time limit of any wait, enough for the slowest machine.
const WAIT: Duration = Duration::from_secs(60);

type Failure = Box<dyn Error + Send + Sync>;

/// Returns a domain, and two channels that are connected to each other.
fn connected() -> Result<(ProtectionDomain, Channel, Channel), Failure> {
    let pd = open_device("soft0")?.allocate_pd()?;
    let access = AccessFlags::new().with_local_write().with_remote_read().with_remote_atomic();
    let prepare = || pd.create_channel().access(access).max_send_wr(16).max_inline_data(64).build();
    let (here, there) = (prepare()?, prepare()?);
    let end = here.endpoint();
    let (here, there) = (here.handshake(there.endpoint())?, there.handshake(end)?);
    Ok((pd, here, there))
}

/// Returns memory of `length` bytes that a peer may read, and change by atomics.
fn table(pd: &ProtectionDomain, length: usize) -> Result<SharedRegion, Failure> {
    let access = AccessFlags::new().with_local_write().with_remote_read().with_remote_atomic();
    Ok(pd.allocate_shared_region(length, access)?)
}

#[test]
fn ten_lines_for_each_end_talk() -> Result<(), Failure> {
    fn client(address: std::net::SocketAddr) -> Result<Vec<u8>, Failure> {
        let pd = open_device("soft0")?.allocate_pd()?;
        let mut channel = Channel::connect(address, &pd)?;
        let mut region = pd.allocate_region(64)?;
        region.fill(7);
        channel.send_from(&region)?;
        let length = channel.within(WAIT).receive_into(&mut region)?;
        Ok(region[..length].to_vec())
    }
    let pd = open_device("soft0")?.allocate_pd()?;
    let mut listener = pd.create_channel().listen("127.0.0.1:0")?;
    let address = listener.local_addr();
    thread::scope(|threads| {
        let client = threads.spawn(move || client(address));
        let mut channel = listener.incoming(Some(WAIT))?.accept(&[])?;
        let mut region = pd.allocate_region(64)?;
        assert_eq!(channel.within(WAIT).receive_into(&mut region)?, 64);
        assert!(region.iter().all(|&byte| byte == 7));
        channel.send_from(region.get_ref(0, 3).ok_or("too short")?)?;
        assert_eq!(client.join().map_err(|_| "the client panicked")??, [7; 3]);
        Ok(())
    })
}

/// Reads the table in parts, with as many reads in flight as the memory has room for. `?` converts the errors of a
/// refused post and of a timed-out wait into boxed errors, though both borrow memory.
fn sum(
    channel: &mut Channel,
    memory: &mut OwnedRegion,
    table: RemoteMemoryRegion,
    piece: usize,
) -> Result<u64, Box<dyn Error>> {
    let sum = channel.scope_deadline(WAIT, |s| {
        let mut places = (0..table.length() / piece).map(|number| table.sub_region(number * piece));
        let mut ring = VecDeque::new();
        for (slice, place) in memory.as_slice_mut().into_chunks(piece).zip(places.by_ref()) {
            ring.push_back(s.read_into(slice, place.ok_or("outside of the table")?)?);
        }
        let mut sum = 0;
        while let Some(first) = ring.pop_front() {
            let (slice, _) = first.wait(WAIT)?.ok()?;
            sum += slice.iter().map(|&byte| u64::from(byte)).sum::<u64>();
            if let Some(place) = places.next() {
                ring.push_back(s.read_into(slice, place.ok_or("outside of the table")?)?);
            }
        }
        Ok::<_, Box<dyn Error>>(sum)
    })?;
    Ok(sum)
}

#[test]
fn a_ring_of_16_reads_has_one_deadline() -> Result<(), Failure> {
    let (pd, mut channel, _peer) = connected()?;
    let table = table(&pd, 100 * 64)?;
    for piece in 0..100 {
        table.write(piece * 64, &[1; 64])?;
    }
    let mut memory = pd.allocate_region(16 * 64)?;
    let sum =
        sum(&mut channel, &mut memory, table.remote(), 64).map_err(|error| error.to_string())?;
    assert_eq!(sum, 6400);
    Ok(())
}

#[test]
fn an_operation_past_the_deadline_is_a_timeout_in_a_boxed_error() -> Result<(), Failure> {
    let (pd, mut channel, _peer) = connected()?;
    let mut memory = pd.allocate_region(8)?;
    let ended = channel.scope_deadline(Duration::from_millis(20), |s| {
        s.receive_into(memory.as_slice_mut())?.wait(WAIT)?; // no message arrives
        Ok::<_, Box<dyn Error>>(())
    });
    let error = ended.map_err(ScopeError::flatten).err().ok_or("a message without a sender")?;
    let timeout = error.downcast_ref::<TransportError>();
    assert!(matches!(timeout, Some(TransportError::Timeout { .. })), "{error}");
    Ok(())
}

#[test]
fn a_boxed_error_may_be_one_for_threads() -> Result<(), Failure> {
    fn receive(channel: &mut Channel, region: &mut OwnedRegion) -> Result<(), Failure> {
        channel.scope(|s| {
            s.receive_into(region.as_slice_mut())?.done(WAIT)?;
            Ok::<_, TransportError>(())
        })?;
        Ok(())
    }
    let (pd, mut channel, mut peer) = connected()?;
    let mut region = pd.allocate_region(4)?;
    thread::scope(|threads| {
        let received = threads.spawn(|| receive(&mut channel, &mut region));
        peer.send_inline(b"four")?;
        received.join().map_err(|_| "the receiver panicked")?
    })?;
    assert_eq!(&region[..], b"four");
    Ok(())
}

/// Waits again after each timeout, but not on a channel that is closed.
fn retry<B>(
    mut handle: InFlight<'_, B>,
    mut late: impl FnMut() -> Result<(), TransportError>,
) -> Result<B, TransportError> {
    loop {
        match handle.wait(Duration::from_millis(1)) {
            Ok(done) => return done.ok().map(|(buf, _)| buf),
            Err(Late { handle: again, error: TransportError::Timeout { .. }, .. }) => {
                handle = again;
                late()?;
            }
            Err(late) => return Err(late.error),
        }
    }
}

#[test]
fn a_handle_that_is_late_is_asked_again() -> Result<(), Failure> {
    let (pd, mut channel, mut peer) = connected()?;
    let mut region = pd.allocate_region(4)?;
    let mut looks = 0;
    channel.scope(|s| {
        let handle = s.receive_into(region.as_slice_mut())?;
        let message = retry(handle, || {
            looks += 1;
            if looks == 2 { peer.send_inline(b"late") } else { Ok(()) }
        })?;
        assert_eq!(&message[..], b"late");
        Ok::<_, TransportError>(())
    })?;
    assert!(looks >= 2);
    Ok(())
}

#[test]
fn a_handle_is_not_asked_again_on_a_channel_that_is_closed() -> Result<(), Failure> {
    let (pd, mut channel, _peer) = connected()?;
    let mut region = pd.allocate_region(4)?;
    let ended = channel.scope(|s| {
        let handle = s.receive_into(region.as_slice_mut())?;
        s.close();
        retry(handle, || Ok(())).map(drop)
    });
    let error = ended.map_err(ScopeError::flatten).err().ok_or("a message without a sender")?;
    assert!(matches!(error, TransportError::WorkError(_)), "{error}");
    Ok(())
}

/// A closure of a scope borrows only the fields that it names.
struct Client {
    channel: Channel,
    memory: OwnedRegion,
    table: RemoteMemoryRegion,
}

impl Client {
    fn get(&mut self) -> Result<u64, Failure> {
        let word = self.channel.scope(|s| {
            let read = s.read_into(self.memory.as_slice_mut(), self.table)?;
            let (slice, _) = read.done(WAIT)?;
            Ok::<_, Failure>(u64::from_ne_bytes(slice[..8].try_into()?))
        })?;
        Ok(word)
    }

    fn count(&mut self) -> Result<u64, TransportError> {
        self.channel.fetch_add(self.table, 1)
    }
}

#[test]
fn a_struct_with_a_channel_and_memory_is_borrowed_field_by_field() -> Result<(), Failure> {
    let (pd, channel, _peer) = connected()?;
    let table = table(&pd, 8)?;
    let memory = pd.allocate_region(8)?;
    let mut client = Client { channel, memory, table: table.remote() };
    for number in 0..3 {
        assert_eq!(client.get()?, number);
        assert_eq!(client.count()?, number);
    }
    Ok(())
}

#[test]
fn a_loop_of_ones_own_sleeps_on_the_file_of_a_scope() -> Result<(), Failure> {
    let (pd, mut channel, mut peer) = connected()?;
    let mut region = pd.allocate_region(4)?;
    thread::scope(|threads| {
        let sent = threads.spawn(move || peer.send_inline(b"wake"));
        channel.scope(|s| {
            let mut handle = s.receive_into(region.as_slice_mut())?;
            let (message, _) = loop {
                handle = match handle.poll() {
                    Progress::Done(done) => break done.ok()?,
                    Progress::Pending(again) => again,
                    Progress::Dead(late) => return Err(late.error.into()),
                };
                if s.arm()? == Armed::Sleep {
                    let file = s.waitable().ok_or("a channel that spins")?;
                    poll(&mut [PollFd::new(&file, PollFlags::IN)], None)?;
                }
            };
            assert_eq!(&message[..], b"wake");
            Ok::<_, Failure>(())
        })?;
        Ok(sent.join().map_err(|_| "the sender panicked")??)
    })
}

/// For owned buffers, the value that a refusal returns is `'static`, so `?` accepts it.
#[test]
fn a_server_of_owned_buffers_is_a_loop_over_its_events() -> Result<(), Failure> {
    fn serve(mut server: Server) -> Result<usize, Failure> {
        let mut messages = 0;
        while let Some(event) = server.next(Some(WAIT))? {
            match event {
                ServerEvent::Message { peer, buffer, length, .. } => {
                    server.send(peer, buffer, length)?;
                    messages += 1;
                }
                ServerEvent::Left { .. } => break,
                _ => {}
            }
        }
        Ok(messages)
    }
    let pd = open_device("soft0")?.allocate_pd()?;
    let server = Server::bind("127.0.0.1:0", &pd, 4)?;
    let address = server.local_addr();
    let serving = thread::spawn(move || serve(server));
    let mut channel = pd.create_channel().max_inline_data(8).connect(address)?.0;
    let mut answer = pd.allocate_region(8)?;
    for text in [b"one", b"two"] {
        channel.send_inline(text)?;
        let length = channel.within(WAIT).receive_into(&mut answer)?;
        assert_eq!(&answer[..length], text);
    }
    drop(channel);
    assert_eq!(serving.join().map_err(|_| "the server panicked")??, 2);
    Ok(())
}
