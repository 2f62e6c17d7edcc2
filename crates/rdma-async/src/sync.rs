//! The primitives that the model checker replaces. Under `cfg(loom)`, locks and atomics come from loom, so that its
//! models run the production modules in every interleaving of threads.

use std::time::{Duration, Instant};

#[cfg(all(test, loom))]
pub(crate) use loom::sync::Condvar;
#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering},
};
#[cfg(all(test, not(loom)))]
pub(crate) use std::sync::Condvar;
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering},
};
#[cfg(not(loom))]
pub(crate) use tokio::sync::{Notify, futures::OwnedNotified};

#[cfg(loom)]
pub(crate) use self::model::{Notify, OwnedNotified};

/// The longest time limit. Longer ones are treated as infinite; tokio's timers cannot represent them.
pub(crate) const LONGEST: Duration = Duration::from_secs(1 << 40);

/// Returns tokio's time, which may be that of a simulation.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Waits until `look` returns a value. Calls it again each time `changed` notifies its waiters.
#[cfg(not(loom))]
pub(crate) async fn until<R>(changed: &Notify, mut look: impl FnMut() -> Option<R>) -> R {
    let waits = changed.notified();
    tokio::pin!(waits);
    loop {
        // Enabled before the check, so that no notification is missed.
        waits.as_mut().enable();
        if let Some(found) = look() {
            return found;
        }
        waits.as_mut().await;
        waits.set(changed.notified());
    }
}

/// tokio's [`Notify`], wrapped so that loom sees each call as one step. Its internals are not modelled here; tokio has
/// its own loom models.
#[cfg(loom)]
mod model {
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll};

    use loom::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::{Notify as Real, futures};

    #[derive(Debug, Default)]
    pub(crate) struct Notify {
        real: Arc<Real>,
        steps: AtomicUsize,
    }

    impl Notify {
        /// Starts a step for loom, which includes all code up to the next operation that loom sees.
        fn step(&self) {
            self.steps.fetch_add(1, Ordering::SeqCst);
        }

        pub(crate) fn notify_one(&self) {
            self.step();
            self.real.notify_one();
        }

        pub(crate) fn notify_waiters(&self) {
            self.step();
            self.real.notify_waiters();
        }

        pub(crate) fn notified_owned(self: Arc<Self>) -> OwnedNotified {
            self.step();
            let real = Some(Box::pin(Arc::clone(&self.real).notified_owned()));
            OwnedNotified { real, of: self }
        }

        pub(crate) async fn notified(&self) {
            self.step();
            self.real.notified().await;
        }
    }

    #[derive(Debug)]
    pub(crate) struct OwnedNotified {
        /// `None` while the value is being dropped.
        real: Option<Pin<Box<futures::OwnedNotified>>>,
        of: Arc<Notify>,
    }

    impl OwnedNotified {
        pub(crate) fn enable(mut self: Pin<&mut Self>) -> bool {
            self.of.step();
            self.real.as_mut().is_some_and(|real| real.as_mut().enable())
        }
    }

    impl Future for OwnedNotified {
        type Output = ();

        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            self.of.step();
            self.real.as_mut().map_or(Poll::Ready(()), |real| real.as_mut().poll(cx))
        }
    }

    impl Drop for OwnedNotified {
        fn drop(&mut self) {
            self.of.step();
            self.real = None;
        }
    }
}
