//! What the operators compute, in each type.
//!
//! Two ranks combine two elements, whose result is known to the bit: the inputs are all pairs of a
//! type's edge values. With more ranks the order is NCCL's own; there the inputs are such that every
//! order gives the same, or the result is compared within one rounding a rank.

use std::ffi::c_void;
use std::slice::from_ref;

use anyhow::{Result, ensure};

use crate::calls::*;
use crate::cases::Cases;
use crate::elements::{KINDS, Kind, OPERATORS};
use crate::expect;
use crate::team::Rank;
use crate::world::{ANY, Need};

const OK: NcclResult = NcclResult::Success;

fn need(kind: Kind) -> Need {
    if kind.is_fp8() { ANY.fp8() } else { ANY }
}

/// The elements that a rank reduces with its peers, and what comes out.
fn reduce(rank: &Rank, kind: Kind, op: NcclRedOp, elements: &[u64]) -> Result<Vec<u64>> {
    let buffer = rank.upload(&kind.pack(elements))?;
    let p = buffer.ptr();
    expect!(
        ncclAllReduce(
            p,
            p,
            elements.len(),
            kind.datatype,
            op,
            rank.comm,
            rank.stream
        ),
        OK
    );
    Ok(kind.unpack(&rank.read(buffer)?))
}

/// Compares to the bit.
fn exactly(
    kind: Kind,
    got: &[u64],
    inputs: &[Vec<u64>],
    model: impl Fn(&[u64]) -> u64,
) -> Result<()> {
    ensure!(got.len() == inputs[0].len());
    for (index, &got) in got.iter().enumerate() {
        let column: Vec<u64> = inputs.iter().map(|input| input[index]).collect();
        let expected = model(&column);
        ensure!(
            kind.same(got, expected),
            "{}: {column:x?} ({:?}) give {got:#x} ({}), expected {expected:#x} ({})",
            kind.name,
            column
                .iter()
                .map(|&value| kind.decode(value))
                .collect::<Vec<_>>(),
            kind.decode(got),
            kind.decode(expected)
        );
    }
    Ok(())
}

/// All pairs of the type's edges, as the two ranks' inputs.
fn pairs(kind: Kind) -> Vec<Vec<u64>> {
    let edges = kind.edges();
    let first = edges
        .iter()
        .flat_map(|&edge| vec![edge; edges.len()])
        .collect();
    let second = edges.repeat(edges.len());
    vec![first, second]
}

/// Small numbers, of which every sum, product and mean is exact in the type.
fn exact_inputs(kind: Kind, op: NcclRedOp, nranks: usize) -> Vec<Vec<u64>> {
    let input = |rank: usize, index: usize| {
        let place = index * 31 + rank * 17 + index / 7;
        match op {
            NcclRedOp::Prod => {
                // A few twos among ones: at most 8 in all.
                let twos = index % 4;
                if (index + rank) % nranks < twos.min(nranks) {
                    2.0
                } else {
                    1.0
                }
            }
            NcclRedOp::Max | NcclRedOp::Min => {
                let sign = if kind.is_float() && place % 3 == 0 {
                    -1.0
                } else {
                    1.0
                };
                // Without a negative zero, of which nobody says whether it is less than zero.
                sign * (place as u64 % kind.exact_integers().min(1000)) as f64 + 0.0
            }
            _ if !kind.is_float() => (place % 251) as f64,
            // The parts that an average sums are exact as well: multiples of the number of ranks.
            _ => {
                let limit = (kind.exact_integers() / nranks as u64).clamp(1, 100);
                let unit = if op == NcclRedOp::Avg {
                    nranks as f64
                } else {
                    1.0
                };
                let limit = if op == NcclRedOp::Avg {
                    limit.min(kind.exact_integers() / nranks as u64)
                } else {
                    limit
                };
                unit * (place as u64 % (limit + 1)) as f64
            }
        }
    };
    (0..nranks)
        .map(|rank| {
            (0..331)
                .map(|index| kind.encode(input(rank, index)))
                .collect()
        })
        .collect()
}

pub fn add(cases: &mut Cases) {
    cases.subject("arithmetic");
    for kind in KINDS {
        for (word, op) in OPERATORS {
            let name = format!("{word}::{}", kind.name);
            cases.team(1, &format!("{name}::1"), need(kind), move |rank| {
                one_rank(rank, kind, op)
            });
            cases.team(2, &format!("{name}::2_edges"), need(kind), move |rank| {
                let inputs = pairs(kind);
                let got = reduce(rank, kind, op, &inputs[rank.rank as usize])?;
                exactly(kind, &got, &inputs, |column| kind.reduce(op, column))
            });
            for nranks in [2, 4, 8] {
                cases.team(
                    nranks,
                    &format!("{name}::{nranks}"),
                    need(kind),
                    move |rank| {
                        let inputs = exact_inputs(kind, op, nranks as usize);
                        let got = reduce(rank, kind, op, &inputs[rank.rank as usize])?;
                        exactly(kind, &got, &inputs, |column| kind.reduce(op, column))
                    },
                );
            }
            cases.team(
                2,
                &format!("{name}::reduce_and_reduce_scatter"),
                need(kind),
                move |rank| other_reductions(rank, kind, op),
            );
        }
        if !kind.is_float() {
            for nranks in [3, 4, 8] {
                cases.team(
                    nranks,
                    &format!("avg_and_wrap::{}::{nranks}", kind.name),
                    ANY,
                    move |rank| {
                        let edges = kind.edges();
                        let inputs: Vec<Vec<u64>> = (0..nranks as usize)
                            .map(|rank| {
                                (0..200)
                                    .map(|i| edges[(i * (rank + 1) + i / 12 + rank) % edges.len()])
                                    .collect()
                            })
                            .collect();
                        for (_, op) in OPERATORS {
                            let got = reduce(rank, kind, op, &inputs[rank.rank as usize])?;
                            exactly(kind, &got, &inputs, |column| kind.reduce(op, column))?;
                        }
                        Ok(())
                    },
                );
            }
        } else {
            for nranks in [3, 4, 8] {
                cases.team(
                    nranks,
                    &format!("rounding::{}::{nranks}", kind.name),
                    need(kind),
                    move |rank| roundings(rank, kind),
                );
            }
        }
        cases.team(
            2,
            &format!("premul::{}::2", kind.name),
            need(kind),
            move |rank| scalars(rank, kind),
        );
        cases.team(
            1,
            &format!("premul::{}::1", kind.name),
            need(kind),
            move |rank| scalar_of_one(rank, kind),
        );
    }
    observed(cases);
    operators(cases);
}

/// One rank's reduction is a copy, but for the average of the 8-bit floats, which is refused.
fn one_rank(rank: &Rank, kind: Kind, op: NcclRedOp) -> Result<()> {
    let elements: Vec<u64> = kind.edges();
    let (from, to) = (
        rank.upload(&kind.pack(&elements))?,
        rank.blank(kind.size * elements.len())?,
    );
    let call = |to| {
        ncclAllReduce(
            from.ptr(),
            to,
            elements.len(),
            kind.datatype,
            op,
            rank.comm,
            rank.stream,
        )
    };
    if kind.is_fp8() && op == NcclRedOp::Avg {
        expect!(call(to.ptr()), NcclResult::InvalidArgument);
        return Ok(());
    }
    expect!(call(to.ptr()), OK);
    let got = kind.unpack(&rank.read(to)?);
    exactly(kind, &got, from_ref(&elements), |column| column[0])?;
    expect!(call(from.ptr()), OK);
    let got = kind.unpack(&rank.read(from)?);
    exactly(kind, &got, from_ref(&elements), |column| column[0])
}

fn other_reductions(rank: &Rank, kind: Kind, op: NcclRedOp) -> Result<()> {
    let inputs = pairs(kind);
    let mine = &inputs[rank.rank as usize];
    let send = rank.upload(&kind.pack(mine))?;
    let recv = rank.blank(send.bytes)?;
    let (count, datatype) = (mine.len(), kind.datatype);
    expect!(
        ncclReduce(
            send.ptr(),
            recv.ptr(),
            count,
            datatype,
            op,
            1,
            rank.comm,
            rank.stream
        ),
        OK
    );
    if rank.rank == 1 {
        let got = kind.unpack(&rank.read(recv)?);
        exactly(kind, &got, &inputs, |column| kind.reduce(op, column))?;
    }
    let half = count / 2;
    expect!(
        ncclReduceScatter(
            send.ptr(),
            recv.ptr(),
            half,
            datatype,
            op,
            rank.comm,
            rank.stream
        ),
        OK
    );
    let got = kind.unpack(&rank.read(recv)?);
    let block = rank.rank as usize * half;
    let inputs: Vec<Vec<u64>> = inputs
        .iter()
        .map(|input| input[block..][..half].to_vec())
        .collect();
    exactly(kind, &got[..half], &inputs, |column| {
        kind.reduce(op, column)
    })
}

/// Sums and means of arbitrary numbers, within one rounding a rank, and the same on every rank.
fn roundings(rank: &Rank, kind: Kind) -> Result<()> {
    let nranks = rank.nranks as usize;
    let input = |rank: usize, index: usize| {
        let mixed = (index as u64 * 2_654_435_761 + rank as u64 * 40_503_911)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            >> 40;
        kind.encode(mixed as f64 / f64::from(1 << 24) * 4.0 - 1.0)
    };
    let inputs: Vec<Vec<u64>> = (0..nranks)
        .map(|rank| (0..500).map(|index| input(rank, index)).collect())
        .collect();
    for op in [NcclRedOp::Sum, NcclRedOp::Avg] {
        let got = reduce(rank, kind, op, &inputs[rank.rank as usize])?;
        let share = if op == NcclRedOp::Avg {
            1.0 / nranks as f64
        } else {
            1.0
        };
        for (index, &got) in got.iter().enumerate() {
            let parts = inputs.iter().map(|input| kind.decode(input[index]) * share);
            let size: f64 = parts.clone().map(f64::abs).sum();
            let exact: f64 = parts.sum();
            // Each part is rounded once, its share once, and each partial sum once.
            let tolerance = size * kind.epsilon() * (nranks + 1) as f64
                + if kind.is_fp8() {
                    0.02
                } else {
                    1e-6 * kind.epsilon()
                };
            let got = kind.decode(got);
            ensure!(
                (got - exact).abs() <= tolerance,
                "{op:?}[{index}] is {got}, expected {exact} within {tolerance}"
            );
        }
        // Compared through a sum of the bits of each.
        let digest = got.iter().fold(0u64, |digest, &bits| {
            digest.wrapping_mul(31).wrapping_add(bits)
        });
        let digests = rank.tell(digest)?;
        ensure!(
            digests.iter().all(|&other| other == digest),
            "the ranks differ"
        );
    }
    Ok(())
}

fn make(rank: &Rank, kind: Kind, scalar: u64) -> Result<NcclRedOp> {
    let (mut op, mut scalar) = (NcclRedOp(-1), scalar);
    let (p, host) = ((&raw mut scalar).cast(), NcclScalarResidence::HostImmediate);
    expect!(
        ncclRedOpCreatePreMulSum(&mut op, p, kind.datatype, host, rank.comm),
        OK
    );
    ensure!(op.0 >= NcclRedOp::NumOps.0, "{op:?} is a built-in operator");
    Ok(op)
}

/// Each rank has its own scalar, on the host at first and then on the device.
fn scalars(rank: &Rank, kind: Kind) -> Result<()> {
    let scalars = [2.0, 3.0].map(|scalar| kind.encode(scalar));
    let mine = scalars[rank.rank as usize];
    let inputs: Vec<Vec<u64>> = if kind.is_float() {
        exact_inputs(kind, NcclRedOp::Prod, 2)
    } else {
        pairs(kind)
    };
    let model = |column: &[u64]| {
        kind.reduce(
            NcclRedOp::Sum,
            &[
                kind.scaled(column[0], scalars[0]),
                kind.scaled(column[1], scalars[1]),
            ],
        )
    };
    let op = make(rank, kind, mine)?;
    let got = reduce(rank, kind, op, &inputs[rank.rank as usize])?;
    exactly(kind, &got, &inputs, model)?;
    expect!(ncclRedOpDestroy(op, rank.comm), OK);

    let scalar = rank.upload(&kind.pack(&[mine]))?;
    let mut op = NcclRedOp(-1);
    let residence = NcclScalarResidence::Device;
    expect!(
        ncclRedOpCreatePreMulSum(&mut op, scalar.ptr(), kind.datatype, residence, rank.comm),
        OK
    );
    let got = reduce(rank, kind, op, &inputs[rank.rank as usize])?;
    exactly(kind, &got, &inputs, model)?;
    expect!(ncclRedOpDestroy(op, rank.comm), OK);
    Ok(())
}

fn scalar_of_one(rank: &Rank, kind: Kind) -> Result<()> {
    let scalar = kind.encode(3.0);
    let op = make(rank, kind, scalar)?;
    let elements: Vec<u64> = (0..5).map(|value| kind.encode(value.into())).collect();
    if kind.is_fp8() {
        let p = rank.upload(&kind.pack(&elements))?.ptr();
        let code = ncclAllReduce(
            p,
            p,
            elements.len(),
            kind.datatype,
            op,
            rank.comm,
            rank.stream,
        );
        expect!(code, NcclResult::InvalidArgument);
    } else {
        let got = reduce(rank, kind, op, &elements)?;
        exactly(kind, &got, from_ref(&elements), |column| {
            kind.scaled(column[0], scalar)
        })?;
    }
    expect!(ncclRedOpDestroy(op, rank.comm), OK);
    Ok(())
}

/// Two ranks' bit patterns, and the result as a real GPU gave it.
fn observed(cases: &mut Cases) {
    let kind = |name| {
        KINDS
            .into_iter()
            .find(|kind| kind.name == name)
            .expect("a type's name")
    };
    let bits = |values: &[f32]| {
        values
            .iter()
            .map(|value| value.to_bits().into())
            .collect::<Vec<u64>>()
    };
    let ints = |values: &[i32]| {
        values
            .iter()
            .map(|&value| value as u32 as u64)
            .collect::<Vec<u64>>()
    };
    let bytes = |values: &[u8]| {
        values
            .iter()
            .map(|&value| value.into())
            .collect::<Vec<u64>>()
    };
    let nan = f32::NAN;
    type Row = (
        &'static str,
        &'static str,
        NcclRedOp,
        [Vec<u64>; 2],
        Vec<u64>,
    );
    let table: Vec<Row> = vec![
        (
            "integer_averages_truncate_what_wrapped",
            "int32",
            NcclRedOp::Avg,
            [ints(&[1, -1, i32::MAX, -10]), ints(&[2, -2, i32::MAX, 5])],
            ints(&[1, -1, -1, -2]),
        ),
        (
            "nan_loses_in_max",
            "float32",
            NcclRedOp::Max,
            [bits(&[2.0, nan, nan]), bits(&[nan, 1.0, nan])],
            bits(&[2.0, 1.0, nan]),
        ),
        (
            "nan_loses_in_min",
            "float32",
            NcclRedOp::Min,
            [bits(&[2.0, nan, nan]), bits(&[nan, 1.0, nan])],
            bits(&[2.0, 1.0, nan]),
        ),
        (
            "bytes_wrap_in_sum",
            "uint8",
            NcclRedOp::Sum,
            [bytes(&[200, 255, 1]), bytes(&[200, 255, 1])],
            bytes(&[144, 254, 2]),
        ),
        (
            "bytes_wrap_in_prod",
            "int8",
            NcclRedOp::Prod,
            [bytes(&[156, 100, 3]), bytes(&[156, 100, 3])],
            bytes(&[16, 16, 9]),
        ),
        (
            "float_averages_do_not_overflow",
            "float32",
            NcclRedOp::Avg,
            [bits(&[3e38, 3.0, 0.1]), bits(&[3e38, 3.0, 0.1])],
            bits(&[3e38, 3.0, 0.1]),
        ),
        (
            "bfloat16_rounds_and_overflows",
            "bfloat16",
            NcclRedOp::Sum,
            [vec![0x3b80, 0x3f80, 0x7f7f], vec![0x3f80, 0x4380, 0x7f7f]],
            vec![0x3f80, 0x4380, 0x7f80],
        ),
        (
            "float8e4m3_saturates",
            "float8e4m3",
            NcclRedOp::Sum,
            [vec![0x38, 0x7e, 0x01, 0x40], vec![0x38, 0x7e, 0x01, 0x40]],
            vec![0x40, 0x7e, 0x02, 0x48],
        ),
        (
            "float8e5m2_saturates",
            "float8e5m2",
            NcclRedOp::Sum,
            [vec![0x3c, 0x7b, 0x01, 0x40], vec![0x3c, 0x7b, 0x01, 0x40]],
            vec![0x40, 0x7b, 0x02, 0x44],
        ),
    ];
    for (name, kind_name, op, inputs, expected) in table {
        let kind = kind(kind_name);
        cases.team(2, &format!("observed::{name}"), need(kind), move |rank| {
            let got = reduce(rank, kind, op, &inputs[rank.rank as usize])?;
            for (&got, &expected) in got.iter().zip(&expected) {
                ensure!(kind.same(got, expected), "{got:#x}, expected {expected:#x}");
            }
            // The suite's own arithmetic is held to the same.
            exactly(kind, &expected, &inputs, |column| kind.reduce(op, column))
        });
    }
    cases.team(
        2,
        "observed::each_rank_has_its_own_scalar",
        ANY,
        move |rank| {
            let single = KINDS[7];
            let op = make(
                rank,
                single,
                f32::to_bits([2.0, 10.0][rank.rank as usize]).into(),
            )?;
            let got = reduce(rank, single, op, &bits(&[1.0, 2.0]))?;
            expect!(got, bits(&[12.0, 24.0]));
            expect!(ncclRedOpDestroy(op, rank.comm), OK);
            Ok(())
        },
    );
}

/// Operators as objects.
fn operators(cases: &mut Cases) {
    cases.subject("operators");
    let single = KINDS[7];
    let two = u64::from(2f32.to_bits());
    cases.team(1, "of_another_type", ANY, move |rank| {
        let op = make(rank, single, two)?;
        let p = rank.blank(64)?.ptr();
        let call =
            |count, datatype| ncclAllReduce(p, p, count, datatype, op, rank.comm, rank.stream);
        expect!(call(2, NcclDataType::Int32), NcclResult::InvalidArgument);
        expect!(call(2, NcclDataType::Float64), NcclResult::InvalidArgument);
        // Where there is nothing to do nobody looks.
        expect!(call(0, NcclDataType::Int32), OK);
        expect!(call(2, NcclDataType::Float32), OK);
        expect!(ncclRedOpDestroy(op, rank.comm), OK);
        Ok(())
    });
    cases.team(1, "destroyed", ANY, move |rank| {
        let op = make(rank, single, two)?;
        let p = rank.blank(64)?.ptr();
        expect!(ncclRedOpDestroy(op, rank.comm), OK);
        expect!(ncclRedOpDestroy(op, rank.comm), NcclResult::InvalidArgument);
        let code = ncclAllReduce(p, p, 2, single.datatype, op, rank.comm, rank.stream);
        expect!(code, NcclResult::InvalidArgument);
        Ok(())
    });
    cases.team(1, "of_another_communicator", ANY, move |rank| {
        let other = rank.join(NcclConfig::new())?;
        let op = make(rank, single, two)?;
        let p = rank.blank(64)?.ptr();
        let code = ncclAllReduce(p, p, 2, single.datatype, op, other, rank.stream);
        expect!(code, NcclResult::InvalidArgument);
        expect!(ncclRedOpDestroy(op, other), NcclResult::InvalidArgument);
        expect!(ncclRedOpDestroy(op, rank.comm), OK);
        rank.leave(other)
    });
    cases.team(1, "many", ANY, move |rank| {
        let mut made = Vec::new();
        for value in 0..20 {
            made.push((
                value,
                make(rank, single, f32::to_bits(value as f32).into())?,
            ));
        }
        for (i, (_, op)) in made.iter().enumerate() {
            ensure!(
                made.iter().skip(i + 1).all(|(_, other)| other != op),
                "{op:?} twice"
            );
        }
        // Some go, and their places are taken again.
        for (_, op) in made.drain(5..15) {
            expect!(ncclRedOpDestroy(op, rank.comm), OK);
        }
        for value in 30..45 {
            made.push((
                value,
                make(rank, single, f32::to_bits(value as f32).into())?,
            ));
        }
        for (value, op) in made {
            let got = reduce(rank, single, op, &[two])?;
            expect!(got, [u64::from((2.0 * value as f32).to_bits())]);
            expect!(ncclRedOpDestroy(op, rank.comm), OK);
        }
        Ok(())
    });
    // It is copied into the call.
    cases.team(2, "destroyed_before_the_group_ends", ANY, move |rank| {
        let buffer = rank.upload(&[1f32])?;
        let (p, op) = (buffer.ptr(), make(rank, single, two)?);
        expect!(ncclGroupStart(), OK);
        expect!(
            ncclAllReduce(p, p, 1, single.datatype, op, rank.comm, rank.stream),
            OK
        );
        expect!(ncclRedOpDestroy(op, rank.comm), OK);
        expect!(ncclGroupEnd(), OK);
        expect!(rank.read::<f32>(buffer)?, [4.0]);
        Ok(())
    });
    // One on the device is read when the work runs.
    cases.team(2, "a_device_scalar_is_read_late", ANY, move |rank| {
        let (buffer, scalar) = (rank.upload(&[1f32])?, rank.upload(&[0f32])?);
        let mut op = NcclRedOp(-1);
        let residence = NcclScalarResidence::Device;
        expect!(
            ncclRedOpCreatePreMulSum(&mut op, scalar.ptr(), single.datatype, residence, rank.comm),
            OK
        );
        let five = 5f32.to_bits();
        expect!(
            cuMemsetD32Async(scalar.address, five, 1, rank.stream),
            CuResult::Success
        );
        let p: *mut c_void = buffer.ptr();
        expect!(
            ncclAllReduce(p, p, 1, single.datatype, op, rank.comm, rank.stream),
            OK
        );
        expect!(rank.read::<f32>(buffer)?, [10.0]);
        expect!(ncclRedOpDestroy(op, rank.comm), OK);
        Ok(())
    });
    cases.team(2, "in_reduce_and_reduce_scatter", ANY, move |rank| {
        let op = make(rank, single, two)?;
        let (send, recv) = (rank.upload(&[1f32, 2.0])?, rank.blank(8)?);
        expect!(
            ncclReduce(
                send.ptr(),
                recv.ptr(),
                2,
                single.datatype,
                op,
                0,
                rank.comm,
                rank.stream
            ),
            OK
        );
        if rank.rank == 0 {
            expect!(rank.read::<f32>(recv)?, [4.0, 8.0]);
        }
        expect!(
            ncclReduceScatter(
                send.ptr(),
                recv.ptr(),
                1,
                single.datatype,
                op,
                rank.comm,
                rank.stream
            ),
            OK
        );
        let expected = [4.0, 8.0][rank.rank as usize];
        expect!(rank.read::<f32>(recv)?[0], expected);
        expect!(ncclRedOpDestroy(op, rank.comm), OK);
        Ok(())
    });
}
