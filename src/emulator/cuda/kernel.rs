//! Kernels, which are Rust functions here, and host functions.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, RwLock};

use super::capture::Label;
use super::context::{self, Context};
use super::stream::{Done, Execution, Stream, Work};
use super::{Table, lock, new_handle, read, write};
use crate::cuda::{CuFunction, CuHostFn, CuModule, CuResult, CuStream, CuStreamCallback};

/// Dynamic shared memory that a block may have, in bytes.
pub(super) const MAX_SHARED: u32 = 48 << 10;

/// One launch of a kernel that [`register_kernel`] knows, as the kernel sees it.
#[non_exhaustive]
#[derive(Debug)]
pub struct Launch {
    /// Blocks of the grid in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block in bytes. There is none here: a kernel that needs some
    /// makes its own.
    pub shared_bytes: u32,
    parameters: Vec<Vec<u8>>,
}

impl Launch {
    /// Threads of the whole grid.
    pub fn threads(&self) -> u64 {
        let all = self.grid.iter().chain(&self.block);
        all.map(|size| u64::from(*size)).product()
    }

    /// Parameter `n`, counted from 0, as it was when the kernel was launched.
    ///
    /// Panics, which fails the launch as a fault of a kernel does, if there is no such parameter or
    /// if `T` is not of the size that it was registered with.
    ///
    /// # Safety
    ///
    /// The parameter's bytes are a valid `T`. Device pointers are addresses of host memory: what
    /// they point to is to be used within its bounds, and only until the kernel returns.
    pub unsafe fn parameter<T: Copy>(&self, n: usize) -> T {
        let bytes = &self.parameters[n];
        assert_eq!(
            bytes.len(),
            size_of::<T>(),
            "parameter {n} was registered with another size"
        );
        // SAFETY: as many bytes as `T` has, which are a valid one as the caller promises.
        unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
    }
}

struct Kernel {
    sizes: Vec<usize>,
    run: Box<dyn Fn(&Launch) + Send + Sync>,
}

static KERNELS: RwLock<BTreeMap<String, Arc<Kernel>>> = RwLock::new(BTreeMap::new());

/// Makes `kernel` the kernel called `name`, in every module that is loaded: `cuModuleLoadData`
/// takes any image here and looks at none, and `cuModuleGetFunction` finds what is registered.
///
/// `parameter_sizes` are the sizes of the kernel's parameters in bytes, in their order:
/// `cuLaunchKernel` copies that much from each pointer of its list. In a launch with one buffer for
/// all, each stands at the next multiple of the largest power of two up to 8 that divides its size.
/// `kernel` runs once a launch, for the whole grid, on the stream's thread; calls into CUDA are
/// refused there as in a host function. If it panics, the launch fails with `LaunchFailed`, and
/// with it the context, as after a fault on a GPU. A name that is registered again stands for the
/// new kernel in functions that are looked up from then on.
///
/// ```no_run
/// use metrale_gpu_sys::emulator::register_kernel;
///
/// // extern "C" __global__ void add_one(unsigned *data, unsigned n)
/// register_kernel("add_one", &[8, 4], |launch| {
///     // SAFETY: the launches of this program pass a pointer to n words and n.
///     let words = unsafe {
///         let (data, n) = (launch.parameter::<*mut u32>(0), launch.parameter::<u32>(1));
///         std::slice::from_raw_parts_mut(data, n as usize)
///     };
///     words.iter_mut().take(launch.threads() as usize).for_each(|word| *word += 1);
/// });
/// ```
pub fn register_kernel(
    name: &str,
    parameter_sizes: &[usize],
    kernel: impl Fn(&Launch) + Send + Sync + 'static,
) {
    let kernel = Kernel {
        sizes: parameter_sizes.to_vec(),
        run: Box::new(kernel),
    };
    let old = write(&KERNELS).insert(name.to_owned(), Arc::new(kernel));
    // What a kernel holds may be anything, so it goes with no lock held.
    drop(old);
}

struct Module {
    context: Arc<Context>,
    /// The functions that were asked for, by name.
    functions: Mutex<BTreeMap<String, CuFunction>>,
}

pub(super) struct Function {
    context: Arc<Context>,
    module: CuModule,
    kernel: Arc<Kernel>,
}

static MODULES: Table<Module> = Table::new();
static FUNCTIONS: Table<Function> = Table::new();

pub(super) fn load(context: &Arc<Context>) -> CuModule {
    let handle = new_handle();
    let module = Module {
        context: context.clone(),
        functions: Mutex::default(),
    };
    MODULES.insert(handle, Arc::new(module));
    handle
}

pub(super) fn unload(handle: CuModule) -> Result<(), CuResult> {
    check_module(handle)?;
    MODULES.remove(handle);
    drop(FUNCTIONS.remove_all(|function| function.module == handle));
    Ok(())
}

pub(super) fn check_module(handle: CuModule) -> Result<(), CuResult> {
    let module = MODULES.get(handle).ok_or(CuResult::InvalidHandle)?;
    module.context.check()
}

/// The function `name` of a module: the same handle each time.
pub(super) fn function(handle: CuModule, name: &str) -> Result<CuFunction, CuResult> {
    check_module(handle)?;
    let module = MODULES.get(handle).ok_or(CuResult::InvalidHandle)?;
    let kernel = read(&KERNELS).get(name).cloned();
    let kernel = kernel.ok_or(CuResult::NotFound)?;
    let mut functions = lock(&module.functions);
    if let Some(known) = functions.get(name) {
        let current = FUNCTIONS.get(*known);
        if current.is_some_and(|function| Arc::ptr_eq(&function.kernel, &kernel)) {
            return Ok(*known);
        }
    }
    let function = Function {
        context: module.context.clone(),
        module: handle,
        kernel,
    };
    let new = new_handle();
    FUNCTIONS.insert(new, Arc::new(function));
    functions.insert(name.to_owned(), new);
    Ok(new)
}

pub(super) fn find(handle: CuFunction) -> Result<Arc<Function>, CuResult> {
    let function = FUNCTIONS.get(handle).ok_or(CuResult::InvalidHandle)?;
    function.context.check()?;
    Ok(function)
}

pub(super) fn drop_all(context: &Context) {
    drop(FUNCTIONS.remove_all(|function| std::ptr::eq(&*function.context, context)));
    drop(MODULES.remove_all(|module| std::ptr::eq(&*module.context, context)));
}

/// Where the arguments of a launch are.
pub(super) enum Arguments {
    /// One pointer for each.
    Each(*mut *mut c_void),
    /// One buffer of so many bytes for all.
    Buffer(*const u8, usize),
}

impl Function {
    /// Copies the arguments of a launch: `InvalidValue` where there are none,
    /// `LaunchOutOfResources` where there are too few.
    ///
    /// # Safety
    ///
    /// The arguments are as the kernel was registered.
    unsafe fn copy(&self, arguments: &Arguments) -> Result<Vec<Vec<u8>>, CuResult> {
        let sizes = &self.kernel.sizes;
        let mut copies = Vec::with_capacity(sizes.len());
        let mut offset = 0usize;
        for (n, &size) in sizes.iter().enumerate() {
            let source: *const u8 = match *arguments {
                Arguments::Each(list) if list.is_null() => return Err(CuResult::InvalidValue),
                // SAFETY: the list holds a pointer for each parameter, as the caller promises.
                Arguments::Each(list) => unsafe { list.add(n).read() }.cast(),
                Arguments::Buffer(buffer, bytes) => {
                    offset = offset.next_multiple_of(alignment(size));
                    if size > bytes.saturating_sub(offset) {
                        return Err(CuResult::LaunchOutOfResources);
                    }
                    let source = buffer.wrapping_add(offset);
                    offset += size;
                    source
                }
            };
            if source.is_null() && size > 0 {
                return Err(CuResult::InvalidValue);
            }
            let mut copy = vec![0u8; size];
            // SAFETY: `size` bytes are there as the caller promises.
            unsafe { copy.as_mut_ptr().copy_from_nonoverlapping(source, size) };
            copies.push(copy);
        }
        Ok(copies)
    }
}

/// What a parameter of this size is aligned to in a buffer.
fn alignment(size: usize) -> usize {
    match size {
        0 => 1,
        _ => 1 << size.trailing_zeros().min(3),
    }
}

/// Enqueues a launch on `stream`.
///
/// # Safety
///
/// The arguments are as the kernel was registered, and the kernel may run with them.
pub(super) unsafe fn launch(
    function: &Arc<Function>,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: &Arc<Stream>,
    arguments: &Arguments,
) -> Result<(), CuResult> {
    let sizes_fit = grid.iter().chain(&block).all(|size| *size > 0)
        && grid[0] <= i32::MAX as u32
        && grid[1] <= 65535
        && grid[2] <= 65535
        && block[0] <= 1024
        && block[1] <= 1024
        && block[2] <= 64
        && block.iter().map(|size| u64::from(*size)).product::<u64>() <= 1024
        && shared_bytes <= MAX_SHARED;
    if !sizes_fit {
        return Err(CuResult::InvalidValue);
    }
    if !Arc::ptr_eq(&function.context, &stream.context) {
        return Err(CuResult::InvalidHandle);
    }
    // SAFETY: as the caller promises.
    let parameters = unsafe { function.copy(arguments) }?;
    let launch = Arc::new(Launch {
        grid,
        block,
        shared_bytes,
        parameters,
    });
    let kernel = function.kernel.clone();
    let run = move || (kernel.run)(&launch);
    stream.submit(Arc::new(Callback(Arc::new(run))), Label::Kernel)
}

/// User code that runs in a stream's place, on its own thread.
#[derive(Clone)]
struct Callback(Arc<dyn Fn() + Send + Sync>);

impl Work for Callback {
    fn issue(&self) -> Box<dyn Execution> {
        Box::new(self.clone())
    }
}

impl Execution for Callback {
    fn start(self: Box<Self>, done: Done) {
        context::as_callback(|| (self.0)());
        drop(self);
        done.finish(CuResult::Success);
    }
}

/// What a program passes along for its own function. Whether that may cross threads is the
/// program's to know.
#[derive(Clone, Copy)]
struct UserData(*mut c_void);

// SAFETY: the pointer is only handed back to the program's function, which CUDA calls on other
// threads too.
unsafe impl Send for UserData {}
// SAFETY: as above.
unsafe impl Sync for UserData {}

impl UserData {
    /// Keeps closures from capturing the bare pointer.
    fn get(self) -> *mut c_void {
        self.0
    }
}

/// Enqueues a call of the program's `function`.
///
/// # Safety
///
/// It may be called with `user_data` from another thread, once a launch.
pub(super) unsafe fn launch_host(
    stream: &Arc<Stream>,
    function: CuHostFn,
    user_data: *mut c_void,
) -> Result<(), CuResult> {
    let function = function.ok_or(CuResult::InvalidValue)?;
    let data = UserData(user_data);
    // SAFETY: as the caller promises.
    let run = move || unsafe { function(data.get()) };
    stream.submit(Arc::new(Callback(Arc::new(run))), Label::Host)
}

/// A callback that is told how the stream fared, and is called even if it failed.
struct Told {
    function: unsafe extern "C" fn(CuStream, CuResult, *mut c_void),
    handle: CuStream,
    context: Arc<Context>,
    data: UserData,
    called: bool,
}

impl Told {
    fn call(&mut self) {
        if !self.called {
            self.called = true;
            let status = self.context.failure();
            // SAFETY: who enqueued it promised that it may be called from another thread.
            context::as_callback(|| unsafe {
                (self.function)(self.handle, status, self.data.get());
            });
        }
    }
}

impl Execution for Told {
    fn start(mut self: Box<Self>, done: Done) {
        self.call();
        drop(self);
        done.finish(CuResult::Success);
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.call();
    }
}

/// Enqueues a call of the program's `callback` on a stream that is not being captured.
///
/// # Safety
///
/// It may be called with `user_data` from another thread, once.
pub(super) unsafe fn add_callback(
    stream: &Arc<Stream>,
    handle: CuStream,
    callback: CuStreamCallback,
    user_data: *mut c_void,
) -> Result<(), CuResult> {
    let function = callback.ok_or(CuResult::InvalidValue)?;
    stream.context.check()?;
    stream.push(super::stream::Item::Run(Box::new(Told {
        function,
        handle,
        context: stream.context.clone(),
        data: UserData(user_data),
        called: false,
    })));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_holds_parameters_at_their_alignment() {
        let sizes = [1, 2, 3, 4, 8, 12, 16, 0];
        let alignments = sizes.map(alignment);
        assert_eq!(alignments, [1, 2, 1, 4, 8, 4, 8, 1]);
    }
}
