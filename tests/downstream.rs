//! Programs of other packages: they are built by cargo on top of this crate, offline, against
//! made-up libraries, and started as a user starts them.

mod support;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use std::{env, fs};

use object::elf::{DT_NEEDED, DT_RPATH, DT_RUNPATH};
use support::{clean, dynamic, run, succeed};
use tempfile::TempDir;

/// The packages that are built, in one folder with one target directory, by one test at a time.
struct Packages {
    folder: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

impl Packages {
    fn new() -> Packages {
        static ALONE: Mutex<()> = Mutex::new(());
        let packages = Packages {
            folder: Path::new(env!("CARGO_TARGET_TMPDIR")).join("downstream"),
            _alone: ALONE.lock().unwrap_or_else(PoisonError::into_inner),
        };
        let ours = env!("CARGO_MANIFEST_DIR");
        let dependency = format!("metrale-gpu-sys = {{ path = {ours:?} }}\nanyhow = \"1\"\n");
        let package = |name: &str| {
            format!("[package]\nname = {name:?}\nversion = \"0.0.0\"\nedition = \"2024\"\n")
        };
        let program = |name: &str| format!("[[bin]]\nname = {name:?}\npath = \"{name}.rs\"\n");
        packages.write(
            "Cargo.toml",
            "[workspace]\nresolver = \"3\"\nmembers = [\"direct\", \"plain\", \"middle\", \"top\"]\n\
             [profile.dev]\ndebug = false\nincremental = false\n",
        );
        let lock = fs::read_to_string(Path::new(ours).join("Cargo.lock")).unwrap();
        if !packages.folder.join("Cargo.lock").exists() {
            packages.write("Cargo.lock", &lock);
        }

        // Depends on this crate, and says where the libraries are as the README tells.
        let programs = ["report", "all_reduce", "results", "wrappers"]
            .map(program)
            .concat();
        packages.write(
            "direct/Cargo.toml",
            &format!(
                "{}[dependencies]\n{dependency}{programs}",
                package("direct")
            ),
        );
        packages.write(
            "direct/build.rs",
            include_str!("downstream/readme_build.rs"),
        );
        packages.write("direct/report.rs", include_str!("downstream/report.rs"));
        packages.write("direct/results.rs", include_str!("downstream/results.rs"));
        packages.write("direct/wrappers.rs", include_str!("downstream/wrappers.rs"));
        packages.write(
            "direct/all_reduce.rs",
            include_str!("downstream/all_reduce.rs"),
        );

        // Depends on this crate, and leaves the rest to the loader.
        packages.write(
            "plain/Cargo.toml",
            &format!(
                "{}[dependencies]\n{dependency}{}",
                package("plain"),
                program("plain")
            ),
        );
        packages.write("plain/plain.rs", include_str!("downstream/report.rs"));

        // A program on top of a library on top of this crate.
        packages.write(
            "middle/Cargo.toml",
            &format!("{}[dependencies]\n{dependency}", package("middle")),
        );
        packages.write("middle/src/lib.rs", "pub use metrale_gpu_sys::*;\n");
        packages.write(
            "top/Cargo.toml",
            &format!(
                "{}[dependencies]\nmiddle = {{ path = \"../middle\" }}\n{dependency}{}",
                package("top"),
                program("top")
            ),
        );
        packages.write("top/build.rs", include_str!("downstream/readme_build.rs"));
        packages.write(
            "top/top.rs",
            &include_str!("downstream/report.rs").replace("metrale_gpu_sys", "middle"),
        );
        packages
    }

    /// Writes a file, unless it is the same already: cargo looks at the time.
    fn write(&self, path: &str, text: &str) {
        let file = self.folder.join(path);
        if fs::read_to_string(&file).is_ok_and(|old| old == text) {
            return;
        }
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    fn cargo(&self, words: &[&str], variables: &[(&str, &OsStr)]) -> Command {
        let mut cargo = support::cargo();
        cargo.current_dir(&self.folder).args(words).arg("--offline");
        cargo.env("CARGO_TARGET_DIR", self.folder.join("target"));
        cargo.envs(variables.iter().copied());
        cargo
    }

    /// Builds one program and gives its file.
    #[track_caller]
    fn build(&self, name: &str, variables: &[(&str, &OsStr)]) -> PathBuf {
        succeed(&mut self.cargo(&["build", "--bin", name], variables));
        self.folder.join("target/debug").join(name)
    }

    /// Builds one program, and tells how often the build script of this crate ran.
    #[track_caller]
    fn script_runs(&self, variables: &[(&str, &OsStr)]) -> usize {
        let text = succeed(&mut self.cargo(&["build", "-v", "--bin", "report"], variables));
        let script = |line: &&str| {
            line.contains("Running `")
                && line.contains("/build/metrale-gpu-sys-")
                && line.contains("/build-script-build`")
        };
        text.lines().filter(script).count()
    }
}

/// A made-up NCCL whose version says which one it is.
fn nccl(folder: &Path, code: u32) -> PathBuf {
    let file = folder.join("libnccl.so.2");
    let version = returns_version(code);
    support::library(&file, Some("libnccl.so.2"), &functions_of_nccl(&version));
    file
}

fn returns_version(code: u32) -> String {
    format!("(version: *mut c_int) -> c_int {{ unsafe {{ *version = {code} }}; 0 }}")
}

/// What the programs here use at least.
fn functions_of_nccl(version: &str) -> [(&str, &str); 3] {
    [
        ("ncclGetVersion", version),
        ("ncclGetErrorString", RETURNS_TEXT),
        ("ncclGetLastError", RETURNS_TEXT),
    ]
}

const RETURNS_TEXT: &str = "() -> *const c_char { c\"text\".as_ptr() }";

/// A made-up driver whose `cuInit` returns `code`.
fn cuda(folder: &Path, code: i32) -> PathBuf {
    let file = folder.join("libcuda.so.1");
    let init = format!("() -> c_int {{ {code} }}");
    let functions = [
        ("cuInit", init.as_str()),
        ("cuGetErrorString", "() -> c_int { 1 }"),
    ];
    support::library(&file, Some("libcuda.so.1"), &functions);
    file
}

fn needed(file: &Path) -> Vec<String> {
    dynamic(file, &[DT_NEEDED])
}

#[track_caller]
fn expect(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

// F1
#[test]
fn a_wheels_folder_is_enough_however_it_is_called() {
    let packages = Packages::new();
    let folder = TempDir::new().unwrap();
    let odd = OsString::from_vec(b"not \xff UTF-8".to_vec());
    for (name, code) in [
        (OsStr::new("wheel"), 22703),
        (OsStr::new("with spaces in it"), 22704),
        (OsStr::new("with,comma"), 22705),
        (&odd, 22706),
    ] {
        let home = folder.path().join(name);
        let file = nccl(&home.join("lib"), code);
        let header = home.join("include/nccl.h");
        fs::create_dir(header.parent().unwrap()).unwrap();
        let patch = code % 100;
        let text =
            format!("#define NCCL_MAJOR 2\n#define NCCL_MINOR 27\n#define NCCL_PATCH {patch}\n");
        fs::write(header, text).unwrap();

        let mut values = vec![home.clone().into_os_string()];
        if name == "wheel" {
            let mut slash = home.clone().into_os_string();
            slash.push("/");
            values.extend([slash, home.join("lib").into_os_string()]);
        }
        for value in values {
            let program = packages.build("report", &[("NCCL_HOME", &value)]);
            assert!(needed(&program).contains(&"libnccl.so.2".to_owned()));
            let text = succeed(&mut clean(&program));
            let loaded = file.canonicalize().unwrap();
            expect(
                &text,
                &[
                    &format!("nccl version: 2.27.{patch}"),
                    &format!("nccl file: {}", loaded.display()),
                    &format!("DEP_NCCL_VERSION=2.27.{patch}"),
                    "DEP_NCCL_BINDING=linked",
                    "libnccl.so.2 (by NCCL_HOME)",
                ],
            );
            if name == "wheel" {
                expect(
                    &text,
                    &[
                        &format!("DEP_NCCL_LIB_DIR={}\n", home.join("lib").display()),
                        &format!("DEP_NCCL_INCLUDE_DIR={}\n", home.join("include").display()),
                        &format!("DEP_NCCL_RPATH={}", home.join("lib").display()),
                    ],
                );
            }
        }
    }
    let relative = [("NCCL_HOME", OsStr::new("wheel"))];
    let text = run(&mut packages.cargo(&["check"], &relative)).expect(101);
    expect(&text, &["0: NCCL_HOME is wheel, a relative path"]);
    assert!(!text.contains("panicked"), "{text}");
}

// F3
#[test]
fn a_library_under_the_developers_name_or_without_a_soname_serves_too() {
    let packages = Packages::new();
    let folder = TempDir::new().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let [other_name, unnamed] = ["other_name", "unnamed"].map(|name| folder.join(name));
    let file = nccl(&other_name, 22703);
    let only = file.with_file_name("libnccl.so");
    fs::rename(file, &only).unwrap();
    let nameless = unnamed.join("libnccl.so.2");
    support::library(&nameless, None, &functions_of_nccl(&returns_version(22704)));
    for (home, file, version) in [
        (&other_name, &only, "2.27.3"),
        (&unnamed, &nameless, "2.27.4"),
    ] {
        let program = packages.build("report", &[("NCCL_HOME", home.as_os_str())]);
        assert!(needed(&program).contains(&"libnccl.so.2".to_owned()));
        expect(
            &succeed(&mut clean(&program)),
            &[
                &format!("nccl version: {version}"),
                &format!("nccl file: {}\n", file.display()),
            ],
        );
    }
}

// F2
#[test]
fn the_named_library_is_linked_and_the_program_tells_which_one_it_loaded() {
    let packages = Packages::new();
    let folder = TempDir::new().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let [a, b, empty] = ["a", "b", "empty"].map(|name| folder.join(name));
    let named = nccl(&a, 23000);
    fs::create_dir(&empty).unwrap();
    // A linker that opened B's file would fail.
    fs::create_dir(&b).unwrap();
    for name in ["libnccl.so.2", "libnccl.so"] {
        fs::write(b.join(name), "not a library").unwrap();
    }
    let flags = format!("-Lnative={}", b.display());
    let program = packages.build(
        "report",
        &[
            ("NCCL_HOME", a.as_os_str()),
            ("LIBRARY_PATH", b.as_os_str()),
            ("RUSTFLAGS", flags.as_ref()),
        ],
    );
    let other = nccl(&b, 22300);
    expect(
        &succeed(&mut clean(&program)),
        &[
            "nccl version: 2.30.0",
            &format!("nccl file: {}\n", named.display()),
        ],
    );
    expect(
        &succeed(clean(&program).env("LD_LIBRARY_PATH", &b)),
        &[
            "nccl version: 2.23.0",
            &format!("nccl file: {}\n", other.display()),
        ],
    );

    let variables = [
        ("NCCL_HOME", empty.as_os_str()),
        ("LIBRARY_PATH", a.as_os_str()),
    ];
    let text = run(packages
        .cargo(&["check"], &variables)
        .env("LD_LIBRARY_PATH", &a))
    .expect(101);
    expect(
        &text,
        &[
            &format!(
                "error: metrale-gpu-sys@0.1.0: NCCL_HOME is {}, where no usable libnccl.so.2 was found:",
                empty.display()
            ),
            &format!("{}/lib64 does not exist", empty.display()),
        ],
    );
}

// F4
#[test]
fn the_script_runs_again_when_it_should_and_only_then() {
    let packages = Packages::new();
    let folder = TempDir::new().unwrap();
    let [a, b, later] = ["a", "b", "later"].map(|name| folder.path().join(name));
    nccl(&a.join("lib"), 22801);
    nccl(&b, 22802);
    let home = |path: &Path| [("NCCL_HOME", path.as_os_str().to_owned())];
    let runs = |variables: &[(&str, OsString)]| {
        let variables: Vec<_> = variables.iter().map(|(k, v)| (*k, v.as_os_str())).collect();
        packages.script_runs(&variables)
    };
    let program = packages.folder.join("target/debug/report");
    let version = |expected: &str| {
        expect(
            &succeed(&mut clean(&program)),
            &[&format!("nccl version: {expected}\n")],
        );
    };

    runs(&home(&a));
    assert_eq!(runs(&home(&a)), 0, "a second build does nothing");
    version("2.28.1");
    assert_eq!(runs(&home(&b)), 1, "another folder");
    assert_eq!(runs(&home(&b)), 0);
    version("2.28.2");
    assert_eq!(runs(&[]), 1, "unset");
    assert_eq!(runs(&[]), 0);

    // A folder that is wrong at first.
    let variables = home(&later);
    let check = |code| {
        let variables = [("NCCL_HOME", later.as_os_str())];
        run(&mut packages.cargo(&["build", "--bin", "report"], &variables)).expect(code)
    };
    expect(&check(101), &["later, which does not exist"]);
    fs::create_dir(&later).unwrap();
    expect(&check(101), &["later has no libnccl.so.2"]);
    nccl(&later, 22803);
    assert_eq!(runs(&variables), 1, "mended");
    assert_eq!(runs(&variables), 0);
    version("2.28.3");

    // Another file in its place.
    nccl(&later, 22804);
    assert_eq!(runs(&variables), 1, "replaced");
    assert_eq!(runs(&variables), 0);
    version("2.28.4");

    // One that is older than what it replaces, as package managers and `rsync -a` leave it.
    let older = nccl(&folder.path().join("older"), 22805);
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let file = fs::File::options().append(true).open(&older).unwrap();
    file.set_modified(long_ago).unwrap();
    fs::rename(&older, later.join("libnccl.so.2")).unwrap();
    assert_eq!(runs(&variables), 1, "replaced by an older one");
    assert_eq!(runs(&variables), 0);
    version("2.28.5");
    fs::remove_file(later.join("libnccl.so.2")).unwrap();
    expect(&check(101), &["later has no libnccl.so.2"]);

    // A toolkit that gets its library later.
    let toolkit = folder.path().join("toolkit");
    fs::create_dir_all(toolkit.join("lib64")).unwrap();
    let variables = [
        ("NCCL_HOME", a.clone().into_os_string()),
        ("CUDA_PATH", toolkit.clone().into_os_string()),
    ];
    assert_eq!(runs(&variables), 1);
    assert_eq!(runs(&variables), 0);
    let driver = cuda(&toolkit.join("lib64"), 0);
    assert_eq!(runs(&variables), 1, "appeared");
    assert_eq!(runs(&variables), 0);
    expect(
        &succeed(&mut clean(&program)),
        &[
            "cuda is there",
            &format!("cuda file: {}\n", driver.canonicalize().unwrap().display()),
        ],
    );
}

#[test]
fn a_program_survives_that_the_same_target_folder_is_used_for_another_library() {
    let packages = Packages::new();
    let folder = TempDir::new().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let [odd, other_odd, unnamed] = ["a,b", "c,d", "e"].map(|name| folder.join(name));
    nccl(&odd, 22703);
    nccl(&other_odd, 22704);
    let file = nccl(&unnamed, 22705);
    fs::rename(&file, file.with_file_name("libnccl.so")).unwrap();
    let mut programs = Vec::new();
    for home in ["".as_ref(), odd.as_path(), &unnamed, &other_odd] {
        let program = packages.build("report", &[("NCCL_HOME", home.as_os_str())]);
        let kept = folder.join(format!("report-{}", programs.len()));
        fs::copy(program, &kept).unwrap();
        let text = succeed(&mut clean(&kept));
        programs.push((kept, text));
    }
    for (program, text) in programs {
        assert_eq!(succeed(&mut clean(&program)), text);
    }
}

// F6
#[test]
fn a_driver_that_refuses_is_named_with_the_file_and_the_usual_cause() {
    let packages = Packages::new();
    let folder = TempDir::new().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    nccl(&folder.join("nccl"), 22703);
    let home = folder.join("nccl");
    let program = packages.build("report", &[("NCCL_HOME", home.as_os_str())]);
    for (code, name, hint) in [
        (34, "CUDA_ERROR_STUB_LIBRARY (34)", "stub"),
        (35, "code 35", "update the driver"),
        (100, "CUDA_ERROR_NO_DEVICE (100)", "CUDA_VISIBLE_DEVICES"),
        (
            803,
            "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)",
            "kernel module",
        ),
        (
            804,
            "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE (804)",
            "cuda-compat",
        ),
        (999, "CUDA_ERROR_UNKNOWN (999)", "nvidia-smi"),
    ] {
        let driver = cuda(&folder.join(code.to_string()), code);
        let text = succeed(clean(&program).env("LD_LIBRARY_PATH", driver.parent().unwrap()));
        let line = text.lines().find(|line| line.starts_with("cuda error: "));
        let line = line.unwrap_or_else(|| panic!("{text}"));
        expect(
            line,
            &["cuInit failed: ", name, hint, &driver.display().to_string()],
        );
    }
}

// F7
#[test]
fn the_real_library_is_used_whatever_was_linked() {
    let packages = Packages::new();
    let folder = TempDir::new().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let real = nccl(&folder, 22703);
    let driver = cuda(&folder, 0);
    let expected = [
        "nccl version: 2.27.3".to_owned(),
        format!("nccl file: {}\n", real.display()),
        "cuda is there".to_owned(),
        format!("cuda file: {}\n", driver.display()),
    ];
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    for name in ["report", "plain"] {
        let program = packages.build(name, &[]);
        let needed = needed(&program);
        let libraries: Vec<&String> = needed
            .iter()
            .filter(|name| name.contains("nccl") || name.contains("cuda"))
            .collect();
        assert_eq!(libraries, ["libnccl.so.2", "libcuda.so.1"]);
        let text = succeed(clean(&program).env("LD_LIBRARY_PATH", &folder));
        expect(&text, &expected);
        let text = succeed(
            packages
                .cargo(&["run", "--bin", name], &[])
                .env("LD_LIBRARY_PATH", &folder),
        );
        expect(&text, &expected);
        assert!(!text.contains(" other: "), "{text}");
    }

    // With neither, what starts says what it is.
    let text = succeed(&mut packages.cargo(&["run", "--bin", "report"], &[]));
    if text.contains("libnccl.so.2: not found") {
        expect(
            &text,
            &[
                "warning: metrale-gpu-sys@0.1.0: libnccl.so.2",
                "nccl error: ncclGetVersion failed: this is an import stub: no libnccl.so.2 was found",
                "set NCCL_HOME and build again: ncclSystemError (2)",
            ],
        );
    }
    if text.contains("libcuda.so.1: not found") {
        expect(&text, &["CUDA_ERROR_STUB_LIBRARY (34)"]);
    }
}

// F8
#[test]
fn no_tool_is_needed_but_cargos_own_and_the_linker() {
    let packages = Packages::new();
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    let tools = Path::new(env!("CARGO")).parent().unwrap();
    for tool in ["cargo", "rustc", "rustdoc"] {
        symlink(tools.join(tool), path.join(tool)).unwrap();
    }
    let on_path = |words: &[&str], home: &Path| {
        let mut cargo = packages.cargo(words, &[("NCCL_HOME", home.as_os_str())]);
        run(cargo.env("PATH", path))
    };

    // No linker at all: what is linked with none can still be checked. Both values of the variable
    // make the script run again, and the driver's stub with it.
    let [a, b] = ["a", "b"].map(|name| path.join(name));
    nccl(&a, 22901);
    nccl(&b, 22902);
    packages.build("report", &[("NCCL_HOME", a.as_os_str())]);
    let text = on_path(&["check", "--bin", "report"], &b).expect(0);
    assert!(!text.contains("no import stub"), "{text}");
    expect(
        &on_path(&["doc", "-p", "middle", "--no-deps"], &b).expect(0),
        &["Documenting middle"],
    );

    for tool in ["cc", "ld"] {
        let found = env::split_paths(&env::var_os("PATH").unwrap_or_default())
            .map(|folder| folder.join(tool))
            .find(|file| file.is_file());
        symlink(found.unwrap(), path.join(tool)).unwrap();
    }
    on_path(&["build", "--bin", "report"], &a).expect(0);
    let program = packages.folder.join("target/debug/report");
    expect(
        &succeed(clean(program).env("PATH", "")),
        &["nccl version: 2.29.1"],
    );
}

// F9
#[test]
fn a_program_two_crates_above_starts_by_the_readmes_two_lines() {
    let packages = Packages::new();
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    if let Ok(readme) = fs::read_to_string(readme) {
        for line in [
            "let rpath = std::env::var(\"DEP_NCCL_RPATH\").expect(\"metrale-gpu-sys among this package's own [dependencies]\");\n",
            "println!(\"cargo::rustc-link-arg=-Wl,-rpath,{rpath}\");\n",
        ] {
            expect(&readme, &[line]);
            expect(include_str!("downstream/readme_build.rs"), &[line]);
        }
    }
    let folder = TempDir::new().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let library = nccl(&folder.join("nccl/lib64"), 22703);
    let driver = cuda(&folder.join("driver"), 0);
    let program = packages.build(
        "top",
        &[
            ("NCCL_HOME", folder.join("nccl").as_os_str()),
            ("CUDA_PATH", folder.join("driver").as_os_str()),
        ],
    );
    let runpath = format!(
        "{}:{}",
        library.parent().unwrap().display(),
        driver.parent().unwrap().display()
    );
    assert_eq!(dynamic(&program, &[DT_RUNPATH, DT_RPATH]).concat(), runpath);
    // Also from another folder.
    let text = succeed(clean(&program).current_dir("/"));
    expect(
        &text,
        &[
            "nccl version: 2.27.3",
            &format!("nccl file: {}\n", library.display()),
            "cuda is there",
            &format!("cuda file: {}\n", driver.display()),
            &format!("DEP_NCCL_RPATH={runpath}\n"),
            &format!(
                "DEP_NCCL_CUDA_LIB_DIR={}\n",
                driver.parent().unwrap().display()
            ),
        ],
    );

    // A toolkit's stub serves the linker, and is found by no program.
    let toolkit = folder.join("toolkit");
    let stub = cuda(&toolkit.join("lib64/stubs"), 34);
    fs::rename(&stub, stub.with_file_name("libcuda.so")).unwrap();
    let program = packages.build(
        "top",
        &[
            ("NCCL_HOME", folder.join("nccl").as_os_str()),
            ("CUDA_PATH", toolkit.as_os_str()),
        ],
    );
    let runpath = dynamic(&program, &[DT_RUNPATH, DT_RPATH]).concat();
    assert!(!runpath.contains("stubs"), "{runpath}");
    let text = succeed(&mut clean(&program));
    expect(&text, &["nccl version: 2.27.3", "cuda file: "]);
    assert!(!text.contains(&format!("cuda file: {}", toolkit.display())));
}

// A2
#[test]
fn a_program_needs_the_functions_that_it_calls_and_no_younger_ones() {
    let packages = Packages::new();
    let folder = TempDir::new().unwrap();
    let old = folder.path().join("old");
    let version = returns_version(21803);
    let mut functions = Vec::new();
    for name in OF_2_18 {
        functions.push(match *name {
            "ncclGetVersion" => (*name, version.as_str()),
            "ncclGetErrorString" | "ncclGetLastError" => (*name, RETURNS_TEXT),
            _ => (*name, "() -> c_int { 0 }"),
        });
    }
    support::library(&old.join("libnccl.so.2"), Some("libnccl.so.2"), &functions);
    // Bound to it when built, and only when started.
    for home in [old.as_os_str(), OsStr::new("")] {
        let program = packages.build("all_reduce", &[("NCCL_HOME", home)]);
        let text = succeed(clean(program).env("LD_LIBRARY_PATH", &old));
        expect(&text, &["reduced by 2.18.3"]);
    }
}

/// The functions of NCCL 2.18's header.
const OF_2_18: &[&str] = &[
    "ncclAllGather",
    "ncclAllReduce",
    "ncclBcast",
    "ncclBroadcast",
    "ncclCommAbort",
    "ncclCommCount",
    "ncclCommCuDevice",
    "ncclCommDestroy",
    "ncclCommFinalize",
    "ncclCommGetAsyncError",
    "ncclCommInitAll",
    "ncclCommInitRank",
    "ncclCommInitRankConfig",
    "ncclCommSplit",
    "ncclCommUserRank",
    "ncclGetErrorString",
    "ncclGetLastError",
    "ncclGetUniqueId",
    "ncclGetVersion",
    "ncclGroupEnd",
    "ncclGroupStart",
    "ncclRecv",
    "ncclRedOpCreatePreMulSum",
    "ncclRedOpDestroy",
    "ncclReduce",
    "ncclReduceScatter",
    "ncclSend",
];

// A3
#[test]
fn a_code_that_nobody_knows_is_kept_and_printed() {
    let packages = Packages::new();
    let folder = TempDir::new().unwrap();
    let home = folder.path();
    nccl(&home.join("any"), 22703);
    let program = packages.build("results", &[("NCCL_HOME", OsStr::new(""))]);
    let texts = [
        ("() -> *const c_char { core::ptr::null() }", ""),
        (
            "() -> *const c_char { c\"\\xff\\xfe text\".as_ptr() }",
            "\u{fffd}\u{fffd} text: ",
        ),
    ];
    for (code, name, described) in [
        (7, "InProgress", "ncclInProgress (7)"),
        (8, "Timeout", "ncclTimeout (8)"),
        (9, "NcclResult(9)", "code 9, not listed in nccl.h"),
        (255, "NcclResult(255)", "code 255, not listed in nccl.h"),
        (-1, "NcclResult(-1)", "code -1, not listed in nccl.h"),
    ] {
        for (index, (text, said)) in texts.into_iter().enumerate() {
            let folder = home.join(format!("{code}-{index}"));
            let returns = format!("() -> c_int {{ {code} }}");
            let writes = format!(
                "(comm: *mut c_void, state: *mut c_int) -> c_int {{ unsafe {{ *state = {code} }}; 0 }}"
            );
            let functions = [
                ("ncclGetVersion", returns.as_str()),
                ("ncclGroupStart", &returns),
                ("ncclCommUserRank", &returns),
                ("ncclCommCount", &returns),
                ("ncclCommGetAsyncError", &writes),
                ("ncclGetErrorString", text),
                ("ncclGetLastError", text),
            ];
            let file = folder.join("libnccl.so.2");
            support::library(&file, Some("libnccl.so.2"), &functions);
            let text = succeed(clean(&program).env("LD_LIBRARY_PATH", &folder));
            let lines: Vec<&str> = text.lines().collect();
            let [returned, started, checked, asked, waited] = lines[..] else {
                panic!("{text}");
            };
            assert_eq!(returned, format!("returned {name}"));
            assert_eq!(started, format!("started: {}", code == 7));
            assert_eq!(asked, format!("asked Success, state {name}"));
            // Up to the latest message and the hint.
            assert_eq!(
                checked.split(';').next().unwrap(),
                format!("checked {code}: ncclGroupStart failed: {said}{described}")
            );
            // Between these two stands the time, which has digits of its own.
            let (before, after) = waited.split_once(", ").unwrap();
            let (_, after) = after.split_once(" waited) ").unwrap();
            assert_eq!(before, "waited: wait_ready (rank not known yet");
            assert_eq!(
                after.split(';').next().unwrap(),
                format!("failed: {said}{described}")
            );
        }
    }
}

/// The program that calls the wrappers, on libraries that answer as the environment says.
struct Wrappers {
    program: PathBuf,
    folder: TempDir,
}

/// A handle points to a number, and each call on it adds one. `STATES` has one digit for each poll,
/// the last one for all that follow; `RANK` and `COUNT` are what these two calls return.
const NCCL_OF_WRAPPERS: [(&str, &str); 6] = [
    (
        "ncclGetVersion",
        "() -> c_int { 3 }

unsafe extern \"C\" { fn getenv(name: *const c_char) -> *const c_char; }

unsafe fn digit(name: &CStr, index: c_int) -> c_int { unsafe {
    let mut digit = getenv(name.as_ptr()).cast::<u8>();
    if digit.is_null() { return 5; }
    let mut left = index;
    while left > 0 && *digit.add(1) != 0 { digit = digit.add(1); left -= 1; }
    c_int::from(*digit - b'0')
} }

static REFUSED: core::sync::atomic::AtomicBool = core::sync::atomic::AtomicBool::new(false);

unsafe fn answer(name: &CStr, to: *mut c_int, value: c_int) -> c_int { unsafe {
    let code = digit(name, 0);
    if code == 0 { *to = value } else { REFUSED.store(true, core::sync::atomic::Ordering::Relaxed) }
    code
} }",
    ),
    ("ncclGetErrorString", RETURNS_TEXT),
    (
        "ncclGetLastError",
        "() -> *const c_char { unsafe {
    if REFUSED.load(core::sync::atomic::Ordering::Relaxed) { return c\"of a refused call\".as_ptr() }
    getenv(c\"LAST_ERROR\".as_ptr())
} }",
    ),
    (
        "ncclCommGetAsyncError",
        "(comm: *mut c_int, state: *mut c_int) -> c_int { unsafe {
    *state = digit(c\"STATES\", *comm);
    *comm += 1;
    0
} }",
    ),
    (
        "ncclCommUserRank",
        "(_: *mut c_int, rank: *mut c_int) -> c_int { unsafe { answer(c\"RANK\", rank, 3) } }",
    ),
    (
        "ncclCommCount",
        "(_: *mut c_int, count: *mut c_int) -> c_int { unsafe { answer(c\"COUNT\", count, 8) } }",
    ),
];

/// Destroys no handle that is zero: a write through the null pointer ends the process. Answers with
/// an error.
const DESTROYS: &str = "(handle: *mut c_int) -> c_int { unsafe {
    handle.write_volatile(handle.read_volatile() + 1);
    999
} }";

impl Wrappers {
    fn new(packages: &Packages) -> Wrappers {
        let folder = TempDir::new().unwrap();
        let nccl = folder.path().join("libnccl.so.2");
        support::library(&nccl, Some("libnccl.so.2"), &NCCL_OF_WRAPPERS);
        let cuda = folder.path().join("libcuda.so.1");
        let functions = [
            ("cuEventDestroy_v2", DESTROYS),
            ("cuStreamDestroy_v2", DESTROYS),
            ("cuInit", "() -> c_int { 0 }"),
            ("cuGetErrorString", "() -> c_int { 1 }"),
        ];
        support::library(&cuda, Some("libcuda.so.1"), &functions);
        let program = packages.build("wrappers", &[("NCCL_HOME", OsStr::new(""))]);
        Wrappers { program, folder }
    }

    #[track_caller]
    fn run(&self, words: &[&str], variables: &[(&str, &str)]) -> String {
        let mut command = clean(&self.program);
        command.env("LD_LIBRARY_PATH", self.folder.path());
        command.args(words).envs(variables.iter().copied());
        succeed(&mut command)
    }

    /// What became of a wait: the microseconds, the polls, and how it ended.
    #[track_caller]
    fn wait(&self, milliseconds: &str, variables: &[(&str, &str)]) -> (u64, u64, String) {
        let text = self.run(&["wait", milliseconds], variables);
        let (time, rest) = text.split_once('\n').unwrap();
        let (polls, end) = rest.split_once('\n').unwrap();
        let number = |line: &str, name| line.strip_prefix(name).unwrap().parse().unwrap();
        (
            number(time, "microseconds: "),
            number(polls, "polls: "),
            end.to_owned(),
        )
    }
}

#[test]
fn handles_are_destroyed_once_and_zero_is_ignored() {
    let packages = Packages::new();
    let text = Wrappers::new(&packages).run(&["destroy"], &[]);
    assert_eq!(text, "zero is ignored\ndestroyed 1 event, 1 stream\n");
}

#[test]
fn waiting_ends_with_the_first_state_other_than_in_progress() {
    let packages = Packages::new();
    let wrappers = Wrappers::new(&packages);
    for (states, polls, end) in [
        ("0", 1, "ready\n"),
        ("7770", 4, "ready\n"),
        ("20", 1, "code: 2\n"),
        ("7720", 3, "code: 2\n"),
        ("790", 2, "code: 9\n"),
    ] {
        let (_, polled, ended) = wrappers.wait("60000", &[("STATES", states)]);
        assert_eq!(polled, polls, "{states}: {ended}");
        assert!(ended.starts_with(end), "{states}: {ended}");
    }
}

#[test]
fn waiting_pauses_longer_and_longer_and_keeps_the_deadline() {
    let packages = Packages::new();
    let wrappers = Wrappers::new(&packages);
    let busy = [("STATES", "7")];
    let (time, polls, end) = wrappers.wait("1000", &busy);
    assert!(end.starts_with("code: 7\n"), "{end}");
    assert!(time >= 1_000_000, "{time}");
    // A sleep may take longer than asked, never less. The pauses of 10 microseconds to 10
    // milliseconds make 110 polls; with no longest one they would make 18.
    assert!((30..=112).contains(&polls), "{polls}");

    let (_, polls, end) = wrappers.wait("0", &busy);
    assert_eq!(polls, 1);
    assert!(end.starts_with("code: 7\n"), "{end}");
    let (_, polls, end) = wrappers.wait("0", &[("STATES", "0")]);
    assert_eq!((polls, &*end), (1, "ready\n"));

    // The quickest of several, since any one can be held up. The first three pauses are together
    // less than a tenth of the longest one; and the last pause ends with the time, where the whole
    // of it would end after 10.2 milliseconds.
    for (milliseconds, states) in [("60000", "7770"), ("8", "7")] {
        let times = (0..20).map(|_| wrappers.wait(milliseconds, &[("STATES", states)]).0);
        let quickest = times.min().unwrap();
        assert!(quickest < 10_000, "{milliseconds}: {quickest}");
    }
}

#[test]
fn a_wait_that_failed_names_rank_and_count_where_both_are_known() {
    let packages = Packages::new();
    let wrappers = Wrappers::new(&packages);
    for (rank, count, who) in [
        ("0", "0", "rank 3 of 8"),
        ("5", "0", "rank not known yet"),
        ("0", "5", "rank not known yet"),
        ("5", "5", "rank not known yet"),
    ] {
        let variables = [
            ("STATES", "2"),
            ("RANK", rank),
            ("COUNT", count),
            ("LAST_ERROR", "the cause"),
        ];
        let (_, _, end) = wrappers.wait("60000", &variables);
        let error = end.strip_prefix("code: 2\nerror: wait_ready (").unwrap();
        let (found, rest) = error.split_once(", ").unwrap();
        assert_eq!(found, who);
        // The message from before rank and count were asked for.
        let (_, rest) = rest.split_once(" waited) ").unwrap();
        assert_eq!(
            rest,
            "failed: text: ncclSystemError (2); NCCL's latest message, which may be older: the cause\n"
        );
    }
}

#[test]
fn hints_belong_to_the_codes_that_they_explain() {
    let packages = Packages::new();
    let wrappers = Wrappers::new(&packages);
    let causes = [
        (
            "CUDA driver version is insufficient for CUDA runtime version",
            "older than this NCCL's CUDA release",
        ),
        (
            "Cuda failure 34 'CUDA driver is a stub library'",
            "keep stubs folders out of LD_LIBRARY_PATH",
        ),
        (
            "Cuda failure 100 'no CUDA-capable device is detected'",
            "the driver sees no GPU",
        ),
        ("Cuda failure 2 'out of memory'", ""),
    ];
    let codes = [
        (1, "ncclUnhandledCudaError (1)", ""),
        (2, "ncclSystemError (2)", ""),
        (3, "ncclInternalError (3)", ""),
        (4, "ncclInvalidArgument (4)", ""),
        (5, "ncclInvalidUsage (5)", ""),
        (6, "ncclRemoteError (6)", "a peer exited"),
        (7, "ncclInProgress (7)", "wait with nccl::wait_ready"),
        (8, "ncclTimeout (8)", ""),
        (99, "code 99, not listed in nccl.h", ""),
    ];
    for (code, name, own_hint) in codes {
        for (cause, hint) in causes {
            let text = wrappers.run(&["check", &code.to_string()], &[("LAST_ERROR", cause)]);
            let line = text.lines().next().unwrap();
            let start = format!(
                "a call failed: text: {name}; NCCL's latest message, which may be older: {cause}"
            );
            let rest = line.strip_prefix(&start);
            let rest = rest.unwrap_or_else(|| panic!("{start:?} is not at the start of {line}"));
            let hint = if code == 1 { hint } else { own_hint };
            if hint.is_empty() {
                assert_eq!(rest, "", "{line}");
                continue;
            }
            assert!(rest.contains(hint), "{hint:?} is not in {line}");
            // One hint, and none of the others.
            assert_eq!(rest.matches("; ").count(), 1, "{line}");
        }
    }
}

#[test]
fn a_latest_message_is_told_where_there_is_one() {
    let packages = Packages::new();
    let wrappers = Wrappers::new(&packages);
    let none = "a call failed: text: ncclInvalidUsage (5)\nlast error: None\n";
    assert_eq!(wrappers.run(&["check", "5"], &[]), none);
    for empty in ["", "\n"] {
        assert_eq!(
            wrappers.run(&["check", "5"], &[("LAST_ERROR", empty)]),
            none
        );
    }
    assert_eq!(
        wrappers.run(&["check", "5"], &[("LAST_ERROR", "a message\n")]),
        "a call failed: text: ncclInvalidUsage (5); NCCL's latest message, which may be older: a message\n\
         last error: Some(\"a message\")\n"
    );
}

// E3
#[test]
fn a_second_copy_of_nccl_is_reported() {
    let packages = Packages::new();
    let folder = TempDir::new().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let [linked, opened] = ["linked", "opened"].map(|name| folder.join(name));
    let linked_file = nccl(&linked, 22703);
    let opened_file = nccl(&opened, 22300);
    // The loader takes a library of a known soname for the one that it has, unless it is another file.
    let program = packages.build("report", &[("NCCL_HOME", linked.as_os_str())]);
    let text = succeed(&mut clean(&program));
    assert!(!text.contains("nccl other: "), "{text}");
    let text = succeed(clean(&program).arg(&opened_file));
    expect(
        &text,
        &[
            "nccl version: 2.27.3",
            &format!("nccl file: {}\n", linked_file.display()),
            &format!("nccl other: {}\n", opened_file.display()),
        ],
    );

    // Found in one more object, and in another by way of that one: named once.
    let bundle = folder.join("libbundle.so");
    support::library(
        &bundle,
        Some("libbundle.so"),
        &functions_of_nccl(&returns_version(22301)),
    );
    let user = folder.join("libuser.so");
    let source = folder.join("user.rs");
    fs::write(
        &source,
        "unsafe extern \"C\" { fn ncclGetVersion(version: *mut i32) -> i32; }\n\
         #[unsafe(no_mangle)] pub extern \"C\" fn uses() -> i32 {\n\
         let mut version = 0; unsafe { ncclGetVersion(&mut version) } }\n",
    )
    .unwrap();
    let mut rustc = support::rustc();
    rustc.args(["--edition=2024", "--crate-type=cdylib", "-o"]);
    rustc.arg(&user).arg(&source).arg("-L").arg(&folder);
    succeed(rustc.arg("-ldylib=bundle"));
    assert!(needed(&user).contains(&"libbundle.so".to_owned()));
    let text = succeed(clean(&program).args([&bundle, &user]));
    let others: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("nccl other: "))
        .collect();
    assert_eq!(others, [bundle.display().to_string()]);
}
