//! A file system that does not answer when another process closes its file (`man 4 fuse`, `linux/fuse.h`).

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const BATCH_FORGET: u32 = 42;

/// Lengths of the headers of a request and of an answer.
const HEADER: usize = 40;
const ANSWER: usize = 16;
const ENOSYS: i32 = 38;

const ROOT: u64 = 1;
const FILE: u64 = 2;

/// Returns an open file of such a file system, which ends with this process; or the reason why that is impossible.
#[allow(clippy::disallowed_methods)] // A thread of the program's.
pub(crate) fn file() -> Result<OwnedFd, String> {
    let device = File::options().read(true).write(true).open("/dev/fuse");
    let device = device.map_err(|error| format!("/dev/fuse: {error}"))?;
    let folder = std::env::temp_dir().join(format!("rdma-fuse-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0\0", device.as_raw_fd());
    let options = std::ffi::CString::from_vec_with_nul(options.into_bytes()).unwrap();
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let mounted = mount("fuse", &folder, "fuse", flags, Some(options.as_c_str()));
    let opened = mounted.map_err(|errno| format!("mount: {errno}")).and_then(|()| {
        std::thread::spawn(move || serve(device));
        let opened = open_file(&folder);
        unmount(&folder, UnmountFlags::DETACH).unwrap();
        opened
    });
    std::fs::remove_dir(&folder).unwrap();
    opened
}

fn open_file(folder: &Path) -> Result<OwnedFd, String> {
    let opened = open(folder.join("file"), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    opened.map_err(|errno| format!("open: {errno}"))
}

fn serve(mut device: File) {
    let mut request = vec![0; 1 << 20];
    // Until the file system is unmounted and the file is closed.
    while let Ok(length) = device.read(&mut request) {
        assert!(length >= HEADER, "{length} bytes");
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let (unique, node) = (&request[8..16], u64::from(word(16)));
        // The number of the requesting thread; this process has few.
        let is_own = Path::new(&format!("/proc/self/task/{}", word(32))).exists();
        let answer: Result<Vec<u8>, i32> = match word(4) {
            FORGET | BATCH_FORGET => continue,
            FLUSH if !is_own => continue,
            FLUSH => Ok(Vec::new()),
            INIT => Ok(words(&[7, 31, 0, 0, 0, 1 << 16, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
            LOOKUP => {
                let mut entry = words(&[FILE as u32, 0, 0, 0, 60, 0, 60, 0, 0, 0]);
                entry.extend(attributes(FILE));
                Ok(entry)
            }
            GETATTR => Ok([words(&[60, 0, 0, 0]), attributes(node)].concat()),
            OPEN => Ok(words(&[0; 4])),
            _ => Err(-ENOSYS),
        };
        let (error, bytes) = answer.map_or_else(|error| (error, Vec::new()), |bytes| (0, bytes));
        let length = u32::try_from(ANSWER + bytes.len()).unwrap();
        let header = [&length.to_ne_bytes()[..], &error.to_ne_bytes(), unique].concat();
        // The requesting process may have ended.
        let _ = device.write(&[header, bytes].concat());
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// The attributes of a directory or an empty file.
fn attributes(node: u64) -> Vec<u8> {
    let mode = if node == ROOT { 0o40_755 } else { 0o100_666 };
    let mut all = [0; 22];
    (all[0], all[15], all[16]) = (node as u32, mode, 1);
    words(&all)
}
