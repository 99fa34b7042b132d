//! The data types, and NCCL's arithmetic on them, written down once more and independently.
//!
//! An element is its bit pattern in a `u64`.

use metrale_gpu_sys::nccl::{NcclDataType, NcclRedOp};

/// A data type.
#[derive(Clone, Copy)]
pub struct Kind {
    pub name: &'static str,
    pub datatype: NcclDataType,
    pub size: usize,
    form: Form,
}

#[derive(Clone, Copy)]
enum Form {
    Signed,
    Unsigned,
    Single,
    Double,
    Small(Format),
}

/// A binary floating point format of at most 16 bits.
#[derive(Clone, Copy)]
struct Format {
    exponent: u32,
    fraction: u32,
    /// The highest exponent holds numbers too, and only all ones is NaN.
    finite: bool,
    /// Too large becomes the largest number, not infinity.
    saturates: bool,
}

const HALF: Format = Format {
    exponent: 5,
    fraction: 10,
    finite: false,
    saturates: false,
};

const fn kind(name: &'static str, datatype: NcclDataType, size: usize, form: Form) -> Kind {
    Kind {
        name,
        datatype,
        size,
        form,
    }
}

const fn small(exponent: u32, fraction: u32, finite: bool, saturates: bool) -> Form {
    Form::Small(Format {
        exponent,
        fraction,
        finite,
        saturates,
    })
}

pub const KINDS: [Kind; 12] = [
    kind("int8", NcclDataType::Int8, 1, Form::Signed),
    kind("uint8", NcclDataType::Uint8, 1, Form::Unsigned),
    kind("int32", NcclDataType::Int32, 4, Form::Signed),
    kind("uint32", NcclDataType::Uint32, 4, Form::Unsigned),
    kind("int64", NcclDataType::Int64, 8, Form::Signed),
    kind("uint64", NcclDataType::Uint64, 8, Form::Unsigned),
    kind("float16", NcclDataType::Float16, 2, Form::Small(HALF)),
    kind("float32", NcclDataType::Float32, 4, Form::Single),
    kind("float64", NcclDataType::Float64, 8, Form::Double),
    kind(
        "bfloat16",
        NcclDataType::Bfloat16,
        2,
        small(8, 7, false, false),
    ),
    kind(
        "float8e4m3",
        NcclDataType::Float8e4m3,
        1,
        small(4, 3, true, true),
    ),
    kind(
        "float8e5m2",
        NcclDataType::Float8e5m2,
        1,
        small(5, 2, false, true),
    ),
];

pub const OPERATORS: [(&str, NcclRedOp); 5] = [
    ("sum", NcclRedOp::Sum),
    ("prod", NcclRedOp::Prod),
    ("max", NcclRedOp::Max),
    ("min", NcclRedOp::Min),
    ("avg", NcclRedOp::Avg),
];

impl Format {
    fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    fn bits(self) -> u32 {
        1 + self.exponent + self.fraction
    }

    /// The bits of the largest number.
    fn largest(self) -> u64 {
        let all = (1 << (self.exponent + self.fraction)) - 1;
        if self.finite {
            all - 1
        } else {
            ((all >> self.fraction) << self.fraction) - 1
        }
    }

    fn nan(self) -> u64 {
        (1 << (self.exponent + self.fraction)) - 1
    }

    fn decode(self, bits: u64) -> f64 {
        let sign = if bits >> (self.bits() - 1) & 1 == 1 {
            -1.0
        } else {
            1.0
        };
        let exponent = (bits >> self.fraction & ((1 << self.exponent) - 1)) as i32;
        let fraction = (bits & ((1 << self.fraction) - 1)) as f64 / f64::from(1 << self.fraction);
        let top = (1 << self.exponent) - 1;
        let all_ones = bits & self.nan() == self.nan();
        sign * match exponent {
            0 => fraction * 2f64.powi(1 - self.bias()),
            _ if exponent == top && self.finite && all_ones => f64::NAN,
            _ if exponent == top && !self.finite && fraction == 0.0 => f64::INFINITY,
            _ if exponent == top && !self.finite => f64::NAN,
            _ => (1.0 + fraction) * 2f64.powi(exponent - self.bias()),
        }
    }

    /// The nearest number of the format, ties to even.
    fn encode(self, value: f64) -> u64 {
        if value.is_nan() {
            return self.nan();
        }
        let sign = u64::from(value.is_sign_negative()) << (self.bits() - 1);
        let size = value.abs();
        let infinite = if self.saturates {
            self.largest()
        } else {
            self.largest() + 1
        };
        if size.is_infinite() {
            return sign | infinite;
        }
        // In units of the last place, counted through all exponents: the bit pattern itself.
        let exponent = if size == 0.0 {
            1 - self.bias()
        } else {
            (size.log2().floor() as i32).max(1 - self.bias())
        };
        // log2 may be off by one next to a power of two.
        let exponent = [exponent - 1, exponent, exponent + 1]
            .into_iter()
            .filter(|&exponent| exponent > -self.bias())
            .find(|&exponent| size < 2f64.powi(exponent + 1))
            .unwrap_or(exponent);
        let units = (size / 2f64.powi(exponent - self.fraction as i32)).round_ties_even() as u64;
        let bits = units + (((exponent + self.bias() - 1) as u64) << self.fraction);
        sign | if bits > self.largest() {
            infinite
        } else {
            bits
        }
    }
}

impl Kind {
    pub fn is_float(self) -> bool {
        !matches!(self.form, Form::Signed | Form::Unsigned)
    }

    pub fn is_fp8(self) -> bool {
        self.size == 1 && self.is_float()
    }

    fn mask(self) -> u64 {
        u64::MAX >> (64 - 8 * self.size)
    }

    fn signed(self, bits: u64) -> i64 {
        let unused = 64 - 8 * self.size;
        (bits << unused) as i64 >> unused
    }

    /// The nearest element; integers wrap.
    pub fn encode(self, value: f64) -> u64 {
        match self.form {
            Form::Signed | Form::Unsigned => value as i64 as u64 & self.mask(),
            Form::Single => (value as f32).to_bits().into(),
            Form::Double => value.to_bits(),
            Form::Small(format) => format.encode(value),
        }
    }

    pub fn decode(self, bits: u64) -> f64 {
        match self.form {
            Form::Signed => self.signed(bits) as f64,
            Form::Unsigned => bits as f64,
            Form::Single => f32::from_bits(bits as u32).into(),
            Form::Double => f64::from_bits(bits),
            Form::Small(format) => format.decode(bits),
        }
    }

    /// The distance of 1 to the next number; 0 for integers.
    pub fn epsilon(self) -> f64 {
        match self.form {
            Form::Signed | Form::Unsigned => 0.0,
            Form::Single => f32::EPSILON.into(),
            Form::Double => f64::EPSILON,
            Form::Small(format) => 2f64.powi(-(format.fraction as i32)),
        }
    }

    /// Every integer up to this one is exact.
    pub fn exact_integers(self) -> u64 {
        match self.form {
            Form::Signed => self.mask() >> 1,
            Form::Unsigned => self.mask(),
            Form::Single => 1 << 24,
            Form::Double => 1 << 53,
            Form::Small(format) => 1 << (format.fraction + 1),
        }
    }

    /// Values at and around the ends of the type.
    pub fn edges(self) -> Vec<u64> {
        if !self.is_float() {
            let (top, half) = (self.mask(), self.mask() >> 1);
            return vec![
                0,
                1,
                top,
                half,
                half + 1,
                half - 1,
                2,
                top - 1,
                100,
                top - 99,
                7,
                10,
            ];
        }
        let mut values: Vec<u64> = [
            0.0,
            1.0,
            -1.0,
            2.0,
            0.5,
            3.0,
            -7.0,
            0.1,
            1.0 / 3.0,
            -0.3,
            100.0,
            f64::NAN,
        ]
        .into_iter()
        .map(|value| self.encode(value))
        .collect();
        values.extend(match self.form {
            Form::Single => [f32::MAX, -f32::MAX, f32::MIN_POSITIVE, 1.0 + f32::EPSILON]
                .map(|x| x.to_bits().into()),
            Form::Double => {
                [f64::MAX, -f64::MAX, f64::MIN_POSITIVE, 1.0 + f64::EPSILON].map(f64::to_bits)
            }
            Form::Small(format) => {
                let sign = 1 << (format.bits() - 1);
                let one = format.encode(1.0);
                [
                    format.largest(),
                    sign | format.largest(),
                    1 << format.fraction,
                    one + 1,
                ]
            }
            Form::Signed | Form::Unsigned => unreachable!("handled above"),
        });
        // The saturating types have infinities only in name.
        if !self.is_fp8() {
            values.extend([f64::INFINITY, f64::NEG_INFINITY].map(|value| self.encode(value)));
        }
        values
    }

    /// Whether two elements are the same: any NaN is like any other.
    pub fn same(self, a: u64, b: u64) -> bool {
        a == b || self.is_float() && self.decode(a).is_nan() && self.decode(b).is_nan()
    }

    /// Two elements by one of the pairwise operators, rounded to the type.
    fn pair(self, op: NcclRedOp, a: u64, b: u64) -> u64 {
        match self.form {
            Form::Signed | Form::Unsigned => {
                let a_first = match self.form {
                    Form::Signed => self.signed(a) <= self.signed(b),
                    _ => a <= b,
                };
                let result = match op {
                    NcclRedOp::Prod => a.wrapping_mul(b),
                    NcclRedOp::Max => {
                        if a_first {
                            b
                        } else {
                            a
                        }
                    }
                    NcclRedOp::Min => {
                        if a_first {
                            a
                        } else {
                            b
                        }
                    }
                    _ => a.wrapping_add(b),
                };
                result & self.mask()
            }
            Form::Single => {
                let (a, b) = (f32::from_bits(a as u32), f32::from_bits(b as u32));
                let result = match op {
                    NcclRedOp::Prod => a * b,
                    NcclRedOp::Max => a.max(b),
                    NcclRedOp::Min => a.min(b),
                    _ => a + b,
                };
                result.to_bits().into()
            }
            _ => {
                let (a, b) = (self.decode(a), self.decode(b));
                let result = match op {
                    NcclRedOp::Prod => a * b,
                    NcclRedOp::Max => a.max(b),
                    NcclRedOp::Min => a.min(b),
                    _ => a + b,
                };
                self.round(result)
            }
        }
    }

    /// A result of doubles in the type; the 8-bit types pass through half precision.
    fn round(self, value: f64) -> u64 {
        if self.is_fp8() {
            return self.encode(HALF.decode(HALF.encode(value)));
        }
        self.encode(value)
    }

    /// What a rank's element becomes before the sum, by an operator with a scalar.
    pub fn scaled(self, value: u64, scalar: u64) -> u64 {
        self.pair(NcclRedOp::Prod, value, scalar)
    }

    /// What the ranks' elements become, taken in the order of ranks.
    pub fn reduce(self, op: NcclRedOp, values: &[u64]) -> u64 {
        let nranks = values.len();
        if nranks == 1 {
            return values[0];
        }
        let fold = |values: &mut dyn Iterator<Item = u64>, op| {
            values
                .reduce(|a, b| self.pair(op, a, b))
                .expect("there are ranks")
        };
        if op != NcclRedOp::Avg {
            return fold(&mut values.iter().copied(), op);
        }
        if self.is_float() {
            let part = self.encode(1.0 / nranks as f64);
            return fold(
                &mut values.iter().map(|&value| self.scaled(value, part)),
                NcclRedOp::Sum,
            );
        }
        // Of the sum as it wrapped, towards zero.
        let sum = fold(&mut values.iter().copied(), NcclRedOp::Sum);
        match self.form {
            Form::Signed => (self.signed(sum) / nranks as i64) as u64 & self.mask(),
            _ => sum / nranks as u64,
        }
    }

    pub fn pack(self, elements: &[u64]) -> Vec<u8> {
        elements
            .iter()
            .flat_map(|element| element.to_le_bytes().into_iter().take(self.size))
            .collect()
    }

    pub fn unpack(self, bytes: &[u8]) -> Vec<u64> {
        let element = |bytes: &[u8]| {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(whole)
        };
        bytes.chunks_exact(self.size).map(element).collect()
    }
}
