//! The structs that configure communicators, single collectives and encryption.

use std::ffi::{c_char, c_void};
use std::ptr;

use super::types::{
    NCCL_API_MAGIC, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, NCCL_VERSION_CODE,
    NcclEncryptionMode,
};
use crate::cuda::CuEvent;

/// How a communicator behaves. Start from [`NcclConfig::new`], which leaves every choice to NCCL, and
/// set what matters:
///
/// ```
/// use metrale_gpu_sys::nccl::NcclConfig;
///
/// let config = NcclConfig { max_ctas: 4, ..NcclConfig::new() };
/// # assert_eq!(config.max_ctas, 4);
/// ```
///
/// A value that NCCL refuses makes the call `InvalidArgument` and its communicator null. Where a
/// field names an environment variable, the variable wins over the field. A library older than a
/// field does not read it, so this layout serves every release from 2.18 on. All ranks are to give the
/// same values; NCCL hardly compares them.
///
/// Since NCCL 2.14.
#[doc(alias = "ncclConfig_t")]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NcclConfig {
    /// Bytes in this struct; set by `new`, not to be changed.
    pub size: usize,
    /// Marks the struct as initialized; set by `new`, not to be changed.
    pub magic: u32,
    /// The release that declared this layout; set by `new`, not to be changed. NCCL passes over
    /// the fields that are younger than it.
    pub version: u32,
    /// 1: calls return when their work is enqueued. 0: they return at once, most of them with
    /// [`NcclResult::InProgress`](super::NcclResult::InProgress), and `ncclCommGetAsyncError` tells
    /// when the next call may come; one refused argument then spoils the communicator for good.
    ///
    /// Default 1. Overridden by `NCCL_COMM_BLOCKING`.
    ///
    /// Since NCCL 2.14.
    pub blocking: i32,
    /// Thread blocks in a cluster of NCCL's kernels, 0 to 8. Not below 0; the upper end is not checked.
    ///
    /// Default 4 from compute capability 9.0 on, where alone it has an effect. Overridden by
    /// `NCCL_CGA_CLUSTER_SIZE`.
    ///
    /// Since NCCL 2.17.
    #[doc(alias = "cgaClusterSize")]
    pub cga_cluster_size: i32,
    /// Least number of thread blocks (channels) of a kernel, from 1 on; capped at 64.
    /// Not above `max_ctas`.
    ///
    /// Set alone it is refused by 2.30.7, where the unset `max_ctas` counts as smaller, and accepted by
    /// 2.32.3: set both.
    ///
    /// Default 1. Overridden by `NCCL_MIN_CTAS`.
    ///
    /// Since NCCL 2.17.
    #[doc(alias = "minCTAs")]
    pub min_ctas: i32,
    /// Greatest number of thread blocks (channels) of a kernel, from 1 on; capped at 64.
    ///
    /// Default 64 (32 in older releases). Overridden by `NCCL_MAX_CTAS`.
    ///
    /// Since NCCL 2.17.
    #[doc(alias = "maxCTAs")]
    pub max_ctas: i32,
    /// Name of the network module, a C string compared without case: `IB`, `Socket` or a plugin's. NCCL
    /// copies it.
    ///
    /// An unknown name is `InvalidUsage`, and the communicator is left set: abort it.
    ///
    /// Default null: NCCL chooses. Overridden by `NCCL_NET`.
    ///
    /// Since NCCL 2.17.
    #[doc(alias = "netName")]
    pub net_name: *const c_char,
    /// 1: communicators split off this one share its resources, and the abort of one can spoil the
    /// others. 0: each has its own. A revoked parent shares nothing.
    ///
    /// Default 0. Overridden by `NCCL_COMM_SPLIT_SHARE_RESOURCES`.
    ///
    /// Since NCCL 2.18.
    #[doc(alias = "splitShare")]
    pub split_share: i32,
    /// Traffic class of the communicator's network traffic; what it means is the network module's
    /// affair. Not checked.
    ///
    /// Default: none. The network module's own variables, such as `NCCL_IB_SL` and `NCCL_IB_TC`, win.
    ///
    /// Since NCCL 2.26.
    #[doc(alias = "trafficClass")]
    pub traffic_class: i32,
    /// Name of the communicator in logs and profiles, a C string.
    ///
    /// NCCL keeps the pointer, not a copy: the string has to live as long as the communicator.
    ///
    /// Default null: no name. No variable overrides it.
    ///
    /// Since NCCL 2.27.
    #[doc(alias = "commName")]
    pub comm_name: *const c_char,
    /// 1: use the network switches' own reductions (SHARP). 0: do not.
    ///
    /// Default 0. Overridden by `NCCL_COLLNET_ENABLE`.
    ///
    /// Since NCCL 2.27.
    #[doc(alias = "collnetEnable")]
    pub collnet_enable: i32,
    /// How sparing NCCL is with thread blocks: [`NCCL_CTA_POLICY_DEFAULT`](super::NCCL_CTA_POLICY_DEFAULT),
    /// [`NCCL_CTA_POLICY_EFFICIENCY`](super::NCCL_CTA_POLICY_EFFICIENCY),
    /// [`NCCL_CTA_POLICY_ZERO`](super::NCCL_CTA_POLICY_ZERO), or the last two together, which counts as the last.
    ///
    /// Default [`NCCL_CTA_POLICY_DEFAULT`](super::NCCL_CTA_POLICY_DEFAULT). Overridden by `NCCL_CTA_POLICY`.
    ///
    /// Since NCCL 2.27.
    #[doc(alias = "CTAPolicy")]
    pub cta_policy: i32,
    /// 1: communicators shrunk from this one share its resources. 0: each has its own. Without effect
    /// for [`NCCL_SHRINK_ABORT`](super::NCCL_SHRINK_ABORT) and for a revoked parent.
    ///
    /// Default 0. Overridden by `NCCL_COMM_SHRINK_SHARE_RESOURCES`.
    ///
    /// Since NCCL 2.27.
    #[doc(alias = "shrinkShare")]
    pub shrink_share: i32,
    /// Thread blocks of kernels that use NVLink SHARP (NVLS), from 1 on.
    ///
    /// Default: NCCL chooses. Overridden by `NCCL_NVLS_NCHANNELS`.
    ///
    /// Since NCCL 2.27.
    #[doc(alias = "nvlsCTAs")]
    pub nvls_ctas: i32,
    /// Network channels of each pair of ranks that send and receive, 1 to 64, rounded up to a power of
    /// two. More of them speed up single transfers; the default suits all-to-all.
    ///
    /// Default: NCCL chooses. Overridden by `NCCL_NCHANNELS_PER_NET_PEER`.
    ///
    /// Since NCCL 2.28.
    #[doc(alias = "nChannelsPerNetPeer")]
    pub n_channels_per_net_peer: i32,
    /// 1: schedule transfers for best use of NVLink. 0: do not.
    ///
    /// Default 0. Overridden by `NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE`.
    ///
    /// Since NCCL 2.28.
    #[doc(alias = "nvlinkCentricSched")]
    pub nvlink_centric_sched: i32,
    /// Which CUDA graphs hold the communicator's work. 0: none. 1: a single graph. 2: several, or graphs
    /// mixed with plain launches.
    ///
    /// Default 2. Overridden by `NCCL_GRAPH_MIXING_SUPPORT`, whose 1 means 2 here and whose 0 means 0.
    ///
    /// Since NCCL 2.29.
    #[doc(alias = "graphUsageMode")]
    pub graph_usage_mode: i32,
    /// Contexts for one-sided operations (`ncclPutSignal` and its kin), from 0 on; 0 switches them off.
    ///
    /// Default 1. Overridden by `NCCL_NUM_RMA_CTX`.
    ///
    /// Since NCCL 2.29.
    #[doc(alias = "numRmaCtx")]
    pub num_rma_ctx: i32,
    /// How many peers a rank sends to and receives from at one time, from 1 on; also bounds
    /// all-to-all, gather and scatter.
    ///
    /// Default: all ranks. Overridden by `NCCL_P2P_MAX_PEERS`.
    ///
    /// Since NCCL 2.30.
    #[doc(alias = "maxP2pPeers")]
    pub max_p2p_peers: i32,
    /// 1: NCCL orders its kernels in a captured graph. 0: the program does. 0 goes with a
    /// `graph_usage_mode` of 0 or 1; with 2 it is forced to 1 and a warning is logged.
    ///
    /// Default 1. Overridden by `NCCL_GRAPH_STREAM_ORDERING`.
    ///
    /// Since NCCL 2.30.7.
    #[doc(alias = "graphStreamOrdering")]
    pub graph_stream_ordering: i32,
    /// 1: work of several communicators on one device runs in the order in which the host issued
    /// it, which must be the same on all ranks. 0: there is no order between communicators. Work of
    /// communicators with 1 must not overlap with work of those with 0.
    ///
    /// Default 0. Overridden by `NCCL_LAUNCH_ORDER_IMPLICIT`.
    ///
    /// Since NCCL 2.31.
    #[doc(alias = "launchOrderImplicit")]
    pub launch_order_implicit: i32,
    /// Signals in each context for one-sided operations, from 0 on. `sig_idx` has to be below it.
    ///
    /// Default 1. No variable overrides it.
    ///
    /// Since NCCL 2.31.
    #[doc(alias = "numRmaSig")]
    pub num_rma_sig: i32,
    /// 1: signals work as soon as the communicator is made. 0: from its first window on;
    /// `ncclSignal` and `ncclWaitSignal` before that are `InvalidUsage`.
    ///
    /// Default 0. Overridden by `NCCL_RMA_EAGER_INIT`.
    ///
    /// Since NCCL 2.31.
    #[doc(alias = "rmaEagerInit")]
    pub rma_eager_init: i32,
    /// The number of an [`NcclHostCftMode`](super::NcclHostCftMode), such as `NcclHostCftMode::Disable.0`:
    /// whether the first window sets up the host side of the compute fabric transport (CFT). All ranks
    /// need the same.
    ///
    /// Default: the library's choice.
    ///
    /// Since NCCL 2.31.
    #[doc(alias = "hostCftMode")]
    pub host_cft_mode: i32,
    /// Bits of [`NcclNvlsHostMode`](super::NcclNvlsHostMode), such as `NcclNvlsHostMode::DisableTransport.0`:
    /// which uses of NVLink SHARP are switched off, to keep multicast memory for other communicators.
    /// Device code may still use it.
    ///
    /// Default: all in use.
    ///
    /// Since NCCL 2.32.
    #[doc(alias = "nvlsHostMode")]
    pub nvls_host_mode: i32,
}

impl NcclConfig {
    /// Everything left to NCCL.
    ///
    /// Since NCCL 2.14.
    #[doc(alias = "NCCL_CONFIG_INITIALIZER")]
    pub const fn new() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: NCCL_API_MAGIC,
            version: NCCL_VERSION_CODE as u32,
            blocking: NCCL_CONFIG_UNDEF_INT,
            cga_cluster_size: NCCL_CONFIG_UNDEF_INT,
            min_ctas: NCCL_CONFIG_UNDEF_INT,
            max_ctas: NCCL_CONFIG_UNDEF_INT,
            net_name: NCCL_CONFIG_UNDEF_PTR,
            split_share: NCCL_CONFIG_UNDEF_INT,
            traffic_class: NCCL_CONFIG_UNDEF_INT,
            comm_name: NCCL_CONFIG_UNDEF_PTR,
            collnet_enable: NCCL_CONFIG_UNDEF_INT,
            cta_policy: NCCL_CONFIG_UNDEF_INT,
            shrink_share: NCCL_CONFIG_UNDEF_INT,
            nvls_ctas: NCCL_CONFIG_UNDEF_INT,
            n_channels_per_net_peer: NCCL_CONFIG_UNDEF_INT,
            nvlink_centric_sched: NCCL_CONFIG_UNDEF_INT,
            graph_usage_mode: NCCL_CONFIG_UNDEF_INT,
            num_rma_ctx: NCCL_CONFIG_UNDEF_INT,
            max_p2p_peers: NCCL_CONFIG_UNDEF_INT,
            graph_stream_ordering: NCCL_CONFIG_UNDEF_INT,
            launch_order_implicit: NCCL_CONFIG_UNDEF_INT,
            num_rma_sig: NCCL_CONFIG_UNDEF_INT,
            rma_eager_init: NCCL_CONFIG_UNDEF_INT,
            host_cft_mode: NCCL_CONFIG_UNDEF_INT,
            nvls_host_mode: NCCL_CONFIG_UNDEF_INT,
        }
    }

    /// Everything left to NCCL, but for [`blocking`](Self::blocking), which is 0.
    pub const fn non_blocking() -> Self {
        Self {
            blocking: 0,
            ..Self::new()
        }
    }
}

impl Default for NcclConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// One option for a vendor's own build of NCCL, in a list that hangs on [`NcclCollConfig::ext`].
/// NVIDIA's library ignores them all. The list must end, and no key may occur twice.
///
/// Since NCCL 2.31.
#[doc(alias = "ncclConfigExt_t")]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NcclConfigExt {
    /// The next option; null in the last.
    pub next: *mut NcclConfigExt,
    /// Which option this is.
    pub key: NcclConfigExtKey,
    /// What it is set to; which member holds, the key decides.
    pub val: NcclConfigExtVal,
}

/// Which vendor's option an [`NcclConfigExt`] is.
///
/// Since NCCL 2.31.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NcclConfigExtKey {
    /// The vendor: a number of its own choice, not 0 and below 2^24.
    #[doc(alias = "vendorId")]
    pub vendor_id: i32,
    /// The vendor's number for the option.
    #[doc(alias = "optionId")]
    pub option_id: i32,
}

/// The value of an [`NcclConfigExt`].
///
/// Since NCCL 2.31.
#[repr(C)]
#[derive(Clone, Copy)]
pub union NcclConfigExtVal {
    /// A number.
    pub i: i32,
    /// A C string.
    pub s: *const c_char,
    /// Anything the size of a pointer.
    pub raw: *mut c_void,
}

/// How one collective is carried out, for the calls whose names end in `Config`. Start from
/// [`NcclCollConfig::new`].
///
/// A variable in the environment wins over a field here, and a field here over the communicator's
/// [`NcclConfig`]. The struct, and what it points to, has to live as long as the call. All ranks must
/// give the same values; NCCL does not compare them.
///
/// Since NCCL 2.31.
#[doc(alias = "ncclCollConfig_t")]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NcclCollConfig {
    /// Bytes in this struct; set by `new`, not to be changed.
    pub size: usize,
    /// Marks the struct as initialized; set by `new`, not to be changed.
    pub magic: u32,
    /// The release that declared this layout; set by `new`, not to be changed.
    pub version: u32,
    /// Options for a vendor's own build of NCCL; null: none, the default.
    ///
    /// Since NCCL 2.31.
    pub ext: *mut NcclConfigExt,
    /// Least number of thread blocks (channels). A value out of range is passed over; one above
    /// `max_ctas` counts as 1.
    ///
    /// Default: the communicator's. Overridden by `NCCL_MIN_CTAS`.
    ///
    /// Since NCCL 2.31.
    #[doc(alias = "minCTAs")]
    pub min_ctas: i32,
    /// Greatest number of thread blocks (channels), at most the communicator's. A value out of
    /// range is passed over.
    ///
    /// Default: the communicator's. Overridden by `NCCL_MAX_CTAS`.
    ///
    /// Since NCCL 2.31.
    #[doc(alias = "maxCTAs")]
    pub max_ctas: i32,
    /// Thread blocks of a kernel that uses NVLink SHARP (NVLS).
    ///
    /// Default: the communicator's. Overridden by `NCCL_NVLS_NCHANNELS`.
    ///
    /// Since NCCL 2.31.
    #[doc(alias = "nvlsCTAs")]
    pub nvls_ctas: i32,
    /// Thread blocks in a cluster of the kernel. All collectives of a group need the same value. A
    /// value out of range is passed over.
    ///
    /// Default: the communicator's. Overridden by `NCCL_CGA_CLUSTER_SIZE`.
    ///
    /// Since NCCL 2.31.
    #[doc(alias = "cgaClusterSize")]
    pub cga_cluster_size: i32,
    /// Which algorithms may be used, a C string of name prefixes without case: `ring`, `tree`, `nvls`,
    /// `pat`, `symk` and longer ones; a comma is "or", `+` is "and", `^` is "not". All-to-all, gather
    /// and scatter have none to choose from.
    ///
    /// Default null, or an empty string: NCCL chooses.
    ///
    /// Since NCCL 2.31.
    #[doc(alias = "algSelection")]
    pub alg_selection: *const c_char,
    /// What happens when `alg_selection` cannot be followed. 1: the call is `InvalidArgument`. 0: NCCL
    /// chooses instead.
    ///
    /// Default 1.
    ///
    /// Since NCCL 2.31.
    #[doc(alias = "forceAlgSelection")]
    pub force_alg_selection: i32,
    /// How sparing this call is with thread blocks; values as in [`NcclConfig::cta_policy`].
    ///
    /// Default: the communicator's. Overridden by `NCCL_CTA_POLICY`.
    ///
    /// Since NCCL 2.31.
    #[doc(alias = "CTAPolicy")]
    pub cta_policy: i32,
    /// A number that profiler plugins receive with this call's events; the highest bit is NCCL's.
    ///
    /// Default 0: none.
    ///
    /// Since NCCL 2.31.
    #[doc(alias = "userProfilerTag")]
    pub user_profiler_tag: u64,
    /// An event that NCCL records when the collective's kernel has been launched, so that other work
    /// can start beside it; with CUDA before 12.3, before the launch. Either every rank gives one or
    /// none does, and a group takes one for each communicator.
    ///
    /// It is made with [`CU_EVENT_DISABLE_TIMING`](crate::cuda::CU_EVENT_DISABLE_TIMING), is not an
    /// interprocess event, belongs to the caller, and has to outlive every wait and graph that uses it.
    /// Copy-engine work does not record it.
    ///
    /// Default 0: none.
    ///
    /// Since NCCL 2.32.
    #[doc(alias = "launchCompletionEvent")]
    pub launch_completion_event: CuEvent,
}

impl NcclCollConfig {
    /// Everything as the communicator has it.
    ///
    /// Since NCCL 2.31.
    #[doc(alias = "NCCL_COLLCONFIG_INITIALIZER")]
    pub const fn new() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: NCCL_API_MAGIC,
            version: NCCL_VERSION_CODE as u32,
            ext: ptr::null_mut(),
            min_ctas: NCCL_CONFIG_UNDEF_INT,
            max_ctas: NCCL_CONFIG_UNDEF_INT,
            nvls_ctas: NCCL_CONFIG_UNDEF_INT,
            cga_cluster_size: NCCL_CONFIG_UNDEF_INT,
            alg_selection: NCCL_CONFIG_UNDEF_PTR,
            force_alg_selection: 1,
            cta_policy: NCCL_CONFIG_UNDEF_INT,
            user_profiler_tag: 0,
            launch_completion_event: 0,
        }
    }
}

impl Default for NcclCollConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether NCCL's TCP connections are encrypted, for `ncclSetEncryption`. Start from
/// [`NcclEncryptionConfig::new`].
///
/// Since NCCL 2.32.
#[doc(alias = "ncclEncryptionConfig_t")]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NcclEncryptionConfig {
    /// Bytes in this struct; set by `new`, not to be changed.
    pub size: usize,
    /// Marks the struct as initialized; set by `new`, not to be changed.
    pub magic: u32,
    /// The release that declared this layout; set by `new`, not to be changed.
    pub version: u32,
    /// The number of an [`NcclEncryptionMode`], such as `NcclEncryptionMode::Psk.0`.
    ///
    /// Default: none.
    ///
    /// Since NCCL 2.32.
    pub mode: i32,
    /// The key, a C string of at least 32 bytes, the same in all processes; needed for
    /// [`NcclEncryptionMode::Psk`].
    ///
    /// Default null.
    ///
    /// Since NCCL 2.32.
    pub psk: *const c_char,
}

impl NcclEncryptionConfig {
    /// No encryption.
    ///
    /// Since NCCL 2.32.
    #[doc(alias = "NCCL_ENCRYPTION_CONFIG_INITIALIZER")]
    pub const fn new() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: NCCL_API_MAGIC,
            version: NCCL_VERSION_CODE as u32,
            mode: NcclEncryptionMode::None.0,
            psk: NCCL_CONFIG_UNDEF_PTR,
        }
    }
}

impl Default for NcclEncryptionConfig {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// A struct's 32-bit words, without the bytes that are padding in it.
    fn words<const N: usize>(config: &NcclConfig, words: [usize; N]) -> [i32; N] {
        let start: *const NcclConfig = config;
        // SAFETY: each index is that of an i32 field inside the struct, aligned like one.
        words.map(|word| unsafe { start.cast::<i32>().add(word).read() })
    }

    #[test]
    fn config_layout() {
        assert_eq!(size_of::<NcclConfig>(), 120);
        assert_eq!(offset_of!(NcclConfig, blocking), 16);
        assert_eq!(offset_of!(NcclConfig, net_name), 32);
        assert_eq!(offset_of!(NcclConfig, comm_name), 48);
        assert_eq!(offset_of!(NcclConfig, collnet_enable), 56);
        assert_eq!(offset_of!(NcclConfig, nvls_host_mode), 112);
    }

    #[test]
    fn a_new_config_leaves_everything_to_nccl() {
        let config = NcclConfig::new();
        assert_eq!(config.size, 120);
        assert_eq!(config.magic, 0xcafebeef);
        assert_eq!(config.version, 23203);
        assert!(config.net_name.is_null() && config.comm_name.is_null());
        // blocking to max_ctas, split_share and traffic_class, collnet_enable to nvls_host_mode.
        assert_eq!(words(&config, [4, 5, 6, 7, 10, 11]), [i32::MIN; 6]);
        assert_eq!(
            words(&config, std::array::from_fn::<_, 15, _>(|i| 14 + i)),
            [i32::MIN; 15]
        );
        assert_eq!(
            format!("{:?}", NcclConfig::default()),
            format!("{config:?}")
        );
    }

    #[test]
    fn non_blocking_differs_in_blocking_alone() {
        let config = NcclConfig::non_blocking();
        assert_eq!(config.blocking, 0);
        let back = NcclConfig {
            blocking: NCCL_CONFIG_UNDEF_INT,
            ..config
        };
        assert_eq!(format!("{back:?}"), format!("{:?}", NcclConfig::new()));
    }

    #[test]
    fn collective_config() {
        assert_eq!(size_of::<NcclCollConfig>(), 72);
        assert_eq!(offset_of!(NcclCollConfig, alg_selection), 40);
        assert_eq!(offset_of!(NcclCollConfig, user_profiler_tag), 56);
        let config = NcclCollConfig::default();
        assert_eq!(
            (config.size, config.magic, config.version),
            (72, 0xcafebeef, 23203)
        );
        assert!(config.ext.is_null() && config.alg_selection.is_null());
        let unset = [
            config.min_ctas,
            config.max_ctas,
            config.nvls_ctas,
            config.cga_cluster_size,
            config.cta_policy,
        ];
        assert_eq!(unset, [i32::MIN; 5]);
        assert_eq!(config.force_alg_selection, 1);
        assert_eq!(config.user_profiler_tag, 0);
        assert_eq!(config.launch_completion_event, 0);
    }

    #[test]
    fn extension_layout() {
        assert_eq!(size_of::<NcclConfigExt>(), 24);
        assert_eq!(offset_of!(NcclConfigExt, key), 8);
        assert_eq!(offset_of!(NcclConfigExt, val), 16);
    }

    #[test]
    fn encryption_config() {
        assert_eq!(size_of::<NcclEncryptionConfig>(), 32);
        let config = NcclEncryptionConfig::default();
        assert_eq!(
            (config.size, config.magic, config.version),
            (32, 0xcafebeef, 23203)
        );
        assert_eq!(config.mode, NcclEncryptionMode::None.0);
        assert!(config.psk.is_null());
    }
}
