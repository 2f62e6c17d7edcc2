//! A socket that the driver watches.

use std::sync::Mutex;

use rustix::event::epoll;

use super::socket::Socket;
use crate::link::driver::{Driver, Token};
use crate::sync::locked;

#[derive(Debug)]
pub(super) struct Open {
    pub(super) driver: &'static Driver,
    pub(super) socket: Socket,
    /// The token under which the driver knows this socket.
    pub(super) token: Token,
    /// The events that the driver reports.
    flags: Mutex<epoll::EventFlags>,
}

impl Open {
    pub(super) fn new(driver: &'static Driver, socket: Socket, token: Token) -> Self {
        Self { driver, socket, token, flags: Mutex::new(epoll::EventFlags::IN) }
    }

    /// Enables or disables reports of an event.
    pub(super) fn set_event(&self, event: epoll::EventFlags, enabled: bool) {
        let mut flags = locked(&self.flags);
        flags.set(event, enabled);
        self.driver.set_flags(self.token, self.socket.descriptor(), *flags);
    }
}
