//! Says what this crate found when it was built, what it uses now, and what stands in the way.
//!
//! cargo run --example doctor
//!
//! Exit code 0: collectives can run; 1: they can, but something deserves a look; 2: they cannot.

use std::process::ExitCode;

use clap::Parser;
use metrale_gpu_sys::cuda::{self, CuDeviceAttribute};
use metrale_gpu_sys::nccl::{self, NcclVersion};
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

/// Variables that make NCCL slower or stranger, and are easily left over from an old experiment.
const SUSPECTS: [(&str, &str); 7] = [
    (
        "NCCL_P2P_DISABLE",
        "GPUs do not talk to each other directly",
    ),
    (
        "NCCL_SHM_DISABLE",
        "ranks of one machine do not use shared memory",
    ),
    ("NCCL_IB_DISABLE", "InfiniBand and RoCE are not used"),
    ("NCCL_NVLS_ENABLE", "NVLink multicast is set by hand"),
    ("NCCL_ALGO", "the choice of algorithm is set by hand"),
    ("NCCL_PROTO", "the choice of protocol is set by hand"),
    (
        "CUDA_LAUNCH_BLOCKING",
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
    println!("{}", BUILD_REPORT.trim_end());

    section("NCCL");
    nccl_library(&mut findings);

    section("CUDA driver");
    if let Err(error) = devices(&mut findings) {
        findings.fatal(format!("{error:#}"));
    }

    section("Variables in force");
    variables(&mut findings);

    section("Verdict");
    findings.print()
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

/// Prints where a library came from.
fn loaded(name: &str, library: Option<LoadedLibrary>, findings: &mut Findings) {
    let Some(library) = library else {
        println!("file: none");
        findings.fatal(format!("no {name} is mapped into this process"));
        return;
    };
    println!("file: {}", library.path.display());
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
    loaded("libnccl", nccl::loaded_library(), findings);
    match nccl::version() {
        Ok(version) => {
            println!("version: {version}");
            if version < OLDEST {
                findings.fatal(format!(
                    "NCCL {version} is loaded; this crate supports {}.{} and later: put a newer one first on \
                     LD_LIBRARY_PATH, or build with NCCL_HOME set to it",
                    OLDEST.major, OLDEST.minor
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
    loaded("libcuda", cuda::loaded_library(), findings);
    cuda::init()?;
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
        if let Some((_, effect)) = SUSPECTS.iter().find(|(suspect, _)| suspect == name) {
            findings.note(format!(
                "{name}={value}: {effect}, if that value says so; unset it unless it is meant"
            ));
        }
    }
    if found.is_empty() {
        println!("none");
    }
}
