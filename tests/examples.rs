//! The examples as programs: what they say, and how they end.
//!
//! `cargo test` has built them with the features of this test; one test alone, by `--test examples`, needs
//! `cargo build --examples` first.

#[cfg(not(feature = "emulator"))]
#[allow(dead_code)]
#[path = "../build.rs"]
mod build_script;
mod support;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use support::{Outcome, clean};

/// An example, without the variables of whoever runs the tests.
fn example(name: &str, words: &str) -> Command {
    // target/<profile>/deps/examples-…
    let test = env::current_exe().unwrap();
    let folder = test.parent().unwrap().with_file_name("examples");
    let program: PathBuf = folder.join(name);
    assert!(
        program.is_file(),
        "{} is missing: `cargo build --examples` with the features of this test makes it",
        program.display()
    );
    let mut command = clean(program);
    command.args(words.split_whitespace());
    command
}

/// Runs a program that must end by itself.
#[track_caller]
fn run(command: &mut Command) -> Outcome {
    const DEADLINE: Duration = Duration::from_secs(60);
    let output = tempfile::NamedTempFile::new().unwrap();
    // One open file, so that neither stream overwrites the other.
    let [stdout, stderr] = [output.as_file(); 2].map(|file| file.try_clone().unwrap());
    let mut child = command.stdout(stdout).stderr(stderr).spawn().unwrap();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > DEADLINE {
            child.kill().unwrap();
            child.wait().unwrap();
            let text = fs::read_to_string(output.path()).unwrap();
            panic!("{command:?} was not done within {DEADLINE:?}: {text}");
        }
        thread::sleep(Duration::from_millis(2));
    };
    Outcome {
        code: status.code(),
        text: fs::read_to_string(output.path()).unwrap(),
    }
}

#[track_caller]
fn expect(command: &mut Command, code: i32, parts: &[&str]) -> String {
    let text = run(command).expect(code);
    for part in parts {
        assert!(text.contains(part), "{command:?}: no {part:?} in:\n{text}");
    }
    text
}

#[test]
fn wrong_arguments_are_refused_with_a_sentence() {
    for (words, sentence) in [
        ("--ranks 0", "0 is not in 1..=1024"),
        ("--ranks -3", "-3 is not in 1..=1024"),
        ("--ranks 1025", "1025 is not in 1..=1024"),
        ("--ranks many", "invalid value 'many' for '--ranks <RANKS>'"),
        (
            "--elements 4294967297",
            "4294967297 is not in 0..=4294967296",
        ),
        ("--elements -1", "invalid value '-1'"),
        ("--dtype float7", "possible values: int8"),
        ("--op median", "possible values: sum, prod, max, min, avg"),
        ("--timeout soon", "invalid value 'soon'"),
        ("--speed 9", "unexpected argument '--speed'"),
    ] {
        expect(&mut example("all_reduce", words), 2, &[sentence]);
    }
    expect(
        &mut example("doctor", "now"),
        2,
        &["unexpected argument 'now'"],
    );
    // More of them stand in the test of that name.
    for (words, sentence) in [
        ("", "nothing says which rank this is: start it by "),
        (
            "--rank 2 --world 2 --master a:1",
            "--rank 2 is too large for --world 2",
        ),
    ] {
        expect(&mut example("multi_process", words), 2, &[sentence]);
    }
}

#[cfg(feature = "emulator")]
mod emulated {
    use super::*;

    #[track_caller]
    fn right(command: &mut Command, ranks: usize) {
        let text = expect(command, 0, &[]);
        assert_eq!(text.matches(" right ").count(), ranks, "{text}");
    }

    #[test]
    fn every_element_is_right() {
        for ranks in [1, 2, 8] {
            for dtype in ["int8", "uint64", "float32", "bfloat16", "float8e4m3"] {
                for op in ["sum", "prod", "max", "min", "avg"] {
                    if (ranks, dtype, op) == (1, "float8e4m3", "avg") {
                        // NCCL refuses it.
                        continue;
                    }
                    let words =
                        format!("--elements 1003 --ranks {ranks} --dtype {dtype} --op {op}");
                    right(&mut example("all_reduce", &words), ranks);
                }
            }
        }
        right(&mut example("all_reduce", "--elements 0"), 8);
        let averages_that_are_rounded = "--elements 1003 --ranks 3 --dtype float16 --op avg";
        right(&mut example("all_reduce", averages_that_are_rounded), 3);
    }

    #[test]
    fn more_ranks_than_gpus_are_for_a_variable() {
        let words = "--elements 1003 --ranks 9";
        expect(
            &mut example("all_reduce", words),
            2,
            &["all_reduce: rank ", "ncclInvalidUsage (5)"],
        );
        let mut command = example("all_reduce", words);
        right(command.env("NCCL_MULTI_RANK_GPU_ENABLE", "1"), 9);
        let mut command = example("all_reduce", "--elements 1003");
        right(command.env("METRALE_EMULATOR_DEVICES", "3"), 3);
    }

    #[test]
    fn what_cannot_be_checked_is_refused() {
        for words in [
            "--ranks 9 --dtype float8e5m2",
            "--ranks 17 --dtype float8e4m3 --op avg",
            "--ranks 128 --dtype int8",
            "--ranks 3 --dtype float8e5m2 --op avg",
        ] {
            let sentence = "is not exact in ";
            expect(&mut example("all_reduce", words), 2, &[sentence]);
        }
    }

    #[test]
    fn the_doctor_finds_nothing() {
        expect(
            &mut example("doctor", ""),
            0,
            &["binding: Emulated", "\ncollectives can run here\n"],
        );
        let mut command = example("doctor", "");
        let note = "note: NCCL_ALGO=Ring: ";
        expect(command.env("NCCL_ALGO", "Ring"), 1, &[note]);
    }

    #[test]
    fn the_backend_adds_up() {
        let text = expect(&mut example("comm_backend", ""), 0, &[]);
        assert_eq!(text.matches("add up to 28,").count(), 8, "{text}");
    }
}

#[cfg(not(feature = "emulator"))]
mod linked {
    use super::*;

    use super::build_script::{CUDA, NCCL, stub_source};
    use metrale_gpu_sys::{cuda, nccl};
    use support::{rustc, succeed};
    use tempfile::TempDir;

    #[test]
    fn import_stubs_are_named() {
        let folder = TempDir::new().unwrap();
        for library in [&NCCL, &CUDA] {
            let declarations = format!("{}/{}", env!("CARGO_MANIFEST_DIR"), library.declarations);
            let declarations = fs::read_to_string(declarations).unwrap();
            let source = folder.path().join("stub.rs");
            fs::write(&source, stub_source(library, &declarations)).unwrap();
            let mut rustc = rustc();
            rustc.args(["--edition=2024", "--crate-type=cdylib", "-Cpanic=abort"]);
            rustc.arg("-Clink-arg=-nostdlib").arg(source);
            succeed(rustc.arg("-o").arg(folder.path().join(library.soname)));
        }
        let text = expect(
            example("doctor", "").env("LD_LIBRARY_PATH", folder.path()),
            2,
            &[
                "problem: ncclGetVersion failed: this is an import stub: no libnccl.so.2 was found",
                "problem: cuInit failed: this is an import stub: no libcuda.so.1 was found",
                "\ncollectives cannot run here\n",
            ],
        );
        for library in [&NCCL, &CUDA] {
            let file = folder.path().canonicalize().unwrap().join(library.soname);
            let line = format!("file: {}, a stub and not the library\n", file.display());
            assert!(text.contains(&line), "no {line:?} in:\n{text}");
        }
        assert!(!text.contains("functions: "), "{text}");
        expect(
            example("all_reduce", "").env("LD_LIBRARY_PATH", folder.path()),
            2,
            &["all_reduce: cuInit failed: this is an import stub", "(34)"],
        );
    }

    /// Both libraries, with 8 devices, on which all goes well but one call: that of the function in
    /// FAIL, after as many calls as the digit in FAIL_AFTER says. From then on the others' work stays
    /// unfinished. The function in HANG never returns.
    fn fakes() -> TempDir {
        let folder = TempDir::new().unwrap();
        let mut functions = vec![(
            "fails",
            "(name: &CStr) -> c_int {
                unsafe extern \"C\" {
                    fn getenv(name: *const c_char) -> *const c_char;
                    fn pause() -> c_int;
                }
                static CALLS: AtomicI8 = AtomicI8::new(0);
                let hang = getenv(c\"HANG\".as_ptr());
                while !hang.is_null() && CStr::from_ptr(hang) == name { pause(); }
                let fail = getenv(c\"FAIL\".as_ptr());
                if fail.is_null() || CStr::from_ptr(fail) != name { return 0; }
                let after = *getenv(c\"FAIL_AFTER\".as_ptr()) as i8 - b'0' as i8;
                let now = CALLS.fetch_add(1, Relaxed) == after;
                if now { FAILED.store(true, Relaxed); }
                now.into()
            }
            use core::sync::atomic::{AtomicBool, AtomicI8, Ordering::Relaxed};
            static FAILED: AtomicBool = AtomicBool::new(false);"
                .to_owned(),
        )];
        for name in nccl::FUNCTIONS.iter().chain(cuda::FUNCTIONS) {
            let (parameters, work) = match *name {
                "ncclGetErrorString" | "ncclGetLastError" => {
                    functions.push((name, "() -> *const c_char { c\"\".as_ptr() }".to_owned()));
                    continue;
                }
                "cuGetErrorString" => ("", "return 1;"),
                "ncclGetVersion" => ("number: *mut c_int", "*number = 29900;"),
                "cuDeviceGetCount" => ("number: *mut c_int", "*number = 8;"),
                "ncclCommGetAsyncError" => (
                    "_: *mut c_void, state: *mut c_int",
                    "*state = if FAILED.load(Relaxed) { 7 } else { 0 };",
                ),
                "cuStreamQuery" => ("", "if FAILED.load(Relaxed) { return 600; }"),
                _ => ("", ""),
            };
            let rest = format!("({parameters}) -> c_int {{ {work} fails(c\"{name}\") }}");
            functions.push((name, rest));
        }
        let functions: Vec<(&str, &str)> = functions.iter().map(|(a, b)| (*a, &**b)).collect();
        let nccl = folder.path().join("libnccl.so.2");
        support::library(&nccl, Some("libnccl.so.2"), &functions);
        std::os::unix::fs::symlink(&nccl, folder.path().join("libcuda.so.1")).unwrap();
        folder
    }

    #[test]
    fn a_rank_that_fails_ends_all() {
        let fakes = fakes();
        let command = |name, words| {
            let mut command = example(name, words);
            command.env("LD_LIBRARY_PATH", fakes.path());
            command
        };
        // On one rank, what was sent is what is expected.
        expect(&mut command("all_reduce", "--ranks 1"), 0, &[" right "]);
        for function in [
            "cuCtxSetCurrent",
            "cuMemAlloc_v2",
            "cuStreamCreate",
            "cuMemcpyHtoDAsync_v2",
            "cuStreamSynchronize",
            "ncclCommInitRankConfig",
            "ncclCommGetAsyncError",
            "cuEventCreate",
            "cuEventRecord",
            "ncclAllReduce",
            "cuStreamQuery",
            "cuEventElapsedTime",
            "cuMemcpyDtoHAsync_v2",
            "ncclCommFinalize",
            "ncclCommDestroy",
            "cuMemFree_v2",
        ] {
            for after in ["0", "1", "3", "7"] {
                // The deadline of the ranks is far beyond that of this test.
                let mut command = command("all_reduce", "--elements 1 --timeout 100000000");
                command.env("FAIL", function).env("FAIL_AFTER", after);
                let text = expect(&mut command, 2, &["all_reduce: rank "]);
                let cause = format!(": {function} failed: ");
                assert!(text.contains(&cause), "no {cause:?} in: {text}");
            }
        }
    }

    #[test]
    fn a_process_that_fails_says_why() {
        let fakes = fakes();
        let command = |more: &str| {
            let words = format!("--rank 0 --world 1 --master 127.0.0.1:0 {more}");
            let mut command = example("multi_process", &words);
            command.env("LD_LIBRARY_PATH", fakes.path());
            command
        };
        // On one rank, what was sent is what is expected.
        expect(&mut command(""), 0, &["10 steps, every element right"]);
        for (function, code) in [
            ("cuInit", 2),
            ("cuDeviceGetCount", 2),
            ("ncclGetUniqueId", 1),
            ("cuCtxSetCurrent", 1),
            ("cuMemAlloc_v2", 1),
            ("cuStreamCreate", 1),
            ("ncclCommInitRankConfig", 1),
            ("ncclCommGetAsyncError", 1),
            ("cuMemcpyHtoDAsync_v2", 1),
            ("ncclAllReduce", 1),
            ("ncclAllGather", 1),
            ("ncclBroadcast", 1),
            ("cuStreamQuery", 1),
            ("cuMemcpyDtoHAsync_v2", 1),
            ("ncclCommFinalize", 1),
            ("ncclCommDestroy", 1),
            ("cuMemFree_v2", 1),
        ] {
            let mut command = command("");
            command.env("FAIL", function).env("FAIL_AFTER", "0");
            // A collective goes by its own name.
            let name = match function {
                "ncclAllReduce" => "all-reduce",
                "ncclAllGather" => "all-gather",
                "ncclBroadcast" => "broadcast",
                name => name,
            };
            expect(&mut command, code, &[&format!("{name} failed: ")]);
        }
    }

    #[test]
    fn a_process_does_not_hang_in_a_call() {
        let fakes = fakes();
        let cases = [
            ("cuInit", "", "looking at the devices"),
            ("ncclGetUniqueId", "", "meeting the others"),
            ("cuMemAlloc_v2", "", "preparing the device"),
            ("ncclCommInitRankConfig", "", "joining the communicator"),
            ("ncclAllReduce", "", "in an all-reduce"),
            ("cuMemcpyDtoHAsync_v2", "", "in an all-reduce"),
            ("ncclCommFinalize", "", "closing the communicator"),
            (
                "ncclCommAbort",
                "ncclAllGather",
                "aborting the communicator",
            ),
        ];
        thread::scope(|scope| {
            for (hang, fail, doing) in cases {
                let fakes = &fakes;
                scope.spawn(move || {
                    let words = "--rank 0 --world 1 --master 127.0.0.1:0 --deadline 1";
                    let mut command = example("multi_process", words);
                    command.env("LD_LIBRARY_PATH", fakes.path());
                    command
                        .env("HANG", hang)
                        .env("FAIL", fail)
                        .env("FAIL_AFTER", "0");
                    let start = Instant::now();
                    let sentence =
                        format!("rank 0 of 1: still {doing}, in a call that does not come back");
                    expect(&mut command, 1, &[&sentence]);
                    assert!(start.elapsed() < Duration::from_secs(20));
                });
            }
        });
    }

    #[test]
    fn the_doctor_makes_a_communicator() {
        let fakes = fakes();
        let mut command = example("doctor", "");
        command.env("LD_LIBRARY_PATH", fakes.path());
        expect(&mut command, 0, &["\ncollectives can run here\n"]);
        for function in ["ncclGetUniqueId", "ncclCommInitRankConfig"] {
            command.env("FAIL", function).env("FAIL_AFTER", "0");
            let sentence = format!("problem: no communicator on device 0: {function} failed: ");
            let parts = [&*sentence, "\ncollectives cannot run here\n"];
            expect(&mut command, 2, &parts);
        }
    }
}
