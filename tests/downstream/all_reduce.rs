//! Uses what an all-reduce takes, and nothing that is younger than NCCL 2.18.

use metrale_gpu_sys::nccl::{
    NcclDataType, NcclRedOp, check_nccl, ncclAllReduce, ncclCommDestroy, ncclCommInitRank,
    unique_id, version,
};

fn main() -> anyhow::Result<()> {
    let id = unique_id()?;
    let mut comm = std::ptr::null_mut();
    let mut data = [0f32; 4];
    let data = data.as_mut_ptr().cast();
    let (kind, sum) = (NcclDataType::Float32, NcclRedOp::Sum);
    unsafe {
        check_nccl(ncclCommInitRank(&mut comm, 1, id, 0), "ncclCommInitRank")?;
        check_nccl(
            ncclAllReduce(data, data, 4, kind, sum, comm, 0),
            "ncclAllReduce",
        )?;
        check_nccl(ncclCommDestroy(comm), "ncclCommDestroy")?;
    }
    println!("reduced by {}", version()?);
    Ok(())
}
