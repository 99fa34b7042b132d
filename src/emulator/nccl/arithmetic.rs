//! Reductions of each type by each operator, in NCCL's arithmetic.
//!
//! Integers wrap. `f32` and `f64` are combined in their own precision. The 16-bit types are rounded
//! after each step, to nearest even; the 8-bit ones are combined in half precision, then rounded, and
//! saturate. In min and max a NaN loses and -0 is less than 0. A NaN that comes out of a calculation is
//! the GPU's own, never an input's. Ranks are combined in order.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::OnceLock;

use super::exchange::Operator;
use crate::nccl::NcclDataType;

/// How two elements become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Combine {
    Sum,
    Prod,
    Max,
    Min,
}

/// A reduction, ready to run on any part of its buffers.
#[derive(Debug)]
pub(super) struct Reduction {
    datatype: NcclDataType,
    combine: Combine,
    /// What each input is multiplied by first, in rank order; empty where nothing is.
    factors: Vec<[u8; 8]>,
    /// What the integer result is divided by; 1 for nothing.
    divisor: u64,
}

impl Reduction {
    /// A reduction over `ranks` inputs. `scalars` holds each rank's own for `PreMulSum`, and is empty
    /// otherwise. The type is one of the 12.
    pub(super) fn new(
        datatype: NcclDataType,
        operator: Operator,
        ranks: usize,
        scalars: Vec<[u8; 8]>,
    ) -> Self {
        let plain = |combine| Self {
            datatype,
            combine,
            factors: Vec::new(),
            divisor: 1,
        };
        match operator {
            Operator::Sum => plain(Combine::Sum),
            Operator::Prod => plain(Combine::Prod),
            Operator::Max => plain(Combine::Max),
            Operator::Min => plain(Combine::Min),
            Operator::Avg => match reciprocal(datatype, ranks) {
                Some(factor) => Self {
                    factors: vec![factor; ranks],
                    ..plain(Combine::Sum)
                },
                None => Self {
                    divisor: ranks as u64,
                    ..plain(Combine::Sum)
                },
            },
            Operator::PreMulSum(_) => Self {
                factors: scalars,
                ..plain(Combine::Sum)
            },
        }
    }

    /// Reduces the elements `part` of `inputs`, addresses in rank order, into each of `outputs`.
    ///
    /// # Safety
    ///
    /// The elements are there, and nobody else writes the inputs or uses the outputs meanwhile. An output may be an
    /// input, but not overlap one otherwise.
    pub(super) unsafe fn run(&self, inputs: &[u64], outputs: &[u64], part: Range<usize>) {
        // Here, so that there are not as many as types.
        let room = &mut [const { Block::new() }; 3];
        macro_rules! run {
            ($element:ty) => {
                // SAFETY: the caller vouches for the elements.
                unsafe { self.run_as::<$element>(room, inputs, outputs, part) }
            };
        }
        macro_rules! run_wide {
            ($element:ty) => {{
                #[cfg(target_arch = "x86_64")]
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: this processor has AVX2; the caller vouches for the elements.
                    return unsafe { self.run_wide::<$element>(room, inputs, outputs, part) };
                }
                run!($element)
            }};
        }
        match self.datatype {
            NcclDataType::Int8 => run!(i8),
            NcclDataType::Uint8 => run!(u8),
            NcclDataType::Int32 => run!(i32),
            NcclDataType::Uint32 => run!(u32),
            NcclDataType::Int64 => run!(i64),
            NcclDataType::Uint64 => run!(u64),
            NcclDataType::Float16 => run_wide!(F16),
            NcclDataType::Float32 => run!(f32),
            NcclDataType::Float64 => run!(f64),
            NcclDataType::Bfloat16 => run_wide!(Bf16),
            NcclDataType::Float8e4m3 => run!(F8<E4M3>),
            NcclDataType::Float8e5m2 => run!(F8<E5M2>),
            _ => unreachable!("checked by the call"),
        }
    }

    /// [`run_as`](Self::run_as) for types whose calculation, not memory, takes the time.
    ///
    /// # Safety
    ///
    /// As in [`run`](Self::run), on a processor with AVX2.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    unsafe fn run_wide<T: Element>(
        &self,
        room: &mut [Block; 3],
        inputs: &[u64],
        outputs: &[u64],
        part: Range<usize>,
    ) {
        // SAFETY: the caller vouches for the elements.
        unsafe { self.run_as::<T>(room, inputs, outputs, part) }
    }

    /// # Safety
    ///
    /// As in [`run`](Self::run).
    #[inline(always)]
    unsafe fn run_as<T: Element>(
        &self,
        room: &mut [Block; 3],
        inputs: &[u64],
        outputs: &[u64],
        part: Range<usize>,
    ) {
        // SAFETY: the caller vouches for the elements.
        unsafe {
            match self.combine {
                Combine::Sum => self.run_with(T::sum(), room, inputs, outputs, part),
                Combine::Prod => self.run_with(T::prod(), room, inputs, outputs, part),
                Combine::Max => self.run_with(T::max(), room, inputs, outputs, part),
                Combine::Min => self.run_with(T::min(), room, inputs, outputs, part),
            }
        }
    }

    /// # Safety
    ///
    /// As in [`run`](Self::run).
    #[inline(always)]
    unsafe fn run_with<T: Element>(
        &self,
        combine: impl Fn(T, T) -> T,
        room: &mut [Block; 3],
        inputs: &[u64],
        outputs: &[u64],
        part: Range<usize>,
    ) {
        // What one block of each rank becomes stays in the innermost cache until all inputs are read, so
        // memory sees each input once and each output once.
        let [sum, spare, other] = room;
        let length = BLOCK / size_of::<T>();
        let mut from = part.start;
        while from < part.end {
            let count = length.min(part.end - from);
            let place = |address: u64| (address as *mut T).wrapping_add(from);
            // SAFETY: `from` and `count` elements more lie within the part.
            let first = unsafe { spare.view(place(inputs[0]), count) };
            let (sum, done) = if let Some(factor) = self.factors.first() {
                let scale = T::scale(*factor);
                (sum.fill(count, |i| scale(first[i])), 1)
            } else if let Some(second) = inputs.get(1) {
                // SAFETY: as above.
                let second = unsafe { other.view(place(*second), count) };
                (sum.fill(count, |i| combine(first[i], second[i])), 2)
            } else {
                (sum.fill(count, |i| first[i]), 1)
            };
            for (rank, input) in inputs.iter().enumerate().skip(done) {
                // SAFETY: as above.
                let next = unsafe { other.view(place(*input), count) };
                match self.factors.get(rank) {
                    None => change(sum, |i, a| combine(a, next[i])),
                    Some(factor) => {
                        let scale = T::scale(*factor);
                        change(sum, |i, a| combine(a, scale(next[i])));
                    }
                }
            }
            if self.divisor != 1 {
                let divide = T::divide(self.divisor);
                change(sum, |_, a| divide(a));
            }
            for output in outputs {
                let (bytes, output) = (size_of_val(sum), place(*output).cast::<u8>());
                // SAFETY: as above, and the block is no part of anybody's buffers.
                unsafe { output.copy_from_nonoverlapping(sum.as_ptr().cast(), bytes) };
            }
            from += count;
        }
    }
}

/// Bytes that are reduced at a time.
const BLOCK: usize = 8 << 10;

/// Room for the elements of one block.
#[repr(align(64))]
struct Block([MaybeUninit<u8>; BLOCK]);

impl Block {
    const fn new() -> Self {
        Self([MaybeUninit::uninit(); BLOCK])
    }

    /// Room for so many elements.
    #[inline(always)]
    fn room<T: Element>(&mut self, count: usize) -> &mut [MaybeUninit<T>] {
        let room = &mut self.0[..count * size_of::<T>()];
        // SAFETY: as many bytes, aligned for any element, and nothing need be initialized.
        unsafe { std::slice::from_raw_parts_mut(room.as_mut_ptr().cast(), count) }
    }

    // Plain indices: in a build without optimization, as most tests are, each step of an iterator is a call.

    /// Makes every element, by its index.
    #[inline(always)]
    fn fill<T: Element>(&mut self, count: usize, value: impl Fn(usize) -> T) -> &mut [T] {
        let room = self.room(count);
        let mut i = 0;
        while i < room.len() {
            room[i] = MaybeUninit::new(value(i));
            i += 1;
        }
        // SAFETY: all were written.
        unsafe { std::slice::from_raw_parts_mut(room.as_mut_ptr().cast(), room.len()) }
    }

    /// The elements themselves if they are aligned, or else a copy.
    ///
    /// # Safety
    ///
    /// The elements are there, and nobody writes them meanwhile.
    #[inline(always)]
    unsafe fn view<T: Element>(&mut self, from: *const T, count: usize) -> &[T] {
        let mut from = from;
        if !from.is_aligned() {
            let room = self.room::<T>(count);
            let bytes = size_of_val(room);
            let room = room.as_mut_ptr().cast::<u8>();
            // SAFETY: the caller vouches for the elements, and the room is nobody else's.
            unsafe { room.copy_from_nonoverlapping(from.cast(), bytes) };
            from = room.cast();
        }
        // SAFETY: aligned, and vouched for by the caller or copied.
        unsafe { std::slice::from_raw_parts(from, count) }
    }
}

/// Changes every element of a block, by its index and what it is.
#[inline(always)]
fn change<T: Copy>(block: &mut [T], value: impl Fn(usize, T) -> T) {
    let mut i = 0;
    while i < block.len() {
        block[i] = value(i, block[i]);
        i += 1;
    }
}

/// Whether an average is taken by multiplying each input, not by dividing the sum.
pub(super) fn is_float(datatype: NcclDataType) -> bool {
    reciprocal(datatype, 1).is_some()
}

/// What a float average multiplies each input by; `None` for integers.
fn reciprocal(datatype: NcclDataType, ranks: usize) -> Option<[u8; 8]> {
    let double = 1.0 / ranks as f64;
    let single = double as f32;
    let mut factor = [0; 8];
    match datatype {
        NcclDataType::Float64 => factor = double.to_ne_bytes(),
        NcclDataType::Float32 => factor[..4].copy_from_slice(&single.to_ne_bytes()),
        NcclDataType::Float16 => {
            factor[..2].copy_from_slice(&F16::from_f32(single).0.to_ne_bytes());
        }
        NcclDataType::Bfloat16 => {
            factor[..2].copy_from_slice(&Bf16::from_f32(single).0.to_ne_bytes());
        }
        NcclDataType::Float8e4m3 => factor[0] = F8::<E4M3>::from_f32(single).0,
        NcclDataType::Float8e5m2 => factor[0] = F8::<E5M2>::from_f32(single).0,
        _ => return None,
    }
    Some(factor)
}

/// A type of element. The functions are made once for a whole buffer, so that they may hold tables.
trait Element: Copy {
    fn sum() -> impl Fn(Self, Self) -> Self;
    fn prod() -> impl Fn(Self, Self) -> Self;
    fn max() -> impl Fn(Self, Self) -> Self;
    fn min() -> impl Fn(Self, Self) -> Self;
    /// Multiplies by a factor, one element in its first bytes.
    fn scale(factor: [u8; 8]) -> impl Fn(Self) -> Self;
    /// Divides toward zero. Only integers are divided.
    fn divide(divisor: u64) -> impl Fn(Self) -> Self;
}

/// The first bytes of a factor.
fn first<const N: usize>(factor: [u8; 8]) -> [u8; N] {
    std::array::from_fn(|i| factor[i])
}

macro_rules! integer {
    ($($element:ty, |$a:ident, $divisor:ident| $divided:expr;)*) => { $(
        impl Element for $element {
            #[inline(always)]
            fn sum() -> impl Fn(Self, Self) -> Self {
                |a, b| a.wrapping_add(b)
            }
            #[inline(always)]
            fn prod() -> impl Fn(Self, Self) -> Self {
                |a, b| a.wrapping_mul(b)
            }
            #[inline(always)]
            fn max() -> impl Fn(Self, Self) -> Self {
                |a, b| Ord::max(a, b)
            }
            #[inline(always)]
            fn min() -> impl Fn(Self, Self) -> Self {
                |a, b| Ord::min(a, b)
            }
            #[inline(always)]
            fn scale(factor: [u8; 8]) -> impl Fn(Self) -> Self {
                let factor = Self::from_ne_bytes(first(factor));
                move |a| a.wrapping_mul(factor)
            }
            #[inline(always)]
            fn divide($divisor: u64) -> impl Fn(Self) -> Self {
                move |$a| $divided as Self
            }
        }
    )* };
}

// A float quotient of small numbers is never rounded up to an integer, and processors divide several at once.
integer! {
    i8, |a, n| (a as f32 / n as f32) as i32;
    u8, |a, n| (a as f32 / n as f32) as i32;
    i32, |a, n| a as f64 / n as f64;
    u32, |a, n| a as f64 / n as f64;
    i64, |a, n| a / n as i64;
    u64, |a, n| a / n;
}

macro_rules! float {
    ($($element:ident, |$x:ident| $result:expr;)*) => { $(
        impl Element for $element {
            #[inline(always)]
            fn sum() -> impl Fn(Self, Self) -> Self {
                |a, b| {
                    let $x = a + b;
                    $result
                }
            }
            #[inline(always)]
            fn prod() -> impl Fn(Self, Self) -> Self {
                |a, b| {
                    let $x = a * b;
                    $result
                }
            }
            #[inline(always)]
            fn max() -> impl Fn(Self, Self) -> Self {
                |a, b| {
                    let greater = if a > b || b.is_nan() { a } else { b };
                    // Equal ones differ in the sign of a zero at most.
                    let equal = Self::from_bits(a.to_bits() & b.to_bits());
                    let $x = if a == b { equal } else { greater };
                    $result
                }
            }
            #[inline(always)]
            fn min() -> impl Fn(Self, Self) -> Self {
                |a, b| {
                    let less = if a < b || b.is_nan() { a } else { b };
                    let equal = Self::from_bits(a.to_bits() | b.to_bits());
                    let $x = if a == b { equal } else { less };
                    $result
                }
            }
            #[inline(always)]
            fn scale(factor: [u8; 8]) -> impl Fn(Self) -> Self {
                let factor = Self::from_ne_bytes(first(factor));
                move |a| {
                    let $x = a * factor;
                    $result
                }
            }
            fn divide(_: u64) -> impl Fn(Self) -> Self {
                |_| unreachable!()
            }
        }
    )* };
}

float! {
    f32, |x| if x.is_nan() { f32::from_bits(0x7fff_ffff) } else { x };
    f64, |x| x;
}

/// Half precision: 1 sign, 5 exponent and 10 mantissa bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
struct F16(u16);

impl F16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        const NORMAL: u32 = 112 << 23;
        const LEAST: u32 = 113 << 23;
        let sign = (self.0 as u32 & 0x8000) << 16;
        let magnitude = (self.0 as u32 & 0x7fff) << 13;
        // Below the least normal number, the mantissa is put under a leading one that is taken away again.
        let small = f32::from_bits(magnitude + LEAST) - f32::from_bits(LEAST);
        let bits = if magnitude < 1 << 23 {
            small.to_bits()
        } else if magnitude >= 31 << 23 {
            magnitude + 2 * NORMAL
        } else {
            magnitude + NORMAL
        };
        f32::from_bits(sign | bits)
    }

    /// Rounds to nearest even. A NaN becomes the GPU's.
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        let sign = (bits >> 16) & 0x8000;
        let magnitude = bits & 0x7fff_ffff;
        // From here on an f32's unit in the last place is that of the least half numbers.
        let small = (f32::from_bits(magnitude) + 0.5)
            .to_bits()
            .wrapping_sub(0.5f32.to_bits());
        let normal = magnitude
            .wrapping_sub(112 << 23)
            .wrapping_add(0xfff + (magnitude >> 13 & 1))
            >> 13;
        let rounded = if magnitude < 113 << 23 {
            sign | small
        } else if magnitude < 143 << 23 {
            sign | normal
        } else if magnitude <= 255 << 23 {
            sign | 0x7c00
        } else {
            0x7fff
        };
        Self(rounded as u16)
    }
}

/// The upper half of an `f32`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
struct Bf16(u16);

impl Bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits((self.0 as u32) << 16)
    }

    /// Rounds to nearest even. A NaN becomes the GPU's.
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        Self(if value.is_nan() {
            0x7fff
        } else {
            rounded as u16
        })
    }

    /// The product, rounded once. An `f32` holds it exactly, except below its least normal number, where
    /// it would be rounded twice: such a product is taken with a factor.
    #[inline(always)]
    fn product(a: Self, b: Self) -> Self {
        let (a, b) = (a.to_f32(), b.to_f32());
        let product = a * b;
        let scaled = (a * f32::from_bits((127 + 100) << 23) * b).abs();
        // The unit in the last place of this number is that of the least Bf16 numbers, times the factor.
        let unit = f32::from_bits((127 - 10) << 23);
        let small = (scaled + unit).to_bits().wrapping_sub(unit.to_bits());
        let sign = (product.to_bits() >> 16) & 0x8000;
        if product.abs() < f32::MIN_POSITIVE {
            Self((sign | small) as u16)
        } else {
            Self::from_f32(product)
        }
    }
}

/// The greater or lesser of two 16-bit floats by their bits; `infinity` is the positive one's.
#[inline(always)]
fn pick(a: u16, b: u16, infinity: u16, greater: bool) -> u16 {
    // In the order of the numbers, -0 before 0.
    let key = |x: u16| (x ^ ((x as i16 >> 15) as u16 & 0x7fff)) as i16;
    let nan = |x: u16| x & 0x7fff > infinity;
    let first = if greater {
        key(a) > key(b)
    } else {
        key(a) < key(b)
    };
    let picked = if nan(b) || (first && !nan(a)) { a } else { b };
    if nan(picked) { 0x7fff } else { picked }
}

macro_rules! short_float {
    ($($element:ident, $infinity:literal, $product:expr;)*) => { $(
        impl Element for $element {
            #[inline(always)]
            fn sum() -> impl Fn(Self, Self) -> Self {
                |a, b| Self::from_f32(a.to_f32() + b.to_f32())
            }
            #[inline(always)]
            fn prod() -> impl Fn(Self, Self) -> Self {
                $product
            }
            #[inline(always)]
            fn max() -> impl Fn(Self, Self) -> Self {
                |a, b| Self(pick(a.0, b.0, $infinity, true))
            }
            #[inline(always)]
            fn min() -> impl Fn(Self, Self) -> Self {
                |a, b| Self(pick(a.0, b.0, $infinity, false))
            }
            #[inline(always)]
            fn scale(factor: [u8; 8]) -> impl Fn(Self) -> Self {
                let factor = Self(u16::from_ne_bytes(first(factor)));
                move |a| $product(a, factor)
            }
            fn divide(_: u64) -> impl Fn(Self) -> Self {
                |_| unreachable!()
            }
        }
    )* };
}

// A sum of two, and a product of two halves, is exact in an f32 or far enough from a tie there: rounding it again does no harm.
short_float! {
    F16, 0x7c00, |a: F16, b: F16| F16::from_f32(a.to_f32() * b.to_f32());
    Bf16, 0x7f80, Bf16::product;
}

/// 4 exponent and 3 mantissa bits, no infinity, NaN only with all bits set.
const E4M3: u8 = 0;
/// 5 exponent and 2 mantissa bits, infinity and NaN as in the larger formats.
const E5M2: u8 = 1;

/// An 8-bit float. Everything that two of them can become is looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
struct F8<const FORMAT: u8>(u8);

impl<const FORMAT: u8> F8<FORMAT> {
    const MANTISSA: u32 = if FORMAT == E4M3 { 3 } else { 2 };
    const BIAS: i32 = if FORMAT == E4M3 { 7 } else { 15 };
    const GREATEST: u8 = if FORMAT == E4M3 { 0x7e } else { 0x7b };

    fn to_f32(self) -> f32 {
        let magnitude = self.0 & 0x7f;
        let mantissa = (magnitude & ((1 << Self::MANTISSA) - 1)) as f32;
        let exponent = (magnitude >> Self::MANTISSA) as i32;
        let unit = |exponent: i32| 2f32.powi(exponent - Self::BIAS - Self::MANTISSA as i32);
        let value = if magnitude <= Self::GREATEST {
            match exponent {
                0 => mantissa * unit(1),
                _ => (mantissa + (1 << Self::MANTISSA) as f32) * unit(exponent),
            }
        } else if FORMAT == E5M2 && magnitude == 0x7c {
            f32::INFINITY
        } else {
            f32::NAN
        };
        if self.0 & 0x80 == 0 { value } else { -value }
    }

    /// Rounds to nearest even; what is too great, infinity also, becomes the greatest number.
    fn from_f32(value: f32) -> Self {
        if value.is_nan() {
            return Self(0x7f);
        }
        let sign = (value.to_bits() >> 24) as u8 & 0x80;
        let magnitude = value.abs().min(Self(Self::GREATEST).to_f32());
        // The bits of an f32, with this format's exponent and the mantissa's upper bits, are already the code
        // of a normal number; the unit of the least ones is that of the least normal one.
        let exponent = ((magnitude.to_bits() >> 23) as i32 - 127 + Self::BIAS).max(1);
        let unit = 2f32.powi(exponent - Self::BIAS - Self::MANTISSA as i32);
        let units = (magnitude / unit).round_ties_even() as u8;
        Self(sign + (((exponent - 1) as u8) << Self::MANTISSA) + units)
    }

    fn from_f16(value: F16) -> Self {
        Self::from_f32(value.to_f32())
    }

    fn to_f16(self) -> F16 {
        F16::from_f32(self.to_f32())
    }

    /// The function `combine` of halves, for all pairs.
    fn table(combine: Combine) -> &'static [[u8; 256]; 256] {
        static TABLES: [OnceLock<Box<[[u8; 256]; 256]>>; 8] = [const { OnceLock::new() }; 8];
        TABLES[FORMAT as usize * 4 + combine as usize].get_or_init(|| match combine {
            Combine::Sum => Self::tabulate(F16::sum()),
            Combine::Prod => Self::tabulate(F16::prod()),
            Combine::Max => Self::tabulate(F16::max()),
            Combine::Min => Self::tabulate(F16::min()),
        })
    }

    fn tabulate(combine: impl Fn(F16, F16) -> F16) -> Box<[[u8; 256]; 256]> {
        let mut table = Box::new([[0; 256]; 256]);
        let halves: [F16; 256] = std::array::from_fn(|code| Self(code as u8).to_f16());
        for (a, row) in table.iter_mut().enumerate() {
            for (b, result) in row.iter_mut().enumerate() {
                *result = Self::from_f16(combine(halves[a], halves[b])).0;
            }
        }
        table
    }
}

impl<const FORMAT: u8> Element for F8<FORMAT> {
    fn sum() -> impl Fn(Self, Self) -> Self {
        let table = Self::table(Combine::Sum);
        |a, b| Self(table[a.0 as usize][b.0 as usize])
    }
    fn prod() -> impl Fn(Self, Self) -> Self {
        let table = Self::table(Combine::Prod);
        |a, b| Self(table[a.0 as usize][b.0 as usize])
    }
    fn max() -> impl Fn(Self, Self) -> Self {
        let table = Self::table(Combine::Max);
        |a, b| Self(table[a.0 as usize][b.0 as usize])
    }
    fn min() -> impl Fn(Self, Self) -> Self {
        let table = Self::table(Combine::Min);
        |a, b| Self(table[a.0 as usize][b.0 as usize])
    }
    fn scale(factor: [u8; 8]) -> impl Fn(Self) -> Self {
        let row = &Self::table(Combine::Prod)[factor[0] as usize];
        |a| Self(row[a.0 as usize])
    }
    fn divide(_: u64) -> impl Fn(Self) -> Self {
        |_| unreachable!()
    }
}

#[cfg(test)]
mod tests {
    use super::super::exchange::Scalar;
    use super::*;

    /// Numbers that do not repeat soon, the same in each run.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut x = self.0;
            x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            x ^ (x >> 31)
        }
    }

    #[test]
    fn halves_widen_as_half_does() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (F16(bits).to_f32(), half::f16::from_bits(bits).to_f32());
            assert!(
                ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()),
                "{bits:04x}"
            );
            let (ours, theirs) = (Bf16(bits).to_f32(), half::bf16::from_bits(bits).to_f32());
            assert!(
                ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()),
                "{bits:04x}"
            );
        }
    }

    /// Every rounding case of an f32: all upper halves, and lower halves on, beside and between the ties.
    #[test]
    fn halves_round_as_half_does() {
        let lower = [
            0, 1, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff,
        ];
        let mut random = Random(1);
        for upper in 0..=u16::MAX {
            let drawn = random.next() as u32 & 0xffff;
            for lower in lower.into_iter().chain([drawn]) {
                let value = f32::from_bits((upper as u32) << 16 | lower);
                let (f16, bf16) = (F16::from_f32(value), Bf16::from_f32(value));
                if value.is_nan() {
                    assert_eq!((f16.0, bf16.0), (0x7fff, 0x7fff));
                    continue;
                }
                let bits = value.to_bits();
                assert_eq!(f16.0, half::f16::from_f32(value).to_bits(), "{bits:08x}");
                assert_eq!(bf16.0, half::bf16::from_f32(value).to_bits(), "{bits:08x}");
            }
        }
    }

    /// The number that a code of an 8-bit format stands for, by the format's definition.
    fn defined(format: u8, code: u8) -> f64 {
        let (mantissa_bits, bias) = if format == E4M3 { (3, 7) } else { (2, 15) };
        let fraction = (code & ((1 << mantissa_bits) - 1)) as f64 / (1 << mantissa_bits) as f64;
        let exponent = (code as i32 & 0x7f) >> mantissa_bits;
        let magnitude = match (format, exponent) {
            (E4M3, 15) if code & 7 == 7 => f64::NAN,
            (E5M2, 31) if code & 3 == 0 => f64::INFINITY,
            (E5M2, 31) => f64::NAN,
            (_, 0) => fraction * 2f64.powi(1 - bias),
            _ => (1.0 + fraction) * 2f64.powi(exponent - bias),
        };
        if code & 0x80 == 0 {
            magnitude
        } else {
            -magnitude
        }
    }

    /// The code of the number nearest to `value`, of two the one with an even mantissa. The greatest number for
    /// all that is greater.
    fn nearest(format: u8, value: f64) -> u8 {
        // The positive numbers are in the order of their codes.
        let greatest = if format == E4M3 { 0x7e } else { 0x7b };
        let magnitude = value.abs();
        let above = (0..=greatest).find(|code| defined(format, *code) >= magnitude);
        let code = match above {
            None => greatest,
            Some(0) => 0,
            Some(above) => {
                let (lower, upper) = (defined(format, above - 1), defined(format, above));
                match (magnitude - lower).partial_cmp(&(upper - magnitude)) {
                    Some(std::cmp::Ordering::Less) => above - 1,
                    Some(std::cmp::Ordering::Equal) => above - (above & 1),
                    _ => above,
                }
            }
        };
        code | if value.is_sign_negative() { 0x80 } else { 0 }
    }

    fn check_f8<const FORMAT: u8>() {
        for code in 0..=255 {
            let (ours, defined) = (F8::<FORMAT>(code).to_f32() as f64, defined(FORMAT, code));
            let same = ours.to_bits() == defined.to_bits();
            assert!(same || (ours.is_nan() && defined.is_nan()), "{code:02x}");
        }
        for bits in 0..=u16::MAX {
            let value = half::f16::from_bits(bits);
            let ours = F8::<FORMAT>::from_f16(F16(bits)).0;
            match value.is_nan() {
                true => assert_eq!(ours, 0x7f),
                false => assert_eq!(ours, nearest(FORMAT, value.to_f64()), "{value}"),
            }
        }
    }

    #[test]
    fn eighths_by_definition() {
        check_f8::<E4M3>();
        check_f8::<E5M2>();
    }

    const TYPES: [NcclDataType; 12] = [
        NcclDataType::Int8,
        NcclDataType::Uint8,
        NcclDataType::Int32,
        NcclDataType::Uint32,
        NcclDataType::Int64,
        NcclDataType::Uint64,
        NcclDataType::Float16,
        NcclDataType::Float32,
        NcclDataType::Float64,
        NcclDataType::Bfloat16,
        NcclDataType::Float8e4m3,
        NcclDataType::Float8e5m2,
    ];
    const OPERATORS: [Operator; 6] = [
        Operator::Sum,
        Operator::Prod,
        Operator::Max,
        Operator::Min,
        Operator::Avg,
        Operator::PreMulSum(Scalar::Device(0)),
    ];

    /// An element as a number: integers exactly, floats as an f64, which holds all of them.
    #[derive(Clone, Copy, Debug)]
    enum Number {
        Integer(i128),
        Float(f64),
    }

    fn number(datatype: NcclDataType, bytes: &[u8]) -> Number {
        let mut eight = [0; 8];
        eight[..bytes.len()].copy_from_slice(bytes);
        let raw = u64::from_ne_bytes(eight);
        let eighth = |format| Number::Float(defined(format, raw as u8));
        match datatype {
            NcclDataType::Int8 => Number::Integer(raw as i8 as i128),
            NcclDataType::Uint8 => Number::Integer(raw as u8 as i128),
            NcclDataType::Int32 => Number::Integer(raw as i32 as i128),
            NcclDataType::Uint32 => Number::Integer(raw as u32 as i128),
            NcclDataType::Int64 => Number::Integer(raw as i64 as i128),
            NcclDataType::Uint64 => Number::Integer(raw as i128),
            NcclDataType::Float16 => Number::Float(half::f16::from_bits(raw as u16).to_f64()),
            NcclDataType::Float32 => Number::Float(f32::from_bits(raw as u32) as f64),
            NcclDataType::Float64 => Number::Float(f64::from_bits(raw)),
            NcclDataType::Bfloat16 => Number::Float(half::bf16::from_bits(raw as u16).to_f64()),
            NcclDataType::Float8e4m3 => eighth(E4M3),
            _ => eighth(E5M2),
        }
    }

    /// The element nearest to a number; the GPU's NaN for a NaN.
    fn element(datatype: NcclDataType, value: Number) -> Vec<u8> {
        let eighth = |format, value: f64| {
            // As on the GPU: rounded to a half first.
            let half = half::f16::from_f64(value).to_f64();
            vec![if half.is_nan() {
                0x7f
            } else {
                nearest(format, half)
            }]
        };
        match (datatype, value) {
            (_, Number::Integer(value)) => value.to_ne_bytes()[..datatype.size().unwrap()].to_vec(),
            (NcclDataType::Float64, Number::Float(value)) => value.to_ne_bytes().to_vec(),
            (NcclDataType::Float32, Number::Float(value)) if value.is_nan() => {
                0x7fff_ffffu32.to_ne_bytes().to_vec()
            }
            (NcclDataType::Float32, Number::Float(value)) => (value as f32).to_ne_bytes().to_vec(),
            (NcclDataType::Float16 | NcclDataType::Bfloat16, Number::Float(value))
                if value.is_nan() =>
            {
                0x7fffu16.to_ne_bytes().to_vec()
            }
            (NcclDataType::Float16, Number::Float(value)) => {
                half::f16::from_f64(value).to_ne_bytes().to_vec()
            }
            (NcclDataType::Bfloat16, Number::Float(value)) => {
                half::bf16::from_f64(value).to_ne_bytes().to_vec()
            }
            (NcclDataType::Float8e4m3, Number::Float(value)) => eighth(E4M3, value),
            (_, Number::Float(value)) => eighth(E5M2, value),
        }
    }

    /// The reduction of one element of each rank, step by step, by the rules alone.
    fn slowly(
        datatype: NcclDataType,
        operator: Operator,
        inputs: &[&[u8]],
        scalars: &[[u8; 8]],
    ) -> Vec<u8> {
        let size = datatype.size().unwrap();
        let ranks = inputs.len();
        let step = |a: &[u8], b: &[u8], how: Combine| {
            let result = match (number(datatype, a), number(datatype, b)) {
                (Number::Integer(a), Number::Integer(b)) => Number::Integer(match how {
                    Combine::Sum => a + b,
                    Combine::Prod => a.wrapping_mul(b),
                    Combine::Max => a.max(b),
                    Combine::Min => a.min(b),
                }),
                (Number::Float(a), Number::Float(b)) => Number::Float(match how {
                    Combine::Sum => a + b,
                    Combine::Prod => a * b,
                    _ if a.is_nan() => b,
                    _ if b.is_nan() => a,
                    Combine::Max => match a.total_cmp(&b).is_gt() {
                        true => a,
                        false => b,
                    },
                    Combine::Min => match a.total_cmp(&b).is_lt() {
                        true => a,
                        false => b,
                    },
                }),
                _ => unreachable!(),
            };
            element(datatype, result)
        };
        let float = is_float(datatype);
        let (how, factors): (_, Vec<Vec<u8>>) = match operator {
            Operator::Prod => (Combine::Prod, Vec::new()),
            Operator::Max => (Combine::Max, Vec::new()),
            Operator::Min => (Combine::Min, Vec::new()),
            Operator::Avg if float => {
                let single = (1.0 / ranks as f64) as f32 as f64;
                let factor = match datatype {
                    NcclDataType::Float64 => 1.0 / ranks as f64,
                    _ => single,
                };
                let factor = element(datatype, Number::Float(factor));
                (Combine::Sum, vec![factor; ranks])
            }
            Operator::PreMulSum(_) => {
                let own = scalars.iter().map(|scalar| scalar[..size].to_vec());
                (Combine::Sum, own.collect())
            }
            _ => (Combine::Sum, Vec::new()),
        };
        let terms = inputs
            .iter()
            .enumerate()
            .map(|(rank, input)| match factors.get(rank) {
                Some(factor) => step(input, factor, Combine::Prod),
                None => input.to_vec(),
            });
        let result = terms.reduce(|a, b| step(&a, &b, how)).unwrap();
        match number(datatype, &result) {
            Number::Integer(sum) if operator == Operator::Avg => {
                element(datatype, Number::Integer(sum / ranks as i128))
            }
            _ => result,
        }
    }

    /// Elements that matter, then any bits.
    fn bits(datatype: NcclDataType, random: &mut Random) -> u64 {
        let drawn = random.next();
        let special: &[u64] = match datatype {
            NcclDataType::Float32 => &[
                0,
                0x8000_0000,
                1,
                0x8000_0001,
                0x7f80_0000,
                0xff80_0000,
                0x7fc0_0000,
                0xffff_ffff,
                0x7f7f_ffff,
                0x3f80_0000,
                0x0080_0000,
            ],
            NcclDataType::Float64 => &[0, 1 << 63, 1, 0x7ff << 52, 0xfff << 52, 0x3ff << 52],
            NcclDataType::Float16 => &[0, 0x8000, 1, 0x7c00, 0xfc00, 0x7e00, 0x7bff, 0x3c00, 0x400],
            NcclDataType::Bfloat16 => &[0, 0x8000, 1, 0x7f80, 0xff80, 0x7fc0, 0x7f7f, 0x3f80, 0x80],
            _ => &[
                0,
                u64::MAX,
                1,
                0x7f,
                0x80,
                i32::MAX as u64,
                1 << 31,
                i64::MAX as u64,
                1 << 63,
            ],
        };
        match drawn % 8 {
            0 => special[(drawn >> 8) as usize % special.len()],
            // Close to one, so that results are rounded in the middle of the range.
            1..=3 if is_float(datatype) => {
                let value = 0.25 + (drawn >> 11) as f64 / (1u64 << 53) as f64 * 4.0;
                let bytes = element(datatype, Number::Float(value));
                let mut eight = [0; 8];
                eight[..bytes.len()].copy_from_slice(&bytes);
                u64::from_ne_bytes(eight)
            }
            _ => drawn >> 3 ^ drawn << 40,
        }
    }

    fn draw(datatype: NcclDataType, count: usize, random: &mut Random) -> Vec<u8> {
        let size = datatype.size().unwrap();
        let elements =
            (0..count).flat_map(|_| bits(datatype, random).to_ne_bytes()[..size].to_vec());
        elements.collect()
    }

    /// One type and operator, `ranks` inputs of `count` elements that are not aligned, out of place and in place.
    fn check(datatype: NcclDataType, operator: Operator, ranks: usize, count: usize) {
        let mut random = Random((datatype.0 as u64) << 32 | (ranks * count) as u64);
        let size = datatype.size().unwrap();
        let inputs: Vec<Vec<u8>> = (0..ranks)
            .map(|_| draw(datatype, count + 1, &mut random))
            .collect();
        let scalars: Vec<[u8; 8]> = (0..ranks)
            .map(|_| bits(datatype, &mut random).to_ne_bytes())
            .collect();
        let reduction = match operator {
            Operator::PreMulSum(_) => Reduction::new(datatype, operator, ranks, scalars.clone()),
            _ => Reduction::new(datatype, operator, ranks, Vec::new()),
        };
        let expected: Vec<u8> = (0..count)
            .flat_map(|i| {
                let column: Vec<&[u8]> = inputs
                    .iter()
                    .map(|input| &input[i * size..][..size])
                    .collect();
                slowly(datatype, operator, &column, &scalars)
            })
            .collect();
        let same = |result: &[u8], case: &str| {
            for i in 0..count {
                let (ours, theirs) = (&result[i * size..][..size], &expected[i * size..][..size]);
                // The payload of an f64's NaN is left open.
                let nan = |bytes| matches!(number(datatype, bytes), Number::Float(x) if x.is_nan());
                let nans = datatype == NcclDataType::Float64 && nan(ours) && nan(theirs);
                let column: Vec<&[u8]> = inputs
                    .iter()
                    .map(|input| &input[i * size..][..size])
                    .collect();
                assert!(
                    ours == theirs || nans,
                    "{datatype:?} {operator:?} {ranks} ranks, {case}, element {i}: {column:02x?} \
                     became {ours:02x?}, should be {theirs:02x?}; scalars {scalars:02x?}"
                );
            }
        };
        // In pieces, of which the last is empty.
        let run = |sources: &[u64], results: &[u64]| {
            for piece in [0..count / 3, count / 3..count, count..count] {
                // SAFETY: all buffers hold `count` elements after their first byte.
                unsafe { reduction.run(sources, results, piece) };
            }
        };
        let shift = |bytes: &Vec<u8>| [&[0xdd], &bytes[..]].concat();
        let places = |buffers: &mut [Vec<u8>]| -> Vec<u64> {
            buffers
                .iter_mut()
                .map(|buffer| buffer.as_mut_ptr() as u64 + 1)
                .collect()
        };
        let before: Vec<Vec<u8>> = inputs.iter().map(shift).collect();
        let mut sources = before.clone();
        let mut results = vec![vec![0xee; count * size + 2]; 2];
        run(&places(&mut sources), &places(&mut results));
        for result in &results {
            same(&result[1..], "out of place");
            assert_eq!((result[0], result[1 + count * size]), (0xee, 0xee));
        }
        assert_eq!(sources, before);
        let all = places(&mut sources);
        run(&all, &all);
        for (source, before) in sources.iter().zip(&before) {
            same(&source[1..], "in place");
            assert_eq!(source[0], 0xdd);
            assert_eq!(source[1 + count * size..], before[1 + count * size..]);
        }
    }

    #[test]
    fn every_type_and_operator() {
        for datatype in TYPES {
            for operator in OPERATORS {
                let more_than_a_block = BLOCK / datatype.size().unwrap() + 5;
                let sizes = [
                    (1, 5),
                    (2, more_than_a_block),
                    (3, 301),
                    (4, 2),
                    (5, 64),
                    (7, 33),
                ];
                for (ranks, count) in sizes {
                    let one = ranks == 1;
                    if !one || matches!(operator, Operator::PreMulSum(_)) {
                        check(datatype, operator, ranks, count);
                    }
                }
            }
        }
    }

    /// All pairs of 8-bit floats, and many of 16-bit ones.
    #[test]
    fn pairs() {
        let pair = |datatype: NcclDataType, operator, a: u64, b: u64| {
            let size = datatype.size().unwrap();
            let (a, b) = (a.to_ne_bytes(), b.to_ne_bytes());
            let expected = slowly(datatype, operator, &[&a[..size], &b[..size]], &[]);
            let mut result = [0u8; 8];
            let places = [a.as_ptr() as u64, b.as_ptr() as u64];
            let reduction = Reduction::new(datatype, operator, 2, Vec::new());
            // SAFETY: all three hold an element.
            unsafe { reduction.run(&places, &[result.as_mut_ptr() as u64], 0..1) };
            assert_eq!(
                result[..size],
                expected,
                "{datatype:?} {operator:?} {a:02x?} {b:02x?}"
            );
        };
        let mut random = Random(7);
        for operator in &OPERATORS[..4] {
            for (a, b) in
                (0..256).flat_map(|a| (0..256).step_by(7).map(move |b| (a, (b + a) % 256)))
            {
                pair(NcclDataType::Float8e4m3, *operator, a, b);
                pair(NcclDataType::Float8e5m2, *operator, a, b);
            }
            for _ in 0..20_000 {
                let (a, b) = (random.next() & 0xffff, random.next() & 0xffff);
                pair(NcclDataType::Float16, *operator, a, b);
                pair(NcclDataType::Bfloat16, *operator, a, b);
                // Products at the lower end.
                pair(
                    NcclDataType::Bfloat16,
                    *operator,
                    a % 0x1800 + 0x1000,
                    b % 0x1000 + 0x1000,
                );
            }
        }
    }

    #[test]
    fn small_integers_are_divided_toward_zero() {
        for divisor in 1..=300u64 {
            let (signed, unsigned) = (i8::divide(divisor), u8::divide(divisor));
            for a in 0..=255u8 {
                assert_eq!(signed(a as i8) as i64, a as i8 as i64 / divisor as i64);
                assert_eq!(unsigned(a) as u64, a as u64 / divisor);
            }
            let (signed, unsigned) = (i32::divide(divisor), u32::divide(divisor));
            for a in [
                0,
                1,
                -1,
                i32::MAX,
                i32::MIN,
                i32::MAX - 1,
                299,
                -300,
                1 << 24,
                16777217,
            ] {
                let multiple = a - a % divisor as i32;
                for a in [
                    a,
                    multiple,
                    multiple.wrapping_sub(1),
                    multiple.wrapping_add(1),
                ] {
                    assert_eq!(signed(a) as i64, a as i64 / divisor as i64);
                    assert_eq!(unsigned(a as u32) as u64, a as u32 as u64 / divisor);
                }
            }
        }
    }

    /// What a GPU was seen to answer.
    #[test]
    fn as_observed() {
        let run = |datatype: NcclDataType, operator, a: &[u8], b: &[u8]| {
            let mut result = vec![0u8; a.len()];
            let places = [a.as_ptr() as u64, b.as_ptr() as u64];
            let reduction = Reduction::new(datatype, operator, 2, Vec::new());
            let count = a.len() / datatype.size().unwrap();
            // SAFETY: all three hold `count` elements.
            unsafe { reduction.run(&places, &[result.as_mut_ptr() as u64], 0..count) };
            result
        };
        let ints = |values: [i32; 4]| values.map(i32::to_ne_bytes).concat();
        assert_eq!(
            run(
                NcclDataType::Int32,
                Operator::Avg,
                &ints([1, -1, i32::MAX, -10]),
                &ints([2, -2, i32::MAX, 5])
            ),
            ints([1, -1, -1, -2])
        );
        let same = |datatype, values: &[u8]| run(datatype, Operator::Sum, values, values);
        assert_eq!(same(NcclDataType::Uint8, &[200, 255, 1]), [144, 254, 2]);
        assert_eq!(
            run(
                NcclDataType::Int8,
                Operator::Prod,
                &[156, 100, 3],
                &[156, 100, 3]
            ),
            [16, 16, 9]
        );
        assert_eq!(
            same(NcclDataType::Float8e4m3, &[0x38, 0x7e, 0x01, 0x40]),
            [0x40, 0x7e, 0x02, 0x48]
        );
        assert_eq!(
            same(NcclDataType::Float8e5m2, &[0x3c, 0x7b, 0x01, 0x40]),
            [0x40, 0x7b, 0x02, 0x44]
        );
        let shorts = |values: [u16; 3]| values.map(u16::to_ne_bytes).concat();
        assert_eq!(
            run(
                NcclDataType::Bfloat16,
                Operator::Sum,
                &shorts([0x3b80, 0x3f80, 0x7f7f]),
                &shorts([0x3f80, 0x4380, 0x7f7f])
            ),
            shorts([0x3f80, 0x4380, 0x7f80])
        );
        let floats = |values: [f32; 3]| values.map(f32::to_ne_bytes).concat();
        let a = floats([3e38, 3.0, 0.1]);
        assert_eq!(run(NcclDataType::Float32, Operator::Avg, &a, &a), a);

        // A NaN that comes out is the GPU's; in max and min a NaN loses, and -0 is less than 0.
        let (infinity, zero) = (f32::INFINITY, 0.0f32);
        let a = floats([infinity, f32::from_bits(0xffc1_2345), -zero]);
        let b = floats([-infinity, 1.0, zero]);
        let by = |operator| run(NcclDataType::Float32, operator, &a, &b);
        let nan = f32::from_bits(0x7fff_ffff);
        assert_eq!(by(Operator::Sum), floats([nan, nan, zero]));
        assert_eq!(by(Operator::Max), floats([infinity, 1.0, zero]));
        assert_eq!(by(Operator::Min), floats([-infinity, 1.0, -zero]));
        assert_eq!(
            run(
                NcclDataType::Float16,
                Operator::Sum,
                &shorts([0x7c00, 0xfd23, 0x7bff]),
                &shorts([0xfc00, 0x3c00, 0x7bff])
            ),
            shorts([0x7fff, 0x7fff, 0x7c00])
        );
        // The greatest e5m2 for infinity, and one NaN for all.
        assert_eq!(
            run(
                NcclDataType::Float8e5m2,
                Operator::Sum,
                &[0x7c, 0x7c, 0xfc, 0x7e],
                &[0x3c, 0xfc, 0x3c, 0x3c]
            ),
            [0x7b, 0x7f, 0xfb, 0x7f]
        );
    }
}
