//! Tasks of tokio in the time of a network.

use std::future::Future;
use std::mem::{self, ManuallyDrop};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::task::{Poll, Waker};
use std::thread::{self, ThreadId};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::task::yield_now;
use tokio::time::{Instant, advance, sleep_until};

use super::Network;
use crate::sync::locked_to_wait as locked;

/// The clock of the tasks that run on a network, if there are any.
#[derive(Debug, Default)]
pub(super) struct Current(Mutex<Option<Arc<Clock>>>);

/// A clock that tokio and a network share. Time advances only when all tasks wait. Completion channels are real files,
/// which the runtime checks between two events.
#[derive(Debug)]
struct Clock {
    /// The network, whose devices stay installed when this is dropped.
    network: ManuallyDrop<Network>,
    /// The thread that runs all tasks.
    thread: ThreadId,
    /// The network's time at the start.
    begin: Duration,
    /// tokio's time at the start.
    start: OnceLock<Instant>,
    /// Wakes the driver when all other tasks wait, if the clock then differs from this one.
    driver: Mutex<Option<(Option<Moment>, Waker)>>,
    /// The number of sleeps so far.
    sleeps: AtomicU64,
    /// The numbers of sleeps that tasks wait for, with the times at which they end.
    sleepers: Mutex<Vec<(u64, Duration, Waker)>>,
    threads: Threads,
}

/// The facts that decide how the driver advances the time. All times are measured from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Moment {
    now: Duration,
    /// The time of the network's next event.
    event: Option<Duration>,
    /// The earliest time at which a task wakes.
    sleeper: Option<Duration>,
}

/// The threads of blocking tasks. They wait until the runtime lets them run, and end when they have
/// no further task.
#[derive(Debug, Default)]
struct Threads {
    state: Mutex<ThreadsState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct ThreadsState {
    /// The number of threads that were requested and have not started.
    requested: usize,
    /// The number of threads that have started and not ended.
    count: usize,
    may_run: bool,
}

/// The time limit for the start of a thread, in the machine's time. tokio's hooks do not report that the system has
/// refused one.
const START: Duration = Duration::from_secs(60);

impl Network {
    /// Runs a future, and the tasks that it spawns, on one thread, with one clock: tokio's time is this network's. So
    /// time limits, intervals and heartbeats of a program, and of `rdma-async`, take no real time.
    ///
    /// When no task can continue, the time advances to the network's next event or to the next timer of tokio,
    /// whichever is earlier. tokio's timers are accurate to a millisecond; [`sleep`](Self::sleep) is exact. A future that
    /// waits for something that never happens makes this call wait forever: use [`tokio::time::timeout`].
    ///
    /// Blocking tasks ([`spawn_blocking`](tokio::task::spawn_blocking)) run one at a time when all other tasks wait.
    /// Until they end, nothing else runs and no time passes, so they do not make runs differ. A blocking task must not
    /// wait for another task.
    ///
    /// Needs the feature `simulation`, which enables tokio's feature `test-util`. So enable it only for tests.
    ///
    /// # Panics
    ///
    /// Panics if this network already runs a future, or if this is called within a runtime of tokio. Also panics if the
    /// runtime cannot be created, because the process has too many files; or if the thread of a blocking task has not
    /// started after a minute, because the system has refused it. A panic of the network, or of a waker that
    /// [`sleep`](Self::sleep) wakes, is a panic of this call.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tokio::time::{Instant, sleep};
    ///
    /// let network = rdma_soft::Network::simulated(7);
    /// let waited = network.block_on(async {
    ///     let start = Instant::now();
    ///     tokio::spawn(sleep(Duration::from_secs(3600))).await.unwrap(); // takes no real time
    ///     start.elapsed()
    /// });
    /// assert_eq!((waited, network.now()), (Duration::from_secs(3600), Duration::from_secs(3600)));
    /// ```
    ///
    /// The crate `rdma-async` has an example with connections.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        // These are dropped in reverse order: threads end, and then tasks while the runtime still has its clock.
        let running = Running::new(self);
        let clock = &running.clock;
        let [names, starts, stops, parks, unparks] = [(); 5].map(|()| Arc::clone(clock));
        let runtime = Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .max_blocking_threads(1)
            .thread_keep_alive(Duration::ZERO)
            // The runtime names a thread before `spawn_blocking` returns.
            .thread_name_fn(move || names.threads.request())
            .on_thread_start(move || starts.threads.start())
            .on_thread_stop(move || stops.threads.stop())
            .on_thread_park(move || parks.park())
            .on_thread_unpark(move || unparks.follow())
            .build();
        #[allow(clippy::expect_used)] // as documented
        let runtime = runtime.expect("a runtime needs files");
        let _released = Released(&clock.threads);
        runtime.block_on(async {
            let start = *clock.start.get_or_init(Instant::now);
            let mut driver = tokio::spawn(drive(Arc::clone(clock), start));
            tokio::select! {
                biased;
                output = future => {
                    driver.abort();
                    output
                }
                Err(ended) = &mut driver => resume_unwind(ended.into_panic()),
            }
        })
    }

    /// Waits until this time has passed in the network. It may be shorter than a millisecond. Other tasks run meanwhile,
    /// within [`block_on`](Self::block_on). Elsewhere, also on another thread, this has the effect of
    /// [`run_for`](Self::run_for).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let network = rdma_soft::Network::simulated(7);
    /// network.block_on(network.sleep(Duration::from_micros(3)));
    /// assert_eq!(network.now(), Duration::from_micros(3));
    /// ```
    pub async fn sleep(&self, time: Duration) {
        let clock = locked(&self.tasks.0).clone();
        let Some(clock) = clock.filter(|clock| clock.thread == thread::current().id()) else {
            return self.run_for(time);
        };
        // The end of a network's time.
        let until = clock.elapsed().saturating_add(time).min(Duration::from_nanos(u64::MAX));
        let number = clock.sleeps.fetch_add(1, Ordering::Relaxed);
        let sleep = Sleep { clock, number };
        std::future::poll_fn(|cx| {
            if sleep.clock.elapsed() >= until {
                return Poll::Ready(());
            }
            sleep.forget();
            locked(&sleep.clock.sleepers).push((number, until, cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}

/// A sleep that a task may wait for.
struct Sleep {
    clock: Arc<Clock>,
    number: u64,
}

impl Sleep {
    fn forget(&self) {
        locked(&self.clock.sleepers).retain(|(number, ..)| *number != self.number);
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.forget();
    }
}

/// A network while it runs a future.
struct Running<'n> {
    network: &'n Network,
    clock: Arc<Clock>,
    /// The setting of the network before.
    steps_on_arming: bool,
}

impl<'n> Running<'n> {
    fn new(network: &'n Network) -> Self {
        let alias = Network { subnet: network.subnet, tasks: Current::default() };
        let clock = Arc::new(Clock {
            network: ManuallyDrop::new(alias),
            thread: thread::current().id(),
            begin: network.now(),
            start: OnceLock::new(),
            driver: Mutex::default(),
            sleeps: AtomicU64::new(0),
            sleepers: Mutex::default(),
            threads: Threads::default(),
        });
        let mut current = locked(&network.tasks.0);
        assert!(current.is_none(), "this network already runs a future");
        *current = Some(Arc::clone(&clock));
        drop(current);
        let steps_on_arming = network.subnet.steps_on_arming();
        network.set_steps_on_arming(false);
        Self { network, clock, steps_on_arming }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.network.set_steps_on_arming(self.steps_on_arming);
        *locked(&self.network.tasks.0) = None;
        // The wakers refer to the runtime, whose hooks refer to the clock.
        *locked(&self.clock.driver) = None;
        locked(&self.clock.sleepers).clear();
    }
}

impl Clock {
    /// Returns the network's time since the start.
    fn elapsed(&self) -> Duration {
        self.network.now() - self.begin
    }

    /// Advances the network to tokio's time, before the tasks run whose timers have expired.
    fn follow(&self) {
        let Some(start) = self.start.get() else { return };
        let behind = start.elapsed().saturating_sub(self.elapsed());
        if !behind.is_zero() {
            self.network.run_for(behind);
        }
    }

    /// Returns what the driver must know to advance the time.
    fn moment(&self) -> Moment {
        let event = self.network.next_event().map(|at| at.saturating_sub(self.begin));
        Moment { now: self.elapsed(), event, sleeper: self.next_sleeper() }
    }

    /// Runs the blocking tasks, or wakes the driver. Called when no task can continue.
    fn park(&self) {
        // The end of a blocking task may have woken tasks, which run before time advances.
        if self.threads.run(START) {
            return;
        }
        let woken = locked(&self.driver)
            .take_if(|(since, _)| since.is_none_or(|since| since != self.moment()));
        if let Some((_, waker)) = woken {
            waker.wake();
        }
    }

    /// Waits until all other tasks wait, and the moment differs from `since`.
    async fn wait(&self, since: Option<Moment>) {
        let mut has_waited = false;
        std::future::poll_fn(|cx| {
            let mut driver = locked(&self.driver);
            if mem::replace(&mut has_waited, true) && driver.is_none() {
                return Poll::Ready(());
            }
            *driver = Some((since, cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    /// Returns the earliest time at which a task wakes.
    fn next_sleeper(&self) -> Option<Duration> {
        locked(&self.sleepers).iter().map(|(_, until, _)| *until).min()
    }

    /// Wakes the tasks that sleep until this time. Returns true if there were any.
    fn wake_sleepers(&self, now: Duration) -> bool {
        let woken: Vec<_> = locked(&self.sleepers).extract_if(.., |it| it.1 <= now).collect();
        let any = !woken.is_empty();
        woken.into_iter().for_each(|(.., waker)| waker.wake());
        any
    }
}

impl Threads {
    /// Counts a thread that is requested, and returns its name.
    fn request(&self) -> String {
        locked(&self.state).requested += 1;
        "blocking".to_owned()
    }

    /// Waits until this thread may run.
    fn start(&self) {
        let mut state = locked(&self.state);
        state.requested -= 1;
        state.count += 1;
        self.changed.notify_all();
        let _state = self.changed.wait_while(state, |state| !state.may_run);
    }

    fn stop(&self) {
        locked(&self.state).count -= 1;
        self.changed.notify_all();
    }

    /// Lets all threads run until they end. Returns true if there were any.
    ///
    /// # Panics
    /// If a thread does not start within this limit.
    fn run(&self, limit: Duration) -> bool {
        let state = locked(&self.state);
        let started = self.changed.wait_timeout_while(state, limit, |state| state.requested > 0);
        let (mut state, waited) = started.unwrap_or_else(PoisonError::into_inner);
        assert!(!waited.timed_out(), "the system has refused the thread of a blocking task");
        if state.count == 0 {
            return false;
        }
        state.may_run = true;
        self.changed.notify_all();
        let ended = self.changed.wait_while(state, |state| state.count > 0);
        ended.unwrap_or_else(PoisonError::into_inner).may_run = false;
        true
    }
}

/// Lets all threads run at any time, once it is dropped.
struct Released<'a>(&'a Threads);

impl Drop for Released<'_> {
    fn drop(&mut self) {
        locked(&self.0.state).may_run = true;
        self.0.changed.notify_all();
    }
}

/// Advances both clocks.
async fn drive(clock: Arc<Clock>, start: Instant) {
    // The network's time when all tasks waited the last time.
    let mut before = None;
    loop {
        // The runtime checks its files and timers, and runs the tasks that these wake. Both calls yield once.
        match clock.elapsed().saturating_sub(start.elapsed()) {
            Duration::ZERO => yield_now().await,
            behind => advance(behind).await,
        }
        clock.wait(None).await;
        // Each poll of an empty completion queue has advanced the network.
        let now = clock.elapsed();
        if clock.wake_sleepers(start.elapsed()) || now > start.elapsed() {
            continue;
        }
        let moment = clock.moment();
        let Moment { event, sleeper, .. } = moment;
        let next = event.into_iter().chain(sleeper).min();
        let tick =
            next.map(|at| at - Duration::from_nanos(u64::from(at.subsec_nanos() % 1_000_000)));
        if tick.is_some_and(|tick| tick <= now) {
            if sleeper.is_some() && sleeper == next {
                clock.network.run_for(next.unwrap_or_default().saturating_sub(now));
            } else {
                clock.network.step();
            }
            continue;
        }
        // A task that receives a completion polls, and so advances the network. If no task has polled
        // since the files were checked, nothing happens before the next tick of tokio's timers.
        if before.replace(now) != Some(now) {
            continue;
        }
        // tokio advances its clock by whole milliseconds.
        let part = now.subsec_nanos() % 1_000_000;
        if part > 0 {
            clock.network.run_for(Duration::from_nanos(u64::from(1_000_000 - part)));
            continue;
        }
        match tick {
            Some(tick) => tokio::select! {
                biased;
                () = clock.wait(Some(moment)) => {}
                () = sleep_until(start + tick) => {}
            },
            None => clock.wait(Some(moment)).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::pin;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Wake};

    use tokio::task::spawn_blocking;
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::LinkModel;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn timers_and_events_share_one_clock() {
        let network = Network::simulated(1);
        network.run_for(SECOND);
        let [a, b] = ["clock-a", "clock-b"]
            .map(|name| crate::Builder::new(name).network(&network).install().unwrap());
        network.set_link_after(5 * SECOND, &a, &b, LinkModel::cut()).unwrap();
        network.block_on(async {
            let start = Instant::now();
            let task = tokio::spawn(sleep(3 * SECOND));
            sleep(2 * SECOND).await;
            assert_eq!((start.elapsed(), network.now()), (2 * SECOND, 3 * SECOND));
            task.await.unwrap();
            assert_eq!((start.elapsed(), network.now()), (3 * SECOND, 4 * SECOND));
            assert_eq!(network.next_event(), Some(6 * SECOND));
            sleep(10 * SECOND).await;
            assert_eq!(network.next_event(), None);
            assert_eq!((start.elapsed(), network.now()), (13 * SECOND, 14 * SECOND));
            let short = Duration::from_nanos(1_234);
            network.sleep(short).await;
            assert_eq!(
                (start.elapsed(), network.now()),
                (13 * SECOND + short, 14 * SECOND + short)
            );
        });
    }

    /// Otherwise runs of a seed would differ.
    #[test]
    fn a_blocking_task_runs_alone() {
        let network = Network::simulated(1);
        let is_running = Arc::new(AtomicBool::new(false));
        let blocking = Arc::clone(&is_running);
        network.block_on(async {
            let task = spawn_blocking(move || {
                blocking.store(true, Ordering::Relaxed);
                (0..1_000).for_each(|_| std::thread::yield_now());
                blocking.store(false, Ordering::Relaxed);
            });
            for _ in 0..10_000 {
                assert!(!is_running.load(Ordering::Relaxed));
                yield_now().await;
            }
            while !task.is_finished() {
                assert!(!is_running.load(Ordering::Relaxed));
                sleep(Duration::from_millis(1)).await;
            }
        });
        assert!(network.now() <= Duration::from_millis(2));
    }

    /// Otherwise the time limits of its callers would expire.
    #[test]
    fn no_time_passes_while_a_blocking_task_runs() {
        let network = Network::simulated(1);
        network.block_on(async {
            let task = spawn_blocking(|| (0..1_000).for_each(|_| std::thread::yield_now()));
            timeout(SECOND, task).await.unwrap().unwrap();
        });
        assert_eq!(network.now(), Duration::ZERO);
    }

    #[test]
    #[should_panic(expected = "refused")]
    fn a_thread_that_does_not_start_ends_the_run() {
        let threads = Threads::default();
        threads.request();
        threads.run(Duration::ZERO);
    }

    /// A runtime of that thread would have another clock.
    #[test]
    fn a_thread_that_runs_no_tasks_of_the_network_advances_it() {
        let network = Network::simulated(1);
        network.block_on(async {
            let sleeps =
                || pin!(network.sleep(SECOND)).poll(&mut Context::from_waker(Waker::noop()));
            let ready = thread::scope(|threads| threads.spawn(sleeps).join().unwrap());
            assert_eq!((ready, network.now()), (Poll::Ready(()), SECOND));
        });
    }

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("on purpose");
        }
    }

    #[test]
    #[should_panic(expected = "on purpose")]
    fn a_panic_of_the_driver_ends_the_future() {
        let network = Network::simulated(1);
        network.block_on(async {
            let (mut sleeps, waker) = (pin!(network.sleep(SECOND)), Waker::from(Arc::new(Panics)));
            assert!(sleeps.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            pending::<()>().await;
        });
    }
}
