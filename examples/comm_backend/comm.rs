//! A small communication backend: one rank's communicator, its stream, and typed buffers.
//!
//! Nothing in it hangs for good: the communicator is non-blocking, each wait has a deadline, and a
//! communicator that is dropped is aborted. Nothing in it waits for the device either, so that ranks may
//! share one: memory comes and goes in the order of the stream.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use metrale_gpu_sys::cuda::*;
use metrale_gpu_sys::nccl::*;

/// A type that NCCL can reduce; every pattern of its bits is a value.
pub trait Element: Copy + Default {
    const DATATYPE: NcclDataType;
}

macro_rules! elements {
    ($($rust:ty => $datatype:ident,)*) => {
        $(impl Element for $rust { const DATATYPE: NcclDataType = NcclDataType::$datatype; })*
    };
}

elements! {
    i8 => Int8, u8 => Uint8, i32 => Int32, u32 => Uint32, i64 => Int64, u64 => Uint64,
    f32 => Float32, f64 => Float64,
}

/// One rank's end of a communicator, and the stream that its work runs on.
pub struct Comm {
    comm: NcclComm,
    stream: CuStream,
    rank: i32,
    nranks: i32,
    timeout: Duration,
}

impl Comm {
    /// Joins the other ranks, which have the same `id`, on this thread and on `device`.
    ///
    /// An error if they have not all come within `timeout`, which holds for every later wait too.
    pub fn join(
        id: NcclUniqueId,
        rank: i32,
        nranks: i32,
        device: i32,
        timeout: Duration,
    ) -> Result<Self> {
        use_device(device)?;
        let mut joined = Self {
            comm: null_mut(),
            stream: create_stream()?,
            rank,
            nranks,
            timeout,
        };
        let config = NcclConfig::non_blocking();
        // SAFETY: the handle takes one communicator, and `config` is initialized.
        let result = unsafe { ncclCommInitRankConfig(&mut joined.comm, nranks, id, rank, &config) };
        joined.started(result, "ncclCommInitRankConfig")?;
        Ok(joined)
    }

    pub fn rank(&self) -> i32 {
        self.rank
    }

    pub fn nranks(&self) -> i32 {
        self.nranks
    }

    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Device memory that holds `values`.
    pub fn upload<T: Element>(&self, values: &[T]) -> Result<Buffer<'_, T>> {
        let bytes = size_of_val(values).max(1);
        let mut buffer = Buffer {
            comm: self,
            address: 0,
            len: values.len(),
            kind: PhantomData,
        };
        // SAFETY: `address` takes one address, and the new memory has room for all values.
        unsafe {
            check_cuda(
                cuMemAllocAsync(&mut buffer.address, bytes, self.stream),
                "cuMemAllocAsync",
            )?;
            memcpy_htod_async(buffer.address, values, self.stream)?;
        }
        Ok(buffer)
    }

    /// What a buffer holds once all work so far is done.
    pub fn download<T: Element>(&self, buffer: &Buffer<'_, T>) -> Result<Vec<T>> {
        self.wait()?;
        let mut values = vec![T::default(); buffer.len];
        // SAFETY: the buffer holds as many elements, and every pattern of bits is a value.
        unsafe { memcpy_dtoh_async(&mut values, buffer.address, self.stream)? };
        self.wait()?;
        Ok(values)
    }

    /// Reduces a buffer of every rank, in place.
    pub fn all_reduce<T: Element>(&self, buffer: &mut Buffer<'_, T>, op: NcclRedOp) -> Result<()> {
        let (p, len) = (buffer.ptr(), buffer.len);
        // SAFETY: the communicator is live and ready, and the buffer holds `len` elements.
        let result = unsafe { ncclAllReduce(p, p, len, T::DATATYPE, op, self.comm, self.stream) };
        self.started(result, "ncclAllReduce")
    }

    /// Overwrites the buffer of every rank with that of `root`.
    pub fn broadcast<T: Element>(&self, buffer: &mut Buffer<'_, T>, root: i32) -> Result<()> {
        let (p, len) = (buffer.ptr(), buffer.len);
        // SAFETY: as for all_reduce.
        let result = unsafe { ncclBroadcast(p, p, len, T::DATATYPE, root, self.comm, self.stream) };
        self.started(result, "ncclBroadcast")
    }

    /// Sends a buffer to `peer`, which receives one of the same length.
    pub fn send<T: Element>(&self, buffer: &Buffer<'_, T>, peer: i32) -> Result<()> {
        // SAFETY: as for all_reduce.
        let result = unsafe {
            ncclSend(
                buffer.ptr(),
                buffer.len,
                T::DATATYPE,
                peer,
                self.comm,
                self.stream,
            )
        };
        self.started(result, "ncclSend")
    }

    /// Receives a buffer from `peer`.
    pub fn recv<T: Element>(&self, buffer: &mut Buffer<'_, T>, peer: i32) -> Result<()> {
        // SAFETY: as for all_reduce.
        let result = unsafe {
            ncclRecv(
                buffer.ptr(),
                buffer.len,
                T::DATATYPE,
                peer,
                self.comm,
                self.stream,
            )
        };
        self.started(result, "ncclRecv")
    }

    /// Sends and receives at once, which neither order of [`Comm::send`] and [`Comm::recv`] does.
    pub fn exchange<T: Element>(
        &self,
        send: &Buffer<'_, T>,
        to: i32,
        recv: &mut Buffer<'_, T>,
        from: i32,
    ) -> Result<()> {
        // SAFETY: as for all_reduce. The group is ended whatever the calls in it say: it would stay open
        // otherwise, and put off all that this thread calls later.
        let (sent, received, ended) = unsafe {
            check_nccl(ncclGroupStart(), "ncclGroupStart")?;
            let sent = ncclSend(
                send.ptr(),
                send.len,
                T::DATATYPE,
                to,
                self.comm,
                self.stream,
            );
            let received = ncclRecv(
                recv.ptr(),
                recv.len,
                T::DATATYPE,
                from,
                self.comm,
                self.stream,
            );
            (sent, received, ncclGroupEnd())
        };
        check_started(sent, "ncclSend")?;
        check_started(received, "ncclRecv")?;
        self.started(ended, "ncclGroupEnd")
    }

    /// Waits until all work so far is done, but no longer than the deadline.
    pub fn wait(&self) -> Result<()> {
        let start = Instant::now();
        while !stream_ready(self.stream)? {
            self.ready()?;
            ensure!(
                start.elapsed() < self.timeout,
                "the work did not end within {:?}: a peer is missing",
                self.timeout
            );
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Leaves in peace, together with the other ranks.
    pub fn close(mut self) -> Result<()> {
        self.wait()?;
        // SAFETY: the communicator is live and idle.
        let result = unsafe { ncclCommFinalize(self.comm) };
        self.started(result, "ncclCommFinalize")?;
        let comm = std::mem::replace(&mut self.comm, null_mut());
        // SAFETY: finalized, and nothing knows it any more.
        check_nccl(unsafe { ncclCommDestroy(comm) }, "ncclCommDestroy")
    }

    /// Waits until a call has done its part on the host, which must be before the next call.
    fn started(&self, result: NcclResult, call: &str) -> Result<()> {
        check_started(result, call)?;
        self.ready()
    }

    fn ready(&self) -> Result<()> {
        // SAFETY: the communicator is live, and this thread's own.
        unsafe { wait_ready(self.comm, self.timeout) }
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        // SAFETY: null, or a communicator in whatever state that nothing uses afterwards. Work that waits
        // for a peer ends by this.
        unsafe { ncclCommAbort(self.comm) };
        destroy_stream(self.stream);
    }
}

/// Elements in the memory of a communicator's device.
pub struct Buffer<'a, T> {
    comm: &'a Comm,
    address: CuDevicePtr,
    len: usize,
    kind: PhantomData<T>,
}

impl<T> Buffer<'_, T> {
    fn ptr(&self) -> *mut c_void {
        self.address as *mut c_void
    }
}

impl<T> Drop for Buffer<'_, T> {
    fn drop(&mut self) {
        if self.address != 0 {
            // SAFETY: allocated once, and freed behind all work that used it.
            let _ = unsafe { cuMemFreeAsync(self.address, self.comm.stream) };
        }
    }
}

/// Runs `work` on `nranks` ranks, each a thread of this process, over the devices in turn.
pub fn run<R: Send>(
    nranks: i32,
    timeout: Duration,
    work: impl Fn(&mut Comm) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    init()?;
    let (id, devices) = (unique_id()?, device_count()?);
    ensure!(devices > 0, "the driver sees no GPU");
    let rank = |rank: i32| -> Result<R> {
        let mut comm = Comm::join(id, rank, nranks, rank % devices, timeout)?;
        let result = work(&mut comm)?;
        comm.close()?;
        Ok(result)
    };
    std::thread::scope(|scope| {
        let rank = &rank;
        let ranks: Vec<_> = (0..nranks)
            .map(|number| scope.spawn(move || rank(number)))
            .collect();
        let mut results = Vec::new();
        for rank in ranks {
            match rank.join() {
                Ok(result) => results.push(result?),
                Err(_) => bail!("a rank panicked"),
            }
        }
        Ok(results)
    })
}
