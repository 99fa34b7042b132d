//! The devices and what they say of themselves.

use std::sync::atomic::AtomicUsize;
use std::sync::{LazyLock, RwLock};

use super::context::Primary;
use crate::cuda::{CuDevice, CuDeviceAttribute, CuResult, CuUuid};

/// Memory of each device, in bytes. More cannot be allocated.
pub(super) const MEMORY: usize = 16 << 30;

pub(super) const NAME: &str = "metrale emulator";

/// Devices where `METRALE_EMULATOR_DEVICES` does not say otherwise.
const DEFAULT_COUNT: i32 = 8;
const MAX_COUNT: i32 = 64;

pub(super) struct Device {
    pub primary: RwLock<Primary>,
    /// Bytes that are allocated.
    pub used: AtomicUsize,
}

pub(super) fn devices() -> &'static [Device] {
    static DEVICES: LazyLock<Vec<Device>> = LazyLock::new(|| {
        let value = std::env::var_os("METRALE_EMULATOR_DEVICES");
        let count = match value {
            None => DEFAULT_COUNT,
            Some(value) => parse_count(&value.to_string_lossy()).unwrap_or_else(|| {
                eprintln!(
                    "metrale-gpu-sys: METRALE_EMULATOR_DEVICES={} is not a number from 1 to {MAX_COUNT}; \
                     taking {DEFAULT_COUNT}",
                    value.to_string_lossy()
                );
                DEFAULT_COUNT
            }),
        };
        let new = || Device {
            primary: RwLock::default(),
            used: AtomicUsize::new(0),
        };
        (0..count).map(|_| new()).collect()
    });
    &DEVICES
}

fn parse_count(text: &str) -> Option<i32> {
    let count = text.trim().parse().ok()?;
    (1..=MAX_COUNT).contains(&count).then_some(count)
}

/// How many devices there are.
pub(in crate::emulator) fn device_count() -> i32 {
    devices().len() as i32
}

pub(super) fn get(device: CuDevice) -> Result<&'static Device, CuResult> {
    usize::try_from(device)
        .ok()
        .and_then(|device| devices().get(device))
        .ok_or(CuResult::InvalidDevice)
}

/// An identity that is the device's in every process.
pub(super) fn uuid(device: CuDevice) -> CuUuid {
    let mut bytes = *b"metrale\0emulated";
    bytes[7] = device as u8;
    CuUuid { bytes }
}

/// The PCI bus that the device is alone on.
fn bus(device: CuDevice) -> i32 {
    device + 1
}

pub(super) fn pci_address(device: CuDevice) -> String {
    format!("0000:{:02X}:00.0", bus(device))
}

/// The device at a PCI address; domain and function may be left out.
pub(super) fn at_pci_address(address: &str) -> Result<CuDevice, CuResult> {
    let hex = |text: &str| u8::from_str_radix(text, 16).map_err(|_| CuResult::InvalidValue);
    let (rest, function) = address.split_once('.').unwrap_or((address, "0"));
    let parts: Vec<&str> = rest.split(':').collect();
    let (domain, bus_text, slot) = match parts[..] {
        [domain, bus, slot] => (domain, bus, slot),
        [bus, slot] => ("0", bus, slot),
        _ => return Err(CuResult::InvalidValue),
    };
    let others = u32::from_str_radix(domain, 16).map_err(|_| CuResult::InvalidValue)?
        + u32::from(hex(slot)?)
        + u32::from(hex(function)?);
    let device = i32::from(hex(bus_text)?) - bus(0);
    match others == 0 && (0..device_count()).contains(&device) {
        true => Ok(device),
        false => Err(CuResult::InvalidDevice),
    }
}

/// What a device of compute capability 9.0 answers, in so far as it means something here; 0 for
/// features that are not emulated.
pub(super) fn attribute(attribute: CuDeviceAttribute, device: CuDevice) -> Result<i32, CuResult> {
    use CuDeviceAttribute as A;
    Ok(match attribute {
        A::MaxThreadsPerBlock | A::MaxBlockDimX | A::MaxBlockDimY => 1024,
        A::MaxBlockDimZ => 64,
        A::MaxGridDimX | A::MaxPitch => i32::MAX,
        A::MaxGridDimY | A::MaxGridDimZ => 65535,
        A::MaxSharedMemoryPerBlock => super::kernel::MAX_SHARED as i32,
        A::MaxSharedMemoryPerBlockOptin => 227 << 10,
        A::MaxSharedMemoryPerMultiprocessor => 228 << 10,
        A::ReservedSharedMemoryPerBlock => 1 << 10,
        A::TotalConstantMemory => 65536,
        A::WarpSize => 32,
        A::MaxRegistersPerBlock | A::MaxRegistersPerMultiprocessor => 65536,
        A::ClockRate => 1_980_000,
        A::MemoryClockRate => 3_201_000,
        A::GlobalMemoryBusWidth => 6144,
        A::L2CacheSize => 60 << 20,
        A::MultiprocessorCount => 132,
        A::MaxThreadsPerMultiprocessor => 2048,
        A::MaxBlocksPerMultiprocessor => 32,
        A::AsyncEngineCount => 3,
        A::TextureAlignment | A::SurfaceAlignment => 512,
        A::TexturePitchAlignment => 32,
        A::ComputeCapabilityMajor => 9,
        A::ComputeCapabilityMinor => 0,
        A::SingleToDoublePrecisionPerfRatio => 2,
        A::PciBusId => bus(device),
        A::PciDeviceId | A::PciDomainId => 0,
        A::NumaId | A::HostNumaId => -1,
        A::MemSyncDomainCount => 4,
        A::GpuOverlap
        | A::CanMapHostMemory
        | A::ConcurrentKernels
        | A::UnifiedAddressing
        | A::StreamPrioritiesSupported
        | A::ComputePreemptionSupported
        | A::CanUseHostPointerForRegisteredMem
        | A::HostRegisterSupported
        | A::MemoryPoolsSupported
        | A::CanUse64BitStreamMemOps
        | A::CanUseStreamWaitValueNor => 1,
        _ if attribute.c_name().is_some() => 0,
        _ => return Err(CuResult::InvalidValue),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_from_one_to_the_limit() {
        assert_eq!(parse_count("1"), Some(1));
        assert_eq!(parse_count(" 64 "), Some(64));
        for bad in ["", "0", "-1", "65", "8x", "eight"] {
            assert_eq!(parse_count(bad), None, "{bad}");
        }
    }

    #[test]
    fn pci_addresses_lead_back_to_their_devices() {
        for device in 0..device_count() {
            let address = pci_address(device);
            assert_eq!(at_pci_address(&address), Ok(device), "{address}");
            assert_eq!(at_pci_address(&address.to_lowercase()), Ok(device));
            assert_eq!(at_pci_address(&address[5..10]), Ok(device));
        }
        for absent in [
            "0000:00:00.0",
            "0001:01:00.0",
            "0000:01:01.0",
            "01:00.1",
            "ff:1f.0",
        ] {
            assert_eq!(
                at_pci_address(absent),
                Err(CuResult::InvalidDevice),
                "{absent}"
            );
        }
        for bad in ["", "zz", "1", "::", "0000:+1:00.0x", "0:0:0:0"] {
            assert_eq!(at_pci_address(bad), Err(CuResult::InvalidValue), "{bad}");
        }
    }
}
