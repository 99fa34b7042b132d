//! A plugin on top of this crate, in a process that later opens another NCCL for everybody: which file
//! answers was decided when the plugin was loaded.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

const PLUGIN: &str = r#"
use metrale_gpu_sys::nccl::{has_function, loaded_library, version};

#[unsafe(no_mangle)]
pub extern "C" fn report() {
    let library = loaded_library().unwrap();
    println!("version {}", version().unwrap());
    println!("path {}", library.path.display());
    println!("others {:?}", library.others);
    println!("old {} new {}", has_function("ncclOnlyOld"), has_function("ncclOnlyNew"));
}
"#;

/// Opens the plugin for itself alone, then the second library for all, and lets the plugin report.
const HOST: &str = r#"
use std::ffi::{CString, c_char, c_int, c_void};
unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}
fn main() {
    let names: Vec<CString> = std::env::args().skip(1).map(|name| CString::new(name).unwrap()).collect();
    unsafe {
        let plugin = dlopen(names[0].as_ptr(), 2);
        assert!(!plugin.is_null());
        assert!(!dlopen(names[1].as_ptr(), 2 | 0x100).is_null());
        let report: extern "C" fn() = std::mem::transmute(dlsym(plugin, c"report".as_ptr()));
        report();
    }
}
"#;

/// A made-up NCCL of this version code, with one function that only it has.
fn nccl(folder: &Path, code: i32, own: &str) -> PathBuf {
    let file = folder.join("libnccl.so.2");
    let version = format!("(code: *mut c_int) -> c_int {{ unsafe {{ *code = {code} }}; 0 }}");
    let text = "() -> *const c_char { c\"\".as_ptr() }";
    let functions = [
        ("ncclGetVersion", version.as_str()),
        ("ncclGetErrorString", text),
        ("ncclGetLastError", text),
        (own, "() {}"),
    ];
    support::library(&file, Some("libnccl.so.2"), &functions);
    file
}

#[test]
fn a_library_that_comes_later_for_all_does_not_answer() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let ours = nccl(&folder.join("ours"), 23000, "ncclOnlyOld");
    let theirs = nccl(&folder.join("theirs"), 22300, "ncclOnlyNew");

    let package = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plugin");
    fs::create_dir_all(package.join("src")).unwrap();
    let crate_folder = env!("CARGO_MANIFEST_DIR");
    let manifest = format!(
        "[package]\nname = \"plugin\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n\
         [lib]\ncrate-type = [\"cdylib\"]\n[dependencies]\nmetrale-gpu-sys = {{ path = {crate_folder:?} }}\n"
    );
    fs::write(package.join("Cargo.toml"), manifest).unwrap();
    fs::write(package.join("src/lib.rs"), PLUGIN).unwrap();
    let lock = Path::new(crate_folder).join("Cargo.lock");
    fs::copy(lock, package.join("Cargo.lock")).unwrap();
    let target = package.join("target");
    let mut cargo = support::cargo();
    cargo.current_dir(&package).args(["build", "--offline"]);
    cargo.env("CARGO_TARGET_DIR", &target);
    support::succeed(cargo.env("NCCL_HOME", ours.parent().unwrap()));
    let plugin = target.join("debug/libplugin.so");

    let (source, host) = (folder.join("host.rs"), folder.join("host"));
    fs::write(&source, HOST).unwrap();
    support::succeed(
        support::rustc()
            .arg("--edition=2024")
            .arg("-o")
            .arg(&host)
            .arg(&source),
    );

    let mut program = support::clean(&host);
    program.arg(plugin).arg(&theirs);
    let said = support::succeed(program.env("LD_LIBRARY_PATH", ours.parent().unwrap()));
    let expected = format!(
        "version 2.30.0\npath {}\nothers [{theirs:?}]\nold true new false\n",
        ours.display()
    );
    assert_eq!(said, expected);
}
