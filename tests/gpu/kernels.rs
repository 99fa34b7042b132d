//! The few kernels of the tests: a text for the driver's compiler, and what the emulator runs in their place.

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

use anyhow::{Result, ensure};

use crate::calls::*;
use crate::expect;
use crate::team::Rank;

const TEXT: &CStr = c"
.version 6.0
.target sm_50
.address_size 64

// Keeps its one thread busy for so many clock cycles.
.visible .entry spin(.param .u64 cycles)
{
    .reg .pred %p;
    .reg .b64 %d<4>;
    ld.param.u64 %d0, [cycles];
    mov.u64 %d1, %clock64;
again:
    mov.u64 %d2, %clock64;
    sub.u64 %d3, %d2, %d1;
    setp.lt.u64 %p, %d3, %d0;
    @%p bra again;
    ret;
}

// Adds a value to each of n words.
.visible .entry add(.param .u64 data, .param .u32 n, .param .u32 value)
{
    .reg .pred %p;
    .reg .b32 %r<7>;
    .reg .b64 %d<3>;
    ld.param.u64 %d0, [data];
    ld.param.u32 %r0, [n];
    ld.param.u32 %r1, [value];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p, %r5, %r0;
    @%p bra added;
    mul.wide.u32 %d1, %r5, 4;
    add.u64 %d2, %d0, %d1;
    ld.global.u32 %r6, [%d2];
    add.u32 %r6, %r6, %r1;
    st.global.u32 [%d2], %r6;
added:
    ret;
}

// Adds n words to n others.
.visible .entry accumulate(.param .u64 to, .param .u64 from, .param .u32 n)
{
    .reg .pred %p;
    .reg .b32 %r<7>;
    .reg .b64 %d<5>;
    ld.param.u64 %d0, [to];
    ld.param.u64 %d1, [from];
    ld.param.u32 %r0, [n];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    setp.ge.u32 %p, %r4, %r0;
    @%p bra accumulated;
    mul.wide.u32 %d2, %r4, 4;
    add.u64 %d3, %d0, %d2;
    add.u64 %d4, %d1, %d2;
    ld.global.u32 %r5, [%d3];
    ld.global.u32 %r6, [%d4];
    add.u32 %r5, %r5, %r6;
    st.global.u32 [%d3], %r5;
accumulated:
    ret;
}

// Adds to a count how many of so many words differ from a value.
.visible .entry count_others(.param .u64 data, .param .u64 words, .param .u32 value, .param .u64 found)
{
    .reg .pred %p, %q;
    .reg .b32 %r<6>;
    .reg .b64 %d<7>;
    ld.param.u64 %d0, [data];
    ld.param.u64 %d1, [words];
    ld.param.u32 %r0, [value];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mov.u32 %r4, %nctaid.x;
    cvt.u64.u32 %d2, %r3;
    mad.wide.u32 %d2, %r1, %r2, %d2;
    mul.wide.u32 %d3, %r4, %r2;
    mov.u64 %d4, 0;
next:
    setp.ge.u64 %p, %d2, %d1;
    @%p bra counted;
    shl.b64 %d5, %d2, 2;
    add.u64 %d5, %d0, %d5;
    ld.global.u32 %r5, [%d5];
    setp.ne.u32 %q, %r5, %r0;
    @%q add.u64 %d4, %d4, 1;
    add.u64 %d2, %d2, %d3;
    bra next;
counted:
    setp.eq.u64 %p, %d4, 0;
    @%p bra none;
    ld.param.u64 %d6, [found];
    red.global.add.u64 [%d6], %d4;
none:
    ret;
}
";

/// Threads of a block.
const BLOCK: u32 = 256;

/// The kernels, loaded on one rank's device.
pub struct Kernels {
    module: CuModule,
    spin: CuFunction,
    add: CuFunction,
    accumulate: CuFunction,
    count_others: CuFunction,
}

impl Kernels {
    /// Loads them on every rank. Each is run once, since the driver may put off the loading of a kernel to its
    /// first launch, and that waits for all work of the context.
    pub fn load(rank: &Rank) -> Result<Self> {
        #[cfg(feature = "emulator")]
        emulated::register();
        rank.step("the kernels are loaded");
        rank.meet()?;
        let mut module = 0;
        expect!(
            cuModuleLoadDataEx(&mut module, TEXT.as_ptr().cast(), 0, null_mut(), null_mut()),
            CuResult::Success
        );
        let function = |name: &CStr| -> Result<CuFunction> {
            let mut function = 0;
            let found = cuModuleGetFunction(&mut function, module, name.as_ptr());
            ensure!(
                found == CuResult::Success,
                "{name:?} is not found: {found:?}"
            );
            Ok(function)
        };
        let kernels = Self {
            module,
            spin: function(c"spin")?,
            add: function(c"add")?,
            accumulate: function(c"accumulate")?,
            count_others: function(c"count_others")?,
        };
        let words = rank.upload(&[1u64, 2])?.address;
        kernels.spin(1, rank.stream)?;
        kernels.add(words, 1, 1, rank.stream)?;
        kernels.accumulate(words, words, 1, rank.stream)?;
        kernels.count_others(words, 2, 4, words + 8, rank.stream)?;
        rank.wait()?;
        // (1 + 1) * 2 in the first word, and zero, which is not 4, in the second.
        let got: Vec<u64> = rank.peek(words, 16)?;
        ensure!(got == [4, 3], "the kernels do not work: {got:?}");
        rank.meet()?;
        Ok(kernels)
    }

    /// Unloads them on every rank, once all have done their work.
    pub fn unload(self, rank: &Rank) -> Result<()> {
        rank.step("the kernels are unloaded");
        rank.meet()?;
        expect!(cuModuleUnload(self.module), CuResult::Success);
        rank.meet()
    }

    /// Keeps one thread of the device busy for so many clock cycles; on the emulator, nanoseconds.
    pub fn spin(&self, mut cycles: u64, stream: CuStream) -> Result<()> {
        launch(self.spin, (1, 1), &mut [(&raw mut cycles).cast()], stream)
    }

    /// Adds `value` to each of `count` words.
    pub fn add(
        &self,
        mut data: CuDevicePtr,
        count: usize,
        mut value: u32,
        stream: CuStream,
    ) -> Result<()> {
        let mut count = count as u32;
        let parameters = &mut [
            (&raw mut data).cast(),
            (&raw mut count).cast(),
            (&raw mut value).cast(),
        ];
        launch(self.add, (count.div_ceil(BLOCK), BLOCK), parameters, stream)
    }

    /// Adds `count` words at `from` to those at `to`.
    pub fn accumulate(
        &self,
        mut to: CuDevicePtr,
        mut from: CuDevicePtr,
        count: usize,
        stream: CuStream,
    ) -> Result<()> {
        let mut count = count as u32;
        let parameters = &mut [
            (&raw mut to).cast(),
            (&raw mut from).cast(),
            (&raw mut count).cast(),
        ];
        let grid = (count.div_ceil(BLOCK), BLOCK);
        launch(self.accumulate, grid, parameters, stream)
    }

    /// Adds to the 64 bits at `found` how many of `words` words are not `value`.
    pub fn count_others(
        &self,
        mut data: CuDevicePtr,
        words: usize,
        mut value: u32,
        mut found: CuDevicePtr,
        stream: CuStream,
    ) -> Result<()> {
        let mut words = words as u64;
        let parameters = &mut [
            (&raw mut data).cast(),
            (&raw mut words).cast(),
            (&raw mut value).cast(),
            (&raw mut found).cast(),
        ];
        launch(self.count_others, (512, BLOCK), parameters, stream)
    }
}

/// The parameters are copied by the launch.
fn launch(
    function: CuFunction,
    (blocks, threads): (u32, u32),
    parameters: &mut [*mut c_void],
    stream: CuStream,
) -> Result<()> {
    let code = cuLaunchKernel(
        function,
        blocks,
        1,
        1,
        threads,
        1,
        1,
        0,
        stream,
        parameters.as_mut_ptr(),
        null_mut(),
    );
    expect!(code, CuResult::Success);
    Ok(())
}

#[cfg(feature = "emulator")]
mod emulated {
    use std::slice::{from_raw_parts, from_raw_parts_mut};
    use std::sync::Once;
    use std::time::Duration;

    use metrale_gpu_sys::emulator::register_kernel;

    /// What runs in place of the kernels' text.
    pub fn register() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            register_kernel("spin", &[8], |launch| {
                // SAFETY: the parameter is a number.
                let cycles = unsafe { launch.parameter::<u64>(0) };
                std::thread::sleep(Duration::from_nanos(cycles));
            });
            register_kernel("add", &[8, 4, 4], |launch| {
                // SAFETY: the tests pass the address of as many words as they say, used by this stream alone.
                let (words, value) = unsafe {
                    let (data, n) = (launch.parameter::<*mut u32>(0), launch.parameter::<u32>(1));
                    let words = from_raw_parts_mut(data, n as usize);
                    (words, launch.parameter::<u32>(2))
                };
                for word in words {
                    *word = word.wrapping_add(value);
                }
            });
            register_kernel("accumulate", &[8, 8, 4], |launch| {
                // SAFETY: as above; both may be the same words, which is why each is read and written by itself.
                unsafe {
                    let to = launch.parameter::<*mut u32>(0);
                    let from = launch.parameter::<*const u32>(1);
                    for index in 0..launch.parameter::<u32>(2) as usize {
                        let sum = to.add(index).read().wrapping_add(from.add(index).read());
                        to.add(index).write(sum);
                    }
                }
            });
            register_kernel("count_others", &[8, 8, 4, 8], |launch| {
                // SAFETY: as above; the count lies behind the words, or elsewhere.
                unsafe {
                    let data = launch.parameter::<*const u32>(0);
                    let words = from_raw_parts(data, launch.parameter::<u64>(1) as usize);
                    let value = launch.parameter::<u32>(2);
                    let others = words.iter().filter(|word| **word != value).count();
                    *launch.parameter::<*mut u64>(3) += others as u64;
                }
            });
        });
    }
}
