//! A panic caused by a mistake of the caller reports the location of the caller.

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Mutex;

use rdma_mem::{GatherElement, ScatterElement, open_device};
use test_support::program::in_own_process;

/// File and line of the last panic. The hook is global to the process, so the test has a process of
/// its own.
static WHERE: Mutex<Option<(String, u32)>> = Mutex::new(None);

/// Returns the file and line at which the call panics.
fn place(call: impl FnOnce()) -> (String, u32) {
    catch_unwind(AssertUnwindSafe(call)).unwrap_err();
    WHERE.lock().unwrap().take().unwrap()
}

#[test]
fn panics_point_at_the_caller() {
    in_own_process("panics::panics_point_at_the_caller", || {
        rdma_soft::install();
        let pd = open_device("soft0").unwrap().allocate_pd().unwrap();
        let mut owned = pd.allocate_region(8).unwrap();
        let mut memory = [0; 8];
        let region = pd.register_local_mr_slice(&memory).unwrap();
        let other = [0; 8];

        let hook = take_hook();
        set_hook(Box::new(|panic| {
            let place = panic.location().map(|place| (place.file().to_owned(), place.line()));
            *WHERE.lock().unwrap() = place;
        }));
        let here = line!();
        let places = [
            place(|| drop(owned.split_at(9))),
            place(|| drop(owned.as_slice_mut().split_at(9))),
            place(|| _ = owned.as_slice().split_at(9)),
            place(|| drop(owned.as_slice_mut().into_chunks(0))),
            place(|| _ = GatherElement::new(&region, &other)),
            place(|| _ = region.gather_element(&other)),
            place(|| drop(ScatterElement::new(&region, &mut [0; 8]))),
            place(|| drop(region.scatter_element(&mut [0; 8]))),
        ];
        set_hook(hook);

        let lines = (here + 2..).map(|line| (file!().to_owned(), line));
        assert_eq!(places.to_vec(), lines.take(places.len()).collect::<Vec<_>>());
        memory.fill(1); // it is borrowed by no region
    });
}
