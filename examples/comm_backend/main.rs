//! A small communication backend on this crate, and what it is like to use it.
//!
//!     cargo run --features emulator --example comm_backend
//!
//! `tests/comm_backend.rs` tests it, on any machine with the emulator and on GPUs without it.

// A backend has more than one program needs.
#[allow(dead_code)]
mod comm;

use std::time::Duration;

use anyhow::Result;
use metrale_gpu_sys::cuda::{device_count, init};
use metrale_gpu_sys::nccl::NcclRedOp;

fn main() -> Result<()> {
    init()?;
    let nranks = device_count()?;
    let sums = comm::run(nranks, Duration::from_secs(60), |comm| {
        let mut buffer = comm.upload(&[comm.rank() as f32, 1.0])?;
        comm.all_reduce(&mut buffer, NcclRedOp::Sum)?;
        comm.download(&buffer)
    })?;
    for (rank, sum) in sums.iter().enumerate() {
        println!(
            "rank {rank}: the ranks' numbers add up to {}, and there are {} of them",
            sum[0], sum[1]
        );
    }
    Ok(())
}
