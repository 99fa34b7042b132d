//! Proves every declaration of the crate against the vendor's headers.
//!
//! The declarations are read from the source files. For each set of headers, one file of static
//! asserts is written, and the C++ compiler judges it: in C++ an enum is no int and `f()` takes
//! nothing. What it refuses is listed by name. Only names are compared as text: those of parameters,
//! so that two of one type cannot swap, and the lists of what there is.
//!
//! The headers are laid out by `tests/abi/headers.py`. The oldest and the newest `nccl.h` are used,
//! or with `METRALE_ABI_MATRIX=1` all that are there. The newest must agree whole; an older one in
//! all that it has, and it must lack exactly what the docs call younger. Variables:
//!
//! - `METRALE_ABI_HEADERS`: where the headers are, in place of `target/abi-headers`
//! - `METRALE_REQUIRE_ABI=1`: no headers or no compiler is a failure, not a reason to ignore a test
//! - `METRALE_ABI_SOURCES`: a folder whose `src` is read in place of this package's
//! - `CXX`: the C++ compiler, else `c++`

#[path = "abi/declarations.rs"]
mod declarations;
#[path = "abi/header.rs"]
mod header;
#[path = "abi/layouts.rs"]
mod layouts;
#[path = "abi/proof.rs"]
mod proof;

use std::collections::BTreeMap;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Arc, LazyLock};
use std::{env, fs, thread};

use declarations::{Declarations, Library};
use layouts::Layout;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use proof::{Facts, Finding, Headers, Release, release};

/// The C type of each Rust type that the sources do not declare: with those, the one list of what
/// may stand in a signature. A bare `u64` is a `uint64_t`, so it never passes for a stream.
const TYPES: &[(&str, &str)] = &[
    ("c_void", "void"),
    ("c_char", "char"),
    ("c_ulonglong", "unsigned long long"),
    ("i8", "int8_t"),
    ("u8", "uint8_t"),
    ("i16", "int16_t"),
    ("u16", "uint16_t"),
    ("i32", "int"),
    ("u32", "unsigned int"),
    ("i64", "int64_t"),
    ("u64", "uint64_t"),
    ("usize", "size_t"),
    ("f32", "float"),
    // Types without a name of their own.
    ("NcclConfigExtKey", "decltype(ncclConfigExt_t::key)"),
    ("NcclConfigExtVal", "decltype(ncclConfigExt_t::val)"),
];

/// Where our type differs from the header's by choice: item, ours, the header's, why.
const CHOSEN: &[(&str, &str, &str, &str)] = &[
    (
        "ncclCommInitRankConfig.config",
        CONST_CONFIG,
        CONFIG,
        ONLY_READ,
    ),
    ("ncclCommSplit.config", CONST_CONFIG, CONFIG, ONLY_READ),
    ("ncclCommShrink.config", CONST_CONFIG, CONFIG, ONLY_READ),
    ("ncclCommGrow.config", CONST_CONFIG, CONFIG, ONLY_READ),
    (
        "ncclCommInitRankScalable.config",
        CONST_CONFIG,
        CONFIG,
        ONLY_READ,
    ),
    ("ncclUniqueId.internal", "uint8_t[128]", "char[128]", BYTES),
    ("CUuuid.bytes", "uint8_t[16]", "char[16]", BYTES),
];
const CONST_CONFIG: &str = "const ncclConfig_t*";
const CONFIG: &str = "ncclConfig_t*";
const ONLY_READ: &str = "NCCL only reads it, and existing callers pass *const";
const BYTES: &str = "bytes, not text; char is signed on one machine and not on another";

/// Names that are not the header's by choice: item, ours, why. A star stands for any owner.
const RENAMED: &[(&str, &str, &str)] = &[
    ("*.hmod", "module", KEYWORD),
    ("*.fn", "function", KEYWORD),
    ("*.type", "kind", KEYWORD),
    ("cuGraphLaunch.hGraph", "graph_exec", EXECUTABLE),
    ("cuGraphUpload.hGraph", "graph_exec", EXECUTABLE),
];
const KEYWORD: &str = "the header's name is a keyword in Rust";
const EXECUTABLE: &str = "it is no graph but an executable one";

/// What changed between releases: the start of a name, the first release that agrees, why.
const CHANGED: &[(&str, &str, &str)] = &[
    ("ncclParamBind", "2.30.7", HANDLE),
    ("ncclParamGet", "2.30.7", HANDLE),
    ("ncclParamHandle_t", "2.30.7", HANDLE),
    (
        "CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS",
        "12.0",
        FIRST_FORM,
    ),
    (
        "CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR",
        "12.0",
        FIRST_FORM,
    ),
];
const HANDLE: &str = "before, the handle was a struct, passed by pointer";
const FIRST_FORM: &str = "before, the name meant what ends in _V1 now";

/// Counts and masks that grow with each release; compared with the newest header only.
const COUNTS: &[&str] = &[
    "NCCL_MAJOR",
    "NCCL_MINOR",
    "NCCL_PATCH",
    "NCCL_VERSION_CODE",
    "ncclNumResults",
    "ncclNumTypes",
    "CUDA_VERSION",
    "CU_CTX_FLAGS_MASK",
];

/// What the headers have and the crate does not declare, and why. A star stands for any ending.
const LEFT_OUT: &[(&str, &str)] = &[
    (
        "pnccl*",
        "the profilers' twin of each function; nobody calls it",
    ),
    (
        "ncclRedOp_dummy_t",
        "the header's own aid to work out ncclMaxRedOp",
    ),
    ("ncclNumOps_dummy", "the same"),
    ("CU_DEVICE_ATTRIBUTE_MAX", "a count that no call takes"),
    ("CU_JIT_NUM_OPTIONS", "the same"),
];

static SOURCES: LazyLock<Declarations> = LazyLock::new(|| {
    let own = || env!("CARGO_MANIFEST_DIR").into();
    let root = env::var_os("METRALE_ABI_SOURCES").unwrap_or_else(own);
    Declarations::read(Path::new(&root), TYPES)
});

/// None for sources that this test was not compiled with.
static LAYOUTS: LazyLock<Vec<Layout>> =
    LazyLock::new(|| match env::var_os("METRALE_ABI_SOURCES") {
        Some(_) => Vec::new(),
        None => layouts::layouts(),
    });

static FACTS: LazyLock<Facts> = LazyLock::new(|| {
    let mut facts = Facts {
        first: BTreeMap::new(),
        wheels: Vec::new(),
    };
    for line in include_str!("abi/since.txt").lines() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["wheel", _, version] => facts.wheels.push(release(version)),
            ["given" | "found", version, item] => {
                facts.first.insert(item.into(), release(version));
            }
            _ => assert!(
                line.is_empty() || line.starts_with('#'),
                "since.txt: {line}"
            ),
        }
    }
    facts
});

/// What came of one kind of proof, over all headers.
#[derive(Default)]
struct Outcome {
    compared: usize,
    /// What differs, and in which headers.
    differ: BTreeMap<Finding, Vec<String>>,
}

type Outcomes = BTreeMap<(Library, &'static str), Outcome>;

static PROOF: LazyLock<Result<Outcomes, String>> = LazyLock::new(|| {
    let mut outcomes = Outcomes::new();
    let width = thread::available_parallelism().map_or(1, NonZero::get);
    for sets in header_sets().chunks(width) {
        thread::scope(|scope| {
            let prove = |set| scope.spawn(move || proof::prove(&SOURCES, &LAYOUTS, &FACTS, set));
            let running: Vec<_> = sets.iter().map(|set| (set, prove(set))).collect();
            for (set, running) in running {
                let library = set.nccl.as_ref().map_or(Library::Cuda, |_| Library::Nccl);
                let found = running.join();
                let found = found.map_err(|_| format!("{}: a panic", set.name))??;
                for (kind, compared) in found.compared {
                    outcomes.entry((library, kind)).or_default().compared += compared;
                }
                for (kind, finding) in found.differ {
                    let outcome = outcomes.entry((library, kind)).or_default();
                    let sets = outcome.differ.entry(finding).or_default();
                    sets.push(set.name.clone());
                }
            }
            Ok::<_, String>(())
        })?;
    }
    Ok(outcomes)
});

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    LazyLock::force(&SOURCES);
    let blocked = Arc::new(blocked());
    let mut trials = vec![Trial::test("nccl since", || {
        report(&proof::since(&SOURCES, &FACTS))
    })];
    for (library, name) in LIBRARIES {
        for kind in proof::KINDS {
            let blocked = Arc::clone(&blocked);
            let run = move || match &*blocked {
                Some(reason) if env::var_os("METRALE_REQUIRE_ABI").is_some() => Err(reason.into()),
                Some(reason) => Ok(Completion::ignored_with(reason)),
                None => match PROOF.as_ref()?.get(&(library, kind)) {
                    Some(outcome) if outcome.compared > 0 => {
                        report(&outcome.differ).map(|()| Completion::Completed)
                    }
                    _ => Err("nothing was compared".into()),
                },
            };
            trials.push(Trial::ignorable_test(format!("{name} {kind}"), run));
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    if blocked.is_none() && !arguments.list && arguments.filter.is_none() {
        summary();
    }
    conclusion.exit_code()
}

const LIBRARIES: [(Library, &str); 2] = [(Library::Nccl, "nccl"), (Library::Cuda, "cuda")];

/// How much there is to prove, and how often it was.
fn summary() {
    for (library, name) in LIBRARIES {
        let functions = SOURCES.functions.iter().filter(|f| f.library == library);
        let records = SOURCES.records.iter().filter(|r| r.library == library);
        let enums = SOURCES.enums.iter().filter(|e| e.library == library);
        let constants = SOURCES.constants.iter().filter(|c| c.library == library);
        let aliases = SOURCES.aliases.iter().filter(|a| a.library == library);
        let sets = header_sets();
        let sets = sets
            .iter()
            .filter(|set| set.nccl.is_some() == (library == Library::Nccl));
        let outcomes = PROOF.iter().flatten().filter(|((of, _), _)| *of == library);
        println!(
            "{name}: {} functions with {} parameters, {} structs with {} fields, {} enums with {} \
             values, {} constants, {} handles; {} comparisons with {} sets of headers",
            functions.clone().count(),
            functions.map(|f| f.parameters.len()).sum::<usize>(),
            records.clone().count(),
            records.map(|r| r.fields.len()).sum::<usize>(),
            enums.clone().count(),
            enums.map(|e| e.values.len()).sum::<usize>(),
            constants.count(),
            aliases.count(),
            outcomes.map(|(_, outcome)| outcome.compared).sum::<usize>(),
            sets.count(),
        );
    }
}

fn report(findings: &BTreeMap<Finding, Vec<String>>) -> Result<(), Failed> {
    if findings.is_empty() {
        return Ok(());
    }
    let mut text = format!("{} differ\n", findings.len());
    for (finding, sets) in findings {
        text += &finding.to_string();
        if let Some((first, rest)) = sets.split_first() {
            let more = if rest.is_empty() {
                String::new()
            } else {
                format!(" and {} more", rest.len())
            };
            text += &format!("    in      {first}{more}\n");
        }
    }
    Err(text.into())
}

/// Why nothing can be proved here.
fn blocked() -> Option<String> {
    let compiler = proof::compiler();
    if let Err(error) = Command::new(&compiler).arg("--version").output() {
        return Some(format!("no C++ compiler: {compiler:?}: {error}"));
    }
    if header_sets().is_empty() {
        let root = headers_root();
        return Some(format!(
            "no headers in {}; tests/abi/headers.py gets them",
            root.display()
        ));
    }
    None
}

fn headers_root() -> PathBuf {
    let usual = || concat!(env!("CARGO_MANIFEST_DIR"), "/target/abi-headers").into();
    env::var_os("METRALE_ABI_HEADERS")
        .unwrap_or_else(usual)
        .into()
}

/// What is laid out: each nccl.h with each CUDA that is there whole, and each cuda.h.
fn header_sets() -> Vec<Headers> {
    let matrix = env::var_os("METRALE_ABI_MATRIX").is_some();
    let folders = |prefix: &str| {
        let mut found: Vec<(Release, String, PathBuf)> = Vec::new();
        for entry in fs::read_dir(headers_root()).into_iter().flatten() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if let Some(version) = name.strip_prefix(prefix) {
                found.push((release(version), version.into(), headers_root().join(&name)));
            }
        }
        found.sort();
        found
    };
    let newest = |found: &[(Release, String, PathBuf)]| found.last().map(|last| last.0.clone());
    let (mut nccl, mut cuda) = (folders("nccl-"), folders("cuda-"));
    if !matrix {
        // The oldest and the newest.
        if nccl.len() > 2 {
            nccl.drain(1..nccl.len() - 1);
        }
        cuda.retain(|(_, _, folder)| folder.join("crt").is_dir());
    }
    let mut sets = Vec::new();
    for (release, version, folder) in &cuda {
        let name = format!("cuda.h {version}");
        let newest = newest(&cuda).as_ref() == Some(release);
        sets.push(Headers {
            name,
            nccl: None,
            cuda: folder.clone(),
            newest,
        });
    }
    for (release, version, folder) in &nccl {
        let newest = newest(&nccl).is_some_and(|newest| newest[..3] == release[..3]);
        for (_, cuda, include) in cuda
            .iter()
            .filter(|(_, _, folder)| folder.join("crt").is_dir())
        {
            let name = format!("nccl.h {version} with CUDA {cuda}");
            let nccl = Some(folder.clone());
            sets.push(Headers {
                name,
                nccl,
                cuda: include.clone(),
                newest,
            });
        }
    }
    sets
}
