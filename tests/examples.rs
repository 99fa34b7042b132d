//! The examples as programs: what they say, and how they end.
//!
//! `cargo test` has built them with the features of this test; one test alone, by `--test examples`, needs
//! `cargo build --examples` first.

#[cfg(not(feature = "emulator"))]
#[allow(dead_code)]
#[path = "../build.rs"]
mod build_script;
#[allow(dead_code)]
#[path = "../examples/all_reduce_perf/operation.rs"]
mod operation;
mod support;
#[path = "../examples/all_reduce/values.rs"]
mod values;

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use metrale_gpu_sys::BINDING;
use metrale_gpu_sys::nccl::{NcclDataType, NcclRedOp};
use operation::{Counts, OPERATIONS, Operation, Part};
use support::{Outcome, clean};
use values::{OPERATORS, Reduction, TYPES};

/// An example, without the variables of whoever runs the tests.
fn example(name: &str, words: &str) -> Command {
    // target/<profile>/deps/examples-…
    let test = env::current_exe().unwrap();
    let folder = test.parent().unwrap().with_file_name("examples");
    // `cargo test --test examples` alone builds none of them.
    static BUILT: OnceLock<bool> = OnceLock::new();
    let built = *BUILT.get_or_init(|| {
        let said = clean(folder.join("doctor")).output();
        let binding = format!("binding: {BINDING:?}\n");
        said.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).contains(&binding))
    });
    let program: PathBuf = folder.join(name);
    assert!(
        built && program.is_file(),
        "{} is missing, or was built with other features: `cargo build --examples` with those of this test makes it",
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
    let size = "expected a number of bytes, such as 8, 64K, 256M or 1G";
    let bounds = "a size is 1 byte at least and 64 TiB at most";
    for (words, sentence) in [
        ("-b 12Q", size),
        ("-e K", size),
        ("-e -1", size),
        ("-b 1.5M", size),
        ("-b 0", bounds),
        ("-e 99999999G", bounds),
        ("-e 99999999999999999999", size),
        ("-i 0", bounds),
        ("-f 1", "1 is not in 2.."),
        ("-i 8 -f 2", "'--step <STEP>' cannot be used with '--factor"),
        (
            "-b 2M -e 1M",
            "-b 2097152, is above the largest, -e 1048576",
        ),
        ("-n 0", "0 is not in 1.."),
        ("-w -1", "invalid value '-1'"),
        ("-t 0", "0 is not in 1..=1024"),
        ("-r -1", "-1 is not in 0.."),
        ("-d float7", "possible values: int8"),
        ("-o median", "possible values: sum, prod, max, min, avg"),
        ("--op gather", "possible values: all-reduce, all-gather"),
        ("--timeout 0", "0 is not in 1.."),
    ] {
        expect(&mut example("all_reduce_perf", words), 2, &[sentence]);
    }
    expect(
        &mut example("call_overhead", "--rounds 0"),
        2,
        &["0 is not in 1.."],
    );
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

#[test]
fn bus_bandwidth_is_reckoned_as_in_nccl_tests() {
    // Of 1, 2, 4 and 8 ranks.
    for (name, factors) in [
        ("all-reduce", [0.0, 1.0, 1.5, 1.75]),
        ("all-gather", [0.0, 0.5, 0.75, 0.875]),
        ("reduce-scatter", [0.0, 0.5, 0.75, 0.875]),
        ("all-to-all", [0.0, 0.5, 0.75, 0.875]),
        ("broadcast", [1.0; 4]),
        ("reduce", [1.0; 4]),
        ("send-recv", [1.0; 4]),
    ] {
        let (_, operation) = OPERATIONS.iter().find(|(known, _)| *known == name).unwrap();
        assert_eq!(
            [1, 2, 4, 8].map(|n| operation.busbw_factor(n)),
            factors,
            "{name}"
        );
    }
}

#[test]
fn sizes_become_the_counts_of_nccl_tests() {
    use Operation::*;
    // Bytes, bytes of an element, ranks; what the function is given, and what a rank sends and receives.
    for (operation, [bytes, element, nranks], [count, send, recv]) in [
        (AllReduce, [1003, 4, 4], [250, 250, 250]),
        (Broadcast, [1003, 1, 4], [1003, 1003, 1003]),
        (Reduce, [1024, 8, 4], [128, 128, 128]),
        (SendRecv, [1024, 2, 4], [512, 512, 512]),
        (AllGather, [1024, 4, 4], [64, 64, 256]),
        (ReduceScatter, [1024, 4, 4], [64, 256, 64]),
        (AllToAll, [1024, 4, 4], [64, 256, 256]),
        // Parts of whole 16 bytes.
        (AllGather, [1024, 4, 3], [84, 84, 252]),
        (ReduceScatter, [1024, 1, 3], [336, 1008, 336]),
        (AllToAll, [100, 8, 2], [6, 12, 12]),
        (AllGather, [8, 4, 2], [0, 0, 0]),
    ] {
        let expected = Counts { count, send, recv };
        assert_eq!(
            operation.counts(bytes, element, nranks),
            expected,
            "{operation:?}"
        );
    }
}

/// The checker of `all_reduce_perf`, on results made here.
#[test]
fn wrong_elements_are_counted() {
    const NRANKS: i32 = 2;
    let cases = OPERATIONS.iter().flat_map(|(_, operation)| {
        let types = TYPES.iter().map(|(_, datatype)| *datatype);
        types.flat_map(move |datatype| {
            let operators = OPERATORS.iter().map(|(_, op)| *op);
            operators.map(move |op| {
                (
                    *operation,
                    Reduction {
                        datatype,
                        op,
                        nranks: NRANKS,
                    },
                )
            })
        })
    });
    for (operation, mut reduction) in cases {
        if !operation.reduces() {
            reduction.op = NcclRedOp::Max;
        }
        let size = reduction.datatype.size().unwrap();
        let counts = operation.counts(600, size, NRANKS as usize);
        for rank in 0..NRANKS {
            let part = Part {
                operation,
                reduction,
                root: 1,
                rank,
            };
            let mut result = Vec::new();
            for index in 0..counts.recv {
                reduction.encode(part.expected(counts, index).0, &mut result);
            }
            let case = format!("{operation:?} {:?} {:?}", reduction.datatype, reduction.op);
            assert_eq!(part.wrong(counts, &result), 0, "{case}");
            for wrong in [0, counts.recv / 2, counts.recv - 1] {
                let mut result = result.clone();
                result[wrong * size..][..size].fill(0xff);
                assert_eq!(part.wrong(counts, &result), 1, "{case}");
            }
            let unwritten = vec![0xff; result.len()];
            assert_eq!(part.wrong(counts, &unwritten), counts.recv as u64, "{case}");
        }
    }
}

/// By hand, so that a mistake in what is expected is seen too.
#[test]
fn every_rank_expects_what_was_sent_to_it() {
    let reduction = Reduction {
        datatype: NcclDataType::Int32,
        op: NcclRedOp::Sum,
        nranks: 3,
    };
    let counts = |operation: Operation| operation.counts(3 * 16, 4, 3);
    let expected = |operation, rank| {
        let part = Part {
            operation,
            reduction,
            root: 2,
            rank,
        };
        let counts = counts(operation);
        (0..counts.recv)
            .map(|index| part.expected(counts, index).0)
            .collect::<Vec<f64>>()
    };
    let sent = |rank, range: std::ops::Range<usize>| {
        range
            .map(|index| reduction.input(rank, index))
            .collect::<Vec<f64>>()
    };
    let sum: Vec<f64> = (0..12)
        .map(|index| (0..3).map(|rank| reduction.input(rank, index)).sum())
        .collect();
    assert_eq!(expected(Operation::AllReduce, 0), sum);
    assert_eq!(expected(Operation::Reduce, 2), sum);
    assert_eq!(expected(Operation::ReduceScatter, 1), sum[4..8]);
    assert_eq!(expected(Operation::Broadcast, 0), sent(2, 0..12));
    assert_eq!(expected(Operation::SendRecv, 0), sent(2, 0..12));
    assert_eq!(expected(Operation::SendRecv, 2), sent(1, 0..12));
    let gathered = [sent(0, 0..4), sent(1, 0..4), sent(2, 0..4)].concat();
    assert_eq!(expected(Operation::AllGather, 1), gathered);
    let exchanged = [sent(0, 4..8), sent(1, 4..8), sent(2, 4..8)].concat();
    assert_eq!(expected(Operation::AllToAll, 1), exchanged);
    // Neighbours and ranks differ, or none of this says anything.
    assert_ne!(sent(0, 0..12), sent(1, 0..12));
    assert_ne!(sent(0, 0..4), sent(0, 4..8));
}

/// Each call has its line, with a time and a ratio.
#[track_caller]
fn assert_calls(text: &str, names: &[&str]) {
    for name in names {
        let line = text.lines().find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("no {name} in:\n{text}"));
        let numbers = line.split_whitespace().skip(1);
        let numbers = numbers.map(|number| number.trim_matches(['(', ')']));
        let positive = numbers.filter(|number| number.parse::<f64>().is_ok_and(|n| n > 0.0));
        assert!(positive.count() >= 6, "{line}");
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

    /// The lines of the table: what is not a number of a time or a bandwidth.
    fn rows(text: &str) -> Vec<Vec<&str>> {
        let lines = text.lines().filter(|line| line.starts_with(' '));
        lines
            .map(|line| line.split_whitespace().collect())
            .map(|all: Vec<&str>| [&all[..5], &[all[8], all[12]]].concat())
            .collect()
    }

    #[test]
    fn every_operation_is_measured_and_right() {
        for dtype in ["float32", "bfloat16", "uint8", "int64", "float8e4m3"] {
            for (op, redop, root, in_place) in [
                ("all-reduce", "sum", "-1", "0"),
                ("all-gather", "none", "-1", "0"),
                ("reduce-scatter", "sum", "-1", "0"),
                ("broadcast", "none", "2", "0"),
                ("reduce", "sum", "2", "0"),
                ("all-to-all", "none", "-1", "N/A"),
                ("send-recv", "none", "-1", "N/A"),
            ] {
                let words =
                    format!("--op {op} -d {dtype} -t 4 -r 2 -b 1K -e 4K -f 4 -n 3 -w 1 -c 2");
                let parts = [
                    "binding: Emulated",
                    "the times say nothing about a GPU",
                    "# wrong elements: 0\n",
                    "# average bus bandwidth, out of place and in place: ",
                ];
                let text = expect(&mut example("all_reduce_perf", &words), 0, &parts);
                let table = rows(&text);
                assert_eq!(table.len(), 2, "{text}");
                for (row, bytes) in table.iter().zip([1024, 4096]) {
                    let size = TYPES.iter().find(|(name, _)| *name == dtype).unwrap().1;
                    let parts = matches!(op, "all-gather" | "reduce-scatter" | "all-to-all");
                    let count = bytes / size.size().unwrap() / if parts { 4 } else { 1 };
                    let (bytes, count) = (bytes.to_string(), count.to_string());
                    let expected = [&*bytes, &*count, dtype, redop, root, "0", in_place];
                    assert_eq!(*row, expected, "{text}");
                }
            }
        }
    }

    #[test]
    fn every_operator_is_measured_and_right() {
        for redop in ["sum", "prod", "max", "min", "avg"] {
            for op in ["all-reduce", "reduce", "reduce-scatter"] {
                let words = format!("--op {op} -o {redop} -d float16 -t 3 -b 1K -e 1K -n 1");
                let parts = ["# wrong elements: 0\n", &format!(" float16 {redop:>5} ")];
                expect(&mut example("all_reduce_perf", &words), 0, &parts);
            }
        }
    }

    #[test]
    fn sizes_go_by_factor_or_by_step() {
        for (words, sizes) in [
            ("-b 8 -e 1K -f 8", &["8", "64", "512"][..]),
            ("-b 512 -e 1K", &["512", "1024"]),
            ("-b 1k -e 2K -i 512", &["1024", "1536", "2048"]),
            ("-b 6 -e 6", &["4"]),
        ] {
            let words = format!("-t 2 -n 1 -w 0 -c 0 {words}");
            let text = expect(&mut example("all_reduce_perf", &words), 0, &[]);
            let table = rows(&text);
            let found: Vec<&str> = table.iter().map(|row| row[0]).collect();
            assert_eq!(found, sizes, "{text}");
            // Nothing was checked, and nothing is claimed.
            assert!(table.iter().all(|row| row[5..] == ["N/A", "N/A"]), "{text}");
        }
    }

    #[test]
    fn values_and_plot() {
        let folder = tempfile::tempdir().unwrap();
        let plot = folder.path().join("plot.svg");
        let mut command = example("all_reduce_perf", "--csv -t 4 -b 64 -e 4K -f 4 -n 2 --svg");
        let output = command.arg(&plot).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
        let [header, rows @ ..] = &lines[..] else {
            panic!("{text}");
        };
        let column = |name: &str| header.iter().position(|known| *known == name).unwrap();
        assert_eq!(rows.len(), 4, "{text}");
        for (row, size) in rows.iter().zip([64.0, 256.0, 1024.0, 4096.0]) {
            assert_eq!(row.len(), header.len(), "{text}");
            let number = |name: &str| row[column(name)].parse::<f64>().unwrap();
            assert_eq!([number("size"), number("count")], [size, size / 4.0]);
            for placement in ["out_of_place", "in_place"] {
                let number = |name: &str| number(&format!("{placement}_{name}"));
                let algbw = size / 1e3 / number("us");
                assert!((number("algbw") / algbw - 1.0).abs() < 0.01, "{text}");
                let factor = number("busbw") / number("algbw");
                assert!((factor - 1.5).abs() < 0.01, "{text}");
                assert_eq!(number("wrong"), 0.0);
            }
        }

        let svg = fs::read_to_string(plot).unwrap();
        assert_well_formed(&svg);
        // A line of a colour through each size, and a short one of that colour beside its name.
        for color in ["#005AB5", "#DC3220"] {
            let lines = svg.lines().filter(|line| line.starts_with("<polyline "));
            let points: Vec<usize> = lines
                .filter(|line| line.contains(color))
                .map(|line| line.matches(',').count())
                .collect();
            assert_eq!(points, [4, 2], "{svg}");
        }
        for text in ["out of place", "in place", "busbw (GB/s)", "not a GPU"] {
            assert!(svg.contains(text), "no {text:?} in {svg}");
        }
        let nowhere = format!("--svg {}/none/plot.svg", folder.path().display());
        expect(
            &mut example("all_reduce_perf", &nowhere),
            2,
            &["all_reduce_perf: --svg ", "No such file or directory"],
        );
    }

    /// Tags open and close in order, around text without a stray mark.
    #[track_caller]
    fn assert_well_formed(xml: &str) {
        let mut open = Vec::new();
        let mut rest = xml.trim();
        assert!(rest.starts_with("<svg "), "{xml}");
        while let Some(start) = rest.find('<') {
            let (text, tag) = rest.split_at(start);
            assert!(!text.contains('>'), "{text}");
            let end = tag.find('>').expect("each tag ends");
            let inside = &tag[1..end];
            assert_eq!(inside.matches('"').count() % 2, 0, "{inside}");
            let name = inside.trim_matches('/').split(' ').next().unwrap();
            if inside.starts_with('/') {
                assert_eq!(open.pop(), Some(name), "{xml}");
            } else if !inside.ends_with('/') {
                open.push(name);
            }
            rest = &tag[end + 1..];
            assert_eq!(open.is_empty(), rest.is_empty(), "{rest}");
        }
        assert!(rest.is_empty(), "{rest}");
    }

    #[test]
    fn roots_and_ranks_must_exist() {
        for (words, sentence) in [
            ("-t 4 -r 4", "no rank 4 to be the root: there are 4"),
            ("-t 9", "ncclInvalidUsage (5)"),
            ("-d float8e5m2 -t 9 -e 8", "is not exact in "),
        ] {
            expect(&mut example("all_reduce_perf", words), 2, &[sentence]);
        }
        let mut command = example("all_reduce_perf", "-t 9 -e 64 -n 2");
        let command = command.env("NCCL_MULTI_RANK_GPU_ENABLE", "1");
        expect(
            command,
            0,
            &["# rank 8: device 0,", "# wrong elements: 0\n"],
        );
    }

    #[test]
    fn calls_are_measured() {
        let words = "--rounds 3 --milliseconds 1";
        let text = expect(&mut example("call_overhead", words), 0, &["no C program: "]);
        assert_calls(&text, &["ncclGetVersion", "ncclCommCount", "cuStreamQuery"]);
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
    /// unfinished. The function in HANG never returns; with HANG_AFTER only that call of it does not.
    fn fakes() -> TempDir {
        let folder = TempDir::new().unwrap();
        let mut functions = vec![(
            "fails",
            "(name: &CStr) -> c_int {
                unsafe extern \"C\" {
                    fn getenv(name: *const c_char) -> *const c_char;
                    fn pause() -> c_int;
                }
                let is_in = |variable: &CStr| {
                    let value = getenv(variable.as_ptr());
                    !value.is_null() && CStr::from_ptr(value) == name
                };
                let digit = |variable: &CStr| {
                    let value = getenv(variable.as_ptr());
                    if value.is_null() { None } else { Some(*value as i8 - b'0' as i8) }
                };
                static CALLS: AtomicI8 = AtomicI8::new(0);
                static HANGS: AtomicI8 = AtomicI8::new(0);
                if is_in(c\"HANG\") {
                    let call = HANGS.fetch_add(1, Relaxed);
                    while digit(c\"HANG_AFTER\").is_none_or(|after| after == call) { pause(); }
                }
                if !is_in(c\"FAIL\") { return 0; }
                let now = digit(c\"FAIL_AFTER\") == Some(CALLS.fetch_add(1, Relaxed));
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

    /// Nothing is copied, so that no element is right.
    #[test]
    fn wrong_elements_end_in_exit_code_1() {
        let fakes = fakes();
        for (words, wrong) in [
            ("-t 2 -b 64 -e 64", 2 * 2 * 16),
            ("-t 2 -b 64 -e 64 --op reduce", 2 * 16),
            ("-t 2 -b 64 -e 64 --op send-recv", 2 * 16),
            ("-t 2 -b 64 -e 64 -c 3", 3 * 2 * 2 * 16),
        ] {
            let mut command = example("all_reduce_perf", words);
            let sum = format!("# wrong elements: {wrong}\n");
            expect(command.env("LD_LIBRARY_PATH", fakes.path()), 1, &[&sum]);
        }
    }

    #[test]
    fn a_rank_that_fails_or_never_comes_ends_the_measurement() {
        let fakes = fakes();
        for (function, op) in [
            ("cuCtxSetCurrent", "all-reduce"),
            ("cuMemAlloc_v2", "all-reduce"),
            ("cuStreamCreate", "all-reduce"),
            ("cuMemsetD8Async", "all-reduce"),
            ("cuMemcpyHtoDAsync_v2", "all-reduce"),
            ("cuStreamSynchronize", "all-reduce"),
            ("ncclCommInitRank", "all-reduce"),
            ("ncclAllReduce", "all-reduce"),
            ("ncclAllGather", "all-gather"),
            ("ncclReduceScatter", "reduce-scatter"),
            ("ncclBroadcast", "broadcast"),
            ("ncclReduce", "reduce"),
            ("ncclGroupStart", "all-to-all"),
            ("ncclSend", "all-to-all"),
            ("ncclRecv", "send-recv"),
            ("ncclGroupEnd", "send-recv"),
            ("cuStreamQuery", "all-reduce"),
            ("cuMemcpyDtoHAsync_v2", "all-reduce"),
            ("ncclCommFinalize", "all-reduce"),
            ("ncclCommDestroy", "all-reduce"),
            ("cuMemFree_v2", "all-reduce"),
        ] {
            for after in ["0", "3", "7"] {
                let command = |words: &str| {
                    let words = format!("--op {op} -b 1K -e 1K -n 2 {words}");
                    let mut command = example("all_reduce_perf", &words);
                    command.env("LD_LIBRARY_PATH", fakes.path());
                    command.env("FAIL", function).env("FAIL_AFTER", after);
                    command
                };
                let mut fails = command("--timeout 100000000");
                let text = expect(&mut fails, 2, &["all_reduce_perf: rank "]);
                let cause = format!(": {function} failed: ");
                assert!(text.contains(&cause), "no {cause:?} in: {text}");
            }
        }
        for function in ["ncclCommInitRank", "ncclAllReduce", "ncclCommDestroy"] {
            let mut hangs = example("all_reduce_perf", "-b 1K -e 1K --timeout 1");
            hangs.env("LD_LIBRARY_PATH", fakes.path());
            hangs.env("HANG", function).env("HANG_AFTER", "3");
            let text = expect(&mut hangs, 2, &["not done within 1s: "]);
            let (_, ranks) = text.split_once("; ranks [").unwrap();
            let (ranks, _) = ranks.split_once("] are still at it").unwrap();
            assert!(ranks.parse::<i32>().is_ok_and(|rank| rank < 8), "{text}");
        }
    }

    #[test]
    fn calls_are_measured() {
        let fakes = fakes();
        let mut command = example("call_overhead", "--rounds 3 --milliseconds 1");
        command.env("LD_LIBRARY_PATH", fakes.path());
        let text = expect(&mut command, 0, &[]);
        let names = [
            "ncclGetVersion",
            "cuDriverGetVersion",
            "ncclCommCount",
            "cuCtxGetCurrent",
            "cuStreamQuery",
        ];
        assert_calls(&text, &names);
        let columns = |text: &str| text.lines().last().unwrap().split_whitespace().count();
        // There is a `cc`, since tests are linked by it, but perhaps none that compiles.
        let source = fakes.path().join("empty.c");
        fs::write(&source, "int main(void) { return 0; }").unwrap();
        let mut cc = clean("cc");
        let compiles = support::run(cc.arg("-o").arg(source.with_extension("")).arg(source));
        if compiles.code == Some(0) {
            assert!(!text.contains("no C program"), "{text}");
            assert_eq!(columns(&text), 11, "{text}");
        } else {
            assert!(text.contains("no C program: cc failed: "), "{text}");
        }
        command.arg("--no-c");
        let text = expect(&mut command, 0, &["no C program: --no-c\n"]);
        assert_eq!(columns(&text), 9, "{text}");
        command.env("FAIL", "cuInit").env("FAIL_AFTER", "0");
        let text = expect(
            &mut command,
            0,
            &["no calls that need a GPU: cuInit failed"],
        );
        assert_calls(&text, &names[..2]);
        assert!(!text.contains("ncclCommCount"), "{text}");
        command.env("FAIL", "ncclGetVersion");
        expect(&mut command, 2, &["call_overhead: ncclGetVersion failed: "]);
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
