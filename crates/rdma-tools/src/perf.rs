//! `rdmatool perf`: its reports.

pub(crate) mod report;
