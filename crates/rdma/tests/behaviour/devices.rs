//! The facade's own functions: software devices are listed last, once, and opened only by their
//! names.
#![cfg(feature = "soft")]

use std::sync::Barrier;
use std::thread;

use rdma::device::{Device, DeviceList, Error, list_devices, open_device};

const SOFT: [&str; 2] = ["soft0", "softib0"];

fn is_soft(device: &Device) -> bool {
    device.verbs().name == rdma::soft::verbs().name
}

fn names(list: &DeviceList) -> Vec<&str> {
    list.iter().map(Device::name).collect()
}

#[test]
fn software_devices_are_listed_last() {
    let list = list_devices();
    let first_soft = list.iter().position(is_soft).unwrap();
    assert!(list.iter().skip(first_soft).all(is_soft), "{list:?}");
    assert_eq!(names(&list)[first_soft..], SOFT);
}

#[test]
fn a_software_device_is_opened_by_its_name() {
    for name in SOFT {
        let context = open_device(name).unwrap();
        assert_eq!(context.device().name(), name);
        assert!(is_soft(context.device()));
    }
}

#[test]
fn no_software_device_takes_the_place_of_another() {
    for name in ["", "soft", "soft00", "SOFT0", "default", "mlx5_77"] {
        let Err(Error::UnknownDevice(error)) = open_device(name) else { panic!("{name}") };
        assert!(error.known.ends_with(&SOFT.map(str::to_owned)), "{:?}", error.known);
    }
}

#[test]
fn any_number_of_threads_may_install_at_once_and_again() {
    let all = Barrier::new(8);
    thread::scope(|scope| {
        for thread in 0..8 {
            let all = &all;
            scope.spawn(move || {
                all.wait();
                for _ in 0..20 {
                    match thread % 3 {
                        0 => rdma::soft::install(),
                        1 => drop(open_device(SOFT[0]).unwrap()),
                        _ => assert!(names(&list_devices()).ends_with(&SOFT)),
                    }
                }
            });
        }
    });
    let list = list_devices();
    assert_eq!(list.iter().filter(|device| is_soft(device)).count(), 2, "{list:?}");
}
