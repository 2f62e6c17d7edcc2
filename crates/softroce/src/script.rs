//! Writes a script that runs a command in this process's working directory and with its environment
//! variables.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

/// Writes a script that runs `command` as it would run in this process.
pub(super) fn write(file: &Path, command: &[OsString]) -> Result<()> {
    let folder = std::env::current_dir().context("the working directory")?;
    fs::write(file, text(&folder, std::env::vars_os(), command)?)?;
    Ok(())
}

fn text(
    folder: &Path,
    variables: impl Iterator<Item = (OsString, OsString)>,
    command: &[OsString],
) -> Result<Vec<u8>> {
    ensure!(!command.is_empty(), "no command to run");
    let mut text = Vec::new();
    for (name, value) in variables.filter(|(name, _)| is_name(name)) {
        text.extend([b"export ", name.as_bytes(), b"=", &quoted(&value), b"\n"].concat());
    }
    text.extend([b"cd ", &quoted(folder.as_os_str())[..], b" || exit 125\nexec"].concat());
    for word in command {
        text.push(b' ');
        text.extend(quoted(word));
    }
    text.push(b'\n');
    Ok(text)
}

/// Returns true if this is a valid shell variable name. Excludes `PWD`, which the shell sets
/// itself.
fn is_name(name: &OsStr) -> bool {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let bytes = name.as_bytes();
    bytes.iter().all(plain) && !bytes.first().is_none_or(u8::is_ascii_digit) && name != "PWD"
}

fn quoted(word: &OsStr) -> Vec<u8> {
    let mut text = vec![b'\''];
    for byte in word.as_bytes() {
        match byte {
            b'\'' => text.extend(br"'\''"),
            byte => text.push(*byte),
        }
    }
    text.push(b'\'');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn words_and_variables_arrive_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let odd = OsStr::from_bytes(b"a 'b' $HOME \\ \"c\"\n\xff*");
        let variables = [("ODD", odd), ("BASH_FUNC_x%%", OsStr::new("() { :; }"))];
        let variables = variables.map(|(name, value)| (OsString::from(name), value.to_owned()));
        let words = ["sh", "-c", "printf '%s|%s|' \"$1\" \"$ODD\"; pwd", "sh"].map(OsString::from);
        let words = [&words[..], &[odd.to_owned()]].concat();
        let script = folder.path().join("command");
        let place = folder.path().canonicalize().unwrap();
        fs::write(&script, text(&place, variables.into_iter(), &words).unwrap()).unwrap();
        let output = Command::new("sh").arg(&script).output().unwrap();
        let odd = odd.as_bytes();
        let expected = [odd, b"|", odd, b"|", place.as_os_str().as_bytes(), b"\n"].concat();
        assert_eq!(output.stdout, expected, "{:?}", output);
    }

    #[test]
    fn the_status_of_a_script_is_that_of_its_command() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("command");
        let status = |words: &[&str], place: &str| {
            let words: Vec<_> = words.iter().map(OsString::from).collect();
            fs::write(&script, text(Path::new(place), [].into_iter(), &words).unwrap()).unwrap();
            Command::new("sh").arg(&script).output().unwrap().status.code()
        };
        assert_eq!(status(&["sh", "-c", "exit 7"], "/"), Some(7));
        assert_eq!(status(&["no-such-program"], "/"), Some(127));
        assert_eq!(status(&["true"], "/no/such/folder"), Some(125));
        assert!(text(Path::new("/"), [].into_iter(), &[]).is_err());
    }
}
