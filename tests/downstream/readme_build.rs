fn main() {
    // The two lines of the README.
    let rpath = std::env::var("DEP_NCCL_RPATH").expect("metrale-gpu-sys among this package's own [dependencies]");
    println!("cargo::rustc-link-arg=-Wl,-rpath,{rpath}");

    for key in [
        "RPATH",
        "LIB_DIR",
        "INCLUDE_DIR",
        "VERSION",
        "CUDA_LIB_DIR",
        "BINDING",
    ] {
        if let Ok(value) = std::env::var(format!("DEP_NCCL_{key}")) {
            println!("cargo::rustc-env=SEEN_{key}={value}");
        }
    }
}
