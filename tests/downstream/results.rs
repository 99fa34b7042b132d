//! What becomes of the codes that a library returns, and of those that it writes.

use std::time::Duration;

use metrale_gpu_sys::nccl::{
    NcclError, NcclResult, check_nccl, check_started, ncclCommGetAsyncError, ncclGroupStart,
    wait_ready,
};

fn main() {
    let result = unsafe { ncclGroupStart() };
    println!("returned {result:?}");
    println!(
        "started: {}",
        check_started(result, "ncclGroupStart").is_ok()
    );
    let error = check_nccl(result, "ncclGroupStart").unwrap_err();
    let code = error.downcast_ref::<NcclError>().unwrap().code;
    println!("checked {}: {error}", code.0);
    let comm = std::ptr::dangling_mut::<u8>().cast();
    let mut state = NcclResult::Success;
    let asked = unsafe { ncclCommGetAsyncError(comm, &mut state) };
    println!("asked {asked:?}, state {state:?}");
    let error = unsafe { wait_ready(comm, Duration::from_millis(20)) }.unwrap_err();
    println!("waited: {error}");
}
