//! What this process has used, for benches.

use std::error::Error;
use std::fs;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// How many bytes of memory this process has (`man 5 proc_pid_statm`).
///
/// # Errors
/// If the system does not say.
pub fn resident() -> Outcome<u64> {
    let pages = fs::read_to_string("/proc/self/statm")?;
    let pages = pages.split(' ').nth(1).ok_or("no second field")?.parse::<u64>()?;
    Ok(pages * rustix::param::page_size() as u64)
}

/// The time that this process has had on processors, in ticks of a hundredth of a second (`man 5 proc_pid_stat`).
///
/// # Errors
/// If the system does not say.
pub fn ticks() -> Outcome<u64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(") ").ok_or("no name in parentheses")?;
    let ticks = fields.split(' ').skip(11).take(2).map(str::parse::<u64>);
    Ok(ticks.sum::<Result<_, _>>()?)
}
