//! What the loaded libnccl answers, on any machine: the real one, the import stub, the emulator, or none
//! where it is opened at run time.
//!
//! `METRALE_EXPECT_NCCL=2.32.3` makes the cases for a real library run or fail: none may be ignored,
//! and the loaded release must be that one.

#[path = "support/gated.rs"]
mod gated;
mod support;

use std::ffi::CStr;
use std::ptr::null_mut;
use std::time::Duration;

use anyhow::{Context, ensure};
use gated::trial;
use libtest_mimic::{Arguments, Trial};
use metrale_gpu_sys::cuda::{self, CuResult, CudaError, check_cuda};
use metrale_gpu_sys::nccl::*;
use metrale_gpu_sys::{BINDING, Binding};
use object::{Object, ObjectSymbol};

fn main() {
    let arguments = Arguments::from_args();
    let expected = std::env::var("METRALE_EXPECT_NCCL").ok();
    let real = match version() {
        _ if expected.is_some() => Ok(()),
        Ok(_) => Ok(()),
        Err(_) if BINDING == Binding::Dlopen => {
            Err("needs a real libnccl, and none could be opened".to_owned())
        }
        Err(_) => Err("needs a real libnccl, and the import stub is loaded".to_owned()),
    };
    let stub = match real {
        Ok(()) => Err("needs the import stub, and a real libnccl is loaded".to_owned()),
        Err(_) if BINDING == Binding::Dlopen => {
            Err("needs the import stub, and nothing is linked".to_owned())
        }
        Err(_) => Ok(()),
    };
    let no_gpu = match &real {
        Ok(()) if cuda::init().is_ok() && cuda::device_count().is_ok_and(|count| count > 0) => {
            Err("needs a machine without a GPU, and this one has one".to_owned())
        }
        other => other.clone(),
    };
    let anywhere = Ok(());
    let trials: Vec<Trial> = vec![
        trial(
            "this_program_needs_what_its_binding_says",
            &anywhere,
            needed,
        ),
        trial("the_loaded_files_are_named", &anywhere, loaded_files),
        trial("the_release_is_the_expected_one", &real, move || {
            release(expected)
        }),
        trial("ids_differ_and_are_not_empty", &real, ids),
        trial("each_code_has_its_text", &real, texts),
        trial("groups_open_and_close", &real, groups),
        trial("null_communicators_are_refused", &real, null_communicators),
        trial(
            "without_a_gpu_init_fails_with_nccls_own_reason",
            &no_gpu,
            init_without_gpu,
        ),
        trial(
            "the_stub_says_what_it_is_and_what_to_do",
            &stub,
            stub_explains,
        ),
        trial(
            "driver_errors_name_code_and_library",
            &anywhere,
            driver_errors,
        ),
    ];
    libtest_mimic::run(&arguments, trials).exit();
}

/// The file that the operating system started, as it lies on the disk.
fn needed() -> anyhow::Result<()> {
    let program = std::env::current_exe()?;
    let bytes = std::fs::read(&program)?;
    let file = object::File::parse(&*bytes)?;
    let symbols: Vec<&str> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_undefined())
        .filter_map(|symbol| symbol.name().ok())
        .collect();
    let libraries = support::dynamic(&program, &[object::elf::DT_NEEDED]);
    if BINDING != Binding::Linked {
        let foreign = |name: &&String| name.contains("nccl") || name.contains("cuda");
        ensure!(
            !libraries.iter().any(|name| foreign(&name)),
            "NEEDED: {libraries:?}"
        );
        ensure!(!symbols.contains(&"ncclGetVersion"), "{symbols:?}");
        return Ok(());
    }
    ensure!(
        symbols.contains(&"ncclGetVersion"),
        "calls go through the dynamic linker: {symbols:?}"
    );
    ensure!(
        libraries.iter().any(|name| name == "libnccl.so.2"),
        "NEEDED: {libraries:?}"
    );
    ensure!(
        libraries.iter().any(|name| name == "libcuda.so.1"),
        "NEEDED: {libraries:?}"
    );
    Ok(())
}

fn loaded_files() -> anyhow::Result<()> {
    let (nccl, cuda) = (loaded_library(), cuda::loaded_library());
    if BINDING != Binding::Dlopen {
        ensure!(nccl.is_some() && cuda.is_some(), "{nccl:?} {cuda:?}");
        let same = nccl.as_ref().map(|library| &library.path)
            == cuda.as_ref().map(|library| &library.path);
        ensure!(same == (BINDING == Binding::Emulated), "{nccl:?} {cuda:?}");
        let refusal = load("libnccl.so.2").unwrap_err().to_string();
        ensure!(refusal.contains("only the feature dlopen"), "{refusal}");
    }
    // What could not be opened has no file, and everything else one.
    ensure!(nccl.is_some() == has_function("ncclAllReduce"), "{nccl:?}");
    ensure!(cuda.is_some() == cuda::has_function("cuInit"), "{cuda:?}");
    for library in nccl.iter().chain(&cuda) {
        ensure!(library.path.is_file(), "{library:?}");
        ensure!(library.others.is_empty(), "{library:?}");
    }
    ensure!(is_available() == version().is_ok());
    ensure!(cuda::is_available() == cuda::driver_version().is_ok());
    ensure!(
        !has_function("ncclNoSuchFunction") && !has_function("printf") && !has_function("a\0b")
    );
    Ok(())
}

fn release(expected: Option<String>) -> anyhow::Result<()> {
    let version = version()?;
    if let Some(expected) = expected {
        ensure!(
            version.to_string() == expected,
            "loaded {version}, expected {expected}"
        );
    }
    let mut code = 0;
    // SAFETY: `code` takes one int.
    check_nccl(unsafe { ncclGetVersion(&mut code) }, "ncclGetVersion")?;
    ensure!(version_code(version.major, version.minor, version.patch) == code);
    // Everything that a release at least as new as ours has, and nothing that an older one lacks.
    let lacking: Vec<_> = FUNCTIONS
        .iter()
        .filter(|name| !has_function(name))
        .collect();
    ensure!(
        (code < NCCL_VERSION_CODE) != lacking.is_empty(),
        "{version} lacks {lacking:?}"
    );
    Ok(())
}

fn ids() -> anyhow::Result<()> {
    let (a, b) = (unique_id()?, unique_id()?);
    ensure!(a.internal != b.internal && a.internal != [0; 128]);
    // SAFETY: null is what is tried here.
    ensure!(unsafe { ncclGetUniqueId(null_mut()) } == NcclResult::InvalidArgument);
    Ok(())
}

fn texts() -> anyhow::Result<()> {
    let signs = [
        (0, "no error"),
        (1, "unhandled cuda error"),
        (2, "unhandled system error"),
        (3, "internal error"),
        (4, "invalid argument"),
        (5, "invalid usage"),
        (6, "remote process exited or there was a network error"),
        (7, "NCCL operation in progress"),
        (99, "unknown result code"),
        (-1, "unknown result code"),
    ];
    for (code, sign) in signs {
        // SAFETY: any code may be asked for, and NCCL answers with a static string.
        let text = unsafe { CStr::from_ptr(ncclGetErrorString(NcclResult(code))) }.to_str()?;
        ensure!(text.contains(sign), "{code}: {text}");
        if code != 0 {
            let error = check_nccl(NcclResult(code), "here").unwrap_err();
            ensure!(error.to_string().contains(sign), "{error}");
            ensure!(
                error
                    .downcast_ref::<NcclError>()
                    .context("an NcclError")?
                    .code
                    .0
                    == code
            );
        }
    }
    ensure!(check_started(NcclResult::InProgress, "here").is_ok());
    ensure!(check_started(NcclResult::Success, "here").is_ok());
    ensure!(check_started(NcclResult::InternalError, "here").is_err());
    Ok(())
}

fn groups() -> anyhow::Result<()> {
    // SAFETY: group calls take no pointers.
    unsafe {
        check_nccl(ncclGroupStart(), "ncclGroupStart")?;
        check_nccl(ncclGroupStart(), "ncclGroupStart")?;
        check_nccl(ncclGroupEnd(), "ncclGroupEnd")?;
        check_nccl(ncclGroupEnd(), "ncclGroupEnd")?;
        ensure!(ncclGroupEnd() == NcclResult::InvalidUsage);
    }
    Ok(())
}

fn null_communicators() -> anyhow::Result<()> {
    let mut number = 0;
    // SAFETY: null communicators are what is tried here; nothing else is read before they are refused.
    unsafe {
        ensure!(ncclCommCount(null_mut(), &mut number) == NcclResult::InvalidArgument);
        let reduced = ncclAllReduce(
            null_mut(),
            null_mut(),
            1,
            NcclDataType::Float32,
            NcclRedOp::Sum,
            null_mut(),
            0,
        );
        ensure!(reduced == NcclResult::InvalidArgument);
        let error = wait_ready(null_mut(), Duration::from_secs(1)).unwrap_err();
        ensure!(
            error
                .to_string()
                .starts_with("ncclCommGetAsyncError failed"),
            "{error}"
        );
        check_nccl(ncclCommDestroy(null_mut()), "ncclCommDestroy")?;
        check_nccl(ncclCommAbort(null_mut()), "ncclCommAbort")?;
    }
    Ok(())
}

fn init_without_gpu() -> anyhow::Result<()> {
    let mut comm = null_mut();
    // SAFETY: `comm` takes one communicator.
    let result = unsafe { ncclCommInitRank(&mut comm, 1, unique_id()?, 0) };
    let error = check_nccl(result, "ncclCommInitRank").unwrap_err();
    let error = error.downcast_ref::<NcclError>().context("an NcclError")?;
    ensure!(error.code == NcclResult::UnhandledCudaError, "{error}");
    // SAFETY: the argument is ignored, and NCCL answers with a string of its own.
    let reason = unsafe { CStr::from_ptr(ncclGetLastError(null_mut())) }
        .to_str()?
        .trim();
    ensure!(
        !reason.is_empty() && error.to_string().contains(reason),
        "{error}"
    );
    for part in [
        "ncclCommInitRank failed",
        "ncclUnhandledCudaError (1)",
        "driver",
    ] {
        ensure!(error.to_string().contains(part), "{error}");
    }
    Ok(())
}

fn stub_explains() -> anyhow::Result<()> {
    let error = version().unwrap_err();
    ensure!(
        error
            .downcast_ref::<NcclError>()
            .context("an NcclError")?
            .code
            == NcclResult::SystemError
    );
    for part in [
        "ncclGetVersion failed",
        "import stub",
        "NCCL_HOME",
        "ncclSystemError (2)",
    ] {
        ensure!(error.to_string().contains(part), "{error}");
    }
    Ok(())
}

fn driver_errors() -> anyhow::Result<()> {
    let cases = [
        (
            CuResult::StubLibrary,
            "CUDA_ERROR_STUB_LIBRARY (34)",
            "install the NVIDIA driver",
        ),
        (
            CuResult(35),
            "code 35, not listed in cuda.h",
            "update the driver",
        ),
        (
            CuResult::NoDevice,
            "CUDA_ERROR_NO_DEVICE (100)",
            "CUDA_VISIBLE_DEVICES",
        ),
        (
            CuResult::InvalidContext,
            "CUDA_ERROR_INVALID_CONTEXT (201)",
            "cuda::use_device",
        ),
        (
            CuResult::SystemDriverMismatch,
            "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)",
            "reboot",
        ),
        (
            CuResult::CompatNotSupportedOnDevice,
            "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE (804)",
            "cuda-compat",
        ),
        (CuResult::Unknown, "CUDA_ERROR_UNKNOWN (999)", "nvidia-smi"),
    ];
    let library = cuda::loaded_library().map(|library| library.path.display().to_string());
    let library = library.unwrap_or_default();
    for (code, name, hint) in cases {
        let error = check_cuda(code, "cuInit").unwrap_err();
        let text = error.to_string();
        for part in ["cuInit failed", name, hint, &library] {
            ensure!(text.contains(part), "{text}");
        }
        ensure!(
            error
                .downcast_ref::<CudaError>()
                .context("a CudaError")?
                .code
                == code
        );
    }
    let other = check_cuda(CuResult(-7), "cuInit").unwrap_err().to_string();
    ensure!(other.contains("code -7, not listed in cuda.h"), "{other}");
    Ok(())
}
