//! Programs with a copy of libibverbs that has another name, as Python wheels bundle it.

use std::fs;

use crate::library::{output, text};
use crate::run::{soft_run, stdout};

const COPY: &str = "libibverbs-0123abcd.so.1";

#[test]
fn the_library_defines_the_symbols_of_a_renamed_copy() {
    let Some(mut command) = soft_run() else { return };
    let folder = tempfile::tempdir().unwrap();
    let [copy, map, module, main] =
        [COPY, "map", "module.so", "main"].map(|name| folder.path().join(name));
    let source = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let compile = |arguments: &[&std::ffi::OsStr]| {
        let mut compiler = test_support::program::c_compiler();
        compiler.args(arguments);
        output(compiler);
    };
    fs::write(&map, "IBVERBS_1.0 { local: *; }; IBVERBS_1.1 { global: ibv_get_device_list; };")
        .unwrap();
    // The copy finds no device.
    let text_of_copy = "void **ibv_get_device_list(int *count) { *count = 0; return 0; }";
    let copy_source = source("copy.c", text_of_copy);
    let soname = format!("-Wl,-soname,{COPY}");
    let script = format!("-Wl,--version-script={}", map.display());
    compile(&[
        "-shared".as_ref(),
        "-fPIC".as_ref(),
        soname.as_ref(),
        script.as_ref(),
        "-o".as_ref(),
        copy.as_ref(),
        copy_source.as_ref(),
    ]);
    // A module links with the copy, and a program loads the module, as Python does.
    let module_source = source(
        "module.c",
        "void **ibv_get_device_list(int *);
         int count(void) { int n = -1; ibv_get_device_list(&n); return n; }",
    );
    compile(&[
        "-shared".as_ref(),
        "-fPIC".as_ref(),
        "-Wl,-rpath,$ORIGIN".as_ref(),
        "-o".as_ref(),
        module.as_ref(),
        module_source.as_ref(),
        copy.as_ref(),
    ]);
    let main_source = source(
        "main.c",
        "#include <dlfcn.h>
         #include <stdio.h>
         int main(int argc, char **argv) {
             void *module = dlopen(argv[argc - 1], RTLD_NOW | RTLD_LOCAL);
             if (!module)
                 return puts(dlerror());
             int (*count)(void) = (int (*)(void))dlsym(module, \"count\");
             return printf(\"%d devices\\n\", count()) < 0;
         }",
    );
    compile(&["-o".as_ref(), main.as_ref(), main_source.as_ref(), "-ldl".as_ref()]);
    let alone = output({
        let mut alone = std::process::Command::new(&main);
        alone.arg(&module);
        alone
    });
    assert_eq!(alone, "0 devices\n");
    let run = command.arg(&main).arg(&module).output().unwrap();
    assert_eq!(stdout(&run), "2 devices\n", "{}", text(&run));
}
