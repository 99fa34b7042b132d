//! Says what this crate found when it was built, what it uses now, and what stands in the way.
//!
//! cargo run --example doctor
//!
//! Exit code 0: collectives can run; 1: they can, but something deserves a look; 2: they cannot.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use metrale_gpu_sys::cuda::{self, CuDeviceAttribute, CuResult, CudaError};
use metrale_gpu_sys::nccl::{self, NcclConfig, NcclError, NcclVersion};
use metrale_gpu_sys::{BINDING, BUILD_REPORT, LoadedLibrary};

/// Say what this crate found when it was built, what it uses now, and what stands in the way.
///
/// Exit code 0: collectives can run; 1: they can, but something deserves a look; 2: they cannot.
#[derive(Parser)]
struct Options {}

/// The oldest release that this crate supports.
const OLDEST: NcclVersion = NcclVersion {
    major: 2,
    minor: 18,
    patch: 0,
};

/// Variables easily left over from an old experiment: the value that turns something off or on, if only one does.
const SUSPECTS: [(&str, &str, &str); 6] = [
    (
        "NCCL_P2P_DISABLE",
        "1",
        "GPUs do not talk to each other directly",
    ),
    (
        "NCCL_SHM_DISABLE",
        "1",
        "ranks of one machine do not use shared memory",
    ),
    ("NCCL_IB_DISABLE", "1", "InfiniBand and RoCE are not used"),
    ("NCCL_ALGO", "", "the choice of algorithm is restricted"),
    ("NCCL_PROTO", "", "the choice of protocol is restricted"),
    (
        "CUDA_LAUNCH_BLOCKING",
        "1",
        "every kernel launch waits for the kernel",
    ),
];

fn main() -> ExitCode {
    let Options {} = Options::parse();
    let mut findings = Findings::default();

    section("Built");
    println!(
        "metrale-gpu-sys {}, binding: {BINDING:?}",
        env!("CARGO_PKG_VERSION")
    );
    build_report();

    section("NCCL");
    nccl_library(&mut findings);

    section("CUDA driver");
    if let Err(error) = devices(&mut findings) {
        findings.fatal(format!("{error:#}"));
    }

    if findings.fatal.is_empty() {
        section("A communicator of one rank");
        match communicator() {
            Ok(()) => println!("device 0 has made one"),
            Err(error) => findings.fatal(format!("no communicator on device 0: {error:#}")),
        }
    }

    section("Variables in force");
    variables(&mut findings);

    section("Verdict");
    findings.print()
}

/// The report, with the folders that do not exist in one line.
fn build_report() {
    let absent = "does not exist";
    let (folders, lines): (Vec<&str>, Vec<&str>) = BUILD_REPORT
        .lines()
        .partition(|line| line.ends_with(absent));
    for line in lines {
        println!("{line}");
    }
    let mut folders: Vec<&str> = folders
        .iter()
        .filter_map(|line| line.trim().split(' ').next())
        .collect();
    folders.sort_unstable();
    folders.dedup();
    if !folders.is_empty() {
        println!("looked for in vain: {}", folders.join(" "));
    }
}

/// The release of the header that lay beside the library at build time.
fn header() -> Option<NcclVersion> {
    let line = BUILD_REPORT
        .lines()
        .find(|line| line.starts_with("nccl.h: "))?;
    let mut numbers = line
        .rsplit(' ')
        .next()?
        .split('.')
        .map(|number| number.parse().ok());
    Some(NcclVersion {
        major: numbers.next()??,
        minor: numbers.next()??,
        patch: numbers.next()??,
    })
}

fn section(title: &str) {
    println!("\n== {title}");
}

/// What stands in the way of a collective, and what only deserves a look.
#[derive(Default)]
struct Findings {
    fatal: Vec<String>,
    notes: Vec<String>,
}

impl Findings {
    fn fatal(&mut self, sentence: String) {
        self.fatal.push(sentence);
    }

    fn note(&mut self, sentence: String) {
        self.notes.push(sentence);
    }

    fn print(&self) -> ExitCode {
        for sentence in &self.fatal {
            println!("problem: {sentence}");
        }
        for sentence in &self.notes {
            println!("note: {sentence}");
        }
        if !self.fatal.is_empty() {
            println!("collectives cannot run here");
            ExitCode::from(2)
        } else if !self.notes.is_empty() {
            println!("collectives can run here; see the notes");
            ExitCode::from(1)
        } else {
            println!("collectives can run here");
            ExitCode::SUCCESS
        }
    }
}

/// Whether this is what a stub answers, which only stands in for a library.
fn is_stub(error: &anyhow::Error) -> bool {
    let nccl = error
        .downcast_ref::<NcclError>()
        .and_then(|error| error.text.as_deref());
    let cuda = error.downcast_ref::<CudaError>().map(|error| error.code);
    nccl.is_some_and(|text| text.contains("import stub")) || cuda == Some(CuResult::StubLibrary)
}

/// Prints where a library came from, and whether it is one, by its answer to a first call.
fn loaded<T>(
    name: &str,
    library: Option<LoadedLibrary>,
    answer: &anyhow::Result<T>,
    findings: &mut Findings,
) {
    let Some(library) = library else {
        // The answer says why.
        println!("file: none");
        return;
    };
    let kind = match answer {
        Err(error) if is_stub(error) => ", a stub and not the library",
        _ => "",
    };
    println!("file: {}{kind}", library.path.display());
    for other in &library.others {
        println!("second copy: {}", other.display());
        findings.note(format!(
            "two copies of {name} are mapped, {} and {}: mixing them fails in confusing ways; keep one, \
             by LD_LIBRARY_PATH or by the run-time path of whatever brings the other",
            library.path.display(),
            other.display()
        ));
    }
}

fn nccl_library(findings: &mut Findings) {
    let version = nccl::version();
    loaded("libnccl", nccl::loaded_library(), &version, findings);
    match version {
        Ok(version) => {
            println!("version: {version}");
            if version < OLDEST {
                findings.fatal(format!(
                    "NCCL {version} is loaded; this crate supports {}.{} and later: put a newer one first on \
                     LD_LIBRARY_PATH, or build with NCCL_HOME set to it",
                    OLDEST.major, OLDEST.minor
                ));
            }
            if let Some(header) = header().filter(|header| version < *header) {
                findings.note(format!(
                    "NCCL {version} is loaded, and the program was built beside the header of {header}: a function that \
                     is younger than the library keeps a program from starting"
                ));
            }
        }
        Err(error) => return findings.fatal(format!("{error:#}")),
    }
    let lacking: Vec<&str> = nccl::FUNCTIONS
        .iter()
        .copied()
        .filter(|name| !nccl::has_function(name))
        .collect();
    let declared = nccl::FUNCTIONS.len();
    println!(
        "functions: {} of the {declared} that this crate declares",
        declared - lacking.len()
    );
    if !lacking.is_empty() {
        println!("lacking: {}", lacking.join(" "));
        println!("(a program that calls one of these does not start with this library)");
    }
}

fn devices(findings: &mut Findings) -> anyhow::Result<()> {
    let started = cuda::init();
    loaded("libcuda", cuda::loaded_library(), &started, findings);
    started?;
    let driver = cuda::driver_version()?;
    println!("driver: CUDA {}.{}", driver / 1000, driver % 1000 / 10);
    let count = cuda::device_count()?;
    println!("devices: {count}");
    if count == 0 {
        findings.fatal(
            "the driver sees no GPU: look at nvidia-smi, CUDA_VISIBLE_DEVICES and the container's GPU access"
                .to_owned(),
        );
    }
    for device in 0..count {
        let attribute = |which| cuda::device_attribute(device, which);
        println!(
            "{device}: {}, {} MiB, compute capability {}.{}, PCI {}, {}",
            cuda::device_name(device)?,
            cuda::device_total_memory(device)? >> 20,
            attribute(CuDeviceAttribute::ComputeCapabilityMajor)?,
            attribute(CuDeviceAttribute::ComputeCapabilityMinor)?,
            cuda::device_pci_bus_id(device)?,
            cuda::device_uuid(device)?,
        );
    }
    if count > 1 {
        println!("peer access (row reads column):");
        for device in 0..count {
            let row: Vec<&str> = (0..count)
                .map(|peer| {
                    Ok(match peer {
                        peer if peer == device => "-",
                        peer if cuda::can_access_peer(device, peer)? => "yes",
                        _ => "no",
                    })
                })
                .collect::<anyhow::Result<_>>()?;
            println!("{device}: {}", row.join(" "));
        }
    }
    Ok(())
}

/// Makes a communicator of one rank on device 0, which takes a driver that suits this NCCL.
fn communicator() -> anyhow::Result<()> {
    cuda::use_device(0)?;
    let id = nccl::unique_id()?;
    let config = NcclConfig::non_blocking();
    let mut comm = std::ptr::null_mut();
    // SAFETY: `comm` takes one communicator, which this thread alone uses; to abort is right in any
    // state, also if there is none.
    unsafe {
        let result = nccl::ncclCommInitRankConfig(&mut comm, 1, id, 0, &config);
        let made = nccl::check_started(result, "ncclCommInitRankConfig")
            .and_then(|()| nccl::wait_ready(comm, Duration::from_secs(60)));
        nccl::ncclCommAbort(comm);
        made
    }
}

fn variables(findings: &mut Findings) {
    let mut found: Vec<(String, String)> = std::env::vars_os()
        .map(|(name, value)| {
            (
                name.to_string_lossy().into_owned(),
                value.to_string_lossy().into_owned(),
            )
        })
        .filter(|(name, _)| {
            name.starts_with("NCCL_") || name.starts_with("CUDA_") || name == "LD_LIBRARY_PATH"
        })
        .collect();
    found.sort();
    for (name, value) in &found {
        println!("{name}={value}");
        let suspect = SUSPECTS
            .iter()
            .find(|(suspect, sign, _)| suspect == name && (sign.is_empty() || sign == value));
        if let Some((_, _, effect)) = suspect {
            findings.note(format!(
                "{name}={value}: {effect}; unset it unless it is meant"
            ));
        }
    }
    let home = std::env::var_os("HOME").map(|home| std::path::Path::new(&home).join(".nccl.conf"));
    let own = std::env::var_os("NCCL_CONF_FILE").map(Into::into).or(home);
    for file in own.into_iter().chain(["/etc/nccl.conf".into()]) {
        if let Ok(text) = std::fs::read_to_string(&file) {
            println!(
                "{}, which NCCL reads too:\n{}",
                file.display(),
                text.trim_end()
            );
        }
    }
}
