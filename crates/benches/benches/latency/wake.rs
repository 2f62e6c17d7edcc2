//! Time to wake a sleeping thread: by a message of a channel, by an eventfd, and by a pipe.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion};
use rdma_channel::{Channel, TransportError, Wait, prelude::*};
use rdma_mem::ProtectionDomain;
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::pipe::pipe;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::end::Outcome;

const WAIT: Duration = Duration::from_secs(30);
/// The cores of the two threads.
const PLACES: [(&str, [usize; 2]); 2] = [("one core", [0, 0]), ("two cores", [0, 1])];

#[derive(Clone, Copy)]
enum Sleeper {
    Channel,
    /// With a limit for each sleep, as in a channel, or without a limit.
    Eventfd(Option<Duration>),
    Pipe(Option<Duration>),
}

const SLEEPERS: [(&str, Sleeper); 4] = [
    ("channel", Sleeper::Channel),
    ("eventfd and poll(2)", Sleeper::Eventfd(None)),
    ("eventfd and poll(2) with a limit", Sleeper::Eventfd(Some(WAIT))),
    ("pipe and poll(2) with a limit", Sleeper::Pipe(Some(WAIT))),
];

/// Measures round trips in which each thread sleeps until the other one wakes it.
pub(crate) fn measure(criterion: &mut Criterion, pd: &ProtectionDomain) -> Outcome<()> {
    let mut group = criterion.benchmark_group("wake and be woken");
    let mut failure = None;
    for (place, cores) in PLACES {
        for (name, sleeper) in SLEEPERS {
            group.bench_function(BenchmarkId::new(name, place), |bencher| {
                bencher.iter_custom(|rounds| {
                    let took = match sleeper {
                        Sleeper::Channel => by_channel(pd, cores, rounds),
                        Sleeper::Eventfd(limit) => by_eventfd(cores, limit, rounds),
                        Sleeper::Pipe(limit) => by_pipe(cores, limit, rounds),
                    };
                    took.unwrap_or_else(|error| {
                        failure.get_or_insert(error);
                        // Records no measurement, but lets criterion go on.
                        Duration::from_nanos(rounds)
                    })
                });
            });
        }
    }
    group.finish();
    failure.map_or(Ok(()), Err)
}

fn by_channel(pd: &ProtectionDomain, cores: [usize; 2], rounds: u64) -> Outcome<Duration> {
    let prepare = || pd.create_channel().wait(Wait::Sleep).build();
    let (here, there) = (prepare()?, prepare()?);
    let (here_end, there_end) = (here.endpoint(), there.endpoint());
    let (here, there) = (here.handshake(there_end)?, there.handshake(here_end)?);
    game(cores, here, there, move |channel, begins, barrier| {
        play_messages(channel, begins, rounds, barrier)
    })
}

/// Sends and receives in turn; each receive is posted before the peer may send.
fn play_messages(
    mut channel: Channel,
    begins: bool,
    rounds: u64,
    barrier: &Barrier,
) -> Outcome<Duration> {
    const ROOM: ReceiveWorkRequest<'static, 'static> = ReceiveWorkRequest::only_immediate();
    const NUMBER: SendWorkRequest<'static, 'static> = SendWorkRequest::only_immediate(1);
    let took = channel.scope(|s| {
        let mut next = s.post_receive(ROOM)?;
        barrier.wait();
        let begin = Instant::now();
        for _ in 0..rounds {
            let received = next;
            next = s.post_receive(ROOM)?;
            if begins {
                drop(s.post_send(NUMBER)?);
            }
            received.wait(WAIT)?;
            if !begins {
                drop(s.post_send(NUMBER)?);
            }
        }
        let took = begin.elapsed();
        barrier.wait();
        s.close(); // ends the last receive, too
        Ok::<_, TransportError>(took)
    });
    took.map_err(|error| error.to_string().into())
}

fn by_eventfd(cores: [usize; 2], limit: Option<Duration>, rounds: u64) -> Outcome<Duration> {
    let file = || eventfd(0, EventfdFlags::NONBLOCK).map(Arc::new);
    let (one, other) = (file()?, file()?);
    let here = (Arc::clone(&one), Arc::clone(&other));
    game(cores, here, (other, one), move |(own, peer), begins, barrier| {
        play_events(&own, &peer, limit, begins, rounds, barrier)
    })
}

/// The mechanism of events on a software device.
fn by_pipe(cores: [usize; 2], limit: Option<Duration>, rounds: u64) -> Outcome<Duration> {
    let ((one, to_one), (other, to_other)) = (pipe()?, pipe()?);
    game(cores, (one, to_other), (other, to_one), move |(own, peer), begins, barrier| {
        play_events(&own, &peer, limit, begins, rounds, barrier)
    })
}

fn play_events(
    own: &OwnedFd,
    peer: &OwnedFd,
    limit: Option<Duration>,
    begins: bool,
    rounds: u64,
    barrier: &Barrier,
) -> Outcome<Duration> {
    let limit = limit.map(Timespec::try_from).transpose()?;
    let wake = || rustix::io::write(peer, &1_u64.to_ne_bytes());
    barrier.wait();
    let begin = Instant::now();
    for _ in 0..rounds {
        if begins {
            wake()?;
        }
        poll(&mut [PollFd::new(own, PollFlags::IN)], limit.as_ref())?;
        rustix::io::read(own, &mut [0; 8])?;
        if !begins {
            wake()?;
        }
    }
    let took = begin.elapsed();
    barrier.wait();
    Ok(took)
}

/// Runs `play` in two threads on these cores. Returns the time that the thread that begins took.
fn game<T: Send + 'static>(
    cores: [usize; 2],
    here: T,
    there: T,
    play: impl Fn(T, bool, &Barrier) -> Outcome<Duration> + Send + Sync + 'static,
) -> Outcome<Duration> {
    let shared = Arc::new((Barrier::new(2), play));
    let players = [(here, true), (there, false)].into_iter().zip(cores);
    let threads = players.map(|((end, begins), core)| {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            stay_on_core(core)?;
            let (barrier, play) = &*shared;
            play(end, begins, barrier)
        })
    });
    let threads: Vec<_> = threads.collect();
    let played =
        threads.into_iter().map(|thread| thread.join().map_err(|_| "a player panicked")?);
    let took: Vec<_> = played.collect::<Outcome<_>>()?;
    Ok(took[0])
}

/// Keeps this thread on the `n`th of the cores that it may use, if there are that many.
fn stay_on_core(n: usize) -> Outcome<()> {
    let allowed = sched_getaffinity(None)?;
    let core = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).nth(n);
    if let Some(core) = core {
        let mut only = CpuSet::new();
        only.set(core);
        sched_setaffinity(None, &only)?;
    }
    Ok(())
}
