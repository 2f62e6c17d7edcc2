//! Creates queue pairs on devices that may refuse the sizes or the type: tries smaller sizes, and finds out which part
//! is refused.
//!
//! `ibv_create_qp` returns `EINVAL` whichever part is refused. Verbs can query neither the limit of inline data nor the
//! supported types.

use std::fmt;

use rdma_mem::Errno;
use rdma_types::QpType;

use crate::qp::capabilities::QueuePairCapabilities;
use crate::qp::capabilities::inline::Inline;

/// The part of a request that the device refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Culprit {
    /// An option of the builder, and a value with which the device does create the queue pair.
    Size(&'static str, u32),
    /// The type. The device does create a reliable connection with the same sizes.
    Type(QpType),
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(knob, value) => {
                write!(
                    f,
                    "it refuses this `{knob}`, but accepts the other values with `{knob}: \
                     {value}`: "
                )?;
                f.write_str(match *knob {
                    "max_inline_data" => "request less, or use `Inline::UpTo`",
                    _ => "request fewer",
                })
            }
            Self::Type(qp_type) => write!(
                f,
                "the device refuses the type {qp_type}, but accepts the same attributes for RC: \
                 not every device supports both"
            ),
        }
    }
}

/// A queue pair that could not be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) errno: Errno,
    /// The sizes that were requested last.
    pub(super) sizes: QueuePairCapabilities,
    pub(super) culprit: Option<Culprit>,
}

/// Creates a queue pair of this type and these sizes, with as much inline data as the device grants. If the device
/// refuses, other requests are tried one after the other to find the part that it refuses. Queue pairs that these
/// trials create are discarded.
pub(super) fn create<T>(
    qp_type: QpType,
    sizes: QueuePairCapabilities,
    inline: Inline,
    mut attempt: impl FnMut(QpType, QueuePairCapabilities) -> Result<T, Errno>,
    mut discard: impl FnMut(T),
) -> Result<T, Refused> {
    let mut refused = None;
    for max_inline_data in inline.tries() {
        let sizes = QueuePairCapabilities { max_inline_data, ..sizes };
        match attempt(qp_type, sizes) {
            Ok(created) => return Ok(created),
            // Not every provider sets `errno`. Whatever its value is, the device may accept a smaller size.
            Err(errno) => refused = Some((errno, sizes)),
        }
    }
    let Some((errno, sizes)) = refused else { unreachable!("there is at least one try") };
    let mut is_created = |qp_type, sizes| attempt(qp_type, sizes).map(&mut discard).is_ok();
    let culprit = size(sizes, &mut |sizes| is_created(qp_type, sizes)).or_else(|| {
        let is_the_type = qp_type != QpType::RC && is_created(QpType::RC, sizes);
        is_the_type.then_some(Culprit::Type(qp_type))
    });
    Err(Refused { errno, sizes, culprit })
}

/// Returns the size that the device refuses; `None` if smaller sizes do not help.
fn size(
    sizes: QueuePairCapabilities,
    is_created: &mut impl FnMut(QueuePairCapabilities) -> bool,
) -> Option<Culprit> {
    let plain = QueuePairCapabilities { max_inline_data: 0, ..sizes };
    if sizes.max_inline_data > 0 && is_created(plain) {
        return Some(Culprit::Size("max_inline_data", 0));
    }
    let (sends, receives) = (sizes.max_send_sge.min(1), sizes.max_recv_sge.min(1));
    let single = QueuePairCapabilities { max_send_sge: sends, max_recv_sge: receives, ..plain };
    if single == plain || !is_created(single) {
        return None;
    }
    let send_single = QueuePairCapabilities { max_send_sge: sends, ..plain };
    Some(match is_created(send_single) {
        true => Culprit::Size("max_send_sge", sends),
        false => Culprit::Size("max_recv_sge", receives),
    })
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::Culprit::Size;
    use super::*;

    const ASKED: QueuePairCapabilities =
        QueuePairCapabilities { max_send_sge: 8, max_recv_sge: 8, ..QueuePairCapabilities::NONE };

    /// Creates a queue pair on a device that accepts only sizes that pass `has`. Returns the result, and the number of
    /// requests to the device.
    fn create_at(
        inline: Inline,
        has: impl Fn(QueuePairCapabilities) -> bool,
    ) -> (Result<u32, Option<Culprit>>, usize) {
        create_of(QpType::RC, inline, |_, sizes| has(sizes))
    }

    fn create_of(
        qp_type: QpType,
        inline: Inline,
        has: impl Fn(QpType, QueuePairCapabilities) -> bool,
    ) -> (Result<u32, Option<Culprit>>, usize) {
        let (asked, live) = (RefCell::new(Vec::new()), Cell::new(0));
        let attempt = |qp_type: QpType, sizes: QueuePairCapabilities| {
            let wish = (qp_type, sizes);
            assert!(!asked.borrow().contains(&wish), "asked twice for {wish:?}");
            asked.borrow_mut().push(wish);
            if !has(qp_type, sizes) {
                return Err(Errno::EINVAL);
            }
            live.set(live.get() + 1);
            Ok(sizes.max_inline_data)
        };
        let created = create(qp_type, ASKED, inline, attempt, |_| live.set(live.get() - 1));
        assert_eq!(live.get(), usize::from(created.is_ok()), "trials are discarded");
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
        assert_eq!(refused(&inline), [Err(Some(Size("max_inline_data", 0))), Ok(64)]);
        assert_eq!(refused(&sends), [Err(Some(Size("max_send_sge", 1))); 2]);
        assert_eq!(refused(&receives), [Err(Some(Size("max_recv_sge", 1))); 2]);
        assert_eq!(refused(&|_| false), [Err(None); 2]);
        let both = |sizes: QueuePairCapabilities| inline(sizes) && sends(sizes);
        assert_eq!(
            refused(&both),
            [Err(Some(Size("max_send_sge", 1))); 2],
            "the other one is next"
        );
        assert_eq!(create_at(Inline::default(), |_| false).1, 5, "there are few trials");
    }

    #[test]
    fn the_type_that_was_refused_is_named() {
        let (rc, uc) = (QpType::RC, QpType::UC);
        let refused = |has: &dyn Fn(QpType, QueuePairCapabilities) -> bool| {
            create_of(uc, Inline::default(), has).0
        };
        assert_eq!(refused(&|qp_type, _| qp_type == rc), Err(Some(Culprit::Type(uc))));
        let few = |sizes: QueuePairCapabilities| sizes.max_send_sge <= 4;
        assert_eq!(refused(&|_, sizes| few(sizes)), Err(Some(Size("max_send_sge", 1))));
        assert_eq!(refused(&|qp_type, sizes| qp_type == rc && few(sizes)), Err(None));
        assert_eq!(refused(&|_, _| true), Ok(64));
    }
}
