//! A channel that spins has no file to sleep on, and one that sleeps has one.

use std::fs;
use std::os::fd::AsFd;

use rdma_channel::{Wait, prelude::*};

use crate::common::child::must_live;
use crate::common::open;
use crate::sleeping::SLEEPING;

fn files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_spinning_channel_has_no_extra_file() {
    must_live("sleeping::files::a_spinning_channel_has_no_extra_file", |device| {
        let pd = open(device).allocate_pd().unwrap();
        let before = files();
        let spinning = pd.create_channel().wait(Wait::Spin).build().unwrap();
        let many = pd.create_multi_channel().num_channels(3).wait(Wait::Spin).build().unwrap();
        assert_eq!(files(), before);
        let (end, ends) = (spinning.endpoint(), many.endpoints());
        let (mut spinning, many) =
            (spinning.handshake(end).unwrap(), many.handshake(ends).unwrap());
        assert!(spinning.waitable().is_none() && many.waitable().is_none());
        let none = spinning.scope(|s| Ok::<_, ()>(s.waitable().is_none()));
        assert!(none.unwrap());
        assert_eq!(files(), before);

        for wait in SLEEPING {
            let prepared = pd.create_channel().wait(wait).build().unwrap();
            assert!(files() > before, "{wait:?}");
            let end = prepared.endpoint();
            let mut channel = prepared.handshake(end).unwrap();
            let file = |waitable: Option<rdma_channel::Waitable<'_>>| {
                std::os::fd::AsRawFd::as_raw_fd(&waitable.unwrap().as_fd())
            };
            let own = file(channel.waitable());
            assert_eq!(channel.scope(|s| Ok::<_, ()>(file(s.waitable()))).unwrap(), own);
            drop(channel);
            assert_eq!(files(), before, "{wait:?}");
        }
    });
}

#[test]
fn a_builder_sleeps_by_default() {
    let pd = open("soft0").allocate_pd().unwrap();
    assert_eq!(Wait::default(), Wait::SpinThenSleep);
    let prepared = pd.create_channel().build().unwrap();
    let end = prepared.endpoint();
    assert!(prepared.handshake(end).unwrap().waitable().is_some());
    let prepared = pd.create_multi_channel().num_channels(1).build().unwrap();
    let ends = prepared.endpoints();
    assert!(prepared.handshake(ends).unwrap().waitable().is_some());
}
