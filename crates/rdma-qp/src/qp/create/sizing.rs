//! Sizes that a device may refuse: smaller ones in their place, and which one was refused.
//!
//! `ibv_create_qp` says `EINVAL` for all of them, and verbs have no limit of inline data to read.

use rdma_mem::Errno;

use crate::qp::capabilities::QueuePairCapabilities;
use crate::qp::capabilities::inline::Inline;

/// An option of the builder, and a value of it that a device accepts.
type Accepted = (&'static str, u32);

/// A queue pair that was not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) errno: Errno,
    /// What was asked for last.
    pub(super) sizes: QueuePairCapabilities,
    /// The option with which the device does not create it, and the value with which it does.
    pub(super) culprit: Option<Accepted>,
}

/// Creates a queue pair of these sizes, with as much inline data as the device gives. If it refuses, the sizes are lowered
/// one after the other to find which one it was: what is created so is discarded.
pub(super) fn create<T>(
    sizes: QueuePairCapabilities,
    inline: Inline,
    mut attempt: impl FnMut(QueuePairCapabilities) -> Result<T, Errno>,
    mut discard: impl FnMut(T),
) -> Result<T, Refused> {
    let mut refused = None;
    for max_inline_data in inline.tries() {
        let sizes = QueuePairCapabilities { max_inline_data, ..sizes };
        match attempt(sizes) {
            Ok(created) => return Ok(created),
            // Not every provider sets the number: whatever it is, less may be possible.
            Err(errno) => refused = Some((errno, sizes)),
        }
    }
    let Some((errno, sizes)) = refused else { unreachable!("there is at least one try") };
    let mut is_created = |sizes| attempt(sizes).map(&mut discard).is_ok();
    Err(Refused { errno, sizes, culprit: culprit(sizes, &mut is_created) })
}

/// Which of the sizes the device refuses.
fn culprit(
    sizes: QueuePairCapabilities,
    is_created: &mut impl FnMut(QueuePairCapabilities) -> bool,
) -> Option<Accepted> {
    let plain = QueuePairCapabilities { max_inline_data: 0, ..sizes };
    if sizes.max_inline_data > 0 && is_created(plain) {
        return Some(("max_inline_data", 0));
    }
    let (sends, receives) = (sizes.max_send_sge.min(1), sizes.max_recv_sge.min(1));
    let single = QueuePairCapabilities { max_send_sge: sends, max_recv_sge: receives, ..plain };
    if single == plain || !is_created(single) {
        return None;
    }
    let send_single = QueuePairCapabilities { max_send_sge: sends, ..plain };
    Some(match is_created(send_single) {
        true => ("max_send_sge", sends),
        false => ("max_recv_sge", receives),
    })
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    const ASKED: QueuePairCapabilities =
        QueuePairCapabilities { max_send_sge: 8, max_recv_sge: 8, ..QueuePairCapabilities::NONE };

    /// How the creation ends at a device that has so much, how often it was asked, and what was left there.
    fn create_at(
        inline: Inline,
        has: impl Fn(QueuePairCapabilities) -> bool,
    ) -> (Result<u32, Option<Accepted>>, usize) {
        let (asked, live) = (RefCell::new(Vec::new()), Cell::new(0));
        let attempt = |sizes: QueuePairCapabilities| {
            assert!(!asked.borrow().contains(&sizes), "asked twice for {sizes:?}");
            asked.borrow_mut().push(sizes);
            if !has(sizes) {
                return Err(Errno::EINVAL);
            }
            live.set(live.get() + 1);
            Ok(sizes.max_inline_data)
        };
        let created = create(ASKED, inline, attempt, |_| live.set(live.get() - 1));
        assert_eq!(live.get(), usize::from(created.is_ok()), "what was only tried is discarded");
        (created.map_err(|refused| refused.culprit), asked.into_inner().len())
    }

    #[test]
    fn a_device_gives_what_it_has() {
        for (most, given, asked) in [(512, 64, 1), (64, 64, 1), (48, 32, 2), (16, 16, 3), (0, 0, 4)]
        {
            let created = create_at(Inline::default(), |sizes| sizes.max_inline_data <= most);
            assert_eq!(created, (Ok(given), asked), "of {most}");
        }
    }

    #[test]
    fn the_size_that_was_refused_is_named() {
        let inline = |sizes: QueuePairCapabilities| sizes.max_inline_data <= 100;
        let sends = |sizes: QueuePairCapabilities| sizes.max_send_sge <= 4;
        let receives = |sizes: QueuePairCapabilities| sizes.max_recv_sge <= 4;
        let refused = |has: &dyn Fn(QueuePairCapabilities) -> bool| {
            [Inline::Exactly(101), Inline::default()].map(|inline| create_at(inline, has).0)
        };
        assert_eq!(refused(&inline), [Err(Some(("max_inline_data", 0))), Ok(64)]);
        assert_eq!(refused(&sends), [Err(Some(("max_send_sge", 1))); 2]);
        assert_eq!(refused(&receives), [Err(Some(("max_recv_sge", 1))); 2]);
        assert_eq!(refused(&|_| false), [Err(None); 2]);
        let both = |sizes: QueuePairCapabilities| inline(sizes) && sends(sizes);
        assert_eq!(refused(&both), [Err(Some(("max_send_sge", 1))); 2], "the other one is next");
        assert_eq!(create_at(Inline::default(), |_| false).1, 5, "it is asked seldom");
    }
}
