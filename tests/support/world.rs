//! What there is to run on, found at run time, and what a case needs of it.

#![allow(dead_code)]

use std::sync::OnceLock;

use metrale_gpu_sys::cuda::{CuDeviceAttribute, device_attribute, device_count, init};
use metrale_gpu_sys::nccl::{NcclVersion, version};

use crate::gated::short;
use crate::{apart, calls};

/// The machine and the libraries.
pub struct World {
    pub devices: i32,
    /// One a device, or as many as `METRALE_TEST_RANKS_PER_GPU` says, where NCCL takes them.
    pub ranks: i32,
    nccl: NcclVersion,
    /// Of the first device, major * 10 + minor.
    capability: i32,
    /// Why nothing can run here.
    missing: Option<String>,
}

/// What a case needs. Everything starts from [`ANY`].
#[derive(Clone, Copy)]
pub struct Need {
    ranks: i32,
    devices: i32,
    nccl: i32,
    capability: i32,
    emulator: bool,
    /// Why the emulator will not do.
    gpu: Option<&'static str>,
    function: Option<&'static str>,
    /// What its ranks share that processes do not.
    shares: Option<&'static str>,
}

/// Any world with one device.
pub const ANY: Need = Need {
    ranks: 1,
    devices: 1,
    nccl: 0,
    capability: 0,
    emulator: false,
    gpu: None,
    function: None,
    shares: None,
};

/// What crashes or hangs the real libraries; the emulator answers with a code and documents it.
pub const EMULATOR: Need = Need {
    emulator: true,
    ..ANY
};

impl Need {
    pub const fn ranks(self, ranks: i32) -> Self {
        Self { ranks, ..self }
    }

    pub const fn devices(self, devices: i32) -> Self {
        Self { devices, ..self }
    }

    /// NCCL 2.`minor` or newer.
    pub const fn nccl(self, minor: i32) -> Self {
        Self {
            nccl: minor,
            ..self
        }
    }

    /// A function younger than NCCL 2.18.
    pub const fn calls(self, function: &'static str) -> Self {
        Self {
            function: Some(function),
            ..self
        }
    }

    /// Ranks that are threads of one process, for what they share.
    pub const fn shares(self, what: &'static str) -> Self {
        Self {
            shares: Some(what),
            ..self
        }
    }

    /// A real GPU, since on the emulator `why`.
    pub const fn gpu(self, why: &'static str) -> Self {
        Self {
            gpu: Some(why),
            ..self
        }
    }

    /// Reductions of the 8-bit floats.
    pub const fn fp8(self) -> Self {
        Self {
            capability: 90,
            ..self.nccl(24)
        }
    }

    /// Ok, or the reason why a case that needs this cannot run.
    pub fn met(&self, world: &World) -> Result<(), String> {
        if let Some(missing) = &world.missing {
            // A machine that must have a GPU fails, and does not pass over everything.
            return match std::env::var_os("METRALE_EXPECT_GPU") {
                Some(_) => Ok(()),
                None => Err(missing.clone()),
            };
        }
        if self.emulator && !cfg!(feature = "emulator") {
            return Err(
                "needs the emulator: the real libraries crash, hang or do not say".to_owned(),
            );
        }
        if let (true, Some(what)) = (apart::wanted(), self.shares) {
            return Err(format!("needs its ranks in one process: they share {what}"));
        }
        if let Some(why) = self.gpu.filter(|_| cfg!(feature = "emulator")) {
            return Err(format!("needs a GPU: {why}"));
        }
        if self.devices > world.devices {
            return Err(format!(
                "needs {} devices, and there are {}",
                self.devices, world.devices
            ));
        }
        if self.ranks > world.ranks {
            let more = if world.nccl.minor < MANY {
                format!(", one a GPU (NCCL {} takes no more)", world.nccl)
            } else if world.ranks == world.devices {
                " (METRALE_TEST_RANKS_PER_GPU makes more)".to_owned()
            } else {
                String::new()
            };
            return Err(format!(
                "needs {} ranks, and there are {}{more}",
                self.ranks, world.ranks
            ));
        }
        if self.nccl > world.nccl.minor {
            return Err(format!(
                "needs NCCL 2.{}, and this is {}",
                self.nccl, world.nccl
            ));
        }
        if self.capability > world.capability {
            return Err(format!(
                "needs a device of compute capability {}",
                self.capability
            ));
        }
        match self.function {
            Some(name) if !calls::has(name) => {
                Err(format!("needs {name}, and NCCL {} has none", world.nccl))
            }
            _ => Ok(()),
        }
    }
}

impl World {
    pub fn get() -> &'static World {
        static WORLD: OnceLock<World> = OnceLock::new();
        WORLD.get_or_init(|| {
            Self::look().unwrap_or_else(|missing| World {
                devices: 0,
                ranks: 0,
                nccl: NcclVersion::from_code(0),
                capability: 0,
                missing: Some(missing),
            })
        })
    }

    fn look() -> Result<World, String> {
        let devices = match init().and_then(|()| device_count()) {
            Ok(0) => return Err("needs a GPU, and the driver sees none".to_owned()),
            Ok(devices) => devices,
            Err(error) => return Err(format!("needs a GPU: {}", short(&error))),
        };
        let nccl = version().map_err(|_| "needs a real libnccl".to_owned())?;
        let attribute = |which| device_attribute(0, which).map_err(|error| error.to_string());
        let capability = attribute(CuDeviceAttribute::ComputeCapabilityMajor)? * 10
            + attribute(CuDeviceAttribute::ComputeCapabilityMinor)?;
        Ok(World {
            devices,
            ranks: devices
                * if nccl.minor < MANY {
                    1
                } else {
                    ranks_per_gpu()
                },
            nccl,
            capability,
            missing: None,
        })
    }
}

/// The first NCCL 2 that takes several ranks on a GPU.
const MANY: i32 = 30;

/// What `METRALE_TEST_RANKS_PER_GPU` asks for; 1 without it.
pub fn ranks_per_gpu() -> i32 {
    match std::env::var("METRALE_TEST_RANKS_PER_GPU") {
        Ok(text) => text
            .parse()
            .ok()
            .filter(|&n| n > 0)
            .expect("METRALE_TEST_RANKS_PER_GPU is a number from 1 on"),
        Err(_) => 1,
    }
}
