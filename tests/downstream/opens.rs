//! Does what its arguments say, one line each, in the order given.

use std::ffi::{CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Barrier;
use std::sync::atomic::{AtomicI32, Ordering};
use std::{env, thread};

use metrale_gpu_sys::nccl::{self, NcclResult, ncclGetErrorString, ncclGetVersion};
use metrale_gpu_sys::{BINDING, BUILD_REPORT, LoadedLibrary, cuda};

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlclose(handle: *mut c_void) -> c_int;
    fn fork() -> c_int;
    fn waitpid(process: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn _exit(code: c_int) -> !;
    // As a crate does that declares for itself what it needs.
    fn cuMemAlloc_v2(address: *mut u64, size: usize) -> c_int;
}

/// Runs before `main`, and asks for the version if the variable EARLY is there.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = {
    extern "C" fn ask() {
        if env::var_os("EARLY").is_some() {
            EARLY.store(version_code(), Ordering::Relaxed);
        }
    }
    ask
};
static EARLY: AtomicI32 = AtomicI32::new(0);

fn main() {
    for word in env::args_os().skip(1) {
        let word = word.into_vec();
        let at = word.iter().position(|byte| *byte == b'=');
        let (what, value) = word.split_at(at.unwrap_or(word.len()));
        let value = OsStr::from_bytes(value.get(1..).unwrap_or_default());
        match what {
            b"binding" => println!("{BINDING:?}: {BUILD_REPORT}"),
            b"version" => told(nccl::version().map(|version| version.to_string())),
            b"init" => told(cuda::init().map(|()| "initialized".to_owned())),
            b"available" => println!(
                "nccl {}, cuda {}",
                nccl::is_available(),
                cuda::is_available()
            ),
            b"file" => file(nccl::loaded_library()),
            b"cuda-file" => file(cuda::loaded_library()),
            b"has" => {
                let name = value.to_str().unwrap();
                println!(
                    "{name}: {}, {}",
                    nccl::has_function(name),
                    cuda::has_function(name)
                );
            }
            b"open" => open(value),
            b"load" => told(nccl::load(Path::new(value)).map(|()| "loaded".to_owned())),
            b"cuda-load" => told(cuda::load(Path::new(value)).map(|()| "loaded".to_owned())),
            b"suspend" => {
                // SAFETY: made-up libraries look at no argument.
                let result = unsafe { nccl::ncclCommSuspend(null_mut(), 0) };
                println!(
                    "{result:?} {}: {}",
                    result.0,
                    nccl::check_nccl(result, "ncclCommSuspend").unwrap_err()
                );
            }
            b"resume-after-suspend" => {
                // SAFETY: as above.
                let results = unsafe {
                    [
                        (nccl::ncclCommSuspend(null_mut(), 0), "ncclCommSuspend of layer 3"),
                        (nccl::ncclCommResume(null_mut()), "ncclCommResume"),
                    ]
                };
                for (result, context) in results {
                    println!("{}", nccl::check_nccl(result, context).unwrap_err());
                }
            }
            b"anonymous" => {
                let result = NcclResult::NotInThisVersion;
                println!("{}", nccl::check_nccl(result, "my own words").unwrap_err());
            }
            b"late" => {
                let version = nccl::ncclGetVersion as unsafe extern "C" fn(*mut c_int) -> NcclResult;
                // SAFETY: nothing is written without a library.
                let result = unsafe { version(null_mut()) };
                println!("{:?}", nccl::load(Path::new(value)).is_ok());
                println!("{}", nccl::check_nccl(result, "ncclGetVersion").unwrap_err());
            }
            b"close" => {
                let name = CString::new(value.as_bytes()).unwrap();
                // SAFETY: the name ends with a zero byte, and what `open` kept is given back.
                unsafe {
                    let handle = dlopen(name.as_ptr(), 1 | 4);
                    dlclose(handle);
                    dlclose(handle);
                    println!("mapped: {}", !dlopen(name.as_ptr(), 1 | 4).is_null());
                }
            }
            b"stream" => {
                // SAFETY: as above.
                let result = unsafe {
                    cuda::cuStreamGetDevResource(0, null_mut(), cuda::CuDevResourceType(1))
                };
                println!(
                    "{result:?} {}: {}",
                    result.0,
                    cuda::check_cuda(result, "cuStreamGetDevResource").unwrap_err()
                );
            }
            b"absent" => absent(),
            b"threads" => threads(),
            b"fork" => println!("child: {}", in_child()),
            b"early" => println!("early: {}", EARLY.load(Ordering::Relaxed)),
            other => panic!("{}", String::from_utf8_lossy(other)),
        }
    }
}

fn told(result: anyhow::Result<String>) {
    match result {
        Ok(text) => println!("{text}"),
        Err(error) => println!("error: {error}"),
    }
}

fn file(library: Option<LoadedLibrary>) {
    match library {
        Some(library) => println!("{} {:?}", library.path.display(), library.others),
        None => println!("none"),
    }
}

fn open(library: &OsStr) {
    let name = CString::new(library.as_bytes()).unwrap();
    const RTLD_NOW: c_int = 2;
    // SAFETY: the name ends with a zero byte.
    assert!(!unsafe { dlopen(name.as_ptr(), RTLD_NOW) }.is_null());
    println!("opened");
}

/// What `ncclGetVersion` writes, or what it returns.
fn version_code() -> i32 {
    let mut version = 0;
    // SAFETY: `version` takes one int.
    match unsafe { ncclGetVersion(&mut version) } {
        NcclResult::Success => version,
        result => result.0,
    }
}

fn absent() {
    let mut address = 7;
    // SAFETY: `address` takes one address; any code may be asked for.
    unsafe {
        println!("alloc {} {address}", cuMemAlloc_v2(&mut address, 16));
        println!(
            "null {}",
            ncclGetErrorString(NcclResult::NotLoaded).is_null()
        );
        nccl::ncclParamDumpAll();
    }
    println!("dumped");
}

fn threads() {
    let gate = Barrier::new(8);
    let answers: Vec<i32> = thread::scope(|scope| {
        let ask = || {
            gate.wait();
            version_code()
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    println!("{answers:?}");
}

/// What a child of fork gets, plus 1 if it ended otherwise than by itself.
fn in_child() -> i32 {
    // SAFETY: the child calls only what this test is about, and leaves without the parent's destructors.
    unsafe {
        match fork() {
            0 => _exit(version_code() / 100 - 200),
            -1 => panic!("no child"),
            child => {
                let mut status = 0;
                assert_eq!(waitpid(child, &mut status, 0), child);
                assert_eq!(status & 0x7f, 0, "the child was killed");
                (status >> 8 & 0xff) * 100 + 20000
            }
        }
    }
}
