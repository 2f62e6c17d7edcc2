//! Grows pools on another thread. Growing a pool once serves all waiting allocations.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma_mem::{Buffer, BufferPool, Error};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::pool::{PoolError, ended};

/// The allocations that wait for a pool to grow, and whether the pool is growing.
#[derive(Clone, Debug, Default)]
pub(super) struct Growth(Arc<Mutex<GrowthState>>);

#[derive(Debug, Default)]
struct GrowthState {
    waiting: Vec<Waiting>,
    is_growing: bool,
}

/// An allocation that waits for a buffer.
#[derive(Debug)]
struct Waiting {
    length: usize,
    alignment: usize,
    answer: oneshot::Sender<Result<Buffer, Error>>,
}

impl Growth {
    /// Waits for a buffer that the pool can allocate only after it grows.
    pub(super) async fn wait(
        &self,
        pool: &BufferPool,
        length: usize,
        alignment: usize,
    ) -> Result<Buffer, PoolError> {
        loop {
            let runtime = Handle::try_current().map_err(|_| PoolError::NoRuntime)?;
            let (answer, answered) = oneshot::channel();
            let begins = {
                let mut state = self.state();
                state.waiting.push(Waiting { length, alignment, answer });
                !mem::replace(&mut state.is_growing, true)
            };
            let thread = begins.then(|| {
                let growing =
                    Growing { growth: self.clone(), pool: pool.clone(), is_complete: false };
                runtime.spawn_blocking(|| growing.run())
            });
            if let Ok(allocated) = answered.await {
                return Ok(allocated?);
            }
            if let Some(thread) = thread {
                ended(thread.await)?;
            }
            // The growth was abandoned, because the runtime of the task that started it shut down: try again.
        }
    }

    fn state(&self) -> MutexGuard<'_, GrowthState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Grows the pool for all waiting allocations, on one thread at a time. If this is dropped before it is done, one of
/// these allocations starts another growth.
struct Growing {
    growth: Growth,
    pool: BufferPool,
    is_complete: bool,
}

impl Growing {
    fn run(mut self) {
        while let Some(waiting) = self.next() {
            serve(&self.pool, waiting);
        }
    }

    /// Takes the waiting allocations. If there are none, this growth is complete, and the next allocation that has to
    /// wait starts another.
    fn next(&mut self) -> Option<Vec<Waiting>> {
        let mut state = self.growth.state();
        if state.waiting.is_empty() {
            state.is_growing = false;
            self.is_complete = true;
            return None;
        }
        Some(mem::take(&mut state.waiting))
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        if !self.is_complete {
            let mut state = self.growth.state();
            state.is_growing = false;
            let waiting = mem::take(&mut state.waiting);
            // Dropping the senders wakes tasks, so the lock is released first.
            drop(state);
            drop(waiting);
        }
    }
}

/// Serves each allocation, after growing the pool once for all that do not fit into its free memory.
fn serve(pool: &BufferPool, waiting: Vec<Waiting>) {
    let lacking: Vec<_> = waiting.into_iter().filter_map(|one| one.try_serve(pool)).collect();
    // The smallest growth that has failed so far, and its error.
    let mut failed = None;
    if lacking.len() > 1 {
        let all = lacking.iter().fold(0, |sum: usize, one| sum.saturating_add(one.need()));
        failed = pool.grow(all).err().map(|error| (all, error));
    }
    for one in lacking {
        let Some(one) = one.try_serve(pool) else { continue };
        if let Some((need, error)) = &failed
            && one.need() >= *need
        {
            one.give(Err(error.clone()));
            continue;
        }
        let allocated = pool.allocate_aligned(one.length, one.alignment);
        failed = allocated.as_ref().err().map(|error| (one.need(), error.clone())).or(failed);
        one.give(allocated);
    }
}

impl Waiting {
    /// Serves the allocation from free registered memory. Returns the allocation if that does not suffice; returns
    /// `None` if it was served or its future was dropped.
    fn try_serve(self, pool: &BufferPool) -> Option<Self> {
        if self.answer.is_closed() {
            return None;
        }
        match pool.try_allocate_aligned(self.length, self.alignment).transpose() {
            Some(allocated) => {
                self.give(allocated);
                None
            }
            None => Some(self),
        }
    }

    /// Completes the allocation. If its future was dropped, the buffer returns to the pool.
    fn give(self, allocated: Result<Buffer, Error>) {
        drop(self.answer.send(allocated));
    }

    /// Returns how many bytes this allocation may need in a region that it shares with others. The pool rounds a length
    /// up to a multiple of 64, and then looks for a free range of the next size class. That class is up to an eighth
    /// larger.
    fn need(&self) -> usize {
        let bytes = self.length.saturating_add(self.length / 8).saturating_add(128);
        bytes.saturating_add(self.alignment)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // helpers of tests

    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn pool() -> BufferPool {
        rdma_soft::install();
        let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
        BufferPool::with_region_size(&pd, 4096)
    }

    /// A growth is abandoned if it panics, or if the runtime of the task that started it shuts down.
    #[test]
    fn waiting_allocations_restart_an_abandoned_growth() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (growth, pool) = (Growth::default(), pool());
            for panics in [false, true] {
                growth.state().is_growing = true;
                let given_up =
                    Growing { growth: growth.clone(), pool: pool.clone(), is_complete: false };
                let mut waits = [100, 3000].map(|length| Box::pin(growth.wait(&pool, length, 1)));
                for wait in &mut waits {
                    let mut cx = Context::from_waker(Waker::noop());
                    assert!(wait.as_mut().poll(&mut cx).is_pending());
                }
                assert_eq!(growth.state().waiting.len(), 2);
                if panics {
                    let panicked = catch_unwind(AssertUnwindSafe(move || {
                        let _given_up = given_up;
                        std::panic::resume_unwind(Box::new("on purpose"));
                    }));
                    assert!(panicked.is_err());
                } else {
                    drop(given_up);
                }
                let [one, other] = waits;
                let (one, other) = tokio::join!(one, other);
                assert_eq!((one.unwrap().len(), other.unwrap().len()), (100, 3000));
                assert_eq!(pool.usage().regions, 1);
            }
            // The thread may not have reset the flag yet.
            while growth.state().is_growing {
                tokio::task::yield_now().await;
            }
            assert!(growth.state().waiting.is_empty());
        });
    }

    /// The next allocation starts another growth, no matter which thread finishes first.
    #[test]
    fn a_finished_growth_lets_the_next_one_start() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let (growth, pool) = (Growth::default(), pool());
            for round in 1..100 {
                let wait = pin!(growth.wait(&pool, 4096, 1));
                let buffer = wait.await.unwrap();
                assert_eq!((buffer.len(), pool.usage().regions), (4096, 1), "{round}");
            }
        });
    }
}
