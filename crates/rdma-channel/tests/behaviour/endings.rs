//! All ways in which operations end before they complete, on devices that have not executed them. They end within a
//! limit, and without later accesses to the memory.

mod asked;
mod batches;
mod blocking;
mod deadlines;
mod handles;
mod peers;
mod process;
mod provider;
mod room;
mod said;
mod scope;
mod unpolled;
