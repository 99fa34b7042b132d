//! Calls the wrappers named by its first argument, on libraries whose handles are pointers: each
//! call on a handle adds one to the number that it points to.

use std::env::args;
use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

use metrale_gpu_sys::cuda::{destroy_event, destroy_stream};
use metrale_gpu_sys::nccl::{NcclError, NcclResult, check_nccl, wait_ready};

/// The argument of this index.
fn number(index: usize) -> i32 {
    args().nth(index).unwrap().parse().unwrap()
}

fn main() {
    match args().nth(1).as_deref() {
        Some("destroy") => destroy(),
        Some("wait") => wait(Duration::from_millis(number(2) as u64)),
        Some("check") => check(NcclResult(number(2))),
        other => panic!("{other:?}"),
    }
}

fn destroy() {
    destroy_event(0);
    destroy_stream(0);
    println!("zero is ignored");
    let (mut event, mut stream): (c_int, c_int) = (0, 0);
    destroy_event((&raw mut event) as u64);
    destroy_stream((&raw mut stream) as u64);
    println!("destroyed {event} event, {stream} stream");
}

fn wait(timeout: Duration) {
    let mut polls: c_int = 0;
    let comm: *mut c_void = (&raw mut polls).cast();
    let start = Instant::now();
    let result = unsafe { wait_ready(comm, timeout) };
    println!("microseconds: {}", start.elapsed().as_micros());
    println!("polls: {polls}");
    match result {
        Ok(()) => println!("ready"),
        Err(error) => {
            let code = error.downcast_ref::<NcclError>().unwrap().code;
            println!("code: {}", code.0);
            println!("error: {error}");
        }
    }
}

fn check(code: NcclResult) {
    let error = check_nccl(code, "a call").unwrap_err();
    println!("{error}");
    let last = &error.downcast_ref::<NcclError>().unwrap().last_error;
    println!("last error: {last:?}");
}
