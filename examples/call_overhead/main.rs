//! Measures what a call costs: through this crate, through a bare C function pointer in the same process,
//! and from a C program that is made on the spot where there is a `cc`.
//!
//! cargo run --release --example call_overhead
//!
//! The functions do next to nothing themselves. Those that need a GPU are left out where there is none.
//! Exit code 0: measured; 2: there was nothing to measure.

use std::ffi::{CString, c_char, c_int, c_void};
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::ptr::null_mut;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use metrale_gpu_sys::cuda::*;
use metrale_gpu_sys::nccl::*;
use metrale_gpu_sys::{BINDING, Binding, LoadedLibrary, cuda, nccl};
use tempfile::TempDir;

/// Measure what a call costs: through this crate, through a bare C function pointer in the same process,
/// and from a C program that is made on the spot where there is a `cc`.
///
/// Exit code 0: measured; 2: there was nothing to measure.
#[derive(Parser)]
struct Options {
    /// Rounds, in each of which the loops run in turn.
    #[arg(long, default_value_t = 41, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Milliseconds that each loop runs for in a round.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    milliseconds: u64,
    /// No C program.
    #[arg(long)]
    no_c: bool,
}

/// What the functions are called with.
struct Handles {
    comm: NcclComm,
    stream: CuStream,
}

/// A function, and the same loop over both ways to call it.
struct Call {
    name: &'static str,
    needs_gpu: bool,
    /// This crate's own function, for where there is no library to ask.
    own: *const c_void,
    through_crate: fn(u64, &Handles),
    through_pointer: fn(*const c_void, u64, &Handles),
}

/// Calls in each turn of a loop, so that the loop itself, and where in memory it lies, count for less.
const UNROLLED: u64 = 8;

macro_rules! eight {
    ($($work:tt)*) => {
        $($work)* $($work)* $($work)* $($work)* $($work)* $($work)* $($work)* $($work)*
    };
}

macro_rules! call {
    ($name:ident($($kind:ty),*), $needs_gpu:expr, |$handles:ident, $out:ident| $($argument:expr),*) => {
        Call {
            name: stringify!($name),
            needs_gpu: $needs_gpu,
            own: $name as *const c_void,
            through_crate: |calls, $handles| {
                let mut out = 0u64;
                let $out = &raw mut out;
                for _ in 0..calls / UNROLLED {
                    // SAFETY: the handles are live, and `out` takes an int or a pointer.
                    eight!(let _ = black_box(unsafe { $name($($argument),*) }););
                }
            },
            through_pointer: |address, calls, $handles| {
                let mut out = 0u64;
                let $out = &raw mut out;
                // SAFETY: the address is of the function of this name.
                let function: unsafe extern "C" fn($($kind),*) -> c_int = unsafe { std::mem::transmute(address) };
                for _ in 0..calls / UNROLLED {
                    // SAFETY: the handles are live, and `out` takes an int or a pointer.
                    eight!(let _ = black_box(unsafe { function($($argument),*) }););
                }
            },
        }
    };
}

const CALLS: [Call; 5] = [
    call!(ncclGetVersion(*mut c_int), false, |_handles, out| out
        .cast()),
    call!(cuDriverGetVersion(*mut c_int), false, |_handles, out| out
        .cast()),
    call!(
        ncclCommCount(NcclComm, *mut c_int),
        true,
        |handles, out| handles.comm,
        out.cast()
    ),
    call!(cuCtxGetCurrent(*mut CuContext), true, |_handles, out| out
        .cast()),
    call!(cuStreamQuery(CuStream), true, |handles, _out| handles
        .stream),
];

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("call_overhead: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let version = version()?;
    let nccl = nccl::loaded_library().context("libnccl is loaded, and its file unknown")?;
    let cuda = cuda::is_available().then(cuda::loaded_library).flatten();
    println!("binding: {BINDING:?}");
    println!("NCCL {version} from {}", nccl.path.display());
    match &cuda {
        Some(cuda) => println!("libcuda from {}", cuda.path.display()),
        None => println!("no libcuda"),
    }
    let handles = handles();
    if let Err(error) = &handles {
        println!("no calls that need a GPU: {error:#}");
    }
    let program = if options.no_c {
        Err(anyhow::anyhow!("--no-c"))
    } else {
        CProgram::make(&nccl, cuda.as_ref())
    };
    if let Err(error) = &program {
        println!("no C program: {error:#}");
    }
    println!(
        "nanoseconds a call, of {} rounds in which the loops take turns: median (minimum)\n",
        options.rounds
    );
    println!(
        "{:<20}{:>18}{:>18}{:>18}{:>18}{:>18}",
        "call", "crate", "C pointer", "C program", "crate/pointer", "crate/C"
    );
    for call in &CALLS {
        let unset = Handles {
            comm: null_mut(),
            stream: 0,
        };
        let handles = match &handles {
            Ok(handles) => handles,
            Err(_) if call.needs_gpu => continue,
            Err(_) => &unset,
        };
        let library = if call.name.starts_with("nccl") {
            &nccl
        } else {
            match &cuda {
                Some(cuda) => cuda,
                None => continue,
            }
        };
        let address = pointer(call, library)?;
        let c = match &program {
            Ok(program) => Some(program.start(call.name)?),
            Err(_) => None,
        };
        measure(options, call, address, handles, c)?;
    }
    Ok(())
}

/// A context, a stream, and a communicator of one rank. They live as long as the process.
fn handles() -> Result<Handles> {
    init()?;
    ensure!(device_count()? > 0, "the driver sees none");
    use_device(0)?;
    let mut comm = null_mut();
    // SAFETY: `comm` takes one communicator.
    let result = unsafe { ncclCommInitRank(&mut comm, 1, unique_id()?, 0) };
    check_nccl(result, "ncclCommInitRank")?;
    let stream = create_stream()?;
    Ok(Handles { comm, stream })
}

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// The function's address in the library that this crate uses.
fn pointer(call: &Call, library: &LoadedLibrary) -> Result<*const c_void> {
    if BINDING == Binding::Emulated {
        return Ok(black_box(call.own));
    }
    const RTLD_NOW: c_int = 2;
    let path = CString::new(library.path.as_os_str().as_bytes())?;
    let name = CString::new(call.name)?;
    // SAFETY: both names end with a zero byte; the file is loaded already, so that nothing of it runs.
    let address = unsafe {
        let handle = dlopen(path.as_ptr(), RTLD_NOW);
        ensure!(
            !handle.is_null(),
            "{} could not be opened",
            library.path.display()
        );
        dlsym(handle, name.as_ptr())
    };
    ensure!(
        !address.is_null(),
        "{} has no {}",
        library.path.display(),
        call.name
    );
    Ok(address)
}

fn measure(
    options: &Options,
    call: &Call,
    address: *const c_void,
    handles: &Handles,
    mut c: Option<Loop>,
) -> Result<()> {
    let through_pointer = |calls| {
        let start = Instant::now();
        (call.through_pointer)(address, calls, handles);
        start.elapsed()
    };
    let through_crate = |calls| {
        let start = Instant::now();
        (call.through_crate)(calls, handles);
        start.elapsed()
    };
    let mut calls = 125 * UNROLLED;
    while through_pointer(calls) < Duration::from_millis(options.milliseconds) {
        calls *= 2;
    }
    through_crate(calls);
    let mut times: [Vec<f64>; 3] = Default::default();
    for round in 0..options.rounds {
        // Each is the first as often as the others.
        for turn in 0..3 {
            let which = (turn + round as usize) % 3;
            let time = match (which, &mut c) {
                (0, _) => through_crate(calls),
                (1, _) => through_pointer(calls),
                (_, Some(c)) => c.run(calls)?,
                (_, None) => continue,
            };
            times[which].push(time.as_secs_f64() * 1e9 / calls as f64);
        }
    }
    for times in &mut times {
        times.sort_by(f64::total_cmp);
    }
    let median = |which: usize| times[which].get(times[which].len() / 2).copied();
    let column = |which: usize| match (median(which), times[which].first()) {
        (Some(median), Some(least)) => format!("{median:.2} ({least:.2})"),
        _ => "-".to_owned(),
    };
    let ratio = |which: usize| match (median(which), times[which].first()) {
        (Some(median_of_theirs), Some(least_of_theirs)) => {
            let ours = &times[0];
            let medians = ours[ours.len() / 2] / median_of_theirs;
            format!("{medians:.2} ({:.2})", ours[0] / least_of_theirs)
        }
        _ => "-".to_owned(),
    };
    println!(
        "{:<20}{:>18}{:>18}{:>18}{:>18}{:>18}",
        call.name,
        column(0),
        column(1),
        column(2),
        ratio(1),
        ratio(2)
    );
    Ok(())
}

/// The same loops in C.
struct CProgram {
    file: PathBuf,
    /// Where its loader looks first, so that it has the same libraries.
    folders: String,
    _folder: TempDir,
}

impl CProgram {
    fn make(nccl: &LoadedLibrary, cuda: Option<&LoadedLibrary>) -> Result<Self> {
        ensure!(
            BINDING != Binding::Emulated,
            "the emulator is part of this program alone"
        );
        let folder = tempfile::tempdir()?;
        let source = folder.path().join("loop.c");
        std::fs::write(&source, include_str!("loop.c"))?;
        let file = folder.path().join("loop");
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-o"]).arg(&file).arg(source);
        cc.arg("-Wl,--allow-shlib-undefined").arg(&nccl.path);
        let mut folders = Vec::new();
        let folder_of = |path: &Path| path.parent().map(|folder| folder.display().to_string());
        folders.extend(folder_of(&nccl.path));
        if let Some(cuda) = cuda {
            cc.arg("-DWITH_CUDA").arg(&cuda.path);
            folders.extend(folder_of(&cuda.path));
        }
        let output = cc.output().context("cc")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("cc failed: {}", said.lines().next().unwrap_or_default());
        }
        folders.extend(std::env::var("LD_LIBRARY_PATH").ok());
        Ok(Self {
            file,
            folders: folders.join(":"),
            _folder: folder,
        })
    }

    fn start(&self, name: &str) -> Result<Loop> {
        let mut child = Command::new(&self.file)
            .arg(name)
            .env("LD_LIBRARY_PATH", &self.folders)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("the C program")?;
        let stdin = child.stdin.take().context("its input")?;
        let lines = BufReader::new(child.stdout.take().context("its output")?).lines();
        let (sender, answers) = channel();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut started = Loop {
            child,
            stdin,
            answers,
        };
        started.run(UNROLLED)?;
        Ok(started)
    }
}

/// A C program at work on one of the functions.
struct Loop {
    child: Child,
    stdin: ChildStdin,
    answers: Receiver<String>,
}

impl Loop {
    fn run(&mut self, calls: u64) -> Result<Duration> {
        const DEADLINE: Duration = Duration::from_secs(60);
        writeln!(self.stdin, "{calls}").context("the C program has ended")?;
        let answer = self.answers.recv_timeout(DEADLINE);
        let nanoseconds = answer.context("the C program does not answer")?;
        Ok(Duration::from_nanos(nanoseconds.trim().parse()?))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
