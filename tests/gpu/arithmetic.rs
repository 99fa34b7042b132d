//! Every data type that the GPU takes, and operators that a user makes.

use std::ffi::c_void;

use anyhow::{Result, ensure};

use crate::calls::*;
use crate::cases::{Cases, say};
use crate::expect;
use crate::team::Rank;
use crate::values::{Reduction, TYPES};
use crate::world::ANY;

const OK: NcclResult = NcclResult::Success;

pub fn add(cases: &mut Cases) {
    cases.subject("data_types");
    for (name, datatype) in TYPES {
        let fp8 = matches!(
            datatype,
            NcclDataType::Float8e4m3 | NcclDataType::Float8e5m2
        );
        let need = if fp8 { ANY.fp8() } else { ANY };
        cases.team(name, need, move |rank| data_type(rank, datatype, fp8));
    }
    cases.subject("operators");
    cases.team("with_a_scalar_of_the_host", ANY, host_scalars);
    cases.team("with_a_scalar_of_the_device", ANY, device_scalar);
}

/// Odd, so that no vector of the kernels divides it.
const COUNT: usize = if cfg!(debug_assertions) {
    4_099
} else {
    65_539
};

/// All operators, on numbers of which every result is exact, element by element.
fn data_type(rank: &Rank, datatype: NcclDataType, fp8: bool) -> Result<()> {
    for op in [
        NcclRedOp::Sum,
        NcclRedOp::Prod,
        NcclRedOp::Min,
        NcclRedOp::Max,
        NcclRedOp::Avg,
    ] {
        let reduction = Reduction {
            datatype,
            op,
            nranks: rank.nranks,
        };
        rank.step(format!("{op:?}"));
        rank.meet()?;
        // Averages that are not exact could hide a mistake, and are left out.
        if reduction.ensure_checkable().is_err() {
            ensure!(op == NcclRedOp::Avg, "{op:?} cannot be checked");
            continue;
        }
        let mut bytes = Vec::new();
        for index in 0..COUNT {
            reduction.encode(reduction.input(rank.rank, index), &mut bytes);
        }
        let size = bytes.len() / COUNT;
        // For some counts NCCL 2.28.3 leaves the last elements of one rank's average unwritten: of float64 for this
        // one, of float32 for others.
        let alone = op == NcclRedOp::Avg && rank.nranks == 1;
        if alone && datatype == NcclDataType::Float64 && version()?.minor == 28 {
            say("no average: this release does not write its last elements");
            continue;
        }
        let (from, to) = (rank.upload(&bytes)?, rank.blank(bytes.len())?);
        let code = ncclAllReduce(
            from.ptr(),
            to.ptr(),
            COUNT,
            datatype,
            op,
            rank.comm,
            rank.stream,
        );
        // NCCL has no kernel for these on one rank.
        if fp8 && alone {
            expect!(code, NcclResult::InvalidArgument);
            continue;
        }
        ensure!(code == OK, "{op:?}: {code:?}");
        for (index, element) in rank.read::<u8>(to)?.chunks_exact(size).enumerate() {
            let got = reduction.decode(element);
            let (expected, tolerance) = reduction.expected(index);
            ensure!(
                (got - expected).abs() <= tolerance,
                "{op:?}: element {index} is {got}, expected {expected}"
            );
        }
        rank.reuse()?;
    }
    Ok(())
}

fn premul(
    comm: NcclComm,
    scalar: *mut c_void,
    datatype: NcclDataType,
    residence: NcclScalarResidence,
) -> Result<NcclRedOp> {
    let mut op = NcclRedOp(-1);
    expect!(
        ncclRedOpCreatePreMulSum(&mut op, scalar, datatype, residence, comm),
        OK
    );
    ensure!(op.0 >= NcclRedOp::NumOps.0, "{op:?} is a built-in operator");
    Ok(op)
}

/// A small number, for which products and sums are exact in each type.
fn small(rank: i32, index: usize) -> i32 {
    ((index * 31 + 7 * rank as usize) % 1000) as i32
}

/// What all ranks' numbers at `index` add up to, each times its rank's factor.
fn scaled_sum(nranks: i32, index: usize, factor: impl Fn(i32) -> i32) -> i32 {
    (0..nranks)
        .map(|rank| factor(rank) * small(rank, index))
        .sum()
}

/// Each rank has a scalar of its own, which is read by the call that makes the operator.
fn host_scalars(rank: &Rank) -> Result<()> {
    fn one<T: Copy + Default + PartialEq + std::fmt::Debug>(
        rank: &Rank,
        datatype: NcclDataType,
        from_int: fn(i32) -> T,
    ) -> Result<()> {
        let (comm, stream, nranks) = (rank.comm, rank.stream, rank.nranks as usize);
        let factor = |rank| 3 + 2 * rank;
        rank.step(format!("{datatype:?}"));
        rank.meet()?;
        let count = 1_001;
        let values: Vec<T> = (0..nranks * count)
            .map(|index| from_int(small(rank.rank, index)))
            .collect();
        let from = rank.upload(&values)?;
        let to = rank.blank(size_of_val(&*values))?;
        let part = rank.blank(count * size_of::<T>())?;
        let mut scalar = from_int(factor(rank.rank));
        let residence = NcclScalarResidence::HostImmediate;
        let op = premul(comm, (&raw mut scalar).cast(), datatype, residence)?;
        scalar = from_int(99);
        let all = nranks * count;
        let code = ncclAllReduce(from.ptr(), to.ptr(), all, datatype, op, comm, stream);
        expect!(code, OK);
        let code = ncclReduceScatter(from.ptr(), part.ptr(), count, datatype, op, comm, stream);
        expect!(code, OK);
        // The work that was enqueued keeps what it needs.
        expect!(ncclRedOpDestroy(op, comm), OK);
        let expected = |index| from_int(scaled_sum(rank.nranks, index, factor));
        for (index, got) in rank.read::<T>(to)?.into_iter().enumerate() {
            ensure!(
                got == expected(index),
                "{datatype:?}, all-reduce: element {index} is {got:?}, expected {:?}",
                expected(index)
            );
        }
        let start = rank.rank as usize * count;
        for (index, got) in rank.read::<T>(part)?.into_iter().enumerate() {
            ensure!(
                got == expected(start + index),
                "{datatype:?}, reduce-scatter: element {index} is {got:?}, expected {:?}",
                expected(start + index)
            );
        }
        ensure!(scalar == from_int(99));
        rank.reuse()
    }
    one(rank, NcclDataType::Float32, |value| value as f32)?;
    one(rank, NcclDataType::Float64, f64::from)?;
    one(rank, NcclDataType::Int32, |value| value)?;
    one(rank, NcclDataType::Uint64, |value| value as u64)
}

/// The scalar is read when the collective runs, so that work before it on the stream may set it.
fn device_scalar(rank: &Rank) -> Result<()> {
    let count = 1_001;
    let values: Vec<f32> = (0..count)
        .map(|index| small(rank.rank, index) as f32)
        .collect();
    let (from, to) = (rank.upload(&values)?, rank.blank(4 * count)?);
    let scalar = rank.upload(&[0f32])?;
    let float32 = NcclDataType::Float32;
    let residence = NcclScalarResidence::Device;
    let op = premul(rank.comm, scalar.ptr(), float32, residence)?;
    rank.meet()?;
    for round in 1..=5 {
        rank.step(format!("round {round}"));
        let factor = |rank: i32| round + rank;
        let bits = (factor(rank.rank) as f32).to_bits();
        expect!(
            cuMemsetD32Async(scalar.address, bits, 1, rank.stream),
            CuResult::Success
        );
        let (p, q) = (from.ptr(), to.ptr());
        expect!(
            ncclAllReduce(p, q, count, float32, op, rank.comm, rank.stream),
            OK
        );
        for (index, got) in rank.read::<f32>(to)?.into_iter().enumerate() {
            let expected = scaled_sum(rank.nranks, index, factor) as f32;
            ensure!(
                got == expected,
                "round {round}: element {index} is {got}, expected {expected}"
            );
        }
    }
    expect!(ncclRedOpDestroy(op, rank.comm), OK);
    rank.meet()
}
