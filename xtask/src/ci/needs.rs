//! The requirements of jobs.

use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::setting::Setting;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Need {
    /// A program that must be on `PATH`, and how to install it.
    Tool(&'static str, &'static str),
    /// A file or a folder that must exist, and how to install it.
    Path(&'static str, &'static str),
    /// A command that must succeed, and what to do if it fails.
    Works(&'static str, &'static str),
    /// The standard library for a target.
    Std(&'static str),
    /// libclang, the C library that bindgen loads.
    Libclang,
    /// A host and a port that must accept connections.
    Reach(&'static str),
}

impl Need {
    /// Returns what is missing, and how to install it. Returns `None` if the requirement is met.
    pub(crate) fn lack(&self, setting: &Setting) -> Option<String> {
        let (met, lack) = match *self {
            Self::Tool(name, fix) => (on_path(name), format!("no {name}: {fix}")),
            Self::Path(path, fix) => (Path::new(path).exists(), format!("no {path}: {fix}")),
            Self::Works(line, fix) => {
                let (line, fix) = (setting.fill(line), setting.fill(fix));
                (works(&line), format!("`{line}` fails: {fix}"))
            }
            Self::Std(target) => {
                (has_std(target), format!("no std for {target}: rustup target add {target}"))
            }
            Self::Libclang => {
                (has_libclang(), "no libclang: apt-get install libclang-dev".to_owned())
            }
            Self::Reach(address) => (reaches(address), format!("{address} does not answer")),
        };
        (!met).then_some(lack)
    }
}

fn on_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

fn works(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let Some(program) = words.next() else { return false };
    Command::new(program).args(words).output().is_ok_and(|output| output.status.success())
}

fn has_std(target: &str) -> bool {
    let args = ["--print", "target-libdir", "--target", target];
    let Ok(output) = Command::new("rustc").args(args).output() else { return false };
    Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir()
}

fn has_libclang() -> bool {
    let given = std::env::var_os("LIBCLANG_PATH").map(std::path::PathBuf::from);
    let versions = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let versions = versions.map(|entry| entry.path()).filter(|path| is_llvm(path));
    let mut folders = given.into_iter().chain(versions.map(|path| path.join("lib")));
    folders.any(|folder| {
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
        files.map(|file| file.file_name()).any(|name| {
            let name = name.to_string_lossy();
            let library = name.starts_with("libclang.so") || name.starts_with("libclang-");
            library && !name.starts_with("libclang-cpp")
        })
    })
}

fn is_llvm(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("llvm"))
}

fn reaches(address: &str) -> bool {
    let addresses = address.to_socket_addrs().into_iter().flatten();
    let limit = Duration::from_secs(5);
    addresses.take(2).any(|address| TcpStream::connect_timeout(&address, limit).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree;

    #[test]
    fn requirements_that_every_machine_meets_are_not_lacking() {
        let setting = Setting::of(&tree::root()).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string().leak();
        let met = [Need::Tool("sh", ""), Need::Path("/", ""), Need::Works("cargo --version", "")];
        for need in met.into_iter().chain([Need::Reach(address)]) {
            assert_eq!(need.lack(&setting), None);
        }
        assert!(has_std(&setting.fill("{host}")));
    }

    #[test]
    fn a_missing_requirement_is_named_with_its_remedy() {
        let setting = Setting::of(&tree::root()).unwrap();
        let lacks = [
            (Need::Tool("no-such-tool", "buy it"), ["no-such-tool", "buy it"]),
            (Need::Path("/no/such/path", "make it"), ["/no/such/path", "make it"]),
            (Need::Works("cargo no-such-command", "write {msrv}"), ["no-such-command", "write 1."]),
            (Need::Std("no-such-target"), ["no-such-target", "rustup target add"]),
            (Need::Reach("127.0.0.1:1"), ["127.0.0.1:1", "answer"]),
        ];
        for (need, parts) in lacks {
            let lack = need.lack(&setting).unwrap();
            assert!(parts.iter().all(|part| lack.contains(part)), "{lack}");
        }
    }
}
