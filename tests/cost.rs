//! What a caller pays, read from the machine code of a release build.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use object::{Object, ObjectSymbol};

const LIBRARY: &str = r#"
use metrale_gpu_sys::{cuda, nccl};

#[unsafe(no_mangle)]
pub fn nccl_probe(result: nccl::NcclResult) -> anyhow::Result<()> {
    nccl::check_nccl(result, "a call")
}

#[unsafe(no_mangle)]
pub fn cuda_probe(result: cuda::CuResult) -> anyhow::Result<()> {
    cuda::check_cuda(result, "a call")
}
"#;

const PROGRAM: &str = r#"
fn main() {
    println!("{:?}", metrale_gpu_sys::nccl::version().map(|version| version.to_string()));
}
"#;

/// Builds a package on top of this crate in release mode and gives its target folder. One at a time:
/// tests share packages.
fn build(name: &str, source: &str, text: &str, arguments: &[&str]) -> PathBuf {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("cost")
        .join(name);
    fs::create_dir_all(folder.join("src")).unwrap();
    let ours = env!("CARGO_MANIFEST_DIR");
    let manifest = format!(
        "[package]\nname = {name:?}\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n\
         [dependencies]\nanyhow = \"1\"\nmetrale-gpu-sys = {{ path = {ours:?} }}\n"
    );
    fs::write(folder.join("Cargo.toml"), manifest).unwrap();
    fs::write(folder.join("src").join(source), text).unwrap();
    fs::copy(
        Path::new(ours).join("Cargo.lock"),
        folder.join("Cargo.lock"),
    )
    .unwrap();
    let target = folder.with_file_name("target");
    let mut cargo = support::cargo();
    cargo.current_dir(&folder).env("CARGO_TARGET_DIR", &target);
    support::succeed(
        cargo
            .args(["rustc", "--release", "--offline"])
            .args(arguments),
    );
    target.join("release")
}

/// The instructions from a function's label to its first return.
fn way_to_return(assembly: &str, function: &str) -> Vec<String> {
    let label = format!("{function}:");
    let body = assembly.lines().skip_while(|line| *line != label).skip(1);
    let mut instructions: Vec<String> = Vec::new();
    for line in body.map(str::trim) {
        if line.is_empty() || line.starts_with(['.', '#', '/']) || line.ends_with(':') {
            continue;
        }
        instructions.push(line.split_whitespace().next().unwrap().to_owned());
        if line.starts_with("ret") {
            return instructions;
        }
    }
    panic!("no return in {function}:\n{assembly}");
}

#[test]
fn a_check_that_passes_is_one_compare() {
    let release = build("probe", "lib.rs", LIBRARY, &["--lib", "--", "--emit=asm"]);
    let mut assembly = String::new();
    for entry in fs::read_dir(release.join("deps")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("probe") && name.ends_with(".s") {
            assembly = fs::read_to_string(path).unwrap();
        }
    }
    for function in ["nccl_probe", "cuda_probe"] {
        let way = way_to_return(&assembly, function);
        let count = |is: &dyn Fn(&str) -> bool| way.iter().filter(|name| is(name)).count();
        let compares = count(&|name| name.starts_with("test") || name.starts_with("cmp"));
        let jumps = count(&|name| {
            name.starts_with('j') || name.starts_with("cb") || name.starts_with("b.")
        });
        let calls = count(&|name| name.starts_with("call") || name == "bl" || name == "blr");
        assert!(
            compares <= 1 && jumps == 1 && calls == 0,
            "{function}: {way:?}"
        );
        assert!(way.len() <= 5, "{function}: {way:?}");
    }
}

#[test]
fn a_program_needs_only_what_it_calls() {
    let release = build("asks", "main.rs", PROGRAM, &[]);
    let bytes = fs::read(release.join("asks")).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let mut needed: Vec<&str> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_undefined())
        .filter_map(|symbol| symbol.name().ok())
        .filter(|name| name.starts_with("nccl") || name.starts_with("cu"))
        .collect();
    needed.sort_unstable();
    // The two others make the text of an error, and are older than any supported release.
    assert_eq!(
        needed,
        ["ncclGetErrorString", "ncclGetLastError", "ncclGetVersion"]
    );
}

#[test]
fn without_its_feature_nothing_of_the_emulator_is_compiled() {
    let release = build("asks", "main.rs", PROGRAM, &[]);
    let announcement = b"emulating NCCL and CUDA";
    let mut libraries = 0;
    for entry in fs::read_dir(release.join("deps")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("libmetrale_gpu_sys") && name.ends_with(".rlib") {
            libraries += 1;
            let bytes = fs::read(path).unwrap();
            let mut parts = bytes.windows(announcement.len());
            assert!(!parts.any(|part| part == announcement), "{name}");
        }
    }
    assert!(libraries > 0);
}
