//! Every way in which operations end before they are done, on devices that have not done them: within a
//! limit, and with the memory left alone afterwards.

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
