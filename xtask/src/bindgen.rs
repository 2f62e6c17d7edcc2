//! `cargo xtask bindgen`: generates the checked-in bindings of `rdma-sys`. They come from the
//! headers of the rdma-core release that is part of `ibverbs-sys`, in the version that `Cargo.lock`
//! names.
//!
//! The output depends only on the headers, not on the machine's libclang or libc. CI runs this
//! command with `--check`, which fails if the checked-in files differ from the output.

mod clang;
mod headers;
mod items;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use clang::Target;

/// Regenerates the bindings. With `check`, writes nothing, and fails if the checked-in bindings
/// differ from the generated ones.
pub(crate) fn run(check: bool) -> Result<()> {
    let root = workspace_root();
    let tree = headers::lay_out(&root)?;
    let mut files = Vec::new();
    let mut neutral: Option<(&str, [(&str, String); 3])> = None;
    for target in Target::ALL {
        let parts = items::split(&clang::parse(&tree, target)?)?;
        files.push((format!("layout_{}.rs", target.arch), parts.layout));
        let same = [
            ("verbs.rs", parts.types),
            ("functions.rs", parts.functions),
            ("symbols.rs", parts.symbols),
        ];
        match &neutral {
            None => neutral = Some((target.arch, same)),
            Some((arch, first)) if *first != same => {
                bail!("the bindings differ between {arch} and {}", target.arch);
            }
            Some(_) => {}
        }
    }
    let (_, neutral) = neutral.context("no target")?;
    files.extend(neutral.map(|(name, body)| (name.to_owned(), body)));

    let folder = root.join("crates/rdma-sys/src/generated");
    let mut differing = Vec::new();
    for (name, body) in files {
        let path = folder.join(name);
        let text = rustfmt(&root, &format!("{}{body}", headers::notice(&tree)?))?;
        if fs::read_to_string(&path).ok().as_deref() == Some(&text) {
            continue;
        }
        if !check {
            fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        differing.push(path.display().to_string());
    }
    if check && !differing.is_empty() {
        bail!(
            "the bindings differ from the headers; run `cargo xtask bindgen`:\n{}",
            differing.join("\n")
        );
    }
    let verb = if check { "compared" } else { "written" };
    println!("bindings {verb}; {} of them changed", differing.len());
    Ok(())
}

fn workspace_root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_path_buf()
}

fn rustfmt(root: &Path, text: &str) -> Result<String> {
    use std::{
        io::Write as _,
        process::{Command, Stdio},
    };
    let mut child = Command::new("rustfmt")
        .args(["--edition", "2024", "--config-path"])
        .arg(root.join("rustfmt.toml"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting rustfmt (rustup component add rustfmt)")?;
    let mut stdin = child.stdin.take().context("rustfmt has no stdin")?;
    let text = text.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output()?;
    writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
    if !output.status.success() {
        bail!("rustfmt failed on the bindings: {}", output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}
