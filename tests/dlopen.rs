//! A program whose libraries are opened at run time: one binary on made-up machines, with this library,
//! another, a broken one, or none.

mod support;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::{env, fs};

use object::elf::DT_NEEDED;
use object::{Object, ObjectSection, ObjectSymbol};
use support::{dynamic, succeed};
use tempfile::TempDir;

const NOT_LOADED: i32 = -1000;

/// The program `tests/downstream/opens.rs`, and a plugin. Built in release mode, as what is shipped.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let package = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dlopen");
        let ours = env!("CARGO_MANIFEST_DIR");
        let manifest = format!(
            "[package]\nname = \"opens\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n\
             [[bin]]\nname = \"opens\"\npath = \"opens.rs\"\n\
             [[bin]]\nname = \"results\"\npath = \"results.rs\"\n\
             [lib]\nname = \"plugin\"\npath = \"plugin.rs\"\ncrate-type = [\"cdylib\"]\n\
             [dependencies]\nanyhow = \"1\"\n\
             metrale-gpu-sys = {{ path = {ours:?}, features = [\"dlopen\"] }}\n"
        );
        fs::create_dir_all(&package).unwrap();
        fs::write(package.join("Cargo.toml"), manifest).unwrap();
        fs::write(
            package.join("opens.rs"),
            include_str!("downstream/opens.rs"),
        )
        .unwrap();
        fs::write(
            package.join("results.rs"),
            include_str!("downstream/results.rs"),
        )
        .unwrap();
        fs::write(
            package.join("plugin.rs"),
            "#[unsafe(no_mangle)]\npub extern \"C\" fn ask() -> bool {\n    \
             metrale_gpu_sys::nccl::version().is_ok()\n}\n",
        )
        .unwrap();
        let lock = Path::new(ours).join("Cargo.lock");
        fs::copy(lock, package.join("Cargo.lock")).unwrap();
        let mut cargo = support::cargo();
        cargo
            .current_dir(&package)
            .args(["build", "--release", "--offline"]);
        succeed(cargo.env("CARGO_TARGET_DIR", package.join("target")));
        package.join("target/release")
    })
}

/// Runs the program, and gives its lines.
#[track_caller]
fn run(variables: &[(&str, &OsStr)], words: &[impl AsRef<OsStr>]) -> Vec<String> {
    let mut program = support::clean(built().join("opens"));
    let text = succeed(program.envs(variables.iter().copied()).args(words));
    text.lines().map(str::to_owned).collect()
}

#[track_caller]
fn expect(line: &str, parts: &[&str]) {
    for part in parts {
        assert!(line.contains(part), "{part:?} is not in: {line}");
    }
}

/// A word with a path as its value.
fn word(what: &str, path: &Path) -> OsString {
    let mut word = OsString::from(format!("{what}="));
    word.push(path);
    word
}

/// A made-up NCCL of this version code.
fn nccl(folder: impl AsRef<Path>, code: i32) -> PathBuf {
    library(
        &folder.as_ref().join("libnccl.so.2"),
        "libnccl.so.2",
        "ncclGetVersion",
        code,
        &[],
    )
}

/// A made-up driver whose `cuInit` returns `code`.
fn cuda(folder: impl AsRef<Path>, code: i32) -> PathBuf {
    let init = format!("() -> c_int {{ {code} }}");
    let others = [
        ("cuInit", init.as_str()),
        ("cuGetErrorString", "() -> c_int { 1 }"),
    ];
    let file = folder.as_ref().join("libcuda.so.1");
    library(&file, "libcuda.so.1", "cuDriverGetVersion", 12020, &others)
}

fn library(
    file: &Path,
    soname: &str,
    version: &str,
    code: i32,
    others: &[(&str, &str)],
) -> PathBuf {
    let answers = format!("(code: *mut c_int) -> c_int {{ unsafe {{ *code = {code} }}; 0 }}");
    let mut functions = vec![(version, answers.as_str())];
    functions.extend(others);
    support::library(file, Some(soname), &functions);
    file.to_owned()
}

/// A folder whose name has no link in it, as the kernel tells it.
fn folder() -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().canonicalize().unwrap();
    (folder, path)
}

#[test]
fn nothing_is_linked_and_nothing_is_exported() {
    for file in ["opens", "libplugin.so"].map(|name| built().join(name)) {
        let needed = dynamic(&file, &[DT_NEEDED]);
        assert!(
            !needed
                .iter()
                .any(|name| name.contains("nccl") || name.contains("cuda")),
            "{needed:?}"
        );
        let bytes = fs::read(&file).unwrap();
        let object = object::File::parse(&*bytes).unwrap();
        let dynamic: Vec<&str> = object
            .dynamic_symbols()
            .filter_map(|symbol| symbol.name().ok())
            .filter(|name| name.starts_with("nccl") || name.starts_with("cu"))
            .collect();
        assert!(dynamic.is_empty(), "{}: {dynamic:?}", file.display());
    }
    let lines = run(&[], &["binding"]);
    expect(&lines[0], &["Dlopen: binding: dlopen, nothing is linked"]);
}

#[test]
fn a_call_is_one_load_and_one_jump() {
    let bytes = fs::read(built().join("opens")).unwrap();
    let object = object::File::parse(&*bytes).unwrap();
    let text = object.section_by_name(".text").unwrap();
    for name in ["ncclGetVersion", "cuMemAlloc_v2"] {
        let symbol = object
            .symbols()
            .find(|symbol| symbol.name() == Ok(name))
            .unwrap();
        let code = text
            .data_range(symbol.address(), symbol.size())
            .unwrap()
            .unwrap();
        if cfg!(target_arch = "x86_64") {
            // jmp [rip + offset]
            assert!(
                code.len() == 6 && code.starts_with(&[0xff, 0x25]),
                "{name}: {code:x?}"
            );
        } else {
            // adrp, add, ldar, br
            assert_eq!(code.len(), 16, "{name}: {code:x?}");
        }
    }
}

#[test]
fn without_libraries_every_call_is_an_answer() {
    let words = [
        "version",
        "init",
        "available",
        "file",
        "cuda-file",
        "has=ncclGetVersion",
        "absent",
        "suspend",
    ];
    let lines = run(&[], &words);
    expect(
        &lines[0],
        &[
            "error: ncclGetVersion failed: libnccl.so.2 could not be opened: libnccl.so.2: cannot open shared object",
            "NotLoaded (-1000)",
            "set NCCL_HOME",
        ],
    );
    expect(
        &lines[1],
        &[
            "error: cuInit failed: libcuda.so.1 could not be opened: libcuda.so.1: cannot open shared object",
            "/usr/lib/wsl/lib/libcuda.so.1 does not exist",
            "NotLoaded (-1000)",
            "NVIDIA driver",
        ],
    );
    let rest = [
        "nccl false, cuda false",
        "none",
        "none",
        "ncclGetVersion: false, false",
        "alloc -1000 7",
        "null true",
        "dumped",
    ];
    assert_eq!(lines[2..9], rest);
    expect(
        &lines[9],
        &["NotLoaded -1000: ncclCommSuspend failed: libnccl.so.2 could not be opened"],
    );
}

// F1, F3
#[test]
fn nccl_home_is_an_installation_or_the_folder_itself_however_it_is_called() {
    let (_folder, folder) = folder();
    let odd = OsString::from_vec(b"not \xff UTF-8".to_vec());
    let targets = match env::consts::ARCH {
        "x86_64" => ["lib/x86_64-linux-gnu", "targets/x86_64-linux/lib"],
        _ => ["lib/aarch64-linux-gnu", "targets/sbsa-linux/lib"],
    };
    let places = ["lib", "lib64", targets[0], targets[1], "."];
    let names = [
        OsStr::new("plain"),
        OsStr::new("with spaces, and a comma"),
        &odd,
        OsStr::new("a:colon$"),
        OsStr::new("stubs"),
    ];
    for (code, (place, name)) in (22701..).zip(places.iter().zip(names)) {
        let home = folder.join(name);
        nccl(home.join(place), code);
        let said = format!("2.27.{}", code - 22700);
        for home in [home.clone(), home.join(place), home.join("")] {
            let lines = run(
                &[("NCCL_HOME", home.as_os_str())],
                &["version", "available"],
            );
            assert_eq!(
                lines,
                [&said, "nccl true, cuda false"],
                "{}",
                home.display()
            );
        }
    }
}

// F2
#[test]
fn a_variable_that_is_set_is_never_passed_over() {
    let (_folder, folder) = folder();
    let b = folder.join("b");
    nccl(&b, 22304);
    fs::create_dir(folder.join("empty")).unwrap();
    let file = folder.join("file");
    fs::write(&file, "").unwrap();
    let empty = folder.join("empty");
    let cases: [(&Path, &[&str]); 4] = [
        (
            &empty,
            &[
                "NCCL_HOME is",
                "empty, and there is no libnccl.so.2 in",
                "empty/lib,",
                "empty/lib64,",
            ],
        ),
        (&folder.join("absent"), &["absent, which does not exist"]),
        (&file, &["file, a file: name the folder that holds it"]),
        (
            Path::new("b"),
            &["NCCL_HOME is b, a relative path: give the full one"],
        ),
    ];
    for (home, parts) in cases {
        let variables = [
            ("NCCL_HOME", home.as_os_str()),
            ("LD_LIBRARY_PATH", b.as_os_str()),
        ];
        let lines = run(&variables, &["version", "available"]);
        expect(&lines[0], parts);
        expect(&lines[0], &["NotLoaded (-1000)"]);
        assert_eq!(lines[1], "nccl false, cuda false");
    }
    let a = folder.join("a");
    let a_file = nccl(&a, 23001);
    let variables = [
        ("NCCL_HOME", a.as_os_str()),
        ("LD_LIBRARY_PATH", b.as_os_str()),
    ];
    let lines = run(&variables, &["version", "file"]);
    assert_eq!(lines, ["2.30.1", &format!("{} []", a_file.display())]);
    let variables = [
        ("NCCL_HOME", OsStr::new("")),
        ("LD_LIBRARY_PATH", b.as_os_str()),
    ];
    assert_eq!(
        run(&variables, &["version"]),
        ["2.23.4"],
        "an empty variable counts as unset"
    );
}

// E3
#[test]
fn the_copy_that_the_process_has_serves_unless_another_is_asked_for() {
    let (_folder, folder) = folder();
    let theirs = nccl(folder.join("theirs"), 22304);
    let ours = nccl(folder.join("ours"), 23001);
    let system = folder.join("system");
    nccl(&system, 21805);
    let system = ("LD_LIBRARY_PATH", system.as_os_str());
    let home = ("NCCL_HOME", ours.parent().unwrap().as_os_str());
    let words = [
        word("open", &theirs),
        "version".into(),
        "file".into(),
        "suspend".into(),
    ];

    let lines = run(&[system], &words);
    assert_eq!(lines[1..3], ["2.23.4", &format!("{} []", theirs.display())]);

    let lines = run(&[system, home], &words);
    assert_eq!(lines[1], "2.30.1");
    assert_eq!(lines[2], format!("{} [{theirs:?}]", ours.display()));
    let copies = format!(
        "two copies of NCCL are mapped, {} answered and {}",
        ours.display(),
        theirs.display()
    );
    expect(&lines[3], &[&copies]);
}

#[test]
fn the_unversioned_name_is_never_opened() {
    let (_folder, folder) = folder();
    let nccl = nccl(&folder, 22703);
    fs::rename(nccl, folder.join("libnccl.so")).unwrap();
    let cuda = cuda(&folder, 0);
    fs::rename(cuda, folder.join("libcuda.so")).unwrap();
    let path = folder.as_os_str();
    for variables in [
        &[("LD_LIBRARY_PATH", path)][..],
        &[("NCCL_HOME", path), ("CUDA_PATH", path)],
    ] {
        assert_eq!(run(variables, &["available"]), ["nccl false, cuda false"]);
    }
}

// F3, F6
#[test]
fn a_toolkits_stub_is_no_driver() {
    let (_folder, folder) = folder();
    let toolkit = folder.join("toolkit");
    cuda(toolkit.join("lib64/stubs"), 34);
    let driver = cuda(folder.join("driver"), 0);
    let path = ("LD_LIBRARY_PATH", driver.parent().unwrap().as_os_str());
    let home = ("CUDA_PATH", toolkit.as_os_str());
    let lines = run(&[path, home], &["init", "cuda-file"]);
    assert_eq!(lines, ["initialized", &format!("{} []", driver.display())]);
    let lines = run(&[home], &["init"]);
    expect(
        &lines[0],
        &[
            "CUDA_PATH is",
            "and there is no libcuda.so.1 in",
            "; libcuda.so.1: cannot open",
        ],
    );

    let absent = folder.join("absent");
    let home = ("CUDA_PATH", absent.as_os_str());
    assert_eq!(run(&[path, home], &["init"]), ["initialized"]);
    expect(
        &run(&[home], &["init"])[0],
        &["absent, which does not exist; libcuda.so.1: cannot open"],
    );
    let lines = run(
        &[path, ("CUDA_PATH", driver.parent().unwrap().as_os_str())],
        &["cuda-file"],
    );
    assert_eq!(lines, [format!("{} []", driver.display())]);
}

// F6
#[test]
fn a_driver_that_refuses_is_named_with_the_usual_cause() {
    let (_folder, folder) = folder();
    let cases = [
        (
            34,
            "CUDA_ERROR_STUB_LIBRARY (34)",
            "install the NVIDIA driver",
        ),
        (35, "code 35, not listed in cuda.h", "update the driver"),
        (100, "CUDA_ERROR_NO_DEVICE (100)", "CUDA_VISIBLE_DEVICES"),
        (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)", "reboot"),
        (
            804,
            "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE (804)",
            "cuda-compat",
        ),
        (999, "CUDA_ERROR_UNKNOWN (999)", "nvidia-smi"),
    ];
    for (code, name, hint) in cases {
        let file = cuda(folder.join(code.to_string()), code);
        let path = ("LD_LIBRARY_PATH", file.parent().unwrap().as_os_str());
        let lines = run(&[path], &["init"]);
        expect(
            &lines[0],
            &["cuInit failed", name, hint, &file.display().to_string()],
        );
    }
}

// A2
#[test]
fn a_library_serves_what_it_has_and_says_what_it_lacks() {
    let (_folder, folder) = folder();
    let (old, new) = (
        nccl(folder.join("old"), 22304),
        nccl(folder.join("new"), 29901),
    );
    let words = [
        "suspend",
        "has=ncclCommSuspend",
        "has=ncclGetVersion",
        "version",
        "absent",
    ];
    let lines = run(&[("NCCL_HOME", old.parent().unwrap().as_os_str())], &words);
    let said = "NotInThisVersion -1001: ncclCommSuspend failed: ncclCommSuspend needs NCCL 2.29.7, and this is 2.23.4 from ";
    expect(
        &lines[0],
        &[said, &old.display().to_string(), "NotInThisVersion (-1001)"],
    );
    let rest = [
        "ncclCommSuspend: false, false",
        "ncclGetVersion: true, false",
        "2.23.4",
        "alloc -1000 7",
        "null true",
        "dumped",
    ];
    assert_eq!(lines[1..], rest);
    let lines = run(
        &[("NCCL_HOME", new.parent().unwrap().as_os_str())],
        &["suspend"],
    );
    let said = format!(
        "there is no ncclCommSuspend in {}, which is NCCL 2.99.1",
        new.display()
    );
    expect(&lines[0], &[&said]);

    // Each error speaks of its own call, whatever came after it.
    let home = ("NCCL_HOME", old.parent().unwrap().as_os_str());
    let lines = run(&[home], &["resume-after-suspend"]);
    expect(
        &lines[0],
        &["ncclCommSuspend of layer 3 failed: ncclCommSuspend needs NCCL 2.29.7"],
    );
    expect(
        &lines[1],
        &["ncclCommResume failed: ncclCommResume needs NCCL 2.29.7"],
    );
    let silent = folder.join("silent/libnccl.so.2");
    support::library(&silent, None, &[("ncclGetUniqueId", "() {}")]);
    let home = ("NCCL_HOME", silent.parent().unwrap().as_os_str());
    let lines = run(&[home], &["resume-after-suspend", "anonymous"]);
    let said = format!("there is no ncclCommResume in {}: ", silent.display());
    expect(&lines[1], &[&said]);
    let said = format!(
        "my own words failed: the function is not in {}: ",
        silent.display()
    );
    expect(&lines[2], &[&said]);

    let driver = cuda(folder.join("driver"), 0);
    let lines = run(
        &[("CUDA_PATH", driver.parent().unwrap().as_os_str())],
        &["stream", "available"],
    );
    let said = "cuStreamGetDevResource needs CUDA 13.1, and this is 12.2 from ";
    expect(
        &lines[0],
        &[
            said,
            &driver.display().to_string(),
            "NotInThisVersion (-1001)",
        ],
    );
    assert_eq!(lines[1], "nccl false, cuda true");
}

#[test]
fn a_stub_is_not_available() {
    let (_folder, folder) = folder();
    let stub = |soname: &str, function: &str, code: i32| {
        let answer = format!("() -> c_int {{ {code} }}");
        support::library(&folder.join(soname), Some(soname), &[(function, &answer)]);
    };
    stub("libnccl.so.2", "ncclGetVersion", 2);
    stub("libcuda.so.1", "cuDriverGetVersion", 34);
    let path = ("LD_LIBRARY_PATH", folder.as_os_str());
    assert_eq!(run(&[path], &["available"]), ["nccl false, cuda false"]);
}

// A3
#[test]
fn a_code_that_nobody_knows_is_kept_and_printed() {
    let (_folder, folder) = folder();
    for (code, name, described) in [
        (8, "Timeout", "ncclTimeout (8)"),
        (9, "NcclResult(9)", "code 9, not listed in nccl.h"),
        (255, "NcclResult(255)", "code 255, not listed in nccl.h"),
        (-1, "NcclResult(-1)", "code -1, not listed in nccl.h"),
    ] {
        let returns = format!("() -> c_int {{ {code} }}");
        let writes = format!(
            "(comm: *mut c_void, state: *mut c_int) -> c_int {{ unsafe {{ *state = {code} }}; 0 }}"
        );
        let text = "() -> *const c_char { c\"\\xff text\".as_ptr() }";
        let functions = [
            ("ncclGroupStart", returns.as_str()),
            ("ncclCommGetAsyncError", &writes),
            ("ncclGetErrorString", text),
            (
                "ncclGetLastError",
                "() -> *const c_char { core::ptr::null() }",
            ),
        ];
        let home = folder.join(code.to_string());
        support::library(&home.join("libnccl.so.2"), Some("libnccl.so.2"), &functions);
        let mut program = support::clean(built().join("results"));
        let said = succeed(program.env("NCCL_HOME", &home));
        for part in [
            format!("returned {name}\n"),
            format!("checked {code}: ncclGroupStart failed: \u{fffd} text: {described}\n"),
            format!("asked Success, state {name}\n"),
        ] {
            assert!(said.contains(&part), "{part:?} is not in:\n{said}");
        }
    }
}

// F5
#[test]
fn a_broken_or_foreign_file_is_named_with_what_is_wrong() {
    let (_folder, folder) = folder();
    let good = nccl(folder.join("good"), 22703);
    let good = fs::read(good).unwrap();
    let mut other_machine = good.clone();
    other_machine[18] = 21;
    let foreign = cuda(folder.join("foreign"), 0);
    let mut needy = folder.join("needy");
    {
        // A library that needs another one that is not there.
        let lacking = folder.join("liblacking.so");
        support::library(&lacking, Some("liblacking.so"), &[("lacking", "() {}")]);
        let source = folder.join("needy.rs");
        let text = "#![no_std]\n#[panic_handler] fn panic(_: &core::panic::PanicInfo) -> ! { loop {} }\n\
                    unsafe extern \"C\" { fn lacking(); }\n\
                    #[unsafe(no_mangle)] pub unsafe extern \"C\" fn ncclGetVersion() { unsafe { lacking() } }\n";
        fs::write(&source, text).unwrap();
        fs::create_dir(&needy).unwrap();
        needy.push("libnccl.so.2");
        let mut rustc = support::rustc();
        rustc.args([
            "--edition=2024",
            "--crate-type=cdylib",
            "-Cpanic=abort",
            "-Clink-arg=-nostdlib",
        ]);
        succeed(
            rustc
                .arg(format!("-Clink-arg={}", lacking.display()))
                .arg("-o")
                .arg(&needy)
                .arg(&source),
        );
        fs::remove_file(lacking).unwrap();
    }
    let needy = fs::read(needy).unwrap();
    let cases: [(&str, &[u8], &str); 7] = [
        ("half", &good[..good.len() / 2], "is truncated"),
        ("start", &good[..40], "is truncated"),
        ("empty", b"", "is empty"),
        ("text", b"not a library", "is a text file, not a library"),
        (
            "machine",
            &other_machine,
            "is built for powerpc64, and the program for",
        ),
        (
            "cuda",
            &fs::read(foreign).unwrap(),
            "has none of NCCL's functions",
        ),
        (
            "needy",
            &needy,
            "liblacking.so: cannot open shared object file",
        ),
    ];
    let mut files: Vec<(PathBuf, &str)> = Vec::new();
    for (name, bytes, why) in cases {
        let file = folder.join("bad").join(name).join("lib/libnccl.so.2");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, bytes).unwrap();
        files.push((file, why));
    }
    let directory = folder.join("bad/directory/lib/libnccl.so.2");
    fs::create_dir_all(&directory).unwrap();
    files.push((directory, "is a directory, not a library"));
    let link = folder.join("bad/link/lib/libnccl.so.2");
    fs::create_dir_all(link.parent().unwrap()).unwrap();
    symlink("nowhere", &link).unwrap();
    files.push((link, "is a dangling link to nowhere"));
    for (file, why) in files {
        let home = file.parent().unwrap().parent().unwrap();
        if why == "is truncated" {
            let path = ("LD_LIBRARY_PATH", file.parent().unwrap().as_os_str());
            for words in [&["version"][..], &["load=libnccl.so.2"]] {
                expect(&run(&[path], words)[0], &[why, &file.display().to_string()]);
            }
        }
        let lines = run(&[("NCCL_HOME", home.as_os_str())], &["version"]);
        expect(&lines[0], &[why, &file.display().to_string(), "NotLoaded"]);
        let lines = run(&[], &[word("load", &file), "available".into()]);
        expect(
            &lines[0],
            &["error: nccl::load: ", why, &file.display().to_string()],
        );
        assert_eq!(lines[1], "nccl false, cuda false");
    }
}

#[test]
fn paths_that_would_be_misread_are_refused() {
    let (_folder, folder) = folder();
    for name in ["x$LIB", "x${ORIGIN}"] {
        let file = nccl(folder.join(name), 22703);
        let said = ["the loader puts something else for $"];
        expect(
            &run(
                &[("NCCL_HOME", file.parent().unwrap().as_os_str())],
                &["version"],
            )[0],
            &said,
        );
        expect(&run(&[], &[word("load", &file)])[0], &said);
    }
    expect(&run(&[], &["load="])[0], &["an empty path names no file"]);
    let lines = run(
        &[("NCCL_HOME", folder.join("a\nb").as_os_str())],
        &["version"],
    );
    assert_eq!(lines.len(), 1, "{lines:?}");
}

#[test]
fn a_file_can_be_named_before_the_first_call_and_not_later() {
    let (_folder, folder) = folder();
    let named = nccl(folder.join("named"), 22703);
    let moved = folder.join("named/libnccl.so.2.27.3");
    fs::rename(&named, &moved).unwrap();
    let other = nccl(folder.join("other"), 23001);
    let other_home = ("NCCL_HOME", other.parent().unwrap().as_os_str());
    let load = word("load", &moved);
    let words = [
        "version".into(),
        load.clone(),
        word("load", &other),
        "version".into(),
        "file".into(),
    ];

    let lines = run(&[other_home], &[&[load][..], &words].concat());
    let answers = format!(
        "{} answers the calls already, and cannot be exchanged for {}",
        moved.display(),
        other.display()
    );
    assert_eq!(
        lines[..3],
        ["loaded", "2.27.3", "loaded"],
        "the same file again is fine"
    );
    expect(&lines[3], &["error: nccl::load: ", &answers]);
    assert_eq!(lines[4..], ["2.27.3", &format!("{} []", moved.display())]);

    let lines = run(&[other_home], &words);
    assert_eq!(lines[0], "2.30.1");
    expect(&lines[1], &["answers the calls already"]);
    assert_eq!(lines[2..4], ["loaded", "2.30.1"]);

    // After a search that found nothing a file can still be named.
    let lines = run(&[], &words);
    expect(&lines[0], &["NotLoaded"]);
    assert_eq!(lines[1], "loaded");
    assert_eq!(lines[3..], ["2.27.3", &format!("{} []", moved.display())]);

    // What was refused or replaced is not kept.
    let words = [
        "version".into(),
        word("open", &other),
        word("load", &other),
        word("close", &other),
        "file".into(),
    ];
    let home = folder.join("home");
    let first = nccl(&home, 22805);
    let lines = run(&[("NCCL_HOME", home.as_os_str())], &words);
    expect(&lines[2], &["answers the calls already"]);
    let file = format!("{} []", first.display());
    assert_eq!(lines[3..], ["mapped: false", &file]);

    let lines = run(&[], &[word("late", &moved)]);
    assert_eq!(lines[0], "true");
    let said = format!(
        "libnccl.so.2 could not be opened then, and {} is now: NotLoaded (-1000)",
        moved.display()
    );
    expect(&lines[1], &[&said]);
    assert!(
        lines[1].ends_with("NotLoaded (-1000)"),
        "no hint: {}",
        lines[1]
    );

    // A name alone is the loader's to find.
    let path = ("LD_LIBRARY_PATH", moved.parent().unwrap().as_os_str());
    assert_eq!(
        run(&[path], &["load=libnccl.so.2.27.3", "version"]),
        ["loaded", "2.27.3"]
    );
    let driver = cuda(folder.join("driver"), 0);
    assert_eq!(
        run(&[], &[word("cuda-load", &driver), "init".into()]),
        ["loaded", "initialized"]
    );
}

#[test]
fn threads_children_and_code_before_main_make_the_first_call() {
    let (_folder, folder) = folder();
    let home = nccl(&folder, 22703);
    let home = ("NCCL_HOME", home.parent().unwrap().as_os_str());
    for _ in 0..20 {
        assert_eq!(
            run(&[home], &["threads", "threads"]),
            [format!("{:?}", [22703; 8]), format!("{:?}", [22703; 8])]
        );
        assert_eq!(run(&[], &["threads"]), [format!("{:?}", [NOT_LOADED; 8])]);
    }
    assert_eq!(
        run(&[home], &["fork", "version", "fork"]),
        ["child: 22700", "2.27.3", "child: 22700"]
    );
    let early = ("EARLY", OsStr::new("1"));
    assert_eq!(
        run(&[home, early], &["early", "version"]),
        ["early: 22703", "2.27.3"]
    );
    assert_eq!(run(&[early], &["early"]), [format!("early: {NOT_LOADED}")]);
}
