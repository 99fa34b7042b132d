//! Says what it was built with and what it runs on. Further arguments are libraries that it opens
//! first, as a program does whose other parts bring libraries of their own.

use metrale_gpu_sys::{BUILD_REPORT, cuda, nccl};

unsafe extern "C" {
    fn dlopen(name: *const std::ffi::c_char, flags: std::ffi::c_int) -> *mut std::ffi::c_void;
}

fn main() {
    for library in std::env::args().skip(1) {
        let name = std::ffi::CString::new(library).unwrap();
        const RTLD_NOW: std::ffi::c_int = 2;
        assert!(!unsafe { dlopen(name.as_ptr(), RTLD_NOW) }.is_null());
    }
    println!("{BUILD_REPORT}");
    for (key, value) in [
        ("RPATH", option_env!("SEEN_RPATH")),
        ("LIB_DIR", option_env!("SEEN_LIB_DIR")),
        ("INCLUDE_DIR", option_env!("SEEN_INCLUDE_DIR")),
        ("VERSION", option_env!("SEEN_VERSION")),
        ("CUDA_LIB_DIR", option_env!("SEEN_CUDA_LIB_DIR")),
        ("BINDING", option_env!("SEEN_BINDING")),
    ] {
        println!("DEP_NCCL_{key}={}", value.unwrap_or("(unset)"));
    }
    match nccl::version() {
        Ok(version) => println!("nccl version: {version}"),
        Err(error) => println!("nccl error: {error}"),
    }
    match cuda::init() {
        Ok(()) => println!("cuda is there"),
        Err(error) => println!("cuda error: {error}"),
    }
    for (name, library) in [
        ("nccl", nccl::loaded_library()),
        ("cuda", cuda::loaded_library()),
    ] {
        let library = library.unwrap();
        println!("{name} file: {}", library.path.display());
        for other in library.others {
            println!("{name} other: {}", other.display());
        }
    }
}
