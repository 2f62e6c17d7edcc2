//! The outcome of a request that has ended.

use super::failed::Failed;
use super::kinds::{Kind, take};
use crate::ledger::Ended;
use crate::link::Link;

impl Ended {
    /// Converts the end of a request to the outcome of its future. Drops the link.
    #[inline(always)]
    pub(crate) fn outcome<K: Kind>(
        self,
        memory: &mut Option<K::Memory>,
        link: &mut Option<Link<'_>>,
    ) -> Result<K::Output, Failed<K::Memory>> {
        let Self { operation, result, word } = self;
        match result {
            Some(Ok(success)) => {
                *link = None;
                Ok(K::finish(take(memory), &success, word))
            }
            failed => {
                let Some(link) = link.take() else { unreachable!("it is used until it has ended") };
                let error = link.failure(operation, failed.and_then(Result::err));
                Err(Failed::new(take(memory), error))
            }
        }
    }
}
