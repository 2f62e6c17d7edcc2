//! The program to run.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::elf::{FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, FileKind, ReadCache, ReadRef};
use rustix::fs::{Access, access, getxattr};
use rustix::process::{getegid, geteuid};

/// The maximum number of interpreters that are scripts themselves, as in the kernel.
const SCRIPTS: usize = 4;
const SETUID: u32 = 0o4000;
/// The setgid bit, and the group's right to execute. Without this right, the bit means mandatory locking.
const SETGID: u32 = 0o2010;

/// A reason not to run a program with the library.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("{} was not found{}; check the name", name.display(), searched(name))]
    NotFound { name: OsString },
    #[error("{} does not start: {error}", path.display())]
    NotStarted { path: PathBuf, error: io::Error },
    #[error("{} is statically linked, so no library can be loaded into it; link it dynamically, or start only \
        its dynamically linked children with this program", path.display())]
    Static { path: PathBuf },
    #[error("{} gains rights when it starts (setuid, setgid or file capabilities), and the loader then ignores the \
        library; run a copy without these rights", path.display())]
    Privileged { path: PathBuf },
    #[error("{} is for another processor or C library (loader {}, but the library needs {}); \
        build the library for the program's system", path.display(), theirs.display(), own.display())]
    OtherLoader { path: PathBuf, theirs: PathBuf, own: PathBuf },
}

impl Refusal {
    /// Returns the exit status that `env`, `timeout` and shells use.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Self::NotFound { .. } => 127,
            _ => 126,
        }
    }
}

fn searched(name: &OsStr) -> &'static str {
    if has_slash(name) { "" } else { " in the folders of PATH" }
}

fn has_slash(name: &OsStr) -> bool {
    name.as_bytes().contains(&b'/')
}

/// A program into which the library can be loaded, and its arguments.
#[derive(Debug)]
pub(crate) struct Program<'a> {
    path: PathBuf,
    words: &'a [OsString],
}

impl<'a> Program<'a> {
    /// Finds the program with the first of these words as its name, like `execvp(3)`.
    pub(crate) fn find(words: &'a [OsString]) -> Result<Self, Refusal> {
        let name = words.first().map_or(OsStr::new(""), OsString::as_os_str);
        let path = match has_slash(name) {
            true => Some(PathBuf::from(name)).filter(|path| path.exists()),
            false => {
                let folders = env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
                let paths = env::split_paths(&folders).map(|folder| folder.join(name));
                paths
                    .into_iter()
                    .find(|path| path.is_file() && access(path, Access::EXEC_OK).is_ok())
            }
        };
        let path = path.ok_or_else(|| Refusal::NotFound { name: name.to_owned() })?;
        check(&path, SCRIPTS).map_err(|failure| match failure {
            Failure::Refused(refusal) => refusal,
            Failure::Unreadable(error) => Refusal::NotStarted { path: path.clone(), error },
        })?;
        Ok(Self { path, words })
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        if let [name, arguments @ ..] = self.words {
            command.arg0(name).args(arguments);
        }
        command
    }

    pub(crate) fn not_started(&self, error: io::Error) -> Refusal {
        Refusal::NotStarted { path: self.path.clone(), error }
    }
}

enum Failure {
    Refused(Refusal),
    Unreadable(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Unreadable(error)
    }
}

/// Checks that the library can be loaded into the program, or into the interpreter of a script.
fn check(path: &Path, scripts: usize) -> Result<(), Failure> {
    let refuse = |refusal| Err(Failure::Refused(refusal));
    if !path.is_file() {
        return Err(Failure::Unreadable(io::ErrorKind::PermissionDenied.into()));
    }
    access(path, Access::EXEC_OK).map_err(io::Error::from)?;
    let file = match File::open(path) {
        Ok(file) => file,
        // The file is executable but not readable. The system then decides.
        Err(_) => return Ok(()),
    };
    if let Some(interpreter) = interpreter_of_script(&file)? {
        // If the interpreter is missing, the system reports it.
        return match scripts {
            0 => Ok(()),
            _ if !interpreter.exists() => Ok(()),
            _ => check(&interpreter, scripts - 1),
        };
    }
    // The system refuses other formats when the program is started.
    let Ok(loader) = loader(&file) else { return Ok(()) };
    let path = path.to_owned();
    if is_privileged(&file, &path)? {
        return refuse(Refusal::Privileged { path });
    }
    let Some(theirs) = loader else { return refuse(Refusal::Static { path }) };
    // `rdma-soft-run` and the library are built for the same system.
    let own = File::open("/proc/self/exe").map_err(|error| {
        io::Error::new(error.kind(), format!("/proc/self/exe is unreadable ({error}); mount /proc"))
    })?;
    match self::loader(&own) {
        Ok(Some(own)) if own.file_name() != theirs.file_name() => {
            refuse(Refusal::OtherLoader { path, theirs, own })
        }
        _ => Ok(()),
    }
}

/// Returns the interpreter that the first line of a script names.
fn interpreter_of_script(file: &File) -> io::Result<Option<PathBuf>> {
    let mut line = Vec::new();
    // The kernel reads this number of bytes.
    BufReader::new(file.take(256)).read_until(b'\n', &mut line)?;
    let Some(rest) = line.strip_prefix(b"#!") else { return Ok(None) };
    let mut words = rest.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    Ok(words.next().map(|word| PathBuf::from(OsString::from_vec(word.to_vec()))))
}

/// Returns true if the program would run with rights that this process does not have.
fn is_privileged(file: &File, path: &Path) -> io::Result<bool> {
    let metadata = file.metadata()?;
    let mode = metadata.mode();
    let setuid = mode & SETUID != 0 && metadata.uid() != geteuid().as_raw();
    let setgid = mode & SETGID == SETGID && metadata.gid() != getegid().as_raw();
    let mut value = [0_u8; 64];
    let capable = getxattr(path, "security.capability", &mut value).is_ok() && !geteuid().is_root();
    Ok(setuid || setgid || capable)
}

/// Returns the loader of dynamic libraries that a program names, or `None` if it names none.
fn loader(file: &File) -> object::Result<Option<PathBuf>> {
    let data = ReadCache::new(file);
    match FileKind::parse(&data)? {
        FileKind::Elf64 => loader_in::<FileHeader64<Endianness>>(&data),
        _ => loader_in::<FileHeader32<Endianness>>(&data),
    }
}

fn loader_in<'d, H: FileHeader<Endian = Endianness>>(
    data: impl ReadRef<'d>,
) -> object::Result<Option<PathBuf>> {
    let header = H::parse(data)?;
    let endian = header.endian()?;
    for segment in header.program_headers(endian, data)? {
        if let Some(path) = segment.interpreter(endian, data)? {
            return Ok(Some(PathBuf::from(OsString::from_vec(path.to_vec()))));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn refusal(path: &Path) -> Option<Refusal> {
        Program::find(&[path.as_os_str().to_owned()]).err()
    }

    #[test]
    fn programs_are_found_as_by_a_shell() {
        assert!(Program::find(&["sh".into()]).unwrap().path.ends_with("sh"));
        assert_eq!(Program::find(&["no such program".into()]).unwrap_err().status(), 127);
        assert_eq!(Program::find(&["/no/such program".into()]).unwrap_err().status(), 127);
        assert_eq!(refusal(Path::new("/etc/passwd")).unwrap().status(), 126);
        assert_eq!(refusal(Path::new("/etc")).unwrap().status(), 126);
    }

    #[test]
    fn the_interpreter_of_a_script_is_checked() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        let write = |text: &str| {
            fs::write(&script, text).unwrap();
            fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        };
        write("#! /bin/sh -e\n");
        assert!(refusal(&script).is_none());
        // A script that runs itself; the system refuses it.
        write(&format!("#!{}", script.display()));
        assert!(refusal(&script).is_none());
        write("#!/etc/passwd\n");
        assert_eq!(refusal(&script).unwrap().status(), 126);
    }
}
