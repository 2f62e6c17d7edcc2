//! Measures the resources that this process uses, for benches.

use std::error::Error;
use std::fs;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Returns the size of this process's resident memory, in bytes (`man 5 proc_pid_statm`).
///
/// # Errors
/// Returns an error if the system does not report the size.
pub fn resident() -> Outcome<u64> {
    let pages = fs::read_to_string("/proc/self/statm")?;
    let pages = pages.split(' ').nth(1).ok_or("no second field")?.parse::<u64>()?;
    Ok(pages * rustix::param::page_size() as u64)
}

/// Returns the processor time that this process has used, in ticks of a hundredth of a second (`man
/// 5 proc_pid_stat`).
///
/// # Errors
/// Returns an error if the system does not report the time.
pub fn ticks() -> Outcome<u64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(") ").ok_or("no name in parentheses")?;
    let ticks = fields.split(' ').skip(11).take(2).map(str::parse::<u64>);
    Ok(ticks.sum::<Result<_, _>>()?)
}
