//! Operations that were posted.

use std::fmt;
use std::future::Future;
use std::hint::spin_loop;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::task::coop::consume_budget;
use tokio::task::yield_now;

use super::failed::Failed;
use super::kinds::Kind;
use super::limit::Limit;
use super::run::Run;
use super::work::Work;
use crate::ledger::slots::Id;
use crate::link::Link;

/// The number of empty polls before the task yields to others.
const POLLS: u32 = 64;

/// An operation in flight. Awaiting it returns the outcome. If this is dropped, the memory stays with the request and
/// is released when the request completes.
#[must_use = "awaiting it returns its memory"]
pub struct Posted<'c, K: Kind> {
    /// `None` once the operation has ended, or [`within`](Self::within) has taken the link.
    link: Option<Link<'c>>,
    id: Id,
    kind: PhantomData<fn() -> K>,
}

impl<'c, K: Kind> Posted<'c, K> {
    #[inline]
    pub(crate) const fn new(link: Link<'c>, id: Id) -> Self {
        Self { link: Some(link), id, kind: PhantomData }
    }

    /// Awaits the outcome for at most this time, like [`Op::within`](crate::Op::within). A posted operation has no
    /// other limit.
    ///
    /// # Panics
    /// If the operation has to wait outside of a tokio runtime with time (`enable_time`), and the limit is not zero.
    #[doc(alias("timeout", "deadline"))]
    pub fn within(mut self, limit: Duration) -> Run<'c, K> {
        let Some(link) = self.link.take() else { unreachable!("it is polled until it has ended") };
        Run::new(Work::posted(link, self.id), Limit::new(limit))
    }

    /// Waits for the outcome, polling for at most `limit` before it sleeps. A completion within that time costs neither
    /// a device event nor a wake-up. Polling occupies the processor, but lets other tasks run after every 64 polls.
    ///
    /// Use this for answers that arrive within microseconds, and await receives that may take longer. If the future is
    /// dropped while it waits, the memory stays with the request, as with a dropped [`Posted`].
    ///
    /// # Errors
    /// Same errors as awaiting the operation.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// # rdma_soft::install();
    /// # tokio::runtime::Builder::new_current_thread().enable_io().build()?.block_on(async {
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let driver = rdma_async::Driver::spawn(pd.context())?;
    /// # let qp = || rdma_qp::prelude::CreateQueuePair::create_qp(&pd);
    /// # let (one, other) = (driver.prepare(qp())?, driver.prepare(qp())?);
    /// # let (at_one, at_other) = (one.endpoint(), other.endpoint());
    /// # let (one, other) = (one.handshake(at_other)?, other.handshake(at_one)?);
    /// # let pool = rdma_mem::BufferPool::new(&pd);
    /// let answer = other.receive(pool.allocate(64)?).post().await?;
    /// one.send(pool.allocate(5)?).await?;
    /// let answer = answer.busy_poll(Duration::from_micros(50)).await?;
    /// assert_eq!(answer.length, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn busy_poll(mut self, limit: Duration) -> Result<K::Output, Failed<K::Memory>> {
        // Without a budget, a task whose operations complete immediately would starve other tasks.
        consume_budget().await;
        let begin = Instant::now();
        loop {
            for _ in 0..POLLS {
                let Some(link) = &self.link else {
                    unreachable!("it is polled until it has ended")
                };
                let mut memory = None;
                match link.look_once(self.id, &mut memory) {
                    Ok(Some(ended)) => {
                        return ended.outcome::<K>(&mut memory, &mut self.link);
                    }
                    Ok(None) => spin_loop(),
                    // Awaiting the outcome returns the error.
                    Err(_) => return self.await,
                }
            }
            if begin.elapsed() >= limit {
                return self.await;
            }
            yield_now().await;
        }
    }
}

impl<K: Kind> Future for Posted<'_, K> {
    type Output = Result<K::Output, Failed<K::Memory>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Without a budget, a task whose operations complete immediately would starve other tasks.
        let budget = ready!(tokio::task::coop::poll_proceed(cx));
        let Some(link) = &self.link else { unreachable!("polled after it was ready") };
        let mut memory = None;
        let ended = ready!(link.poll_end(self.id, &mut memory, cx));
        budget.made_progress();
        Poll::Ready(ended.outcome::<K>(&mut memory, &mut self.link))
    }
}

impl<K: Kind> Drop for Posted<'_, K> {
    #[inline]
    fn drop(&mut self) {
        if let Some(link) = self.link.take() {
            link.detach(self.id);
        }
    }
}

impl<K: Kind> fmt::Debug for Posted<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Posted").field(&self.id).finish()
    }
}
