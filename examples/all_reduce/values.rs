//! Numbers that every rank can compute and every data type holds exactly, so that each element of a
//! reduction can be checked without a tolerance wherever the arithmetic is exact.

// The programs and tests that share it use parts of it.
#![allow(dead_code)]

use anyhow::ensure;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use half::{bf16, f16};
use metrale_gpu_sys::nccl::{NcclDataType, NcclRedOp};

/// Every data type, by its name on the command line.
pub const TYPES: [(&str, NcclDataType); 12] = [
    ("int8", NcclDataType::Int8),
    ("uint8", NcclDataType::Uint8),
    ("int32", NcclDataType::Int32),
    ("uint32", NcclDataType::Uint32),
    ("int64", NcclDataType::Int64),
    ("uint64", NcclDataType::Uint64),
    ("float16", NcclDataType::Float16),
    ("float32", NcclDataType::Float32),
    ("float64", NcclDataType::Float64),
    ("bfloat16", NcclDataType::Bfloat16),
    ("float8e4m3", NcclDataType::Float8e4m3),
    ("float8e5m2", NcclDataType::Float8e5m2),
];

/// Every operator, by its name on the command line.
pub const OPERATORS: [(&str, NcclRedOp); 5] = [
    ("sum", NcclRedOp::Sum),
    ("prod", NcclRedOp::Prod),
    ("max", NcclRedOp::Max),
    ("min", NcclRedOp::Min),
    ("avg", NcclRedOp::Avg),
];

/// Parses a name of `table` to its value.
pub fn one_of<T: Copy + Send + Sync>(
    table: &'static [(&str, T)],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(table.iter().map(|(name, _)| *name)).map(|name| {
        let found = table.iter().find(|(known, _)| *known == name);
        found
            .expect("the parser lets only names of the table pass")
            .1
    })
}

/// A data type and an operator, and what they do to numbers.
#[derive(Clone, Copy)]
pub struct Reduction {
    pub datatype: NcclDataType,
    pub op: NcclRedOp,
    pub nranks: i32,
}

impl Reduction {
    /// An error where a wrong result could pass for a right one.
    pub fn ensure_checkable(self) -> anyhow::Result<()> {
        let most = match self.op {
            NcclRedOp::Sum | NcclRedOp::Avg if self.is_exact() => self.exact_limit(),
            // Then the tolerance is a quarter at most.
            NcclRedOp::Avg => self.exact_limit() / 4 - 1,
            _ => u64::MAX,
        };
        ensure!(
            self.nranks as u64 <= most,
            "{:?} over {} ranks is not exact in {:?}, and a wrong result could pass for a right one: take a wider \
             type, fewer ranks (a power of two of them for averages of floats), or max",
            self.op,
            self.nranks,
            self.datatype
        );
        Ok(())
    }

    /// The element that `rank` contributes at `index`.
    pub fn input(self, rank: i32, index: usize) -> f64 {
        let rank = rank as u64;
        let nranks = self.nranks as u64;
        let index = index as u64;
        let limit = match self.op {
            // A few twos, spread over the ranks: at most 8 in all, which no type overflows.
            NcclRedOp::Prod => {
                let two = (index + rank) % nranks < index % 4;
                return if two { 2.0 } else { 1.0 };
            }
            NcclRedOp::Max | NcclRedOp::Min => self.exact_limit(),
            // Small enough that the sum over all ranks is still exact.
            _ => self.exact_limit() / nranks,
        };
        // As good as random, so that neighbours and ranks differ.
        let place = ((index + 1) * (rank + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (place % limit.clamp(2, 1000)) as f64
    }

    /// What every rank must find at `index` afterwards, and how far off it may be.
    pub fn expected(self, index: usize) -> (f64, f64) {
        let inputs = (0..self.nranks).map(|rank| self.input(rank, index));
        let nranks = f64::from(self.nranks);
        match self.op {
            NcclRedOp::Prod => (inputs.product(), 0.0),
            NcclRedOp::Max => (inputs.fold(f64::MIN, f64::max), 0.0),
            NcclRedOp::Min => (inputs.fold(f64::MAX, f64::min), 0.0),
            NcclRedOp::Avg if !self.is_float() => ((inputs.sum::<f64>() / nranks).trunc(), 0.0),
            NcclRedOp::Avg if self.is_exact() => (inputs.sum::<f64>() / nranks, 0.0),
            NcclRedOp::Avg => {
                let mean = inputs.sum::<f64>() / nranks;
                // One rounding a rank, and that of the factor.
                (mean, mean * (nranks + 1.0) / self.exact_limit() as f64)
            }
            _ => (inputs.sum(), 0.0),
        }
    }

    /// Whether there is nothing to round: NCCL averages floats by a factor of 1/nranks that is
    /// rounded to the type.
    fn is_exact(self) -> bool {
        self.op != NcclRedOp::Avg || !self.is_float() || (self.nranks as u32).is_power_of_two()
    }

    fn is_float(self) -> bool {
        matches!(
            self.datatype,
            NcclDataType::Float16
                | NcclDataType::Float32
                | NcclDataType::Float64
                | NcclDataType::Bfloat16
                | NcclDataType::Float8e4m3
                | NcclDataType::Float8e5m2
        )
    }

    /// Every integer up to this one is exact in the type.
    fn exact_limit(self) -> u64 {
        match self.datatype {
            NcclDataType::Int8 => (1 << 7) - 1,
            NcclDataType::Uint8 => (1 << 8) - 1,
            NcclDataType::Float16 => 1 << 11,
            NcclDataType::Bfloat16 => 1 << 8,
            NcclDataType::Float8e4m3 => 1 << 4,
            NcclDataType::Float8e5m2 => 1 << 3,
            _ => 1 << 24,
        }
    }

    /// The bytes of `value` in the type.
    pub fn encode(self, value: f64, bytes: &mut Vec<u8>) {
        match self.datatype {
            NcclDataType::Int8 => bytes.extend((value as i8).to_ne_bytes()),
            NcclDataType::Uint8 => bytes.extend((value as u8).to_ne_bytes()),
            NcclDataType::Int32 => bytes.extend((value as i32).to_ne_bytes()),
            NcclDataType::Uint32 => bytes.extend((value as u32).to_ne_bytes()),
            NcclDataType::Int64 => bytes.extend((value as i64).to_ne_bytes()),
            NcclDataType::Uint64 => bytes.extend((value as u64).to_ne_bytes()),
            NcclDataType::Float16 => bytes.extend(f16::from_f64(value).to_ne_bytes()),
            NcclDataType::Bfloat16 => bytes.extend(bf16::from_f64(value).to_ne_bytes()),
            NcclDataType::Float32 => bytes.extend((value as f32).to_ne_bytes()),
            NcclDataType::Float64 => bytes.extend(value.to_ne_bytes()),
            NcclDataType::Float8e4m3 => bytes.push(encode_e4m3(value)),
            // The upper half of a float16.
            NcclDataType::Float8e5m2 => bytes.push((f16::from_f64(value).to_bits() >> 8) as u8),
            other => unreachable!("{other:?} is not offered on the command line"),
        }
    }

    /// The number that `bytes`, one element, hold.
    pub fn decode(self, bytes: &[u8]) -> f64 {
        fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
            bytes.try_into().expect("one element of the type's size")
        }
        match self.datatype {
            NcclDataType::Int8 => i8::from_ne_bytes(array(bytes)).into(),
            NcclDataType::Uint8 => bytes[0].into(),
            NcclDataType::Int32 => i32::from_ne_bytes(array(bytes)).into(),
            NcclDataType::Uint32 => u32::from_ne_bytes(array(bytes)).into(),
            NcclDataType::Int64 => i64::from_ne_bytes(array(bytes)) as f64,
            NcclDataType::Uint64 => u64::from_ne_bytes(array(bytes)) as f64,
            NcclDataType::Float16 => f16::from_ne_bytes(array(bytes)).into(),
            NcclDataType::Bfloat16 => bf16::from_ne_bytes(array(bytes)).into(),
            NcclDataType::Float32 => f32::from_ne_bytes(array(bytes)).into(),
            NcclDataType::Float64 => f64::from_ne_bytes(array(bytes)),
            NcclDataType::Float8e4m3 => decode_e4m3(bytes[0]),
            NcclDataType::Float8e5m2 => f16::from_bits(u16::from(bytes[0]) << 8).into(),
            other => unreachable!("{other:?} is not offered on the command line"),
        }
    }
}

/// Sign, four bits of exponent with a bias of 7, three of fraction; no infinities.
fn decode_e4m3(bits: u8) -> f64 {
    let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from(bits >> 3 & 0xf), f64::from(bits & 0x7));
    sign * match (exponent, bits & 0x7) {
        (0xf, 0x7) => f64::NAN,
        (0, _) => fraction / 8.0 * 2f64.powi(-6),
        _ => (1.0 + fraction / 8.0) * 2f64.powi(exponent - 7),
    }
}

/// Only whole numbers that the type holds are ever asked for: the exponent with another bias, and the
/// upper bits of a float32's fraction.
fn encode_e4m3(value: f64) -> u8 {
    if value == 0.0 {
        return 0;
    }
    let bits = (value as f32).to_bits();
    ((bits >> 20) - ((127 - 7) << 3)) as u8
}
