//! The types and constants of `nccl.h`, in its order, but for the structs in [`config`](super::config).

use std::ffi::{c_char, c_void};
use std::fmt;
use std::ptr;

use crate::bind::c_enum;

/// Major number of the NCCL release whose header this crate declares.
pub const NCCL_MAJOR: i32 = 2;
/// Minor number of the NCCL release whose header this crate declares.
pub const NCCL_MINOR: i32 = 32;
/// Patch number of the NCCL release whose header this crate declares.
pub const NCCL_PATCH: i32 = 3;
/// What follows the patch number in a pre-release; empty here.
pub const NCCL_SUFFIX: &str = "";
/// The declared release as one number, in the form that `ncclGetVersion` reports.
///
/// The library in use may be older or newer: ask it with `ncclGetVersion`.
pub const NCCL_VERSION_CODE: i32 = version_code(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);

/// Encodes a release as `ncclGetVersion` reports it, for comparison with its answer.
///
/// Up to 2.8 the major number counts thousands (2.7.8 is 2708), from 2.9 on tens of thousands
/// (2.10.3 is 21003). Releases in order have codes in order, across the change as well.
#[doc(alias = "NCCL_VERSION")]
pub const fn version_code(major: i32, minor: i32, patch: i32) -> i32 {
    if major <= 2 && minor <= 8 {
        major * 1000 + minor * 100 + patch
    } else {
        major * 10000 + minor * 100 + patch
    }
}

/// A release of NCCL, as `ncclGetVersion` tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NcclVersion {
    /// 2 in every release that this crate can use.
    pub major: i32,
    /// The feature release.
    pub minor: i32,
    /// The bug-fix release.
    pub patch: i32,
}

impl NcclVersion {
    /// Decodes what [`version_code`] encodes, in both of its forms: 2708 is 2.7.8, 21003 is 2.10.3.
    pub const fn from_code(code: i32) -> Self {
        // The form changed with 2.9; every code of the old form has four digits.
        let major = if code < 10_000 { 1_000 } else { 10_000 };
        Self {
            major: code / major,
            minor: code % major / 100,
            patch: code % 100,
        }
    }
}

impl fmt::Display for NcclVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// A communicator: one rank's membership in a group of ranks, tied to one device.
///
/// It may be moved between threads, but only one thread at a time may use it; `ncclCommAbort` and
/// `ncclCommGetAsyncError` are the exceptions, so that a watching thread can end a stuck call. As a
/// pointer it is not `Send`: a type of yours that wraps it and keeps this rule may say that it is.
#[doc(alias = "ncclComm_t")]
pub type NcclComm = *mut c_void;

/// A range of device memory registered with a communicator by `ncclCommWindowRegister`.
///
/// Since NCCL 2.27.
#[doc(alias = "ncclWindow_t")]
pub type NcclWindow = *mut c_void;

/// No communicator.
///
/// Since NCCL 2.17.
pub const NCCL_COMM_NULL: NcclComm = ptr::null_mut();

/// Bytes in an [`NcclUniqueId`].
pub const NCCL_UNIQUE_ID_BYTES: usize = 128;

/// What the ranks of one communicator share to find each other: made by one of them with
/// `ncclGetUniqueId`, carried to the others by the program, passed by value.
///
/// It holds an address and a random number, so whoever has it can join: treat it as a secret.
/// `Debug` does not print the bytes. One id makes one communicator.
#[doc(alias = "ncclUniqueId")]
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NcclUniqueId {
    /// The bytes to carry to the other ranks, opaque and all significant.
    pub internal: [u8; NCCL_UNIQUE_ID_BYTES],
}

impl fmt::Debug for NcclUniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NcclUniqueId(..)")
    }
}

c_enum! {
    /// What a call answers, and the state of a communicator.
    ///
    /// A library newer than this crate may return a value that has no constant here; it is kept.
    pub enum "ncclResult_t" as NcclResult {
        /// The call was valid. A call that takes a stream has enqueued its work, not finished it.
        "ncclSuccess" as Success = 0,
        /// A CUDA call inside NCCL failed: no device, no memory, a bad stream, a fault of earlier work.
        "ncclUnhandledCudaError" as UnhandledCudaError = 1,
        /// A call to the operating system failed: sockets, shared memory, files.
        "ncclSystemError" as SystemError = 2,
        /// NCCL contradicts itself: a defect, corrupted memory, or a handle it does not know.
        "ncclInternalError" as InternalError = 3,
        /// An argument is out of range, null, or refers to a communicator that is not ready.
        "ncclInvalidArgument" as InvalidArgument = 4,
        /// The call is not allowed in this situation, such as a group ended that was not started.
        "ncclInvalidUsage" as InvalidUsage = 5,
        /// A peer's process ended or the network to it failed.
        ///
        /// Since NCCL 2.13.
        "ncclRemoteError" as RemoteError = 6,
        /// Work on a non-blocking communicator goes on in the background: not a failure.
        /// Poll `ncclCommGetAsyncError` before the next call.
        ///
        /// Since NCCL 2.14.
        "ncclInProgress" as InProgress = 7,
        /// A time limit passed.
        ///
        /// Since NCCL 2.30.
        "ncclTimeout" as Timeout = 8,
        /// This crate's own answer, with the feature `dlopen`: libnccl could not be opened.
        NotLoaded = -1000,
        /// This crate's own answer, with the feature `dlopen`: the opened libnccl lacks the function.
        NotInThisVersion = -1001,
    }
}

#[allow(non_upper_case_globals)]
impl NcclResult {
    /// How many codes the declared release has; no call returns it.
    #[doc(alias = "ncclNumResults")]
    pub const NumResults: Self = Self(9);
}

/// An integer field of a config that is left to NCCL.
///
/// Since NCCL 2.17.
pub const NCCL_CONFIG_UNDEF_INT: i32 = i32::MIN;
/// A string field of a config that is left to NCCL.
///
/// Since NCCL 2.17.
pub const NCCL_CONFIG_UNDEF_PTR: *const c_char = ptr::null();
/// The color of a rank that joins no communicator in `ncclCommSplit`.
///
/// Since NCCL 2.18.
pub const NCCL_SPLIT_NOCOLOR: i32 = -1;
/// A number that `ncclGroupSimulateEnd` has not filled in.
///
/// Since NCCL 2.22.
pub const NCCL_UNDEF_FLOAT: f32 = -1.0;
/// Marks a config as initialized; the `new` functions of the configs set it.
///
/// Since NCCL 2.29.
pub const NCCL_API_MAGIC: u32 = 0xcafe_beef;

/// Window flag: nothing special is promised about the buffers' places.
///
/// Since NCCL 2.27.
pub const NCCL_WIN_DEFAULT: i32 = 0x00;
/// Window flag: in each collective all ranks use the same offset into their windows, which lets
/// NCCL use its fastest kernels. The promise is not verified.
///
/// Since NCCL 2.27.
pub const NCCL_WIN_COLL_SYMMETRIC: i32 = 0x01;
/// Window flag: the network card keeps the order of writes into the window.
///
/// Since NCCL 2.29.7.
pub const NCCL_WIN_STRICT_ORDERING: i32 = 0x02;
/// Window flag: the window serves network operations started by the device, and nothing else.
///
/// Since NCCL 2.32.
pub const NCCL_WIN_GIN_ONLY: i32 = 0x04;
/// Window flag: the window serves counted operations of the compute fabric transport (CFT), and
/// nothing else. The buffer must then be aligned to 256 bytes.
///
/// Since NCCL 2.32.
pub const NCCL_WIN_CFT_COUNTED: i32 = 0x08;
/// Alignment in bytes of a window's buffer within its allocation.
///
/// Since NCCL 2.28.
pub const NCCL_WIN_REQUIRED_ALIGNMENT: usize = 4096;

/// CTA policy: NCCL takes as many thread blocks as serve speed.
///
/// Since NCCL 2.27.
pub const NCCL_CTA_POLICY_DEFAULT: i32 = 0x00;
/// CTA policy: as few thread blocks as still give good speed, so that computation can overlap.
///
/// Since NCCL 2.27.
pub const NCCL_CTA_POLICY_EFFICIENCY: i32 = 0x01;
/// CTA policy: no thread blocks where copy engines can do the work, even if that is slower.
///
/// Since NCCL 2.28.
pub const NCCL_CTA_POLICY_ZERO: i32 = 0x02;

/// Shrink flag: the parent must have no work under way.
///
/// Since NCCL 2.27.
pub const NCCL_SHRINK_DEFAULT: i32 = 0x00;
/// Shrink flag: the parent's running work is aborted first; for recovery after a lost peer.
///
/// Since NCCL 2.27.
pub const NCCL_SHRINK_ABORT: i32 = 0x01;

/// Revoke flag: the only value there is.
///
/// Since NCCL 2.28.7.
pub const NCCL_REVOKE_DEFAULT: i32 = 0x00;

c_enum! {
    /// Whether the host side of the compute fabric transport (CFT) is set up; see
    /// [`NcclConfig::host_cft_mode`](super::NcclConfig::host_cft_mode).
    ///
    /// Since NCCL 2.31.
    pub enum "ncclHostCftMode_t" as NcclHostCftMode {
        /// NCCL decides.
        "ncclHostCftDefault" as Default = NCCL_CONFIG_UNDEF_INT,
        /// Set up; failing to do so is an error.
        "ncclHostCftEnable" as Enable = 1,
        /// Not set up.
        "ncclHostCftDisable" as Disable = 2,
        /// Set up where that works, otherwise done without.
        "ncclHostCftFallback" as Fallback = 3,
    }
}

c_enum! {
    /// Which uses of NVLink SHARP (NVLS) by the host side are switched off; see
    /// [`NcclConfig::nvls_host_mode`](super::NcclConfig::nvls_host_mode). The `Disable…` values are
    /// bits that may be combined.
    ///
    /// Since NCCL 2.32.
    pub enum "ncclNvlsHostMode_t" as NcclNvlsHostMode {
        /// NCCL decides.
        "ncclNvlsHostModeDefault" as Default = NCCL_CONFIG_UNDEF_INT,
        /// All in use.
        "ncclNvlsHostModeEnable" as Enable = 0,
        /// No NVLS algorithms, nor their use of registered buffers.
        "ncclNvlsHostModeDisableTransport" as DisableTransport = 1 << 0,
        /// No multicast in symmetric kernels and copy-engine collectives.
        "ncclNvlsHostModeDisableSymmetricMultimem" as DisableSymmetricMultimem = 1 << 1,
        /// None in use, whatever later releases add.
        "ncclNvlsHostModeDisable" as Disable = i32::MAX,
    }
}

/// What `ncclGroupSimulateEnd` reports about a group. Start from [`NcclSimInfo::new`].
///
/// Since NCCL 2.22.
#[doc(alias = "ncclSimInfo_t")]
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NcclSimInfo {
    /// Bytes in this struct; set by `new`, not to be changed.
    pub size: usize,
    /// Marks the struct as initialized; set by `new`, not to be changed.
    pub magic: u32,
    /// The release that declared this layout; set by `new`, not to be changed.
    pub version: u32,
    /// Estimated microseconds; stays [`NCCL_UNDEF_FLOAT`] where NCCL makes no estimate, as for a
    /// group that is empty or only sends and receives.
    #[doc(alias = "estimatedTime")]
    pub estimated_time: f32,
}

impl NcclSimInfo {
    /// A struct for NCCL to fill in.
    ///
    /// Since NCCL 2.22.
    #[doc(alias = "NCCL_SIM_INFO_INITIALIZER")]
    pub const fn new() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: 0x7468_5283,
            version: NCCL_VERSION_CODE as u32,
            estimated_time: NCCL_UNDEF_FLOAT,
        }
    }
}

impl Default for NcclSimInfo {
    fn default() -> Self {
        Self::new()
    }
}

/// Suspend flag: gives back the device memory that the communicator can do without.
///
/// Since NCCL 2.29.7.
pub const NCCL_SUSPEND_MEM: i32 = 0x01;

c_enum! {
    /// What `ncclCommMemStats` is asked for.
    ///
    /// Since NCCL 2.29.7.
    pub enum "ncclCommMemStat_t" as NcclCommMemStat {
        /// Bytes of device memory that suspending gives back.
        "ncclStatGpuMemSuspend" as GpuMemSuspend = 0,
        /// 1 while that memory is given back, otherwise 0.
        "ncclStatGpuMemSuspended" as GpuMemSuspended = 1,
        /// Bytes of device memory that stay allocated.
        "ncclStatGpuMemPersist" as GpuMemPersist = 2,
        /// Bytes of device memory in all.
        "ncclStatGpuMemTotal" as GpuMemTotal = 3,
    }
}

// ncclRedOp_dummy_t is left out: the header needs it only to work out the value of ncclMaxRedOp.

c_enum! {
    /// How a reduction combines the ranks' elements.
    ///
    /// `ncclRedOpCreatePreMulSum` hands out further operators: any value from
    /// [`NcclRedOp::NumOps`] up, valid for one communicator and one data type.
    ///
    /// Integers wrap around. The order in which ranks are combined is not specified, so the last
    /// bits of a floating-point result depend on the algorithm; all ranks get the same bits.
    pub enum "ncclRedOp_t" as NcclRedOp {
        /// The sum.
        "ncclSum" as Sum = 0,
        /// The product.
        "ncclProd" as Prod = 1,
        /// The greatest; a NaN loses against a number.
        "ncclMax" as Max = 2,
        /// The least; a NaN loses against a number.
        "ncclMin" as Min = 3,
        /// The mean. Integers: the wrapped sum, divided by the number of ranks toward zero.
        /// Floating point: usually each element times the rounded reciprocal of the number of ranks,
        /// then the sum. The 8-bit types on a communicator of one rank: `InvalidArgument`.
        ///
        /// Since NCCL 2.10.
        "ncclAvg" as Avg = 4,
    }
}

#[allow(non_upper_case_globals)]
impl NcclRedOp {
    /// How many operators are built in, and the least value of one that a program makes.
    #[doc(alias = "ncclNumOps")]
    pub const NumOps: Self = Self(5);
    /// The greatest value of an operator that a program makes.
    ///
    /// Since NCCL 2.11.
    #[doc(alias = "ncclMaxRedOp")]
    pub const MaxRedOp: Self = Self(i32::MAX);
}

c_enum! {
    /// The type of a buffer's elements.
    pub enum "ncclDataType_t" as NcclDataType {
        /// `i8`.
        "ncclInt8" as Int8 = 0,
        /// `u8`.
        "ncclUint8" as Uint8 = 1,
        /// `i32`.
        "ncclInt32" as Int32 = 2,
        /// `u32`.
        "ncclUint32" as Uint32 = 3,
        /// `i64`.
        "ncclInt64" as Int64 = 4,
        /// `u64`.
        "ncclUint64" as Uint64 = 5,
        /// IEEE half precision, 2 bytes.
        "ncclFloat16" as Float16 = 6,
        /// `f32`.
        "ncclFloat32" as Float32 = 7,
        /// `f64`.
        "ncclFloat64" as Float64 = 8,
        /// The upper half of an `f32`, 2 bytes.
        ///
        /// Since NCCL 2.10.
        "ncclBfloat16" as Bfloat16 = 9,
        /// 1 byte: 4 bits of exponent, 3 of mantissa, no infinities. Moves on any device; to reduce
        /// it every rank's device needs compute capability 9.0, else `InvalidArgument`.
        ///
        /// Since NCCL 2.24.
        "ncclFloat8e4m3" as Float8e4m3 = 10,
        /// 1 byte: 5 bits of exponent, 2 of mantissa. Moves on any device; to reduce it every rank's
        /// device needs compute capability 9.0, else `InvalidArgument`.
        ///
        /// Since NCCL 2.24.
        "ncclFloat8e5m2" as Float8e5m2 = 11,
    }
}

#[allow(non_upper_case_globals)]
impl NcclDataType {
    /// Another name of [`NcclDataType::Int8`].
    #[doc(alias = "ncclChar")]
    pub const Char: Self = Self::Int8;
    /// Another name of [`NcclDataType::Int32`].
    #[doc(alias = "ncclInt")]
    pub const Int: Self = Self::Int32;
    /// Another name of [`NcclDataType::Float16`].
    #[doc(alias = "ncclHalf")]
    pub const Half: Self = Self::Float16;
    /// Another name of [`NcclDataType::Float32`].
    #[doc(alias = "ncclFloat")]
    pub const Float: Self = Self::Float32;
    /// Another name of [`NcclDataType::Float64`].
    #[doc(alias = "ncclDouble")]
    pub const Double: Self = Self::Float64;
    /// How many types the declared release has; it is no type itself.
    #[doc(alias = "ncclNumTypes")]
    pub const NumTypes: Self = Self(12);
}

impl NcclDataType {
    /// Bytes in one element; `None` for a type that this crate does not list.
    pub const fn size(self) -> Option<usize> {
        match self {
            Self::Int8 | Self::Uint8 | Self::Float8e4m3 | Self::Float8e5m2 => Some(1),
            Self::Float16 | Self::Bfloat16 => Some(2),
            Self::Int32 | Self::Uint32 | Self::Float32 => Some(4),
            Self::Int64 | Self::Uint64 | Self::Float64 => Some(8),
            _ => None,
        }
    }
}

c_enum! {
    /// Where the scalar of `ncclRedOpCreatePreMulSum` lies, and when it is read.
    ///
    /// Since NCCL 2.11.
    pub enum "ncclScalarResidence_t" as NcclScalarResidence {
        /// In memory that the device can read; read each time a reduction runs, so it must stay
        /// valid and unchanged until then.
        "ncclScalarDevice" as Device = 0,
        /// In host memory; read before the call returns.
        "ncclScalarHostImmediate" as HostImmediate = 1,
    }
}

/// How many signals of one peer `ncclWaitSignal` waits for.
///
/// Since NCCL 2.29.
#[doc(alias = "ncclWaitSignalDesc_t")]
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NcclWaitSignalDesc {
    /// Signals to wait for: at least 1.
    #[doc(alias = "opCnt")]
    pub op_cnt: i32,
    /// Rank that sends them. NCCL does not check it; a wrong one is waited for forever.
    pub peer: i32,
    /// Index of the signal: below the communicator's
    /// [`num_rma_sig`](super::NcclConfig::num_rma_sig); 0 before 2.31.
    #[doc(alias = "sigIdx")]
    pub sig_idx: i32,
    /// Index of the context: below the communicator's
    /// [`num_rma_ctx`](super::NcclConfig::num_rma_ctx); 0 before 2.31.
    pub ctx: i32,
}

c_enum! {
    /// How NCCL's TCP connections are protected; see
    /// [`NcclEncryptionConfig::mode`](super::NcclEncryptionConfig::mode).
    ///
    /// Since NCCL 2.32.
    pub enum "ncclEncryptionMode_t" as NcclEncryptionMode {
        /// Not at all.
        "NCCL_ENCRYPTION_MODE_NONE" as None = 0,
        /// By TLS with a key that all processes were given beforehand.
        "NCCL_ENCRYPTION_MODE_PSK" as Psk = 1,
    }
}

/// One of NCCL's parameters, found by `ncclParamBind`. It belongs to NCCL and is never freed.
///
/// Since NCCL 2.30.4.
#[doc(alias = "ncclParamHandle_t")]
pub type NcclParamHandle = *mut c_void;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_codes_follow_both_rules() {
        assert_eq!(version_code(2, 3, 5), 2305);
        assert_eq!(version_code(2, 7, 8), 2708);
        assert_eq!(version_code(2, 8, 4), 2804);
        assert_eq!(version_code(2, 9, 6), 20906);
        assert_eq!(version_code(2, 10, 3), 21003);
        assert_eq!(version_code(2, 32, 3), 23203);
        assert_eq!(version_code(3, 0, 0), 30000);
        assert_eq!(version_code(1, 8, 0), 1800);
        assert_eq!(NCCL_VERSION_CODE, 23203);
    }

    #[test]
    fn sizes_of_data_types() {
        let sizes = [1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1];
        for (value, size) in sizes.into_iter().enumerate() {
            assert_eq!(
                NcclDataType(value as i32).size(),
                Some(size),
                "type {value}"
            );
        }
        for unknown in [12, 99, -1, i32::MIN, i32::MAX] {
            assert_eq!(NcclDataType(unknown).size(), None, "type {unknown}");
        }
        assert_eq!(NcclDataType::NumTypes.size(), None);
    }

    #[test]
    fn debug_prints_the_name_or_the_number() {
        assert_eq!(format!("{:?}", NcclResult::Success), "Success");
        assert_eq!(format!("{:?}", NcclResult(7)), "InProgress");
        assert_eq!(format!("{:?}", NcclResult(9)), "NcclResult(9)");
        assert_eq!(format!("{:?}", NcclResult(-1)), "NcclResult(-1)");
        assert_eq!(format!("{:?}", NcclDataType::Half), "Float16");
        assert_eq!(format!("{:?}", NcclDataType::NumTypes), "NcclDataType(12)");
        assert_eq!(format!("{:?}", NcclRedOp::Avg), "Avg");
        assert_eq!(format!("{:?}", NcclRedOp::NumOps), "NcclRedOp(5)");
        assert_eq!(format!("{:?}", NcclHostCftMode(i32::MIN)), "Default");
        assert_eq!(format!("{:?}", NcclNvlsHostMode(3)), "NcclNvlsHostMode(3)");
        assert_eq!(format!("{:?}", NcclEncryptionMode::None), "None");
    }

    #[test]
    fn c_names() {
        assert_eq!(NcclResult(8).c_name(), Some("ncclTimeout"));
        assert_eq!(NcclResult(255).c_name(), None);
        assert_eq!(NcclDataType(10).c_name(), Some("ncclFloat8e4m3"));
        assert_eq!(
            NcclEncryptionMode::Psk.c_name(),
            Some("NCCL_ENCRYPTION_MODE_PSK")
        );
    }

    #[test]
    fn debug_hides_the_id() {
        let mut id = NcclUniqueId {
            internal: [0xab; NCCL_UNIQUE_ID_BYTES],
        };
        let text = format!("{id:?}");
        assert_eq!(text, "NcclUniqueId(..)");
        id.internal[127] = 0xff;
        assert_eq!(format!("{id:?}"), text);
    }

    #[test]
    fn id_bytes_are_kept_as_they_are() {
        let mut id = NcclUniqueId {
            internal: [0; NCCL_UNIQUE_ID_BYTES],
        };
        id.internal[..4].copy_from_slice(&[0x00, 0x7f, 0x80, 0xff]);
        let copy = id;
        assert_eq!(copy, id);
        assert_eq!(copy.internal[..4], [0x00, 0x7f, 0x80, 0xff]);
        assert_eq!((size_of_val(&id), align_of_val(&id)), (128, 1));
    }

    #[test]
    fn sim_info_is_initialized() {
        assert_eq!(size_of::<NcclSimInfo>(), 24);
        let info = NcclSimInfo::default();
        assert_eq!(info, NcclSimInfo::new());
        assert_eq!(info.size, 24);
        assert_eq!(info.magic, 0x74685283);
        assert_eq!(info.version, 23203);
        assert_eq!(info.estimated_time, -1.0);
    }
}
