//! Reads from ELF headers which machine a file is built for, and whether this program is static.

#![allow(unsafe_code)]

use std::{
    ffi::{c_int, c_void},
    fs::File,
    io::Read as _,
    path::Path,
    ptr, slice,
};

/// Returns true if this program is statically linked, that is, if it has no interpreter
/// (`PT_INTERP`).
pub(crate) fn program_is_static() -> bool {
    let mut asks_for_loader = false;
    // SAFETY: the callback has the signature that dl_iterate_phdr(3) requires, and `data` is the
    // `bool` that it expects, alive during the call (SAFETY.md F1).
    unsafe {
        libc::dl_iterate_phdr(Some(first_object), ptr::from_mut(&mut asks_for_loader).cast());
    }
    !asks_for_loader
}

/// Called for the first object, which is the program itself. The result 1 ends the iteration.
unsafe extern "C" fn first_object(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    data: *mut c_void,
) -> c_int {
    // SAFETY: the C library passes a valid description of an object (SAFETY.md F1).
    let info = unsafe { &*info };
    // SAFETY: `dlpi_phdr` points to `dlpi_phnum` program headers, which are mapped while the object
    // is (F1).
    let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let asks_for_loader = headers.iter().any(|header| header.p_type == libc::PT_INTERP);
    // SAFETY: `data` points to the `bool` in `program_is_static` (F1).
    unsafe { data.cast::<bool>().write(asks_for_loader) };
    1
}

/// The fields of an ELF header that identify the machine.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Machine {
    /// 1 for 32 bits, 2 for 64.
    class: u8,
    /// 1 for little-endian, 2 for big-endian.
    order: u8,
    /// `e_machine`.
    number: u16,
}

impl Machine {
    /// Reads the machine from a file's header; returns `None` if the file is not an ELF file.
    fn of(path: &Path) -> Option<Self> {
        let mut header = [0; 20];
        File::open(path).and_then(|mut file| file.read_exact(&mut header)).ok()?;
        let [0x7f, b'E', b'L', b'F', class, order, .., low, high] = header else { return None };
        let number = if order == 2 { [high, low] } else { [low, high] };
        Some(Self { class, order, number: u16::from_le_bytes(number) })
    }

    fn describe(self) -> String {
        let bits = if self.class == 1 { "32-bit" } else { "64-bit" };
        let order = if self.order == 2 { "big-endian " } else { "" };
        let name = match self.number {
            libc::EM_386 | libc::EM_X86_64 => "x86",
            libc::EM_ARM | libc::EM_AARCH64 => "ARM",
            libc::EM_PPC | libc::EM_PPC64 => "PowerPC",
            libc::EM_S390 => "S/390",
            243 => "RISC-V",
            258 => "LoongArch",
            number => return format!("{bits} {order}machine number {number}"),
        };
        format!("{bits} {order}{name}")
    }
}

/// Returns the machine of `path` and the machine of this program if `path` is an ELF file for
/// another machine.
pub(crate) fn other_machine(path: &Path) -> Option<(String, String)> {
    let found = Machine::of(path)?;
    let expected = Machine::of(Path::new("/proc/self/exe"))?;
    (found != expected).then(|| (found.describe(), expected.describe()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_program_is_dynamic() {
        assert_eq!(program_is_static(), cfg!(target_feature = "crt-static"));
    }

    #[test]
    fn another_machine_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut header = [0_u8; 64];
        header[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 1, 2, 1]);
        header[18..20].copy_from_slice(&libc::EM_PPC.to_be_bytes());
        std::fs::write(file.path(), header).unwrap();
        let (found, expected) = other_machine(file.path()).unwrap();
        assert_eq!(found, "32-bit big-endian PowerPC");
        assert!(expected.starts_with("64-bit"), "{expected}");
    }

    #[test]
    fn this_program_is_for_this_machine() {
        assert_eq!(other_machine(&std::env::current_exe().unwrap()), None);
    }
}
