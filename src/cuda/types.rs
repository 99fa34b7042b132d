//! The types, flags and constants that the declared driver functions use, in the order of `cuda.h`.

use std::ffi::{c_ulonglong, c_void};
use std::fmt;

use crate::bind::c_enum;

/// The release of `cuda.h` that these declarations follow, as
/// [`driver_version`](super::driver_version) counts. Older drivers serve as well, function by
/// function: see the `Since` lines.
pub const CUDA_VERSION: i32 = 13050;

/// An address in device memory, or any address under unified addressing.
#[doc(alias = "CUdeviceptr")]
pub type CuDevicePtr = u64;

/// A device: small numbers from 0 in the order that `CUDA_VISIBLE_DEVICES` leaves.
#[doc(alias = "CUdevice")]
pub type CuDevice = i32;

/// A context: the state of a device in this process. 0 is none.
///
/// Each thread has its own current context, none at first. Driver calls may be made on any number
/// of threads at once; those that create or allocate work on the thread's current context, so two
/// threads that share a device set the same one.
#[doc(alias = "CUcontext")]
pub type CuContext = u64;

/// A module of loaded device code.
#[doc(alias = "CUmodule")]
pub type CuModule = u64;

/// A kernel of a module.
#[doc(alias = "CUfunction")]
pub type CuFunction = u64;

/// An event: a mark in a stream that others can wait for.
///
/// The driver does not recognize a destroyed event: using one crashes the process.
#[doc(alias = "CUevent")]
pub type CuEvent = u64;

/// A stream: a queue whose work runs in order. 0 is the legacy stream, as [`CU_STREAM_LEGACY`].
///
/// The driver does not recognize a destroyed stream: using one crashes the process.
#[doc(alias = "CUstream")]
pub type CuStream = u64;

/// A graph: work that was captured or built and can be made executable.
///
/// The driver does not lock graphs: two threads must not use the same one at once.
#[doc(alias = "CUgraph")]
pub type CuGraph = u64;

/// One piece of work in a graph.
#[doc(alias = "CUgraphNode")]
pub type CuGraphNode = u64;

/// A graph made executable. Two threads must not use the same one at once.
#[doc(alias = "CUgraphExec")]
pub type CuGraphExec = u64;

/// A pool that stream-ordered allocations come from.
///
/// Since CUDA 11.2.
#[doc(alias = "CUmemoryPool")]
pub type CuMemoryPool = u64;

/// A green context: a part of a device's resources.
///
/// Since CUDA 12.4.
#[doc(alias = "CUgreenCtx")]
pub type CuGreenCtx = u64;

/// The identity of a device, the same in every process and after a restart.
#[doc(alias = "CUuuid")]
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CuUuid {
    /// The 16 bytes, in the order in which they are written out.
    pub bytes: [u8; 16],
}

/// The usual form, `01234567-89ab-cdef-0123-456789abcdef`; `nvidia-smi` writes `GPU-` before it.
impl fmt::Display for CuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.bytes.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for CuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CuUuid({self})")
    }
}

/// Flag of `cuStreamAttachMemAsync`: any stream of any device may use the memory.
pub const CU_MEM_ATTACH_GLOBAL: u32 = 0x1;
/// Flag of `cuStreamAttachMemAsync`: the host uses the memory, no device does.
pub const CU_MEM_ATTACH_HOST: u32 = 0x2;
/// Flag of `cuStreamAttachMemAsync`: of all streams, only this one uses the memory.
pub const CU_MEM_ATTACH_SINGLE: u32 = 0x4;

/// Context flag: the driver chooses how a thread waits (the default).
pub const CU_CTX_SCHED_AUTO: u32 = 0x00;
/// Context flag: a waiting thread spins. Lowest latency, one processor busy.
pub const CU_CTX_SCHED_SPIN: u32 = 0x01;
/// Context flag: a waiting thread yields to others between looks.
pub const CU_CTX_SCHED_YIELD: u32 = 0x02;
/// Context flag: a waiting thread sleeps until it is woken.
pub const CU_CTX_SCHED_BLOCKING_SYNC: u32 = 0x04;
/// The bits of the four ways to wait.
pub const CU_CTX_SCHED_MASK: u32 = 0x07;
/// Context flag without effect since CUDA 11.0: pinned memory can always be mapped.
pub const CU_CTX_MAP_HOST: u32 = 0x08;
/// Context flag: local memory is not shrunk after a launch. Deprecated: always so now.
pub const CU_CTX_LMEM_RESIZE_TO_MAX: u32 = 0x10;
/// Context flag: an exception in this context writes a core dump.
///
/// Since CUDA 12.1.
pub const CU_CTX_COREDUMP_ENABLE: u32 = 0x20;
/// Context flag: a core dump can be asked for through a pipe.
///
/// Since CUDA 12.1.
pub const CU_CTX_USER_COREDUMP_ENABLE: u32 = 0x40;
/// Context flag: synchronous copies and sets always wait until they are done.
///
/// Since CUDA 12.1.
pub const CU_CTX_SYNC_MEMOPS: u32 = 0x80;
/// The bits of all context flags that this release knows.
pub const CU_CTX_FLAGS_MASK: u32 = 0xFF;

/// Stream flag: a blocking stream, which and the legacy stream wait for each other.
pub const CU_STREAM_DEFAULT: u32 = 0x0;
/// Stream flag: a stream that does not wait for the legacy stream, nor that for it.
pub const CU_STREAM_NON_BLOCKING: u32 = 0x1;

/// The legacy stream of the current context, which all blocking streams wait for and which waits
/// for all of them.
pub const CU_STREAM_LEGACY: CuStream = 0x1;
/// The calling thread's own stream in the current context. A blocking stream.
pub const CU_STREAM_PER_THREAD: CuStream = 0x2;

/// Event flag: an event that takes times, waited for as the context's flags say.
pub const CU_EVENT_DEFAULT: u32 = 0x0;
/// Event flag: a thread that synchronizes with the event sleeps instead of spinning.
pub const CU_EVENT_BLOCKING_SYNC: u32 = 0x1;
/// Event flag: no time is taken, which makes the event cheaper.
pub const CU_EVENT_DISABLE_TIMING: u32 = 0x2;
/// Event flag: other processes may open the event. Refused (`InvalidValue`) without
/// [`CU_EVENT_DISABLE_TIMING`].
pub const CU_EVENT_INTERPROCESS: u32 = 0x4;

/// Flag of `cuEventRecordWithFlags`: as `cuEventRecord`.
pub const CU_EVENT_RECORD_DEFAULT: u32 = 0x0;
/// Flag of `cuEventRecordWithFlags`: a captured record becomes a node that records the event at
/// each launch. Refused outside of a capture.
pub const CU_EVENT_RECORD_EXTERNAL: u32 = 0x1;

/// Flag of `cuStreamWaitEvent`: an ordinary wait.
pub const CU_EVENT_WAIT_DEFAULT: u32 = 0x0;
/// Flag of `cuStreamWaitEvent`: a captured wait becomes a node that waits for the event at each
/// launch. Refused outside of a capture.
pub const CU_EVENT_WAIT_EXTERNAL: u32 = 0x1;

/// Wait until the word minus the value is 0 or more, both signed, so that it works across
/// wraparound.
pub const CU_STREAM_WAIT_VALUE_GEQ: u32 = 0x0;
/// Wait until the word equals the value.
pub const CU_STREAM_WAIT_VALUE_EQ: u32 = 0x1;
/// Wait until the word and the value have a set bit in common.
pub const CU_STREAM_WAIT_VALUE_AND: u32 = 0x2;
/// Wait until some bit is clear in both. Ask [`CuDeviceAttribute::CanUseStreamWaitValueNor`] first.
pub const CU_STREAM_WAIT_VALUE_NOR: u32 = 0x3;
/// Added to one of the four: after the wait, make writes from other devices visible that arrived
/// before the word did. Ask [`CuDeviceAttribute::CanFlushRemoteWrites`] first.
pub const CU_STREAM_WAIT_VALUE_FLUSH: u32 = 1 << 30;

/// Write after a memory barrier, so that what the stream wrote before is seen before the word.
pub const CU_STREAM_WRITE_VALUE_DEFAULT: u32 = 0x0;
/// Write without the barrier. The functions declared here, the second form, do not take it.
pub const CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER: u32 = 0x1;

/// Operations for `cuStreamBatchMemOp_v2`. Opaque: a union of 48 bytes, aligned to 8, in CUDA 13.
#[doc(alias = "CUstreamBatchMemOpParams")]
#[repr(C)]
pub struct CuStreamBatchMemOpParams {
    _opaque: [u8; 0],
}

/// Flag of `cuStreamUpdateCaptureDependencies_v2`: add to the nodes that the next one depends on.
pub const CU_STREAM_ADD_CAPTURE_DEPENDENCIES: u32 = 0x0;
/// Flag of `cuStreamUpdateCaptureDependencies_v2`: replace the nodes that the next one depends on.
pub const CU_STREAM_SET_CAPTURE_DEPENDENCIES: u32 = 0x1;

c_enum! {
    /// What can be asked about a device; each is answered by an `int`.
    ///
    /// A driver older than an attribute answers `InvalidValue`. `Since` is given from CUDA 11.8 on.
    pub enum "CUdevice_attribute" as CuDeviceAttribute {
        /// Threads that one block may have.
        "CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK" as MaxThreadsPerBlock = 1,
        /// Threads that a block may have in x.
        "CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X" as MaxBlockDimX = 2,
        /// Threads that a block may have in y.
        "CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y" as MaxBlockDimY = 3,
        /// Threads that a block may have in z.
        "CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z" as MaxBlockDimZ = 4,
        /// Blocks that a grid may have in x.
        "CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X" as MaxGridDimX = 5,
        /// Blocks that a grid may have in y.
        "CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y" as MaxGridDimY = 6,
        /// Blocks that a grid may have in z.
        "CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z" as MaxGridDimZ = 7,
        /// Shared memory that a block may use without opting in for more, in bytes.
        "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK" as MaxSharedMemoryPerBlock = 8,
        /// Constant memory, in bytes.
        "CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY" as TotalConstantMemory = 9,
        /// Threads in a warp.
        "CU_DEVICE_ATTRIBUTE_WARP_SIZE" as WarpSize = 10,
        /// Largest pitch that copies take, in bytes.
        "CU_DEVICE_ATTRIBUTE_MAX_PITCH" as MaxPitch = 11,
        /// Registers of 32 bits that a block may use.
        "CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK" as MaxRegistersPerBlock = 12,
        /// Typical clock of the multiprocessors, in kHz.
        "CU_DEVICE_ATTRIBUTE_CLOCK_RATE" as ClockRate = 13,
        /// Alignment of textures, in bytes.
        "CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT" as TextureAlignment = 14,
        /// 1 if copies may run beside kernels. Deprecated: ask [`Self::AsyncEngineCount`].
        "CU_DEVICE_ATTRIBUTE_GPU_OVERLAP" as GpuOverlap = 15,
        /// Multiprocessors of the device.
        "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT" as MultiprocessorCount = 16,
        /// 1 if kernels have a time limit.
        "CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT" as KernelExecTimeout = 17,
        /// 1 if the device shares the host's memory.
        "CU_DEVICE_ATTRIBUTE_INTEGRATED" as Integrated = 18,
        /// 1 if host memory can be mapped into the device's address space.
        "CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY" as CanMapHostMemory = 19,
        /// Who may use the device: a [`CuComputeMode`].
        "CU_DEVICE_ATTRIBUTE_COMPUTE_MODE" as ComputeMode = 20,
        /// Largest 1D texture: width.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH" as MaximumTexture1dWidth = 21,
        /// Largest 2D texture: width.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH" as MaximumTexture2dWidth = 22,
        /// Largest 2D texture: height.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT" as MaximumTexture2dHeight = 23,
        /// Largest 3D texture: width.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH" as MaximumTexture3dWidth = 24,
        /// Largest 3D texture: height.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT" as MaximumTexture3dHeight = 25,
        /// Largest 3D texture: depth.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH" as MaximumTexture3dDepth = 26,
        /// Largest layered 2D texture: width.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH" as MaximumTexture2dLayeredWidth = 27,
        /// Largest layered 2D texture: height.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT" as MaximumTexture2dLayeredHeight = 28,
        /// Largest layered 2D texture: layers.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS" as MaximumTexture2dLayeredLayers = 29,
        /// Alignment of surfaces, in bytes.
        "CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT" as SurfaceAlignment = 30,
        /// 1 if several kernels may run at once.
        "CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS" as ConcurrentKernels = 31,
        /// 1 if ECC is on.
        "CU_DEVICE_ATTRIBUTE_ECC_ENABLED" as EccEnabled = 32,
        /// The bus in the device's PCI address.
        "CU_DEVICE_ATTRIBUTE_PCI_BUS_ID" as PciBusId = 33,
        /// The slot in the device's PCI address, not a model number.
        "CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID" as PciDeviceId = 34,
        /// 1 if the device runs under the TCC driver model of Windows.
        "CU_DEVICE_ATTRIBUTE_TCC_DRIVER" as TccDriver = 35,
        /// Peak clock of the memory, in kHz.
        "CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE" as MemoryClockRate = 36,
        /// Width of the memory bus, in bits.
        "CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH" as GlobalMemoryBusWidth = 37,
        /// L2 cache, in bytes.
        "CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE" as L2CacheSize = 38,
        /// Threads that a multiprocessor may hold.
        "CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR" as MaxThreadsPerMultiprocessor = 39,
        /// Copy engines.
        "CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT" as AsyncEngineCount = 40,
        /// 1 if host and device share one address space.
        "CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING" as UnifiedAddressing = 41,
        /// Largest layered 1D texture: width.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH" as MaximumTexture1dLayeredWidth = 42,
        /// Largest layered 1D texture: layers.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS" as MaximumTexture1dLayeredLayers = 43,
        /// Deprecated, without a replacement.
        "CU_DEVICE_ATTRIBUTE_CAN_TEX2D_GATHER" as CanTex2dGather = 44,
        /// Largest 2D texture for gathers: width.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_WIDTH" as MaximumTexture2dGatherWidth = 45,
        /// Largest 2D texture for gathers: height.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_HEIGHT" as MaximumTexture2dGatherHeight = 46,
        /// Largest 3D texture in the other admissible shape: width.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE" as MaximumTexture3dWidthAlternate = 47,
        /// Largest 3D texture in the other admissible shape: height.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE" as MaximumTexture3dHeightAlternate = 48,
        /// Largest 3D texture in the other admissible shape: depth.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE" as MaximumTexture3dDepthAlternate = 49,
        /// The domain in the device's PCI address.
        "CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID" as PciDomainId = 50,
        /// Alignment of a texture's pitch, in bytes.
        "CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT" as TexturePitchAlignment = 51,
        /// Largest cubemap texture: width and height.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_WIDTH" as MaximumTexturecubemapWidth = 52,
        /// Largest layered cubemap texture: width and height.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH" as MaximumTexturecubemapLayeredWidth = 53,
        /// Largest layered cubemap texture: layers.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS" as MaximumTexturecubemapLayeredLayers = 54,
        /// Largest 1D surface: width.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_WIDTH" as MaximumSurface1dWidth = 55,
        /// Largest 2D surface: width.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_WIDTH" as MaximumSurface2dWidth = 56,
        /// Largest 2D surface: height.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_HEIGHT" as MaximumSurface2dHeight = 57,
        /// Largest 3D surface: width.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_WIDTH" as MaximumSurface3dWidth = 58,
        /// Largest 3D surface: height.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_HEIGHT" as MaximumSurface3dHeight = 59,
        /// Largest 3D surface: depth.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_DEPTH" as MaximumSurface3dDepth = 60,
        /// Largest layered 1D surface: width.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_WIDTH" as MaximumSurface1dLayeredWidth = 61,
        /// Largest layered 1D surface: layers.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_LAYERS" as MaximumSurface1dLayeredLayers = 62,
        /// Largest layered 2D surface: width.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_WIDTH" as MaximumSurface2dLayeredWidth = 63,
        /// Largest layered 2D surface: height.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_HEIGHT" as MaximumSurface2dLayeredHeight = 64,
        /// Largest layered 2D surface: layers.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_LAYERS" as MaximumSurface2dLayeredLayers = 65,
        /// Largest cubemap surface: width.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_WIDTH" as MaximumSurfacecubemapWidth = 66,
        /// Largest layered cubemap surface: width.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH" as MaximumSurfacecubemapLayeredWidth = 67,
        /// Largest layered cubemap surface: layers.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS" as MaximumSurfacecubemapLayeredLayers = 68,
        /// Largest linear 1D texture. Deprecated: CUDA has a function for it.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH" as MaximumTexture1dLinearWidth = 69,
        /// Largest linear 2D texture: width.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH" as MaximumTexture2dLinearWidth = 70,
        /// Largest linear 2D texture: height.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT" as MaximumTexture2dLinearHeight = 71,
        /// Largest linear 2D texture: pitch, in bytes.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH" as MaximumTexture2dLinearPitch = 72,
        /// Largest mipmapped 2D texture: width.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH" as MaximumTexture2dMipmappedWidth = 73,
        /// Largest mipmapped 2D texture: height.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT" as MaximumTexture2dMipmappedHeight = 74,
        /// Compute capability: the number before the point.
        "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR" as ComputeCapabilityMajor = 75,
        /// Compute capability: the number after the point.
        "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR" as ComputeCapabilityMinor = 76,
        /// Largest mipmapped 1D texture: width.
        "CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH" as MaximumTexture1dMipmappedWidth = 77,
        /// 1 if streams may have priorities.
        "CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED" as StreamPrioritiesSupported = 78,
        /// 1 if global memory can be cached in L1.
        "CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED" as GlobalL1CacheSupported = 79,
        /// 1 if local memory can be cached in L1.
        "CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED" as LocalL1CacheSupported = 80,
        /// Shared memory of a multiprocessor, in bytes.
        "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR" as MaxSharedMemoryPerMultiprocessor = 81,
        /// Registers of 32 bits of a multiprocessor.
        "CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR" as MaxRegistersPerMultiprocessor = 82,
        /// 1 if managed memory can be allocated.
        "CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY" as ManagedMemory = 83,
        /// 1 if the device sits on a board with several.
        "CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD" as MultiGpuBoard = 84,
        /// A number that devices of one board have in common.
        "CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID" as MultiGpuBoardGroupId = 85,
        /// 1 if the link to the host carries all native atomics.
        "CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED" as HostNativeAtomicSupported = 86,
        /// How many times faster single precision is than double.
        "CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO" as SingleToDoublePrecisionPerfRatio = 87,
        /// 1 if the device reads and writes pageable host memory without registration.
        "CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS" as PageableMemoryAccess = 88,
        /// 1 if host and device may use managed memory at the same time.
        "CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS" as ConcurrentManagedAccess = 89,
        /// 1 if running kernels can be preempted.
        "CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED" as ComputePreemptionSupported = 90,
        /// 1 if registered host memory has the same address on the device.
        "CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM" as CanUseHostPointerForRegisteredMem = 91,
        /// 1 if the first form of the stream memory operations works. Deprecated with it. Before,
        /// its name lacked the `_V1`.
        ///
        /// Since CUDA 12.0.
        "CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1" as CanUseStreamMemOpsV1 = 92,
        /// 1 if the first form of the stream memory operations takes 64 bits. Deprecated with it.
        /// Before, its name lacked the `_V1`.
        ///
        /// Since CUDA 12.0.
        "CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1" as CanUse64BitStreamMemOpsV1 = 93,
        /// 1 if the first form of the stream memory operations takes [`CU_STREAM_WAIT_VALUE_NOR`].
        /// Deprecated with it. Before, its name lacked the `_V1`.
        ///
        /// Since CUDA 12.0.
        "CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1" as CanUseStreamWaitValueNorV1 = 94,
        /// 1 if cooperative kernels can be launched.
        "CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH" as CooperativeLaunch = 95,
        /// 1 if cooperative kernels can span devices. Deprecated with that launch.
        "CU_DEVICE_ATTRIBUTE_COOPERATIVE_MULTI_DEVICE_LAUNCH" as CooperativeMultiDeviceLaunch = 96,
        /// Shared memory that a block may use when its kernel opts in, in bytes.
        "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN" as MaxSharedMemoryPerBlockOptin = 97,
        /// 1 if [`CU_STREAM_WAIT_VALUE_FLUSH`] works.
        "CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES" as CanFlushRemoteWrites = 98,
        /// 1 if host memory can be registered.
        "CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED" as HostRegisterSupported = 99,
        /// 1 if the device reaches pageable memory through the host's page tables.
        "CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES" as PageableMemoryAccessUsesHostPageTables = 100,
        /// 1 if the host reads managed memory on the device where it lies.
        "CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST" as DirectManagedMemAccessFromHost = 101,
        /// 1 if memory can be reserved, created and mapped in separate steps.
        "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED" as VirtualMemoryManagementSupported = 102,
        /// 1 if memory can be shared by a file descriptor.
        "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED" as HandleTypePosixFileDescriptorSupported = 103,
        /// 1 if memory can be shared by a Windows NT handle.
        "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_HANDLE_SUPPORTED" as HandleTypeWin32HandleSupported = 104,
        /// 1 if memory can be shared by a Windows KMT handle.
        "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_KMT_HANDLE_SUPPORTED" as HandleTypeWin32KmtHandleSupported = 105,
        /// Blocks that a multiprocessor may hold.
        "CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR" as MaxBlocksPerMultiprocessor = 106,
        /// 1 if memory can be compressed.
        "CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED" as GenericCompressionSupported = 107,
        /// L2 cache that can be set aside for persisting lines, in bytes.
        "CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE" as MaxPersistingL2CacheSize = 108,
        /// Largest window of an access policy, in bytes.
        "CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE" as MaxAccessPolicyWindowSize = 109,
        /// 1 if memory created for mapping can be made for GPUDirect RDMA.
        "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED" as GpuDirectRdmaWithCudaVmmSupported = 110,
        /// Shared memory that the driver keeps of each block's, in bytes.
        "CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK" as ReservedSharedMemoryPerBlock = 111,
        /// 1 if arrays may be sparse.
        "CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED" as SparseCudaArraySupported = 112,
        /// 1 if [`CU_MEMHOSTREGISTER_READ_ONLY`] works.
        "CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED" as ReadOnlyHostRegisterSupported = 113,
        /// 1 if external timeline semaphores can be used.
        "CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED" as TimelineSemaphoreInteropSupported = 114,
        /// 1 if `cuMemAllocAsync` and memory pools work.
        "CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED" as MemoryPoolsSupported = 115,
        /// 1 if other PCIe devices can reach the memory by GPUDirect RDMA.
        "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED" as GpuDirectRdmaSupported = 116,
        /// Which ways there are to flush GPUDirect RDMA writes, as bits.
        "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS" as GpuDirectRdmaFlushWritesOptions = 117,
        /// For whom GPUDirect RDMA writes arrive in order without a flush: 0 none, 100 this device,
        /// 200 all devices.
        "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING" as GpuDirectRdmaWritesOrdering = 118,
        /// Which handles a memory pool can be shared by, as bits.
        "CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES" as MempoolSupportedHandleTypes = 119,
        /// 1 if kernels can be launched in clusters of blocks.
        ///
        /// Since CUDA 11.8.
        "CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH" as ClusterLaunch = 120,
        /// 1 if arrays can be mapped later than created.
        "CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED" as DeferredMappingCudaArraySupported = 121,
        /// 1 if `cuStreamWaitValue64_v2` and `cuStreamWriteValue64_v2` work.
        "CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS" as CanUse64BitStreamMemOps = 122,
        /// 1 if [`CU_STREAM_WAIT_VALUE_NOR`] works.
        "CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR" as CanUseStreamWaitValueNor = 123,
        /// 1 if device memory can be shared as a dma-buf.
        "CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED" as DmaBufSupported = 124,
        /// 1 if events can be shared with other processes.
        ///
        /// Since CUDA 12.0.
        "CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED" as IpcEventSupported = 125,
        /// Memory synchronization domains.
        ///
        /// Since CUDA 12.0.
        "CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT" as MemSyncDomainCount = 126,
        /// 1 if kernels can use tensor maps.
        ///
        /// Since CUDA 12.0.
        "CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED" as TensorMapAccessSupported = 127,
        /// 1 if memory can be shared by a fabric handle, across nodes.
        ///
        /// Since CUDA 12.3.
        "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED" as HandleTypeFabricSupported = 128,
        /// 1 if function pointers are the same on all devices.
        ///
        /// Since CUDA 12.0.
        "CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS" as UnifiedFunctionPointers = 129,
        /// Whether the device's memory is a NUMA node of the host: 0 no, 1 yes.
        ///
        /// Since CUDA 12.2.
        "CU_DEVICE_ATTRIBUTE_NUMA_CONFIG" as NumaConfig = 130,
        /// The NUMA node that the device's memory is.
        ///
        /// Since CUDA 12.2.
        "CU_DEVICE_ATTRIBUTE_NUMA_ID" as NumaId = 131,
        /// 1 if the switch can multicast and reduce.
        ///
        /// Since CUDA 12.1.
        "CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED" as MulticastSupported = 132,
        /// 1 if contexts on this device are shared through MPS.
        ///
        /// Since CUDA 12.3.
        "CU_DEVICE_ATTRIBUTE_MPS_ENABLED" as MpsEnabled = 133,
        /// The host's NUMA node nearest to the device; -1 on a host without NUMA.
        ///
        /// Since CUDA 12.2.
        "CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID" as HostNumaId = 134,
        /// 1 if a context can share a D3D12 queue.
        ///
        /// Since CUDA 12.5.
        "CU_DEVICE_ATTRIBUTE_D3D12_CIG_SUPPORTED" as D3d12CigSupported = 135,
        /// Which formats the hardware decompresses, as bits.
        ///
        /// Since CUDA 12.8.
        "CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK" as MemDecompressAlgorithmMask = 136,
        /// Largest single decompression, in bytes.
        ///
        /// Since CUDA 12.8.
        "CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_MAXIMUM_LENGTH" as MemDecompressMaximumLength = 137,
        /// 1 if a context can share a Vulkan queue.
        ///
        /// Since CUDA 12.9.
        "CU_DEVICE_ATTRIBUTE_VULKAN_CIG_SUPPORTED" as VulkanCigSupported = 138,
        /// PCI device id and vendor id, 16 bits each.
        ///
        /// Since CUDA 12.8.
        "CU_DEVICE_ATTRIBUTE_GPU_PCI_DEVICE_ID" as GpuPciDeviceId = 139,
        /// PCI subsystem id and subsystem vendor id, 16 bits each.
        ///
        /// Since CUDA 12.8.
        "CU_DEVICE_ATTRIBUTE_GPU_PCI_SUBSYSTEM_ID" as GpuPciSubsystemId = 140,
        /// 1 if memory on a host NUMA node can be created and mapped.
        ///
        /// Since CUDA 12.9.
        "CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED" as HostNumaVirtualMemoryManagementSupported = 141,
        /// 1 if a memory pool can lie on a host NUMA node.
        ///
        /// Since CUDA 12.9.
        "CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED" as HostNumaMemoryPoolsSupported = 142,
        /// 1 if memory on a host NUMA node can be shared across nodes.
        ///
        /// Since CUDA 12.8.
        "CU_DEVICE_ATTRIBUTE_HOST_NUMA_MULTINODE_IPC_SUPPORTED" as HostNumaMultinodeIpcSupported = 143,
        /// 1 if a memory pool can lie on the host.
        ///
        /// Since CUDA 13.0.
        "CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED" as HostMemoryPoolsSupported = 144,
        /// 1 if memory on the host can be created and mapped.
        ///
        /// Since CUDA 13.0.
        "CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED" as HostVirtualMemoryManagementSupported = 145,
        /// 1 if pinned host memory can be shared as a dma-buf.
        ///
        /// Since CUDA 13.0.
        "CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED" as HostAllocDmaBufSupported = 146,
        /// 1 if the link to the host carries some native atomics only.
        ///
        /// Since CUDA 13.0.
        "CU_DEVICE_ATTRIBUTE_ONLY_PARTIAL_HOST_NATIVE_ATOMIC_SUPPORTED" as OnlyPartialHostNativeAtomicSupported = 147,
        /// 1 if stream memory operations can reduce atomically.
        ///
        /// Since CUDA 13.1.
        "CU_DEVICE_ATTRIBUTE_ATOMIC_REDUCTION_SUPPORTED" as AtomicReductionSupported = 148,
        /// Locality domains of the device.
        ///
        /// Since CUDA 13.4.
        "CU_DEVICE_ATTRIBUTE_LOCALITY_DOMAIN_COUNT" as LocalityDomainCount = 149,
        /// Oversized shared memory that a block may use, in bytes.
        ///
        /// Since CUDA 13.4.
        "CU_DEVICE_ATTRIBUTE_MAX_OVERSIZED_SHARED_MEMORY_PER_BLOCK" as MaxOversizedSharedMemoryPerBlock = 150,
        /// 1 if a stream can be captured into a D3D12 command list.
        ///
        /// Since CUDA 13.3.
        "CU_DEVICE_ATTRIBUTE_D3D12_CIG_STREAMS_SUPPORTED" as D3d12CigStreamsSupported = 151,
        /// 1 if a dma-buf of device memory can be mapped by the host.
        ///
        /// Since CUDA 13.3.
        "CU_DEVICE_ATTRIBUTE_DMA_BUF_MMAP_SUPPORTED" as DmaBufMmapSupported = 152,
        /// 1 if unicast logical endpoints work.
        ///
        /// Since CUDA 13.3.
        "CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_UNICAST_SUPPORTED" as LogicalEndpointUnicastSupported = 153,
        /// 1 if multicast logical endpoints work.
        ///
        /// Since CUDA 13.3.
        "CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_MULTICAST_SUPPORTED" as LogicalEndpointMulticastSupported = 154,
        /// 1 if counted operations work through logical endpoints.
        ///
        /// Since CUDA 13.3.
        "CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_COUNTED_OPS_SUPPORTED" as LogicalEndpointCountedOpsSupported = 155,
        /// 1 if the owning device can use its own unicast logical endpoint.
        ///
        /// Since CUDA 13.3.
        "CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_UNICAST_ACCESS_ON_OWNER_DEVICE_SUPPORTED" as LogicalEndpointUnicastAccessOnOwnerDeviceSupported = 156,
        /// Multiprocessors of each locality domain.
        ///
        /// Since CUDA 13.4.
        "CU_DEVICE_ATTRIBUTE_LOCALITY_DOMAIN_MULTIPROCESSOR_COUNT" as LocalityDomainMultiprocessorCount = 157,
        /// Which handles a logical endpoint can be shared by, as bits.
        ///
        /// Since CUDA 13.4.
        "CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_SUPPORTED_HANDLE_TYPES" as LogicalEndpointSupportedHandleTypes = 158,
        /// 1 if a stream can be captured into a Vulkan command buffer.
        ///
        /// Since CUDA 13.5.
        "CU_DEVICE_ATTRIBUTE_VULKAN_CIG_STREAMS_SUPPORTED" as VulkanCigStreamsSupported = 159,
        /// Contiguous memory that a large tensor map needs at least, in bytes; `i32::MAX` where
        /// that class does not matter.
        ///
        /// Since CUDA 13.5.
        "CU_DEVICE_ATTRIBUTE_TENSOR_MAP_LARGE_TENSOR_MIN_SIZE" as TensorMapLargeTensorMinSize = 160,
        /// 1 if GPUDirect RDMA reaches memory bound to a locality domain.
        ///
        /// Since CUDA 13.4.
        "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_LOCALIZED_MEMORY_SUPPORTED" as GpuDirectRdmaWithLocalizedMemorySupported = 161,
    }
}

#[allow(non_upper_case_globals)]
impl CuDeviceAttribute {
    /// The older name of [`Self::MaxSharedMemoryPerBlock`].
    #[doc(alias = "CU_DEVICE_ATTRIBUTE_SHARED_MEMORY_PER_BLOCK")]
    pub const SharedMemoryPerBlock: Self = Self(8);
    /// The older name of [`Self::MaxRegistersPerBlock`].
    #[doc(alias = "CU_DEVICE_ATTRIBUTE_REGISTERS_PER_BLOCK")]
    pub const RegistersPerBlock: Self = Self(12);
    /// The older name of [`Self::MaximumTexture2dLayeredWidth`].
    #[doc(alias = "CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_ARRAY_WIDTH")]
    pub const MaximumTexture2dArrayWidth: Self = Self(27);
    /// The older name of [`Self::MaximumTexture2dLayeredHeight`].
    #[doc(alias = "CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_ARRAY_HEIGHT")]
    pub const MaximumTexture2dArrayHeight: Self = Self(28);
    /// The older name of [`Self::MaximumTexture2dLayeredLayers`].
    #[doc(alias = "CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_ARRAY_NUMSLICES")]
    pub const MaximumTexture2dArrayNumslices: Self = Self(29);
    /// The older name of [`Self::VirtualMemoryManagementSupported`].
    #[doc(alias = "CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED")]
    pub const VirtualAddressManagementSupported: Self = Self(102);
}

c_enum! {
    /// What can be asked about an address.
    ///
    /// Every answer but the tokens' fits into a `u64`. Set it to 0 before: some are narrower.
    pub enum "CUpointer_attribute" as CuPointerAttribute {
        /// The context that the memory belongs to: a [`CuContext`].
        "CU_POINTER_ATTRIBUTE_CONTEXT" as Context = 1,
        /// Where the memory lies: a [`CuMemoryType`].
        "CU_POINTER_ATTRIBUTE_MEMORY_TYPE" as MemoryType = 2,
        /// The address by which kernels of the current context reach it: a [`CuDevicePtr`].
        "CU_POINTER_ATTRIBUTE_DEVICE_POINTER" as DevicePointer = 3,
        /// The address by which the host reaches it; `InvalidValue` where it cannot.
        "CU_POINTER_ATTRIBUTE_HOST_POINTER" as HostPointer = 4,
        /// The tokens for the kernel interface of GPUDirect RDMA: a `c_ulonglong`, then a `c_uint`.
        "CU_POINTER_ATTRIBUTE_P2P_TOKENS" as P2pTokens = 5,
        /// 1 if synchronous copies and sets on this memory always wait until they are done.
        "CU_POINTER_ATTRIBUTE_SYNC_MEMOPS" as SyncMemops = 6,
        /// A number that no other allocation of this process has or will have.
        "CU_POINTER_ATTRIBUTE_BUFFER_ID" as BufferId = 7,
        /// 1 for managed memory.
        "CU_POINTER_ATTRIBUTE_IS_MANAGED" as IsManaged = 8,
        /// The ordinal of the device that it was allocated or registered on, an `i32`.
        "CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL" as DeviceOrdinal = 9,
        /// 1 if it can be shared by the older kind of interprocess handle.
        "CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE" as IsLegacyCudaIpcCapable = 10,
        /// Start of the address range that it lies in: a [`CuDevicePtr`].
        "CU_POINTER_ATTRIBUTE_RANGE_START_ADDR" as RangeStartAddr = 11,
        /// Size of the address range that it lies in, in bytes.
        "CU_POINTER_ATTRIBUTE_RANGE_SIZE" as RangeSize = 12,
        /// 1 if memory is mapped there.
        "CU_POINTER_ATTRIBUTE_MAPPED" as Mapped = 13,
        /// Which handles the allocation may be exported as, as bits.
        "CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES" as AllowedHandleTypes = 14,
        /// 1 if GPUDirect RDMA can reach it.
        "CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE" as IsGpuDirectRdmaCapable = 15,
        /// How the current context's device may use it: 0 not at all, 1 read, 3 read and write.
        "CU_POINTER_ATTRIBUTE_ACCESS_FLAGS" as AccessFlags = 16,
        /// The pool that it came from: a [`CuMemoryPool`], 0 for none.
        "CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE" as MempoolHandle = 17,
        /// Size of the mapping that it lies in, in bytes.
        "CU_POINTER_ATTRIBUTE_MAPPING_SIZE" as MappingSize = 18,
        /// Start of the mapping that it lies in: a [`CuDevicePtr`].
        "CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR" as MappingBaseAddr = 19,
        /// A number of the physical allocation, unique in this process.
        "CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID" as MemoryBlockId = 20,
        /// 1 if the hardware can decompress from and into it.
        ///
        /// Since CUDA 12.8.
        "CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE" as IsHwDecompressCapable = 21,
        /// The locality domain that it is bound to, an `i32`; -1 for none.
        ///
        /// Since CUDA 13.4.
        "CU_POINTER_ATTRIBUTE_LOCALITY_DOMAIN_ORDINAL" as LocalityDomainOrdinal = 22,
    }
}

c_enum! {
    /// Where memory lies.
    pub enum "CUmemorytype" as CuMemoryType {
        /// Host memory.
        "CU_MEMORYTYPE_HOST" as Host = 1,
        /// Device memory.
        "CU_MEMORYTYPE_DEVICE" as Device = 2,
        /// A CUDA array.
        "CU_MEMORYTYPE_ARRAY" as Array = 3,
        /// Memory that host and device share.
        "CU_MEMORYTYPE_UNIFIED" as Unified = 4,
    }
}

c_enum! {
    /// How many processes may use a device; `nvidia-smi -c` sets it.
    pub enum "CUcomputemode" as CuComputeMode {
        /// Any number of processes.
        "CU_COMPUTEMODE_DEFAULT" as Default = 0,
        /// None.
        "CU_COMPUTEMODE_PROHIBITED" as Prohibited = 2,
        /// One process at a time.
        "CU_COMPUTEMODE_EXCLUSIVE_PROCESS" as ExclusiveProcess = 3,
    }
}

c_enum! {
    /// Options of `cuModuleLoadDataEx`; whole numbers and `f32` are passed in the place of a
    /// pointer, not behind it.
    ///
    /// `Since` is given from CUDA 11.8 on.
    pub enum "CUjit_option" as CuJitOption {
        /// Registers that a thread may use: `c_uint`.
        "CU_JIT_MAX_REGISTERS" as MaxRegisters = 0,
        /// Threads a block to compile for: `c_uint`; on return, those compiled for. Not with
        /// [`Self::Target`].
        "CU_JIT_THREADS_PER_BLOCK" as ThreadsPerBlock = 1,
        /// On return, the milliseconds that compiling and linking took: `f32`.
        "CU_JIT_WALL_TIME" as WallTime = 2,
        /// Where informational messages go: `*mut c_char`.
        "CU_JIT_INFO_LOG_BUFFER" as InfoLogBuffer = 3,
        /// Size of that buffer in bytes: `c_uint`; on return, the bytes written.
        "CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES" as InfoLogBufferSizeBytes = 4,
        /// Where error messages go: `*mut c_char`.
        "CU_JIT_ERROR_LOG_BUFFER" as ErrorLogBuffer = 5,
        /// Size of that buffer in bytes: `c_uint`; on return, the bytes written.
        "CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES" as ErrorLogBufferSizeBytes = 6,
        /// How much to optimize, 0 to 4 (the default): `c_uint`.
        "CU_JIT_OPTIMIZATION_LEVEL" as OptimizationLevel = 7,
        /// Compile for the current context's device (the default); takes no value.
        "CU_JIT_TARGET_FROM_CUCONTEXT" as TargetFromCucontext = 8,
        /// The architecture to compile for: `c_uint`, such as 90 for 9.0.
        "CU_JIT_TARGET" as Target = 9,
        /// What to prefer where no binary matches: `c_uint`, 0 PTX, 1 a compatible binary.
        "CU_JIT_FALLBACK_STRATEGY" as FallbackStrategy = 10,
        /// Whether to make debug information: `c_int`.
        "CU_JIT_GENERATE_DEBUG_INFO" as GenerateDebugInfo = 11,
        /// Whether the messages are verbose: `c_int`.
        "CU_JIT_LOG_VERBOSE" as LogVerbose = 12,
        /// Whether to make line number information: `c_int`.
        "CU_JIT_GENERATE_LINE_INFO" as GenerateLineInfo = 13,
        /// Caching in L1 (the compiler's `-dlcm`): `c_uint`, 0 default, 1 none, 2 all.
        "CU_JIT_CACHE_MODE" as CacheMode = 14,
        /// Deprecated; not to be used.
        "CU_JIT_NEW_SM3X_OPT" as NewSm3xOpt = 15,
        /// For NVIDIA's own use.
        "CU_JIT_FAST_COMPILE" as FastCompile = 16,
        /// Names of device variables to place at host addresses: an array of `*const c_char`.
        "CU_JIT_GLOBAL_SYMBOL_NAMES" as GlobalSymbolNames = 17,
        /// The host addresses for those names: an array of `*mut c_void`.
        "CU_JIT_GLOBAL_SYMBOL_ADDRESSES" as GlobalSymbolAddresses = 18,
        /// Entries in those two arrays: `c_uint`.
        "CU_JIT_GLOBAL_SYMBOL_COUNT" as GlobalSymbolCount = 19,
        /// Deprecated, for code of toolkits before 12.0: link-time optimization.
        "CU_JIT_LTO" as Lto = 20,
        /// Deprecated, for code of toolkits before 12.0: flush denormals to zero.
        "CU_JIT_FTZ" as Ftz = 21,
        /// Deprecated, for code of toolkits before 12.0: precise division.
        "CU_JIT_PREC_DIV" as PrecDiv = 22,
        /// Deprecated, for code of toolkits before 12.0: precise square root.
        "CU_JIT_PREC_SQRT" as PrecSqrt = 23,
        /// Deprecated, for code of toolkits before 12.0: fuse multiplications and additions.
        "CU_JIT_FMA" as Fma = 24,
        /// Deprecated, for code of toolkits before 12.0: kernels to keep.
        "CU_JIT_REFERENCED_KERNEL_NAMES" as ReferencedKernelNames = 25,
        /// Deprecated, for code of toolkits before 12.0: their number.
        "CU_JIT_REFERENCED_KERNEL_COUNT" as ReferencedKernelCount = 26,
        /// Deprecated, for code of toolkits before 12.0: variables to keep.
        "CU_JIT_REFERENCED_VARIABLE_NAMES" as ReferencedVariableNames = 27,
        /// Deprecated, for code of toolkits before 12.0: their number.
        "CU_JIT_REFERENCED_VARIABLE_COUNT" as ReferencedVariableCount = 28,
        /// Deprecated, for code of toolkits before 12.0: drop variables that device code does not
        /// use.
        "CU_JIT_OPTIMIZE_UNUSED_DEVICE_VARIABLES" as OptimizeUnusedDeviceVariables = 29,
        /// Without effect.
        ///
        /// Since CUDA 12.0.
        "CU_JIT_POSITION_INDEPENDENT_CODE" as PositionIndependentCode = 30,
        /// Blocks that should fit on a multiprocessor: `c_uint`. Needs
        /// [`Self::MaxThreadsPerBlock`].
        ///
        /// Since CUDA 12.3.
        "CU_JIT_MIN_CTA_PER_SM" as MinCtaPerSm = 31,
        /// The most threads that a block will have: `c_uint`.
        ///
        /// Since CUDA 12.4.
        "CU_JIT_MAX_THREADS_PER_BLOCK" as MaxThreadsPerBlock = 32,
        /// Whether these options win over directives in the PTX: `c_int`.
        ///
        /// Since CUDA 12.4.
        "CU_JIT_OVERRIDE_DIRECTIVE_VALUES" as OverrideDirectiveValues = 33,
        /// Threads that optimize: `c_uint`, 0 for one a processor.
        ///
        /// Since CUDA 13.0.
        "CU_JIT_SPLIT_COMPILE" as SplitCompile = 34,
        /// Threads that compile device code: `c_uint`, 0 for one a processor.
        ///
        /// Since CUDA 13.1.
        "CU_JIT_BINARY_LOADER_THREAD_COUNT" as BinaryLoaderThreadCount = 35,
    }
}

/// A function that a stream calls on the host.
///
/// It must not call CUDA (800, `NotPermitted`) or wait for work of the device, and it must not
/// unwind: a panic that leaves it aborts the process.
#[doc(alias = "CUhostFn")]
pub type CuHostFn = Option<unsafe extern "C" fn(user_data: *mut c_void)>;

/// Edge type: an ordinary dependency.
///
/// Since CUDA 12.3.
pub const CU_GRAPH_DEPENDENCY_TYPE_DEFAULT: u8 = 0;
/// Edge type between kernels: the second may start early and wait for the first inside.
///
/// Since CUDA 12.3.
pub const CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC: u8 = 1;

/// Port of a kernel node: when the kernel has finished.
///
/// Since CUDA 12.3.
pub const CU_GRAPH_KERNEL_NODE_PORT_DEFAULT: u8 = 0;
/// Port of a kernel node: when every block has said so or ended.
///
/// Since CUDA 12.3.
pub const CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC: u8 = 1;
/// Port of a kernel node: when every block has begun.
///
/// Since CUDA 12.3.
pub const CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER: u8 = 2;

/// What an edge of a graph means. All zero, the default, is a full dependency.
///
/// Since CUDA 12.3.
#[doc(alias = "CUgraphEdgeData")]
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CuGraphEdgeData {
    /// When the first node lets the second go: 0, when it has finished, or a port of its type.
    pub from_port: u8,
    /// Which part of the second node waits; no node has another than 0, all of it.
    pub to_port: u8,
    /// A `CU_GRAPH_DEPENDENCY_TYPE_*`.
    #[doc(alias = "type")]
    pub kind: u8,
    /// Zero.
    pub reserved: [u8; 5],
}

c_enum! {
    /// Whether a stream is being captured.
    pub enum "CUstreamCaptureStatus" as CuStreamCaptureStatus {
        /// The stream is not being captured.
        "CU_STREAM_CAPTURE_STATUS_NONE" as None = 0,
        /// The stream is being captured.
        "CU_STREAM_CAPTURE_STATUS_ACTIVE" as Active = 1,
        /// An error has spoiled the capture; it must still be ended with `cuStreamEndCapture`.
        "CU_STREAM_CAPTURE_STATUS_INVALIDATED" as Invalidated = 2,
    }
}

c_enum! {
    /// What other work a capture forbids while it lasts.
    ///
    /// Unsafe are calls that no stream orders, such as `cuMemAlloc_v2`: a replay would not repeat
    /// them.
    pub enum "CUstreamCaptureMode" as CuStreamCaptureMode {
        /// Unsafe calls are refused on every thread whose own mode is global, which is the default.
        "CU_STREAM_CAPTURE_MODE_GLOBAL" as Global = 0,
        /// Unsafe calls are refused on the capturing thread only.
        "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL" as ThreadLocal = 1,
        /// Unsafe calls are not refused; the capture may end on another thread.
        "CU_STREAM_CAPTURE_MODE_RELAXED" as Relaxed = 2,
    }
}

c_enum! {
    /// What can be set on a stream.
    pub enum "CUstreamAttrID" as CuStreamAttrId {
        /// How the L2 cache treats a range of addresses.
        "CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW" as AccessPolicyWindow = 1,
        /// How a thread waits for the stream: 1 as the driver finds best, 2 spinning, 3 yielding, 4
        /// blocked.
        "CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY" as SynchronizationPolicy = 3,
        /// The stream's priority.
        ///
        /// Since CUDA 12.0.
        "CU_STREAM_ATTRIBUTE_PRIORITY" as Priority = 8,
        /// Which synchronization domains the logical ones stand for.
        ///
        /// Since CUDA 12.0.
        "CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP" as MemSyncDomainMap = 9,
        /// The logical synchronization domain of the stream's kernels.
        ///
        /// Since CUDA 12.0.
        "CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN" as MemSyncDomain = 10,
        /// A hint that kernels should be spread for the best use of NVLink: 0 or 1.
        ///
        /// Since CUDA 13.0.
        "CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING" as NvlinkUtilCentricScheduling = 16,
    }
}

/// The value of a stream attribute. Opaque: a union of 64 bytes, aligned to 8.
#[doc(alias = "CUstreamAttrValue")]
#[repr(C)]
pub struct CuStreamAttrValue {
    _opaque: [u8; 0],
}

/// What `cuStreamBeginCaptureToCig` shares with a graphics program. Opaque: a pointer, in CUDA 13.
///
/// Since CUDA 13.2.
#[doc(alias = "CUstreamCigCaptureParams")]
#[repr(C)]
pub struct CuStreamCigCaptureParams {
    _opaque: [u8; 0],
}

c_enum! {
    /// How a driver call went.
    ///
    /// Any call may also return the failure of work that was enqueued earlier and ran in the
    /// meantime; the call itself is then not to blame. After a code whose text says that the
    /// process must be restarted, every further call gives the same one.
    ///
    /// `Since` is given from CUDA 11.8 on.
    #[must_use]
    pub enum "CUresult" as CuResult {
        /// Done; of a query: what was asked about is complete.
        "CUDA_SUCCESS" as Success = 0,
        /// An argument is out of its range, null where it must not be, or a pointer that the driver
        /// does not know.
        "CUDA_ERROR_INVALID_VALUE" as InvalidValue = 1,
        /// Memory or another resource is used up, on the device or on the host.
        "CUDA_ERROR_OUT_OF_MEMORY" as OutOfMemory = 2,
        /// `cuInit` was not called in this process, or it failed.
        "CUDA_ERROR_NOT_INITIALIZED" as NotInitialized = 3,
        /// The driver is shutting down: a call made while the process exits.
        "CUDA_ERROR_DEINITIALIZED" as Deinitialized = 4,
        /// The profiler cannot start: an external profiling tool runs this process.
        "CUDA_ERROR_PROFILER_DISABLED" as ProfilerDisabled = 5,
        /// Not returned since CUDA 5.0: profiling was switched without having been set up.
        "CUDA_ERROR_PROFILER_NOT_INITIALIZED" as ProfilerNotInitialized = 6,
        /// Not returned since CUDA 5.0: profiling ran already.
        "CUDA_ERROR_PROFILER_ALREADY_STARTED" as ProfilerAlreadyStarted = 7,
        /// Not returned since CUDA 5.0: profiling was off already.
        "CUDA_ERROR_PROFILER_ALREADY_STOPPED" as ProfilerAlreadyStopped = 8,
        /// The loaded libcuda is a stub for linking, not a driver.
        "CUDA_ERROR_STUB_LIBRARY" as StubLibrary = 34,
        /// The installed driver is too old for this call.
        ///
        /// Since CUDA 13.0.
        "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER" as CallRequiresNewerDriver = 36,
        /// The device is there, but not for this process now: usually its compute mode forbids it
        /// or another process has it to itself.
        "CUDA_ERROR_DEVICE_UNAVAILABLE" as DeviceUnavailable = 46,
        /// No hardware resource is left to bind memory to a multicast object.
        ///
        /// Since CUDA 13.4.
        "CUDA_ERROR_MULTICAST_RESOURCE_FULL" as MulticastResourceFull = 47,
        /// The driver found no device; an empty or wrong `CUDA_VISIBLE_DEVICES` does that too.
        "CUDA_ERROR_NO_DEVICE" as NoDevice = 100,
        /// There is no device of that number, or it cannot do what was asked.
        "CUDA_ERROR_INVALID_DEVICE" as InvalidDevice = 101,
        /// The virtual GPU has no license.
        "CUDA_ERROR_DEVICE_NOT_LICENSED" as DeviceNotLicensed = 102,
        /// The device code or module is not valid.
        "CUDA_ERROR_INVALID_IMAGE" as InvalidImage = 200,
        /// No context is current on this thread, or the one given is not valid (any more).
        "CUDA_ERROR_INVALID_CONTEXT" as InvalidContext = 201,
        /// Not returned since CUDA 3.2: the context was current already.
        "CUDA_ERROR_CONTEXT_ALREADY_CURRENT" as ContextAlreadyCurrent = 202,
        /// Mapping or registering failed.
        "CUDA_ERROR_MAP_FAILED" as MapFailed = 205,
        /// Unmapping or unregistering failed.
        "CUDA_ERROR_UNMAP_FAILED" as UnmapFailed = 206,
        /// The array is mapped and cannot be destroyed.
        "CUDA_ERROR_ARRAY_IS_MAPPED" as ArrayIsMapped = 207,
        /// The resource is mapped already.
        "CUDA_ERROR_ALREADY_MAPPED" as AlreadyMapped = 208,
        /// The module holds no code that this device can run.
        "CUDA_ERROR_NO_BINARY_FOR_GPU" as NoBinaryForGpu = 209,
        /// The resource is held already.
        "CUDA_ERROR_ALREADY_ACQUIRED" as AlreadyAcquired = 210,
        /// The resource is not mapped.
        "CUDA_ERROR_NOT_MAPPED" as NotMapped = 211,
        /// The resource is mapped, but not as an array.
        "CUDA_ERROR_NOT_MAPPED_AS_ARRAY" as NotMappedAsArray = 212,
        /// The resource is mapped, but not as a pointer.
        "CUDA_ERROR_NOT_MAPPED_AS_POINTER" as NotMappedAsPointer = 213,
        /// Device memory had an error that ECC could not correct.
        "CUDA_ERROR_ECC_UNCORRECTABLE" as EccUncorrectable = 214,
        /// The device does not have that limit.
        "CUDA_ERROR_UNSUPPORTED_LIMIT" as UnsupportedLimit = 215,
        /// The context admits one thread at a time and another one has it.
        "CUDA_ERROR_CONTEXT_ALREADY_IN_USE" as ContextAlreadyInUse = 216,
        /// These two devices cannot reach each other's memory.
        "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED" as PeerAccessUnsupported = 217,
        /// The PTX could not be compiled.
        "CUDA_ERROR_INVALID_PTX" as InvalidPtx = 218,
        /// The OpenGL or DirectX context is at fault.
        "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT" as InvalidGraphicsContext = 219,
        /// NVLink had an error that it could not correct.
        "CUDA_ERROR_NVLINK_UNCORRECTABLE" as NvlinkUncorrectable = 220,
        /// The driver's PTX compiler library is missing.
        "CUDA_ERROR_JIT_COMPILER_NOT_FOUND" as JitCompilerNotFound = 221,
        /// The PTX is of a newer toolchain than the driver understands.
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION" as UnsupportedPtxVersion = 222,
        /// PTX compilation is switched off.
        "CUDA_ERROR_JIT_COMPILATION_DISABLED" as JitCompilationDisabled = 223,
        /// The device does not have that kind of execution affinity.
        "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY" as UnsupportedExecAffinity = 224,
        /// The PTX calls `cudaDeviceSynchronize` on the device, which is no longer supported.
        ///
        /// Since CUDA 12.1.
        "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC" as UnsupportedDevsideSync = 225,
        /// The device contained a fault, such as a bad access over NVLink; the process must be
        /// restarted.
        ///
        /// Since CUDA 12.8.
        "CUDA_ERROR_CONTAINED" as Contained = 226,
        /// The loader is too old for this fat binary.
        ///
        /// Since CUDA 13.4.
        "CUDA_ERROR_INSUFFICIENT_LOADER_VERSION" as InsufficientLoaderVersion = 227,
        /// The device source does not compile or link.
        "CUDA_ERROR_INVALID_SOURCE" as InvalidSource = 300,
        /// The file does not exist.
        "CUDA_ERROR_FILE_NOT_FOUND" as FileNotFound = 301,
        /// A shared object lacks a symbol that was asked of it.
        "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND" as SharedObjectSymbolNotFound = 302,
        /// A shared object could not be initialized.
        "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED" as SharedObjectInitFailed = 303,
        /// A call to the operating system failed.
        "CUDA_ERROR_OPERATING_SYSTEM" as OperatingSystem = 304,
        /// A handle is null or not valid for this call. A destroyed one is not recognized: it
        /// crashes.
        "CUDA_ERROR_INVALID_HANDLE" as InvalidHandle = 400,
        /// The object is not in a state that allows this, such as a stream that is, or is not,
        /// being captured.
        "CUDA_ERROR_ILLEGAL_STATE" as IllegalState = 401,
        /// The answer would leave out something that matters; ask with all outputs, or through a
        /// newer call.
        ///
        /// Since CUDA 12.3.
        "CUDA_ERROR_LOSSY_QUERY" as LossyQuery = 402,
        /// Nothing has that name: a function, a variable, a symbol.
        "CUDA_ERROR_NOT_FOUND" as NotFound = 500,
        /// The work has not finished yet. A state, not a failure.
        "CUDA_ERROR_NOT_READY" as NotReady = 600,
        /// A kernel used an address that is not mapped; the process must be restarted.
        "CUDA_ERROR_ILLEGAL_ADDRESS" as IllegalAddress = 700,
        /// The launch asks for more threads, registers or argument bytes than there are.
        "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" as LaunchOutOfResources = 701,
        /// A kernel ran longer than the device's time limit; the process must be restarted.
        "CUDA_ERROR_LAUNCH_TIMEOUT" as LaunchTimeout = 702,
        /// The kernel's texturing mode does not match.
        "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING" as LaunchIncompatibleTexturing = 703,
        /// Access to that peer was enabled before. Usually harmless.
        "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED" as PeerAccessAlreadyEnabled = 704,
        /// Access to that peer was not enabled.
        "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED" as PeerAccessNotEnabled = 705,
        /// The device's primary context exists already, so it cannot be changed this way.
        "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE" as PrimaryContextActive = 708,
        /// This thread's current context is destroyed: the last reference to the primary one was
        /// released.
        "CUDA_ERROR_CONTEXT_IS_DESTROYED" as ContextIsDestroyed = 709,
        /// An assertion in a kernel failed; the context and all its memory are lost.
        "CUDA_ERROR_ASSERT" as Assert = 710,
        /// No hardware resource is left for another peer.
        "CUDA_ERROR_TOO_MANY_PEERS" as TooManyPeers = 711,
        /// The host memory is registered already.
        "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED" as HostMemoryAlreadyRegistered = 712,
        /// The host pointer is not the start of a registered range.
        "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED" as HostMemoryNotRegistered = 713,
        /// A kernel's stack overflowed or was overwritten; the process must be restarted.
        "CUDA_ERROR_HARDWARE_STACK_ERROR" as HardwareStackError = 714,
        /// A kernel met an instruction that does not exist; the process must be restarted.
        "CUDA_ERROR_ILLEGAL_INSTRUCTION" as IllegalInstruction = 715,
        /// A kernel used an address that is not aligned; the process must be restarted.
        "CUDA_ERROR_MISALIGNED_ADDRESS" as MisalignedAddress = 716,
        /// A kernel used an address of the wrong address space; the process must be restarted.
        "CUDA_ERROR_INVALID_ADDRESS_SPACE" as InvalidAddressSpace = 717,
        /// A kernel's program counter left its code; the process must be restarted.
        "CUDA_ERROR_INVALID_PC" as InvalidPc = 718,
        /// A kernel failed while it ran, often on a bad pointer; the process must be restarted.
        "CUDA_ERROR_LAUNCH_FAILED" as LaunchFailed = 719,
        /// A cooperative launch has more blocks than fit on the device at once.
        "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE" as CooperativeLaunchTooLarge = 720,
        /// A kernel ended without giving back its tensor memory; the process must be restarted.
        ///
        /// Since CUDA 12.8.
        "CUDA_ERROR_TENSOR_MEMORY_LEAK" as TensorMemoryLeak = 721,
        /// Not allowed here, such as any CUDA call from a host function.
        "CUDA_ERROR_NOT_PERMITTED" as NotPermitted = 800,
        /// This system or device cannot do that.
        "CUDA_ERROR_NOT_SUPPORTED" as NotSupported = 801,
        /// The system cannot run CUDA yet; on NVSwitch machines the fabric manager is usually not
        /// running.
        "CUDA_ERROR_SYSTEM_NOT_READY" as SystemNotReady = 802,
        /// libcuda and the kernel's display driver are of different versions.
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" as SystemDriverMismatch = 803,
        /// A forward-compatibility libcuda was loaded, and this device does not support it.
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE" as CompatNotSupportedOnDevice = 804,
        /// The MPS control daemon or server could not be reached.
        "CUDA_ERROR_MPS_CONNECTION_FAILED" as MpsConnectionFailed = 805,
        /// A call to the MPS server failed.
        "CUDA_ERROR_MPS_RPC_FAILURE" as MpsRpcFailure = 806,
        /// The MPS server takes no new clients now; it may be recovering from a failure.
        "CUDA_ERROR_MPS_SERVER_NOT_READY" as MpsServerNotReady = 807,
        /// The MPS server has as many clients as it can have.
        "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED" as MpsMaxClientsReached = 808,
        /// The MPS server has as many device connections as it can have.
        "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED" as MpsMaxConnectionsReached = 809,
        /// The MPS server ended this client; the process must be restarted.
        ///
        /// Since CUDA 11.8.
        "CUDA_ERROR_MPS_CLIENT_TERMINATED" as MpsClientTerminated = 810,
        /// The module launches kernels from the device, which this configuration (such as MPS) does
        /// not support.
        ///
        /// Since CUDA 12.0.
        "CUDA_ERROR_CDP_NOT_SUPPORTED" as CdpNotSupported = 811,
        /// The module mixes versions of launching kernels from the device.
        ///
        /// Since CUDA 12.0.
        "CUDA_ERROR_CDP_VERSION_MISMATCH" as CdpVersionMismatch = 812,
        /// Not allowed while a stream is being captured; it spoils the capture.
        "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" as StreamCaptureUnsupported = 900,
        /// An earlier error has spoiled the capture.
        "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED" as StreamCaptureInvalidated = 901,
        /// Two separate captures would have become one.
        "CUDA_ERROR_STREAM_CAPTURE_MERGE" as StreamCaptureMerge = 902,
        /// The capture did not begin in this stream.
        "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED" as StreamCaptureUnmatched = 903,
        /// A stream that joined the capture never came back to the one where it began.
        "CUDA_ERROR_STREAM_CAPTURE_UNJOINED" as StreamCaptureUnjoined = 904,
        /// Captured work would depend on work outside of the capture.
        "CUDA_ERROR_STREAM_CAPTURE_ISOLATION" as StreamCaptureIsolation = 905,
        /// The legacy stream would wait for a blocking stream that is being captured.
        "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT" as StreamCaptureImplicit = 906,
        /// The event was last recorded in a stream that is being captured.
        "CUDA_ERROR_CAPTURED_EVENT" as CapturedEvent = 907,
        /// The capture must end on the thread that began it, unless its mode is relaxed.
        "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD" as StreamCaptureWrongThread = 908,
        /// The wait ran out of time.
        "CUDA_ERROR_TIMEOUT" as Timeout = 909,
        /// The executable graph cannot take over these changes.
        "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE" as GraphExecUpdateFailure = 910,
        /// A device other than a GPU failed; if it was reported late, the process must be
        /// restarted.
        "CUDA_ERROR_EXTERNAL_DEVICE" as ExternalDevice = 911,
        /// The launch's cluster size does not fit.
        ///
        /// Since CUDA 11.8.
        "CUDA_ERROR_INVALID_CLUSTER_SIZE" as InvalidClusterSize = 912,
        /// The function's code is not loaded yet, and this call needs it.
        ///
        /// Since CUDA 12.4.
        "CUDA_ERROR_FUNCTION_NOT_LOADED" as FunctionNotLoaded = 913,
        /// A device resource is of a type that this call does not take.
        ///
        /// Since CUDA 12.4.
        "CUDA_ERROR_INVALID_RESOURCE_TYPE" as InvalidResourceType = 914,
        /// The device resources do not suffice or do not apply.
        ///
        /// Since CUDA 12.4.
        "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION" as InvalidResourceConfiguration = 915,
        /// Exchanging the encryption keys failed.
        ///
        /// Since CUDA 12.8.
        "CUDA_ERROR_KEY_ROTATION" as KeyRotation = 916,
        /// The green context that the stream belonged to is destroyed.
        ///
        /// Since CUDA 13.1.
        "CUDA_ERROR_STREAM_DETACHED" as StreamDetached = 917,
        /// Capturing into an existing graph failed and was ended.
        ///
        /// Since CUDA 13.3.
        "CUDA_ERROR_GRAPH_RECAPTURE_FAILURE" as GraphRecaptureFailure = 918,
        /// The GPU fabric did not come up in the time allowed; a later attempt may succeed.
        ///
        /// Since CUDA 13.4.
        "CUDA_ERROR_FABRIC_NOT_READY" as FabricNotReady = 919,
        /// The driver does not know what went wrong; often the kernel driver is not loaded or its
        /// devices are not accessible.
        "CUDA_ERROR_UNKNOWN" as Unknown = 999,
        /// This crate's own answer, with the feature `dlopen`: libcuda could not be opened.
        NotLoaded = -1000,
        /// This crate's own answer, with the feature `dlopen`: the opened libcuda lacks the function.
        NotInThisVersion = -1001,
    }
}

c_enum! {
    /// What can be asked about the link between two devices.
    pub enum "CUdevice_P2PAttribute" as CuDeviceP2PAttribute {
        /// How fast the link is compared with other links of the system.
        "CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK" as PerformanceRank = 1,
        /// 1 if memory can be reached over the link.
        "CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED" as AccessSupported = 2,
        /// 1 if the link carries all native atomics.
        "CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED" as NativeAtomicSupported = 3,
        /// 1 if arrays can be reached over the link.
        "CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED" as CudaArrayAccessSupported = 4,
        /// 1 if the link carries some native atomics only.
        ///
        /// Since CUDA 13.0.
        "CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED" as OnlyPartialNativeAtomicSupported = 5,
    }
}

#[allow(non_upper_case_globals)]
impl CuDeviceP2PAttribute {
    /// The older name of [`Self::CudaArrayAccessSupported`].
    #[doc(alias = "CU_DEVICE_P2P_ATTRIBUTE_ACCESS_ACCESS_SUPPORTED")]
    pub const AccessAccessSupported: Self = Self(4);
}

/// A function that `cuStreamAddCallback` calls on the host, with the stream, the stream's state and
/// the pointer given.
///
/// The same rules as for a [`CuHostFn`].
#[doc(alias = "CUstreamCallback")]
pub type CuStreamCallback =
    Option<unsafe extern "C" fn(stream: CuStream, status: CuResult, user_data: *mut c_void)>;

/// Flag of `cuMemHostAlloc`: pinned for every context, not only the current one.
pub const CU_MEMHOSTALLOC_PORTABLE: u32 = 0x01;
/// Flag of `cuMemHostAlloc`: mapped into the device's address space.
pub const CU_MEMHOSTALLOC_DEVICEMAP: u32 = 0x02;
/// Flag of `cuMemHostAlloc`: write-combined, fast for the host to write and very slow to read.
pub const CU_MEMHOSTALLOC_WRITECOMBINED: u32 = 0x04;

/// Flag of `cuMemHostRegister_v2`: pinned for every context, not only the current one.
pub const CU_MEMHOSTREGISTER_PORTABLE: u32 = 0x01;
/// Flag of `cuMemHostRegister_v2`: mapped into the device's address space.
pub const CU_MEMHOSTREGISTER_DEVICEMAP: u32 = 0x02;
/// Flag of `cuMemHostRegister_v2`: the range is another device's memory, not the host's. May need
/// privileges.
pub const CU_MEMHOSTREGISTER_IOMEMORY: u32 = 0x04;
/// Flag of `cuMemHostRegister_v2`: the device only reads the range. Ask
/// [`CuDeviceAttribute::ReadOnlyHostRegisterSupported`] first.
pub const CU_MEMHOSTREGISTER_READ_ONLY: u32 = 0x08;

c_enum! {
    /// Why an executable graph was not updated.
    pub enum "CUgraphExecUpdateResult" as CuGraphExecUpdateResult {
        /// The executable graph was updated.
        "CU_GRAPH_EXEC_UPDATE_SUCCESS" as Success = 0,
        /// Something else failed; the function's own result says what.
        "CU_GRAPH_EXEC_UPDATE_ERROR" as Error = 1,
        /// The two graphs have different nodes or edges.
        "CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED" as ErrorTopologyChanged = 2,
        /// A node is of another type.
        "CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED" as ErrorNodeTypeChanged = 3,
        /// A kernel node has another function (drivers before 11.2).
        "CU_GRAPH_EXEC_UPDATE_ERROR_FUNCTION_CHANGED" as ErrorFunctionChanged = 4,
        /// A node's parameters changed in a way that cannot be taken over.
        "CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED" as ErrorParametersChanged = 5,
        /// A node is of a kind that cannot be updated.
        "CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED" as ErrorNotSupported = 6,
        /// A kernel node has another function, of a kind that cannot be taken over.
        "CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE" as ErrorUnsupportedFunctionChange = 7,
        /// A node's attributes changed in a way that cannot be taken over.
        "CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED" as ErrorAttributesChanged = 8,
    }
}

/// What `cuGraphExecUpdate_v2` found.
///
/// Since CUDA 12.0.
#[doc(alias = "CUgraphExecUpdateResultInfo")]
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CuGraphExecUpdateResultInfo {
    /// The reason.
    pub result: CuGraphExecUpdateResult,
    /// The node at fault, or where an edge at fault ends; 0 if it is no node's.
    #[doc(alias = "errorNode")]
    pub error_node: CuGraphNode,
    /// Where an edge at fault begins; else 0.
    #[doc(alias = "errorFromNode")]
    pub error_from_node: CuGraphNode,
}

/// The parameters of a graph node, seen by a [`CuGraphRecaptureCallback`]. Opaque: 256 bytes in
/// CUDA 13.
///
/// Since CUDA 12.2.
#[doc(alias = "CUgraphNodeParams")]
#[repr(C)]
pub struct CuGraphNodeParams {
    _opaque: [u8; 0],
}

/// Ends the list in the last argument of `cuLaunchKernel`.
pub const CU_LAUNCH_PARAM_END: *mut c_void = std::ptr::null_mut();
/// In that list: the next entry points to a buffer with all arguments of the kernel.
pub const CU_LAUNCH_PARAM_BUFFER_POINTER: *mut c_void = std::ptr::without_provenance_mut(1);
/// In that list: the next entry points to the `usize` that is the size of that buffer in bytes.
pub const CU_LAUNCH_PARAM_BUFFER_SIZE: *mut c_void = std::ptr::without_provenance_mut(2);

/// Flag of `cuGraphInstantiateWithFlags`: each launch first frees what the graph's earlier one left
/// allocated.
pub const CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH: c_ulonglong = 1;
/// Upload right after instantiating; only another function, `cuGraphInstantiateWithParams`, takes
/// it.
///
/// Since CUDA 12.0.
pub const CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD: c_ulonglong = 2;
/// Flag of `cuGraphInstantiateWithFlags`: the device may launch the graph too. Not with automatic
/// freeing.
///
/// Since CUDA 12.0.
pub const CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH: c_ulonglong = 4;
/// Flag of `cuGraphInstantiateWithFlags`: each node keeps its own priority, not that of the
/// launching stream.
pub const CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY: c_ulonglong = 8;

c_enum! {
    /// What a capture into an existing graph found about a node.
    ///
    /// Since CUDA 13.3.
    pub enum "CUgraphRecaptureStatus" as CuGraphRecaptureStatus {
        /// An executable graph could take over the node's new parameters.
        "CU_GRAPH_RECAPTURE_ELIGIBLE_FOR_UPDATE" as EligibleForUpdate = 0,
        /// No executable graph can take them over.
        "CU_GRAPH_RECAPTURE_INELIGIBLE_FOR_UPDATE" as IneligibleForUpdate = 1,
        /// The node could not be captured; the capture ends whatever the callback returns.
        "CU_GRAPH_RECAPTURE_ERROR" as Error = 2,
    }
}

/// Called during `cuStreamBeginRecaptureToGraph` for a node whose parameters differ: with the
/// pointer given, the node, its old and its new parameters (valid during the call only) and what
/// that means. Anything but `Success` as its answer ends the capture. It must not unwind.
///
/// Since CUDA 13.3.
#[doc(alias = "CUgraphRecaptureCallback")]
pub type CuGraphRecaptureCallback = Option<
    unsafe extern "C" fn(
        data: *mut c_void,
        node: CuGraphNode,
        original_params: *const CuGraphNodeParams,
        recapture_params: *const CuGraphNodeParams,
        status: CuGraphRecaptureStatus,
    ) -> CuResult,
>;

c_enum! {
    /// A kind of device resource.
    ///
    /// Since CUDA 12.4.
    pub enum "CUdevResourceType" as CuDevResourceType {
        /// None.
        "CU_DEV_RESOURCE_TYPE_INVALID" as Invalid = 0,
        /// Multiprocessors.
        "CU_DEV_RESOURCE_TYPE_SM" as Sm = 1,
        /// How work queues are configured.
        ///
        /// Since CUDA 13.1.
        "CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG" as WorkqueueConfig = 1000,
        /// A work queue that exists.
        ///
        /// Since CUDA 13.1.
        "CU_DEV_RESOURCE_TYPE_WORKQUEUE" as Workqueue = 10000,
    }
}

/// A device resource. Opaque: 144 bytes, aligned to 8, in CUDA 13.
///
/// Since CUDA 12.4.
#[doc(alias = "CUdevResource")]
#[repr(C)]
pub struct CuDevResource {
    _opaque: [u8; 0],
}
